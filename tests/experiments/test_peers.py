"""The study of other libraries: what it puts them to, its runner, and the page that it writes."""

import pytest
import torch

from experiments.defaults.sources import Case
from experiments.frame.study import Settings
from experiments.peers import dp_ebm
from experiments.peers.averages import AVERAGES
from experiments.peers.effects import METHODS
from experiments.peers.study import measure
from torchdpcate.data.domain import Domain
from torchdpcate.data.records import CausalData
from torchdpcate.data.schema import TableSchema


def case(n: int = 600) -> Case:
    """A coin decides, and the effect is 1 + x0."""
    generator = torch.Generator().manual_seed(0)
    x = 2 * torch.rand(n, 2, generator=generator, dtype=torch.float64) - 1
    a = (torch.rand(n, generator=generator) < 0.5).double()
    y = (x[:, 1] + a * (1 + x[:, 0])).clamp(-4, 4)
    schema = TableSchema.of(Domain([-1, -1], [1, 1], -4, 4, overlap=0.1))
    return Case(schema, CausalData(x, a, y), x[:50], 1 + x[:50, 0])


def test_ours_beat_zero_and_the_private_constant():
    errors = {
        name: case(4_000).error(METHODS[name].run(case(4_000), 4.0, 0))[0]
        for name in ("zero", "private constant", "RLearner", "RLearner, no budget")
    }
    assert errors["RLearner"] < errors["private constant"] < errors["zero"]
    assert errors["RLearner, no budget"] < errors["RLearner"]


def test_bounds_of_dp_ebm_are_the_domains(monkeypatch):
    pytest.importorskip("interpret", reason="extra peers-interpret is not installed")
    given = []
    regressor = dp_ebm._regressor
    monkeypatch.setattr(dp_ebm, "_regressor", lambda *args: given.append(args[:2]) or regressor(*args))
    budget = dp_ebm.Budget(1.0, 1e-5, 0)
    for learner in (dp_ebm.single, dp_ebm.doubly_robust, dp_ebm.residual):
        assert learner(case(), budget).shape == (50,)
    box, arms, y = [(-1.0, 1.0)] * 2, [(-1.0, 1.0), (-1.0, 1.0), (0.0, 1.0)], (-4.0, 4.0)
    assert given == [(arms, y), (arms, y), (box, (-168.0, 168.0)), (box, y), (box, (-160.0, 160.0))]


@pytest.mark.studies
@pytest.mark.parametrize("name", ["DoubleMLIRM", "DoubleMLPLR", "difference in means", "AverageEffect"])
def test_averages_are_near_the_truth(name):
    method = AVERAGES[name]
    if method.library == "doubleml":
        pytest.importorskip("doubleml", reason="extra peers-doubleml is not installed")
    found = method.run(case(4_000), 8.0, 0)
    assert found.low < found.value < found.high
    assert abs(found.value - 1) < 0.3


def test_a_cell_measures_error_time_and_memory():
    cell = {"kind": "effects", "method": "zero", "epsilon": "inf", "seed": 0, "niu_b": 500, "dataset2": 500}
    found = {(one.place.setting, one.place.metric): one.values[0] for one in measure(cell, Settings())}
    assert found["Niu B", "relative error"] > 1
    assert found["all", "MiB"] > 100
    assert len(found) == 5
    cell = {"kind": "averages", "method": "difference in means", "epsilon": "inf", "seed": 0, "niu_b": 2_000}
    found = {one.place.metric: one.values[0] for one in measure(cell, Settings())}
    assert found["relative error"] < 0.5
    assert found["interval holds the truth"] in (0, 1)
