"""The study of Niu et al.: moments of the laws by formulas, the reader of their file, one quick cell of each group."""

import csv
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy import integrate, stats

from experiments.defaults.sources import Case
from experiments.designs.niu import Niu
from experiments.frame.published import read_published
from experiments.frame.study import CERTIFIED, FREE, NO_PRIVACY, OTHER, PRINTED, Place, Settings
from experiments.niu import dp_ebm
from experiments.niu.laws import POINTS, sample
from experiments.niu.methods import BEST, CONSTANT, OURS, PUBLIC, RECORDS, UNSPENT, private, run, without
from experiments.niu.study import DESIGNS, EPSILONS, SIZES, STUDY
from torchdpcate.data.domain import Domain
from torchdpcate.data.records import CausalData, public_generator
from torchdpcate.data.schema import TableSchema

N = 400_000
SDS = 6.0  # two-sided normal tail 2e-9


def normal_mean(value) -> float:
    """E value(Z), Z standard normal."""
    return integrate.quad(lambda z: value(z) * stats.norm.pdf(z), -12, 12)[0]


@pytest.mark.parametrize(("design", "mean"), [("A", 0.5), ("B", normal_mean(lambda z: np.logaddexp(0, z))), ("C", 1.0)])
def test_weighted_outcomes_differ_by_the_average_effect(design, mean):
    law = Niu(design)
    drawn = law.draw(N, public_generator(1, "moments"))
    e = law.propensity(drawn.x)
    terms = drawn.y * (drawn.a - e) / (e * (1 - e))
    assert terms.mean().item() == pytest.approx(mean, abs=SDS * terms.std().item() / math.sqrt(N))


def test_who_has_public_bounds_sees_records_within_them_and_is_judged_at_the_points_that_were_drawn():
    both = sample("B", 3_000, 0)
    inside, drawn, domain = both.bounded, both.drawn, both.bounded.schema.domain
    domain.check_covariates(inside.records.x)
    domain.check_outcome(inside.records.y)
    domain.check_covariates(inside.queries)
    assert torch.equal(inside.records.x, drawn.records.x.clamp(-3, 3))
    assert torch.equal(inside.records.a, drawn.records.a)
    assert len(drawn.queries) == POINTS
    assert drawn.queries.abs().max() > 3
    assert torch.equal(inside.truth, Niu("B").effect(drawn.queries))
    assert not torch.equal(sample("B", 3_000, 1).bounded.records.x, inside.records.x)


def write(folder: Path, *lines: str) -> Path:
    (folder / "niu").mkdir()
    head = "design,n,d,sigma,learner,base_model,epsilon,metric,value,sd_over_seeds,seeds"
    (folder / "niu/published_mse.csv").write_text("\n".join((head, *lines)) + "\n")
    return folder


def test_published_errors_have_places_and_errors_of_their_means(tmp_path):
    papers = write(
        tmp_path,
        "Voting,8000,11,,SLearner,Lasso,inf,test_mse,3,1,5",
        "E,16000,6,1.0,RLearner,DPX,128.0,test_mse,7,2,4",
        "A,500,6,1.0,DRLearner,Lasso,inf,test_mse,5,1,5",
        "A,500,6,1.0,DRLearner,DPX,1.0,test_mse,9,1,5",
    )
    first, second, third = read_published(STUDY, papers)
    assert first.place == Place("design A", "A", "500", "1", "DRLearner", "test_mse")
    assert second.place == Place("design E", "E", "16000", "128", "RLearner", "test_mse")
    assert (second.value, second.error, second.repeats, second.qualifier) == (7.0, 1.0, 4, "=")
    assert third.place == Place(without("A"), "A", "500", "inf", "DRLearner", "test_mse")


def test_all_cells_of_the_published_file_have_ours(tmp_path):
    path = Path(__file__).parents[3] / "shared/papers/niu/published_mse.csv"
    if not path.exists():
        pytest.skip("the published numbers are not in the folder of papers")
    published = read_published(STUDY, path.parents[1])
    with path.open(newline="") as file:
        assert len(published) == sum(line["design"] != "Voting" for line in csv.DictReader(file))
    cells = {(c["design"], str(c["n"]), c["epsilon"]) for c in STUDY.cells(Settings()) if c["group"] in (OURS, UNSPENT)}
    assert {(one.place.setting, one.place.n, one.place.epsilon) for one in published} <= cells
    assert len(cells) == len(DESIGNS) * len(SIZES) * (len(EPSILONS) + 1)


@pytest.mark.parametrize(("group", "epsilon"), [(OURS, "4"), (UNSPENT, NO_PRIVACY)])
def test_a_quick_cell_of_ours(group, epsilon):
    found = list(run(group, "B", 2_000, epsilon, 0, 2))
    by_method = {one.place.variant: one for one in found if one.place.table == private("B")}
    beside = by_method[CONSTANT if group == OURS else BEST]
    assert beside.role == OTHER
    assert max(by_method[""].values) < 0.3 < min(beside.values)
    assert by_method[""].role == (CERTIFIED if group == OURS else FREE)
    assert [one.values for one in run(group, "B", 2_000, epsilon, 0, 2)] == [one.values for one in found]
    tables = {one.place.table for one in found}
    assert tables == ({private("B")} if group == OURS else {private("B"), without("B")})


def test_a_quick_cell_of_dp_ebm():
    pytest.importorskip("interpret", reason="extra peers-interpret is not installed")
    public, own = (list(run(group, "B", 1_000, "16", 0, 1)) for group in (PUBLIC, RECORDS))
    assert [one.role for one in public] == [PRINTED] * 3
    assert [one.level for one in public] == ["conditional", "conditional", "none holds"]
    assert {one.level for one in own} == {"none holds"}
    assert {one.role for one in own} == {OTHER}
    apart = {one.place.variant.split(",")[0]: one.values[0] for one in own}
    assert all(one.values[0] > 10 * apart[one.place.variant] for one in public if one.place.variant != "SLearner")


def _case(n: int = 600) -> Case:
    """A coin decides, and the effect is 1 + x0."""
    generator = torch.Generator().manual_seed(0)
    x = 2 * torch.rand(n, 2, generator=generator, dtype=torch.float64) - 1
    a = (torch.rand(n, generator=generator) < 0.5).double()
    y = (x[:, 1] + a * (1 + x[:, 0])).clamp(-4, 4)
    schema = TableSchema.of(Domain([-1, -1], [1, 1], -4, 4, overlap=0.1))
    return Case(schema, CausalData(x, a, y), x[:50], 1 + x[:50, 0])


def test_bounds_of_dp_ebm_are_the_domains(monkeypatch):
    pytest.importorskip("interpret", reason="extra peers-interpret is not installed")
    given = []
    regressor = dp_ebm._regressor
    monkeypatch.setattr(dp_ebm, "_regressor", lambda *args: given.append(args[:2]) or regressor(*args))
    budget = dp_ebm.Budget(1.0, 1e-5, 0)
    for learner in (dp_ebm.single, dp_ebm.doubly_robust, dp_ebm.residual):
        assert learner(_case(), budget).shape == (50,)
    box, arms, y = [(-1.0, 1.0)] * 2, [(-1.0, 1.0), (-1.0, 1.0), (0.0, 1.0)], (-4.0, 4.0)
    assert given == [(arms, y), (arms, y), (box, (-168.0, 168.0)), (box, y), (box, (-160.0, 160.0))]
