"""What a page shows is what the release answers, to the last digit shown."""

import pandas as pd
import pytest

from tests.pages.releases import composed, rule
from torchdpcate.errors import InputError
from torchdpcate.pages.questions import LEVEL, answer, curve, questions
from torchdpcate.verify.finding import number

PERSON = {"age": 45.0, "site": "b"}


def test_an_effect_is_the_release_s_own_with_its_interval():
    release, row = composed(), pd.DataFrame([PERSON])
    found = answer(release, PERSON)
    assert found.headline == f"effect of drug = 1 instead of 0 on days: {number(release.effect(row)[0])}"
    low, high = release.interval(row, LEVEL)[0]
    assert found.interval.startswith(f"95% interval {low:.4g} to {high:.4g}: sampling and all privacy noise")


def test_a_curve_is_the_release_s_own():
    release = composed()
    age, site = questions(release)
    drawn = curve(release, PERSON, age, count=5)
    rows = pd.DataFrame({"age": drawn.points, "site": "b"})
    assert drawn.values == release.effect(rows).tolist()
    assert [list(ends) for ends in drawn.ends] == release.interval(rows, LEVEL).tolist()
    assert curve(release, PERSON, site).points == ["a", "b", "c"]


def test_a_rule_decides():
    found = answer(rule(), {"x0": 1.0})
    score = rule().score([[1.0]])[0]
    assert found.headline == f"a = {int(score > 0)}"
    assert f"{score:+.4g}" in found.interval


def test_values_outside_the_bounds_are_refused():
    with pytest.raises(InputError, match="age"):
        answer(composed(), {**PERSON, "age": 81.0})
