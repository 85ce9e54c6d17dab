"""Averages of a release: what verify makes of its line numbers, and forgeries of them that it finds."""

import json
import math

import pytest
import torch

from tests.verify import forgeries as forge
from tests.verify.test_composed import TRIAL, fitted
from torchdpcate.data.schema import TableSchema
from torchdpcate.data.subgroups import Subgroups
from torchdpcate.errors import ReleaseFileError, VerificationError
from torchdpcate.estimators.rules.effect_rule import EffectRule
from torchdpcate.privacy.budget import PrivacyBudget
from torchdpcate.release.averages import OVER, REQUESTS
from torchdpcate.release.composed import ComposedRelease
from torchdpcate.release.file import load_release
from torchdpcate.verify.file import verify_release

CELLS = Subgroups.of([{"x0": [0.3]}, {"x0": [0.5], "x1": [0.4]}], TableSchema.of(TRIAL))


def shared_rule() -> ComposedRelease:
    """The effect of a rule that treats a fifth of public people."""
    x = torch.rand(600, 2, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    a = torch.arange(600) % 2
    rule = EffectRule(TRIAL, PrivacyBudget(8.0, 1e-5), share=0.2, population=x[:100])
    return rule.fit(x, a, ((2 * a - 1) * (x[:, 0] - 0.5)).clamp(-1, 1)).release().effect


MADE = {
    "cells": lambda: fitted(TRIAL, PrivacyBudget(8.0, 1e-5), cells=CELLS).release_function(),
    "lines": lambda: fitted(TRIAL, PrivacyBudget(8.0, 1e-5), lines=REQUESTS, cells=CELLS).release_function(),
    "share": lambda: shared_rule(),
    "average alone": lambda: fitted(TRIAL, lines=[]).release_function(),
    "none": lambda: fitted(TRIAL, lines=False).release_function(),
    "hardly adjusted": lambda: fitted(budget=PrivacyBudget(0.3, 1e-6)).release_function(),
    "delta = 0": lambda: fitted(TRIAL, PrivacyBudget(4.0, 0.0)).release_function(),
}


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Return the path of a release of a kind; made once."""
    return forge.written(MADE, tmp_path_factory.mktemp("lines"))


@pytest.mark.parametrize("kind", MADE)
def test_a_release_comes_back_with_its_lines_and_verifies(kind, made):
    verify_release(made(kind))
    release = load_release(made(kind))
    assert isinstance(release, ComposedRelease)
    if kind in ("cells", "lines", "average alone", "share"):
        assert release.averages is not None
        assert release.no_lines is None
        (low, high), effect = release.averages.interval(), release.average_effect
        assert release.average().tolist() == [min(low, effect), max(high, effect)]
        if release.averages.level is None:  # where a rule has values, the level is that of sums before them
            assert abs(effect - release.averages.estimate()) <= release.averages.error()
        twin = load_release(release.save(made(kind).parent / "twin.safetensors", overwrite=True))
        assert twin.lines().equals(release.lines())
        assert torch.equal(twin.line_numbers.sums, release.line_numbers.sums)
    else:
        assert release.averages is None
        assert release.line_numbers is None
        assert release.no_lines


def test_names_are_of_what_was_requested(made):
    lines = load_release(made("lines")).averages
    assert {"average", "ATT", "ATC", "ATO", "slope", "rule over none", "rule over all"} <= set(lines.names)
    assert set(lines.policies) == {f"{cell}{over}" for cell in CELLS.labels for over in OVER}
    assert load_release(made("average alone")).averages.names == ("average",)
    release = load_release(made("cells"))
    assert list(release.averages.cells) == CELLS.labels
    assert release.privacy.public["cells"] == json.dumps(CELLS.config())


@pytest.mark.parametrize(
    ("kind", "reason"),
    [("none", "none were requested"), ("hardly adjusted", "hardly adjusted"), ("delta = 0", "privacy.delta above 0")],
)
def test_why_there_are_none_is_in_the_file(kind, reason, made):
    assert reason in load_release(made(kind)).no_lines


def test_a_confounder_that_explains_the_average_away_is_as_strong_as_the_scores_are_wide(made):
    release = load_release(made("lines"))
    average, end = release.explained_away()
    deviation = release.line_numbers.facts.deviation
    bias = deviation * math.sqrt(average**2 / (1 - average))
    assert bias == pytest.approx(abs(release.average_effect), rel=1e-9)
    low, high = release.average()
    nearer = 0.0 if low <= 0 <= high else min(abs(low), abs(high))
    assert deviation * math.sqrt(end**2 / (1 - end)) == pytest.approx(nearer, abs=1e-9)


def moved(name: str, place: int, by: float) -> forge.Edit:
    def edit(draft: forge.Draft) -> None:
        draft.tensors[name] = draft.tensors[name].clone()
        draft.tensors[name].view(-1)[place] += by

    return edit


def set_to(name: str, value: float) -> forge.Edit:
    def edit(draft: forge.Draft) -> None:
        draft.tensors[name] = torch.full_like(draft.tensors[name], value)

    return edit


def shortened(name: str) -> forge.Edit:
    def edit(draft: forge.Draft) -> None:
        draft.tensors[name] = draft.tensors[name][:-1].clone()

    return edit


def without_names(draft: forge.Draft) -> None:
    draft.facts["lines"] = draft.facts["lines"][::-1]


def without_lines(draft: forge.Draft) -> None:
    """The curator hides them: an average that he does not like."""
    del draft.facts["lines"]
    draft.facts["no_lines"] = "none were requested"
    for name in [name for name in draft.tensors if name.startswith(("line.", "line_numbers."))]:
        del draft.tensors[name]


def of_a_plan_without(draft: forge.Draft) -> None:
    del draft.privacy["public"]["lines"]


def of_fewer(draft: forge.Draft) -> None:
    draft.privacy["public"]["lines"] = ["groups"]


def without(*names: str) -> forge.Edit:
    def edit(draft: forge.Draft) -> None:
        for name in names:
            del draft.tensors[name]

    return edit


def of_another_cost(draft: forge.Draft) -> None:
    draft.privacy["public"]["cost"] = -0.1


FORGERIES = {
    "estimate": moved("line.estimates", 0, 0.1),
    "variance": moved("line.variances", 0, 0.1),
    "share": moved("line.records", 1, 0.1),
    "clipped": moved("line.clipped", 0, 0.1),
    "sum": moved("line_numbers.sums", 0, 5.0),
    "count": moved("line_numbers.sums", -1, 5.0),
    "square": moved("line_numbers.square", 0, 0.2),
    "centre": moved("line_numbers.facts.single", 0, 0.2),
    "cut": moved("line_numbers.facts.cuts", 0, 5.0),
    "fewer sums": shortened("line_numbers.sums"),
    "fewer facts": shortened("line_numbers.facts.single"),
    "fewer estimates": shortened("line.estimates"),
    "no deviation": set_to("line_numbers.facts.single", 0.0),
    "not a number": set_to("line_numbers.sums", math.nan),
    "infinite square": set_to("line_numbers.square", math.inf),
    "infinite facts": set_to("line_numbers.facts.single", math.inf),
    "infinite cuts": set_to("line_numbers.facts.cuts", math.inf),
    "effect at which a rule decides": moved("line_numbers.facts.rule", 0, 0.1),
    "cost of a rule": moved("line_numbers.facts.rule", 1, 0.1),
    "level of a rule": moved("line.level", 0, 0.1),
    "no level of a rule": without("line.level"),
    "no rule": without("line.level", "line_numbers.facts.rule"),
    "cost": of_another_cost,
    "order of names": without_names,
    "hidden": without_lines,
    "a plan without": of_a_plan_without,
    "a plan of fewer": of_fewer,
}


def of_a_plan_without_cells(draft: forge.Draft) -> None:
    del draft.privacy["public"]["cells"]


def of_other_cells(draft: forge.Draft) -> None:
    draft.privacy["public"]["cells"] = json.dumps([{"x0": [0.4]}, *CELLS.config()[1:]])


def of_crossed_order(draft: forge.Draft) -> None:
    draft.privacy["public"]["cells"] = json.dumps(CELLS.config()[::-1])


OF_CELLS = {
    "estimate of a cell": moved("line.estimates", -1, 0.1),
    "variance of a cell": moved("line.variances", -1, 0.1),
    "share of a cell": moved("line.records", -1, 0.1),
    "squares of a cell": moved("line_numbers.sums", -1, 5.0),
    "order of names": without_names,
    "a plan without cells": of_a_plan_without_cells,
    "a plan of other cells": of_other_cells,
    "a plan of the same in another order": of_crossed_order,
}


@pytest.mark.parametrize("name", OF_CELLS)
def test_a_forgery_of_public_cells_is_found(name, made, tmp_path):
    path = forge.forged(made("cells"), OF_CELLS[name], tmp_path / "release.safetensors")
    with pytest.raises((VerificationError, ReleaseFileError)):
        verify_release(path)


def test_another_cost_of_a_rule_of_a_share_is_found(made, tmp_path):
    path = forge.forged(made("share"), moved("line_numbers.facts.rule", 1, 0.1), tmp_path / "release.safetensors")
    with pytest.raises(VerificationError, match="the effect at which its rule decides"):
        verify_release(path)


@pytest.mark.parametrize("name", FORGERIES)
def test_a_forgery_is_found(name, made, tmp_path):
    path = forge.forged(made("lines"), FORGERIES[name], tmp_path / "release.safetensors")
    with pytest.raises((VerificationError, ReleaseFileError)):
        verify_release(path)


def test_lines_that_no_step_of_the_plan_paid_for_are_found(made, tmp_path):
    other = forge.opened(made("lines"))

    def added_lines(draft: forge.Draft) -> None:
        """Averages of another release, in one whose plan requests none."""
        draft.facts["lines"] = other.facts["lines"]
        draft.facts.pop("no_lines")
        draft.tensors |= {name: t for name, t in other.tensors.items() if name.startswith(("line.", "line_numbers."))}

    path = forge.forged(made("none"), added_lines, tmp_path / "release.safetensors")
    with pytest.raises(VerificationError, match="what lines rest on though its plan does not request it"):
        verify_release(path)


def another_reason(draft: forge.Draft) -> None:
    draft.facts["no_lines"] = "they were lost"


def test_another_reason_for_no_lines_is_found(made, tmp_path):
    path = forge.forged(made("none"), another_reason, tmp_path / "release.safetensors")
    with pytest.raises(VerificationError, match="no_lines"):
        verify_release(path)
