"""The study of the spillover paper: its printed design by hand, its scales, and one small cell of each part."""

import math
from pathlib import Path

import numpy as np
import pytest
import torch

from experiments.frame.published import read_published
from experiments.frame.study import CERTIFIED, PRINTED, Settings
from experiments.frame.table import summarise
from experiments.spillover import audited, control
from experiments.spillover.design import CONTROL, SCALED, WHOLE, Law, law
from experiments.spillover.pairs import FLOOR, Pair
from experiments.spillover.study import AUDITS, STUDY

SHARED = Path(__file__).parents[4] / "shared"
ACIC, PAPERS = SHARED / "data" / "acic2016", SHARED / "papers"
needs_acic = pytest.mark.skipif(not ACIC.exists(), reason="../shared/data/acic2016 is not there")


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.fixture(scope="module")
def normal() -> Law:
    return Law(torch.randn(1_000, 20, generator=generator(), dtype=torch.float64))


def sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x))


def by_hand(x: np.ndarray, rare: bool) -> tuple[float, float, float, float]:
    """h, e, mu_0 and mu_1 of one row, from the printed formulas, columns counted from 0."""
    c, slopes = (
        np.linspace(1.2, -0.9, 8),
        {w: np.linspace(*w, 10) for w in ((0.85, -0.65), (0.55, -0.35), (-0.75, 0.95))},
    )
    e, zero, tau = (float(x[:10] @ line) / math.sqrt(10) for line in slopes.values())
    h = float(x[:8] @ c) + 0.5 * math.sin(x[8]) + 0.25 * x[11] * x[15]
    g_e = 1.2 * e + 0.4 * math.sin(x[1]) - 0.25 * x[2] * (x[3] > 0) + 1.7 * rare
    g_0 = zero + 0.3 * math.sin(x[1] * x[4]) + 0.21 * (x[5] > 0)
    effect = 0.2 * math.tanh(1.4 * tau) + 0.11 * (x[1] > 0) - 0.07 * (x[6] > 0) + 0.45 * rare
    mu = min(max(0.25 + 0.45 * sigmoid(g_0), 0.02), 0.98)
    return h, min(max(sigmoid(g_e), 0.1), 0.9), mu, min(max(mu + effect, 0.02), 0.98)


def test_nuisances_are_the_printed_formulas(normal):
    inside, outside = normal.regions
    assert len(inside) == 50
    cut = np.percentile([by_hand(x, False)[0] for x in normal.x.numpy()], 95)
    assert normal.cut == pytest.approx(cut, abs=1e-12)
    for k in [*inside[:5].tolist(), *outside[:20].tolist()]:
        h, e, untreated, treated = by_hand(normal.x[k].numpy(), k in inside.tolist())
        assert float(normal.score(normal.x[k : k + 1])) == pytest.approx(h, abs=1e-12)
        assert float(normal.propensities[k]) == pytest.approx(e, abs=1e-12)
        assert normal.outcomes[k].tolist() == pytest.approx([untreated, treated], abs=1e-12)


@needs_acic
def test_the_population_has_the_derived_numbers():
    """58 columns, regret .029 of a uniform choice, errors of 1/2 between .10 and .12, as worked out from the paper."""
    whole = law(ACIC, WHOLE)
    assert whole.x.shape == (4802, 58)
    assert len(whole.regions[0]) == 241
    assert float(whole.regrets.mean()) == pytest.approx(0.029, abs=0.0015)
    columns = [*whole.outcomes.T, whole.propensities]
    half = sum(float((column - 0.5).square().mean().sqrt()) for column in columns) / 3
    assert 0.10 < half < 0.12
    scaled, plain = law(ACIC, SCALED), law(ACIC, CONTROL)
    assert scaled.x.abs().amax() == 1
    assert torch.equal(scaled.x, plain.x)
    for one in (whole, scaled):
        weights = one.policies.families[1]
        ties = (one.x @ weights.coefficients.T + weights.intercepts == 0).sum()
        assert ties == 0  # so that > and >= are the same


def test_scales_of_a_pair():
    """22 = 2 (1 + 1 / .1); rho = 11 Gamma_mu + 100 Gamma_e."""
    assert pytest.approx(22) == FLOOR
    pair = Pair(torch.tensor([0.0, 10.0]).double(), torch.tensor([20.0, 10.0]).double(), 0.2, 0.01, 1_000)
    expected = {
        "prediction_movement_proxy_rho": 3.2,
        "movement": 20.0,
        "audit_scale_1.3_move": 26.0,
        "audit_over_floor": 26 / 22,
        "floored_scale": 26.0,
        "floor_rate": 0.0,
        "theorem_proxy_scale": 3200.0,
        "proxy_over_floored": 3200 / 26,
    }
    assert pair.scales() == pytest.approx(expected)
    # exp(-10 / 44) to 1 before, exp(10 / 44) to 1 after
    before, after = math.log1p(math.exp(10 / 44)), math.log1p(math.exp(-10 / 44))
    assert pair.ratio(22.0) == pytest.approx(max(abs(before - after), abs(10 / 44 * 2 - before + after)), rel=1e-9)


@pytest.mark.studies
@needs_acic
@pytest.mark.parametrize("part", ["control", "choices", *AUDITS])
def test_one_small_cell_of_each_part(part):
    settings = Settings(quick=True, data=SHARED / "data")
    if part in AUDITS:
        pytest.importorskip("xgboost", reason="extra peers-xgboost is not installed")
    cells = [dict(cell) for cell in STUDY.cells(settings)]
    cell = next(cell for cell in cells if cell["part"] == part) | {"repeats": 1}
    found = summarise(STUDY.compute(cell, settings))
    assert found
    printed = {one.place for one in found if one.role == PRINTED}
    assert printed
    if part in AUDITS:  # calibrated by what was found: nothing is proved
        assert {one.level for one in found if one.role == PRINTED} <= {"none holds", "public"}
    ratios = [one.mean for one in found if "log_likelihood" in one.place.metric and one.level == "certified"]
    assert all(ratio <= 1 for ratio in ratios)
    assert all(one.mean >= 0 for one in found)
    published = {one.place for one in read_published(STUDY, PAPERS)}
    if published:  # every published number of these tables has one of ours
        tables = {place.table for place in printed}
        own = {place for place in published if place.table in tables}
        wanted = {place for place in own if part != "choices" or place.metric == "expected_regret"}
        wanted = {place for place in wanted if part != "control" or place.metric != "expected_regret"}
        settled = {audited.SEPARATION, audited.SWEEP, audited.SPLIT, control.SETTING}
        here = {place.setting for place in printed} & settled
        assert {place for place in wanted if place.setting in here} <= printed
        assert {one.place.metric for one in found if one.role == CERTIFIED} or part == "control"
