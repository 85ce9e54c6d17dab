"""The audit as a whole: it finds what theory puts there, refutes what is wrong, and refuses what it cannot judge."""

import dataclasses
import json
from dataclasses import dataclass

import pytest
import torch
from sklearn.neighbors import KNeighborsClassifier, KNeighborsRegressor

from experiments.spillover.figure import spillover_figure
from experiments.spillover.learned import LearnedNuisances
from experiments.spillover.search import spillover_audit
from tests.experiments.spillover.cells import EDGE, CellMeans
from tests.experiments.spillover.datasets import dataset
from torchdpcate.candidates.kinds import Constants
from torchdpcate.candidates.library import PolicyLibrary
from torchdpcate.data.domain import Domain
from torchdpcate.data.records import CausalData
from torchdpcate.errors import InputError
from torchdpcate.fit.arms.base import SelectionFacts
from torchdpcate.fit.arms.fixed import FixedNuisances
from torchdpcate.fit.arms.private import PrivateNuisances
from torchdpcate.fit.arms.stable import StableNuisances

pytestmark = pytest.mark.studies

HALF = torch.full((2, 2), 0.5, dtype=torch.float64)
KNN = LearnedNuisances(KNeighborsRegressor(1), KNeighborsClassifier(1))


def rare_world(n: int):
    """Theorem 1's outcome model: one treated training record in the rare region would decide it for a tenth of all."""
    domain = Domain([0.0], [1.0], 0.0, 1.0)
    x = torch.linspace(0, 1, n, dtype=torch.float64)[:, None]
    treated = (torch.arange(n) % 2 == 1) & (x[:, 0] <= EDGE)
    block = CausalData(x, treated.double(), torch.full((n,), 0.5, dtype=torch.float64))
    library = PolicyLibrary.of(Constants([0, 1])).setup(domain, (0, 1))
    return block, block, SelectionFacts(domain, (0, 1), 0.1, n, n), library


@pytest.mark.parametrize("n", [400, 1600])
def test_a_targeted_record_moves_the_utilities_by_order_n(n):
    rare = {"x0": (EDGE + 1e-9, 1.0)}
    report = spillover_audit(*rare_world(n), {"cells": CellMeans(e=HALF)}, neighbours=16, rare=rare)
    spill = report["cells"]
    assert spill.worst.spread >= 0.05 * n - 1
    assert spill.worst.search == "targeted"
    assert (spill.worst.action, spill.worst.y) in {(1, 0.0), (1, 1.0)}
    assert spill.worst.x[0] > EDGE
    assert spill.paper is None
    assert spill.range_sensitivity is None
    assert not spill.refuted
    assert spill.naive_fails == (n == 1600)


def test_learners_beside_each_other_and_what_is_made_of_them(tmp_path):
    learners = {"stable": StableNuisances(), "1-NN": KNN, "fixed": FixedNuisances(0.5)}
    seen = []
    report = spillover_audit(
        *dataset(gap=0.4), learners, neighbours=8, epsilon=2.0, on_progress=lambda *progress: seen.append(progress)
    )
    stable, nearest, fixed = report.learners
    assert (fixed.movement, fixed.worst.spread, fixed.range_sensitivity) == (0, 0, 2)
    assert 0 < stable.worst.spread < stable.range_sensitivity
    assert stable.paper > stable.movement
    assert nearest.worst.spread > 10 * stable.worst.spread
    assert [found.search for found in stable.found] == ["random", "targeted", "guided"]
    guided = stable.found[2]
    assert guided.spread >= 0.9 * max(found.spread for found in stable.found)
    assert max(stable.certified.values()) <= 2.0
    assert (stable.floor, stable.frozen) == (pytest.approx(22), pytest.approx(20))
    assert seen[0] == ("stable", 1, 24)
    assert sum(name == "fixed" for name, _, _ in seen) == sum(found.refits for found in fixed.found)
    assert json.loads(json.dumps(report.to_dict(), allow_nan=False))["learners"][1]["range_sensitivity"] is None
    text = str(report)
    for words in ("2 B_psi", "1-NN: ", "publish none of it", "PF at 2 S", "n rho*"):
        assert words in text
    figure = spillover_figure(report)
    assert len(figure.axes) == 2
    figure.savefig(tmp_path / "spillover.png")


@dataclass(frozen=True)
class Overclaimed(CellMeans):
    """A learner whose author took double robustness for a guarantee."""

    guarantee = "stability"

    def fit(self, *args, **settings):
        return dataclasses.replace(super().fit(*args, **settings), range_sensitivity=20.0)


def test_a_wrong_guarantee_is_refuted():
    rare = {"x0": (EDGE + 1e-9, 1.0)}
    report = spillover_audit(*rare_world(1600), {"wrong": Overclaimed(e=HALF)}, neighbours=16, rare=rare)
    assert report.refuted
    assert "THE GUARANTEE IS REFUTED" in str(report)
    assert max(report["wrong"].certified.values()) > 1


def test_what_cannot_be_judged_is_refused():
    train, score, facts, library = dataset()
    with pytest.raises(InputError, match="private is private, so its movement is paid for"):
        spillover_audit(train, score, facts, library, {"private": PrivateNuisances()})
    with pytest.raises(InputError, match="200 training and 200 scoring records, but the blocks have 200 and 50"):
        spillover_audit(train, score.subset(torch.arange(50)), facts, library, {"a": KNN})
    for settings in ({"epsilon": 0.0}, {"neighbours": 0}):
        with pytest.raises(InputError):
            spillover_audit(train, score, facts, library, {"a": KNN}, **settings)
    with pytest.raises(InputError, match="no learner"):
        spillover_audit(train, score, facts, library, {})
