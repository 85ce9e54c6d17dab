"""Readers see labels in the place of the names of columns, levels and arms; records and queries keep the names."""

import base64
import re
from functools import cache
from typing import Any

import numpy as np
import pandas as pd
import pytest
from matplotlib.text import Text

from tests.registered import (
    CovariateBalancingEffect,
    EffectRule,
    KnownPropensityEffect,
    PolicySelector,
    RLearner,
    SubgroupEffects,
)
from torchdpcate.candidates.library import threshold_grid
from torchdpcate.cli.verify import verify
from torchdpcate.composition.settings import AdaptiveSecondStage
from torchdpcate.data.schema import TableSchema
from torchdpcate.errors import InputError
from torchdpcate.pages.reader import reader_page
from torchdpcate.privacy.budget import PrivacyBudget
from torchdpcate.release.combination import combine
from torchdpcate.release.file import Release, load_release, subject
from torchdpcate.verify.finding import findings

FACTS: dict[str, Any] = {
    "treatment": {"name": "q_trt", "label": "therapy", "labels": {0: "placebo", 1: "new drug"}},
    "outcome": {"name": "q_y", "low": 0, "high": 10, "unit": "points", "better": "lower", "label": "pain"},
    "covariates": {
        "q_age": {"low": 18, "high": 99, "unit": "years", "label": "age at entry", "missing": "indicator"},
        "q_sex": {"categories": [1, 2], "label": "sex", "labels": {1: "men", 2: "women"}},
        "q_site": {"categories": ["q_n", "q_s", "q_w"], "label": "region", "labels": dict(q_n="A", q_s="B", q_w="C")},
    },
    "propensity": 0.5,
}
ARMS = {"name": "q_trt", "categories": ["q_hi", "q_lo", "q_no"], "reference": "q_no", "label": "dose"}
THREE = FACTS | {
    "treatment": ARMS | {"labels": {"q_no": "no drug", "q_lo": "little", "q_hi": "much"}},
    "propensity": [1 / 3] * 3,
}
EVENT = {"time": "q_t", "event": "q_y", "horizon": 5, "unit": "months", "better": "higher", "label": "relapse"}
SURVIVAL = FACTS | {"outcome": EVENT, "propensity": None, "overlap": 0.1}
CELLS = [{"q_sex": True, "q_age": [50]}, {"q_site": True}]
BUDGET = PrivacyBudget(8.0, 1e-5)


def people(n: int, seed: int = 0) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    age = np.where(rng.uniform(size=n) < 0.1, np.nan, rng.uniform(18, 99, n))
    return pd.DataFrame({"q_age": age, "q_sex": rng.integers(1, 3, n), "q_site": rng.choice(["q_n", "q_s", "q_w"], n)})


def fitted(learner: Any, arms: Any = (0, 1), n: int = 3000, seed: int = 0) -> Any:
    rng, x = np.random.default_rng(seed + 1), people(n, seed)
    a = rng.integers(0, len(arms), n)
    y = (5 - a * (2 + 2 * (x["q_sex"] == 2)) + rng.normal(0, 1, n)).clip(0, 10)
    if TableSchema.of(learner.domain).domain.censoring is not None:
        y = pd.DataFrame({"q_t": y, "q_y": rng.integers(0, 2, n)})
    return learner.fit(x, np.array(arms, dtype=object if isinstance(arms[0], str) else float)[a], y)


def effect(facts: dict[str, Any], seed: int = 0, **settings: Any) -> Release:
    arms = ("q_no", "q_lo", "q_hi") if facts is THREE else (0, 1)
    stage = AdaptiveSecondStage(**settings)
    return fitted(
        RLearner(TableSchema.from_dict(facts), BUDGET, second_stage=stage), arms, seed=seed
    ).release_function()


def subgroups(facts: dict[str, Any], cells: Any = CELLS) -> Release:
    arms = ("q_no", "q_lo", "q_hi") if facts is THREE else (0, 1)
    return fitted(SubgroupEffects(TableSchema.from_dict(facts), BUDGET, subgroups=cells), arms).release()


def policy(facts: dict[str, Any]) -> Release:
    schema = TableSchema.from_dict(facts)
    return fitted(PolicySelector(schema, BUDGET, policies=threshold_grid(schema, [0.5]))).release()


MADE = {
    "composed": lambda: effect(FACTS, cells=CELLS, lines=["groups", "ATO", "policies"]),
    "composed, by a horizon": lambda: effect(SURVIVAL),
    "composed, three arms": lambda: effect(THREE),
    "subgroups": lambda: subgroups(FACTS),
    "subgroups, three arms": lambda: subgroups(THREE),
    "everybody": lambda: subgroups(FACTS, "everybody"),
    "average": lambda: fitted(KnownPropensityEffect(TableSchema.from_dict(FACTS), BUDGET)).release(),
    "average, balanced": lambda: fitted(
        CovariateBalancingEffect(TableSchema.from_dict(FACTS | {"propensity": None, "overlap": 0.1}), BUDGET)
    ).release(),
    "rule": lambda: fitted(EffectRule(TableSchema.from_dict(FACTS), BUDGET)).release(),
    "policy": lambda: policy(FACTS),
    "sites": lambda: combine([effect(FACTS, k, cells=CELLS) for k in range(2)], ("north", "south")),
    "sites, subgroups": lambda: combine([subgroups(FACTS), subgroups(FACTS)], ("north", "south")),
}


@cache
def made(name: str) -> Release:
    return MADE[name]()


def figures(page: str) -> str:
    """Return the words in a page's figures."""
    return " ".join(
        base64.b64decode(svg).decode() for svg in re.findall(r"data:image/svg\+xml;base64,([\w+/=]+)", page)
    )


@pytest.mark.parametrize("name", MADE)
def test_no_raw_name_is_shown(name, tmp_path, capsys):
    path = made(name).save(tmp_path / "release.safetensors")
    release = load_release(path)  # labels are in the file
    page, card = reader_page(release, path=path).split("<details")
    assert "<td>q_sex (sex)</td><td>one of 1, 2 (men, women)</td>" in card  # who asks for rows needs the names
    verify(str(path))
    inspected = capsys.readouterr().out.partition("release of ")
    figure = [text.get_text() for text in release.plot().findobj(Text)]
    shown = {
        "findings": " ".join(findings(release)),
        "page": page,
        "page's figures": figures(page),
        "figure": " ".join(figure),
        "inspect": inspected[0] + inspected[2].split("Privacy")[0],
        "one line": f"{release!r} {release._repr_html_()} {subject(release)}",
    }
    assert {place: re.findall(r".{0,30}q_\w+.{0,20}", text) for place, text in shown.items() if "q_" in text} == {}
    assert "pain" in shown["findings"] or "relapse" in shown["findings"]


def test_cells_and_policies_are_called_by_labels_and_found_by_names():
    release = made("composed")
    assert "sex = women, age at entry >= 50" in release.lines()["line"].tolist()
    assert "q_sex = 2, q_age >= 50" in release.averages.cells
    cells = made("subgroups")
    assert [title for title in cells.named.titles if "missing" in title] == [
        "sex = men, age at entry missing",
        "sex = women, age at entry missing",
    ]
    assert len(cells.contrast("q_site = q_n", "q_site = q_s")) == 3
    assert made("subgroups, three arms").named.titles[0] == "sex = men, age at entry < 50: much instead of no drug"
    names = made("subgroups, three arms").lines().index
    assert {name.split(": ")[1] for name in names} == {f"{arm} instead of q_no" for arm in ("q_hi", "q_lo")}
    assert made("policy").title != made("policy").name


def test_rows_are_asked_by_names():
    assert made("composed").effect(people(3)).shape == (3,)
    assert list(made("composed, three arms").schema.compared) == ["q_hi", "q_lo"]


@pytest.mark.parametrize("facts", [FACTS, THREE, SURVIVAL])
def test_labels_change_nothing_but_words_and_survive_in_entries(facts):
    schema = TableSchema.from_dict(facts)
    again = TableSchema.from_dict(schema.to_dict())
    assert again.to_dict() == schema.to_dict()
    assert (again.arm_labels, [c.labels for c in again.covariates]) == (
        schema.arm_labels,
        [c.labels for c in schema.covariates],
    )
    bare = {
        name: {k: v for k, v in one.items() if k not in ("label", "labels")}
        for name, one in facts.items()
        if isinstance(one, dict)
    }
    bare["covariates"] = {
        n: {k: v for k, v in e.items() if k not in ("label", "labels")} for n, e in facts["covariates"].items()
    }
    bare["treatment"] = bare["treatment"] if "categories" in bare["treatment"] else "q_trt"
    assert TableSchema.from_dict({**facts, **bare}) == schema


def test_hours_are_numbered():
    facts = FACTS | {"covariates": {"q_hr": {"low": 20, "high": 250, "hours": 2, "label": "pulse"}}}
    assert [c.label for c in TableSchema.from_dict(facts).covariates] == ["pulse, hour 0", "pulse, hour 1"]


@pytest.mark.parametrize(
    ("place", "entry", "problem"),
    [
        ("q_age", {"label": 3}, "label of covariate 'q_age' is 3; give words of at most 60 letters"),
        ("q_age", {"label": "a" * 61}, "give words of at most 60 letters"),
        ("q_age", {"label": "\x1b[31mage"}, "letters that can be shown"),
        ("q_age", {"label": "\u0430ge"}, "letters of one script"),
        ("q_age", {"label": "Sex"}, "labels 'Sex' and 'sex' look alike"),
        ("q_age", {"label": "pain"}, "labels 'pain' and 'pain' look alike"),
        ("q_age", {"labels": {18: "young"}}, "unknown entry 'labels'"),
        ("q_sex", {"labels": {1: "men", 3: "women"}}, "labels of covariate 'q_sex': 3 is not among its levels"),
        ("q_sex", {"labels": {1: "men"}}, "labels of covariate 'q_sex' has no label for the level 2"),
        ("q_sex", {"labels": {1: "men", 2: "men"}}, "look alike"),
        ("q_sex", {"labels": {1: "men", 2: "wo\nmen"}}, "letters that can be shown"),
        ("q_sex", {"labels": ["men", "women"]}, "give a label for each of its levels"),
        ("treatment", {"labels": {0: "placebo"}}, "labels of treatment has no label for the level 1"),
        ("outcome", {"labels": {0: "none"}}, "unknown entry 'labels'"),
    ],
)
def test_a_label_that_cannot_be_shown_is_refused(place, entry, problem):
    facts = FACTS | {"covariates": dict(FACTS["covariates"])}
    where = facts if place in facts else facts["covariates"]
    where[place] = {**where[place], **entry}
    with pytest.raises(InputError, match=re.escape(problem)):
        TableSchema.from_dict(facts)
