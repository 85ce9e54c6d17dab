"""Averages: what they sum, how far one record moves the sums, and what is made of them, against dense computations."""

import math
import pickle
from dataclasses import replace
from functools import partial
from itertools import pairwise

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.composition.cases import Batches
from torchdpcate.composition.builder import plan_within
from torchdpcate.composition.constants import PlanConstants, RuleConstants, logit_curvature
from torchdpcate.composition.line_laws import _Law, clipped_square, group_cuts, line_facts, lines_of, ruled
from torchdpcate.composition.lines import (
    LineSums,
    Scored,
    ScoredBy,
    Squares,
    cuts_of,
    far_clip,
    largest_weight,
    line_blocks,
    line_clip,
    private_lines,
    score_deviation,
    tilt,
    tilted_clip,
)
from torchdpcate.composition.planned import Lost, hardly_adjusted, lost_of, planned_line, why_no_lines
from torchdpcate.composition.priors import prior_variances
from torchdpcate.composition.records import ComposedFit, encoded_features, fit_composition, rows_of
from torchdpcate.composition.regressions import lacking, residuals, within_overlap
from torchdpcate.composition.rows import InMemory
from torchdpcate.composition.settings import AdaptiveSecondStage
from torchdpcate.composition.steps import LINE_SUMS, LINES, NoisySteps, Shares, total_mu
from torchdpcate.composition.worst_case import scored_pair
from torchdpcate.data.domain import Domain
from torchdpcate.data.records import CausalData
from torchdpcate.data.schema import TableSchema
from torchdpcate.data.subgroups import Subgroups
from torchdpcate.errors import InputError, MissingError
from torchdpcate.estimators.average.lines import AverageEffect
from torchdpcate.fit.weighted_basis import all_features
from torchdpcate.privacy.budget import PrivacyBudget
from torchdpcate.privacy.charge import TRAINING
from torchdpcate.privacy.noise import NoiseSource
from torchdpcate.privacy.session import FitSession
from torchdpcate.release.averages import (
    AVERAGE,
    OVER,
    PARTS,
    POLICIES,
    REQUESTS,
    TILTS,
    Averages,
    LineFacts,
    LineNumbers,
    Ruled,
    powers,
    robustness,
)
from torchdpcate.release.composed import Choices

N, BUDGET = 3_000, PrivacyBudget(4.0, 1e-5)
HALF = "beta:0.5:0.5"
WEIGHTED, ALL = (*TILTS, HALF), (*REQUESTS, HALF)
EXACT = NoisySteps(FitSession(NoiseSource.fixed(0)), Shares(math.inf, {}))
DOMAINS = {
    "cohort": Domain([-3.0] * 2, [3.0] * 2, -8.0, 10.0, overlap=0.1, better="higher"),
    "trial": Domain([-3.0] * 2, [3.0] * 2, -8.0, 10.0, propensity=0.3, better="lower"),
    "binary": Domain([-3.0] * 2, [3.0] * 2, 0.0, 1.0, overlap=0.1, outcome_kind="binary"),
}
PARTITIONS = [{"x1": [-0.5, 0.5]}, {"x0": [0.0], "x1": [0.0]}]
CELLS = Subgroups.of(PARTITIONS, TableSchema.of(DOMAINS["cohort"]))
SIZES = (3, 4)  # of these partitions


def drawn(name: str, n: int = N) -> CausalData:
    """Records with an effect by a covariate, and a few outcomes far out."""
    generator, domain = torch.Generator().manual_seed(0), DOMAINS[name]
    x = torch.randn(n, 2, generator=generator, dtype=torch.float64).clamp(-3, 3)
    pi = torch.full((n,), 0.3) if name == "trial" else (x[:, 0] / 2).sigmoid().clamp(0.1, 0.9)
    a = (torch.rand(n, generator=generator) < pi).double()
    y = x[:, 1] / 2 + a * (0.4 + 1.6 * x[:, 0]) + torch.randn(n, generator=generator, dtype=torch.float64)
    y[::50] *= 5
    return CausalData(x, a, (y > 0.5).double() if domain.outcome_kind == "binary" else y.clamp(-8, 10))


def session_of(budget: PrivacyBudget | None, seed: int = 0) -> FitSession:
    return FitSession.open({"records": N}, budget, NoiseSource.fixed(seed)).charging(["records"], TRAINING)


def planned(name: str, budget: PrivacyBudget | None = BUDGET, lines: tuple[str, ...] = ALL, **settings):
    settings = {"cells": CELLS, **settings}
    if settings["cells"] is None:
        lines = tuple(name for name in lines if name != POLICIES)
    return plan_within(N, budget, DOMAINS[name], **{"lines": lines, **settings})


def fitted(name: str, records=None, budget: PrivacyBudget | None = None) -> ComposedFit:
    """A composition with all lines and public cells; without noise if without a budget."""
    domain, plan = DOMAINS[name], planned(name, budget)
    rows = rows_of(drawn(name) if records is None else records, domain)
    facts = session_of(budget), domain.two_levels
    return fit_composition(rows, domain, plan, *facts, schema=TableSchema.of(domain))


def nuisances_at(name: str, fit: ComposedFit):
    """What the nuisances make of the records, with their covariates as they are."""
    records = drawn(name)
    if DOMAINS[name].known_propensity is not None:
        records = replace(records, propensity=torch.full((N,), 0.3, dtype=torch.float64))
    return fit.nuisances(records)


def residuals_of(name: str, fit: ComposedFit) -> InMemory:
    """Records as lines with public cells take them: residuals, with the covariates as they are."""
    return InMemory(nuisances_at(name, fit))


def scored_by(name: str, fit: ComposedFit) -> ScoredBy:
    features = partial(encoded_features, replace(fit, worked=None), DOMAINS[name])
    return ScoredBy(features, fit.effect.shrunk, DOMAINS[name].outcome_range, fit.lines.facts.centre, CELLS)


class Dense:
    """The same lines by numpy: nuisances and effects of a composition at its records, and scores by their formula."""

    def __init__(self, name: str, fit: ComposedFit, facts: LineFacts) -> None:
        domain, records = DOMAINS[name], drawn(name)
        nuisances = nuisances_at(name, fit)
        m, e = nuisances.outcome.numpy(), nuisances.propensity.numpy()
        tau = fit.features(domain.scale(records.x)).numpy() @ fit.effect.shrunk.numpy()
        tau = np.clip(tau, -domain.outcome_range, domain.outcome_range)
        a, y = records.a.numpy(), records.y.numpy()
        mu1, mu0 = m + (1 - e) * tau, m - e * tau
        self.scores = mu1 - mu0 + a * (y - mu1) / e - (1 - a) * (y - mu0) / (1 - e)
        self.centre, self.e, self.w, self.gain = facts.centre, e, a - e, tau - facts.centre
        self.x = self.scores - facts.centre
        x0, x1 = records.x.numpy().T
        self.cells = np.digitize(x1, [-0.5, 0.5]), 2 * (x0 >= 0) + (x1 >= 0)

    def tilted(self, name: str) -> tuple[np.ndarray, np.ndarray]:
        """Numerators and denominators of a tilted average, of each record."""
        e, w = self.e, self.w
        h = {"ATT": e, "ATC": 1 - e, "ATO": e * (1 - e), HALF: np.sqrt(e * (1 - e))}[name]
        slope = {"ATT": np.ones(N), "ATC": -np.ones(N), "ATO": 1 - 2 * e, HALF: (0.5 - e) / np.sqrt(e * (1 - e))}[name]
        return h * self.x + slope * w * self.gain, h + slope * w


@pytest.fixture(scope="module", params=DOMAINS)
def case(request):
    """Name, fit without noise, its sums at the clips of a private plan, and the plan."""
    name = request.param
    fit, plan = fitted(name), planned(name, PrivacyBudget(1.0, 1e-5))
    numbers = private_lines(residuals_of(name, fit), plan, EXACT, scored_by(name, fit), fit.lines.facts)
    return name, fit, plan, numbers


def parts_of(plan, numbers: LineNumbers) -> dict[str, np.ndarray]:
    """Released sums by their block, in its units."""
    sums = LineSums(line_blocks(plan, numbers.facts, line_clip(plan, numbers.facts, numbers.square)))
    return {block.name: values.numpy() for block, values in sums.parts(numbers.sums)}


def optimism(plan, facts: LineFacts) -> float:
    """Half the density of effects at the cut, times a score's variance over n and what records move effects.

    Effects are normal about a mean that is known but for its sampling error.
    """
    effect = plan.effect()
    noise = (effect.noise / effect.basis.feature_weights).numpy()[1:]
    influence = 1 + sum(prior / (prior + v) for prior, v in zip(effect.prior.tolist(), noise, strict=True))
    spread = np.sqrt(facts.effect_deviation**2 + facts.deviation**2 / N)
    density = np.exp(-(((facts.rule.at - facts.centre) / spread) ** 2) / 2)
    return density / np.sqrt(8 * np.pi) / spread * facts.deviation**2 * influence / N


# -- what is summed


def test_sums_are_those_of_a_dense_computation(case):
    name, fit, plan, numbers = case
    facts, found = numbers.facts, parts_of(plan, numbers)
    dense, clip = Dense(name, fit, facts), line_clip(plan, facts, numbers.square)
    far = far_clip(plan, facts)
    assert numbers.square == pytest.approx(np.mean(np.clip(dense.x / far, -1, 1) ** 2), rel=1e-9)
    t = np.clip(dense.x, -clip, clip)
    assert (t != dense.x).any()  # the clip is at work
    cuts = cuts_of(plan, facts).numpy()
    by_effect = np.searchsorted(cuts, dense.gain, side="right")
    labels = {"cells 0": (dense.cells[0], 3), "cells 1": (dense.cells[1], 4)}
    size = dense.x / clip
    bins = np.stack([(size > 0.5) & (size <= 1), size > 1, (size < -0.5) & (size >= -1), size < -1], 1).astype(float)
    expected = {"total": [t.sum()], "tails": bins.sum(0)}
    assert (name == "binary") is (facts.effect_deviation == 0)  # whose effect is one number at so many records
    if name != "binary":
        g = np.clip(dense.gain / facts.effect_deviation, -2, 2)
        expected["slope"] = [(g * t).sum() / (4 * clip), (g**2).sum() / 4]
        labels["by effect"] = by_effect, len(cuts) + 1
    for parts, (cells, count) in labels.items():
        one = np.eye(count)[cells]
        expected |= {f"{parts}: scores": one.T @ t, f"{parts}: counts": one.sum(0), f"{parts}: squares": one.T @ t**2}
        expected |= {} if name == "trial" else {f"{parts}: overlap": np.zeros(2 * count)}
    if name != "trial":
        expected["overlap"] = [0.0, 0.0]  # which is true here
    for weighted, (size, most) in zip(WEIGHTED, facts.tilts.tolist(), strict=True):
        s, d = dense.tilted(weighted)
        own = tilted_clip(facts, size, clip)
        assert -1e-12 <= d.min() <= d.max() <= most * (1 + 1e-6)  # no weight is beyond its public bound
        expected[weighted] = [(np.clip(s, -own, own) / (2 * own)).sum(), np.clip(d, 0, most).sum() / most]
    assert set(found) == set(expected)
    for block, values in expected.items():
        np.testing.assert_allclose(found[block], values, rtol=1e-9, atol=1e-9, err_msg=block)


def test_tilts_weigh_people_as_their_names_say():
    """Denominators are a, 1 - a and (a - e)^2, and ATO's ratio solves the regression of residuals on residuals."""
    fit = fitted("cohort")
    dense = Dense("cohort", fit, fit.lines.facts)
    a = dense.w + dense.e
    for name, weight in {"ATT": a, "ATC": 1 - a, "ATO": dense.w**2}.items():
        np.testing.assert_allclose(dense.tilted(name)[1], weight, atol=1e-12)
    s, d = dense.tilted("ATO")
    records, worked = drawn("cohort"), fit.worked
    r = records.y.numpy() - worked.outcome.numpy()
    assert dense.centre + s.sum() / d.sum() == pytest.approx((dense.w * r).sum() / (dense.w**2).sum(), rel=1e-9)


@pytest.mark.parametrize("case", ["cohort", "trial"], indirect=True)  # binary scores are clipped at any budget
def test_without_noise_lines_are_aipw(case):
    """Nothing is clipped without a budget: the average, groups, tilts, slope and the rule are those of the scores."""
    name, fit, _, _ = case
    plan, numbers = planned(name, None), fit.lines
    dense, lines = Dense(name, fit, numbers.facts), lines_of(numbers, plan, DOMAINS[name])
    assert np.abs(dense.x).max() < line_clip(plan, numbers.facts, numbers.square)
    assert lines.estimate() == pytest.approx(dense.scores.mean(), abs=1e-9)
    group = np.searchsorted(numbers.facts.cuts.numpy() - dense.centre, dense.gain, side="right")
    for k in range(3):
        assert lines.estimate(f"group {k + 1}") == pytest.approx(dense.scores[group == k].mean(), abs=1e-9)
        assert lines.records[lines.place(f"group {k + 1}")] == pytest.approx((group == k).mean(), abs=1e-12)
    for cells, partition in zip(dense.cells, CELLS.partitions, strict=True):
        for k, label in enumerate(partition.labels):
            assert lines.estimate(label) == pytest.approx(dense.scores[cells == k].mean(), abs=1e-9)
            assert lines.records[lines.place(label)] == pytest.approx((cells == k).mean(), abs=1e-12)
    for weighted in WEIGHTED:
        s, d = dense.tilted(weighted)
        assert lines.estimate(weighted) == pytest.approx(dense.centre + s.sum() / d.sum(), abs=1e-9)
    g = np.clip(dense.gain / numbers.facts.effect_deviation, -2, 2)
    slope = (g * dense.x).sum() / (g**2).sum() / numbers.facts.effect_deviation
    assert lines.estimate("slope") == pytest.approx(slope, abs=1e-9)
    sign = -1 if DOMAINS[name].better == "lower" else 1
    level = dense.x.mean()  # what the effect is moved by, so that its mean is the average
    assert lines.level == pytest.approx(level, abs=1e-9)
    treated = sign * (dense.gain + dense.centre + level) > 0
    assert 0 < treated.mean() < 1
    seems = optimism(plan, numbers.facts)
    assert lines.estimate("rule over none") == pytest.approx(sign * (treated * dense.scores).mean() - seems, abs=1e-9)
    assert lines.estimate("rule over all") == pytest.approx(-sign * (~treated * dense.scores).mean() - seems, abs=1e-9)
    noise, clip = lines.variances[:, PARTS.index("noise")], lines.variances[:, PARTS.index("clip")]
    assert float(noise.max()) == float(clip.max()) == 0.0
    sampling = np.mean(dense.x**2) / N
    assert float(lines.variances[0, 0]) == pytest.approx(sampling, rel=1e-9)
    assert lines.clipped == 0.0


@pytest.mark.parametrize("name", ["cohort", "trial"])
def test_lines_tend_to_aipw_as_the_budget_grows(name):
    """The same nuisances and effect, noise of growing budgets: errors fall with the noise that lines state."""
    fit = fitted(name)
    dense = Dense(name, fit, fit.lines.facts)
    inner, by, errors = residuals_of(name, fit), scored_by(name, fit), []
    for epsilon in (1e4, 1e6, 1e8):
        plan = planned(name, PrivacyBudget(epsilon, 1e-5))
        steps = NoisySteps(session_of(plan.budget, 1), plan.shares)
        lines = lines_of(private_lines(inner, plan, steps, by, fit.lines.facts), plan, DOMAINS[name])
        error = abs(lines.estimate() - dense.scores.mean())
        assert error < 4 * float(lines.variances[0, 1:3].sum().sqrt())
        errors.append(error)
    assert errors[0] > errors[1] > errors[2]
    assert errors[2] < 0.02 * dense.x.std() / math.sqrt(N)


@pytest.mark.parametrize("name", ["cohort", "trial"])
def test_noise_falls_below_sampling_as_the_budget_grows(name):
    """The clip no longer grows with mu beyond a few deviations: intervals become those of sampling alone."""
    parts = []
    for epsilon in (4.0, 64.0):
        budget = PrivacyBudget(epsilon, 1e-5)
        plan = planned(name, budget, ("groups",), cells=None)
        domain, facts = DOMAINS[name], (session_of(budget), DOMAINS[name].two_levels)
        fit = fit_composition(rows_of(drawn(name), domain), domain, plan, *facts, schema=TableSchema.of(domain))
        parts.append(lines_of(fit.lines, plan, domain).variances[0])
    few, many = (float(of[PARTS.index("noise")] / of[PARTS.index("sampling")]) for of in parts)
    assert many < 0.1 < few


def test_the_clip_grows_with_the_fourth_root_from_a_size_on():
    own = planned("cohort").line_constants
    for epsilon in (0.1, 1.0, 4.0, 64.0, 1e4, 1e6):
        plan = planned("cohort", PrivacyBudget(epsilon, 1e-5))
        constant = (math.sqrt(N) * plan.line_mu / 2) ** own.clip
        slow = own.slow_clip**0.75 * constant**0.25
        expected = own.least_clip if constant < own.least_clip else min(constant, slow)
        assert plan.line_clip == pytest.approx(expected, rel=1e-12)
        facts = made_facts(largest=1e9)
        deviation = score_deviation(plan, facts, 0.05)
        heavier = max(deviation / facts.deviation, 1.0)
        least = 1 / (facts.inverse * max(facts.treated, 1 - facts.treated))
        rarer = (least * math.sqrt(facts.inverse)) ** -0.8
        assert line_clip(plan, facts, 0.05) == pytest.approx(expected * deviation * heavier * rarer, rel=1e-12)
    assert line_clip(planned("cohort", None), facts, 0.05) == 1e3 * facts.deviation


# -- how far one record moves it


CLIPS = {"far": 4.0, "clip": 1.5, "deviation": 0.7}


def scored(count: int, seed: int) -> Scored:
    """Records at random and at their ends: scores far out and within, propensities and effects of all kinds."""
    generator = torch.Generator().manual_seed(seed)

    def choice(*values: float) -> Tensor:
        return torch.tensor(values, dtype=torch.float64)[torch.randint(len(values), (count,), generator=generator)]

    uniform = torch.rand(count, generator=generator, dtype=torch.float64)
    e = torch.where(uniform < 0.5, choice(0.01, 0.5, 0.99), 0.01 + 0.98 * uniform)
    x = torch.where(choice(0, 1) > 0, choice(-1e9, -1.5, -0.75, 0.0, 0.75, 1.5, 1e9), 6 * uniform - 3)
    effect = torch.where(choice(0, 1) > 0, choice(-1e9, -1.4, -0.7, 0.0, 0.7, 1.4, 1e9), 4 * uniform - 2)
    weight = torch.where(choice(0, 1) > 0, choice(0.0, 1.0, 1.0), uniform)
    cells = torch.stack([torch.randint(size, (count,), generator=generator) for size in SIZES], 1)
    lacks = torch.stack([torch.where(choice(0, 1) > 0, choice(0, 0, 1), uniform) for _ in range(2)], 1)
    a = choice(0, 1) - e
    return Scored(x.new_empty(count, 0), a, x, e, weight=weight, effect=effect, cells=cells, lacks=lacks)


def made_facts(**changes: object) -> LineFacts:
    own = LineFacts(
        centre=0.1,
        deviation=1.0,
        inverse=5.0,
        residual=0.5,
        largest=4.0,
        outcome=0.0,
        treated=0.4,
        outcome_deviation=1.0,
        effect_deviation=0.7,
        left_over=0.0,
        hidden=1.0,
        tilts=torch.tensor([[0.8, 1.0], [1.5, 1.0], [0.2, 1.0], [1.0, 5.0]]).double(),
        cuts=torch.tensor([-0.3, 0.6]).double(),
        rule=Ruled(0.0, 0.0),
    )
    return replace(own, **changes)


def made_sums(clip: float = CLIPS["clip"]) -> LineSums:
    return LineSums(line_blocks(planned("cohort"), made_facts(), clip))


def subset(rows: Scored, places: Tensor) -> Scored:
    """Some of the records, or the same one several times."""
    columns = rows.a, rows.y, rows.propensity, rows.weight, rows.effect, rows.cells, rows.lacks
    a, y, e, weight, effect, cells, lacks = (column[places] for column in columns)
    return Scored(y.new_empty(len(y), 0), a, y, e, weight=weight, effect=effect, cells=cells, lacks=lacks)


def each_terms(statistic, rows: Scored) -> Tensor:
    """What each record adds, [n, m]."""
    return torch.stack([statistic(subset(rows, torch.tensor([i]))).double() for i in range(rows.n)])


def pair(name: str) -> Scored:
    """Two records that a block is as far apart on as any: both in one cell of each partition, or in two."""
    high, middle, one_cell, two_cells = 9.0, 0.5, (0.0, 0.0), (-9.0, 9.0)
    # scores, propensities, treatments less those, effects
    known = {
        "total": ((high, -high), (middle, middle), (middle, middle), one_cell),
        "tails": ((high, -high), (middle, middle), (middle, middle), one_cell),
        "overlap": ((0.0, 0.0), (middle, middle), (middle, middle), one_cell),
        "scores": ((high, -high), (middle, middle), (middle, middle), one_cell),
        "counts": ((0.0, 0.0), (middle, middle), (middle, middle), two_cells),
        "squares": ((high, high), (middle, middle), (middle, middle), two_cells),
        "ATT": ((high, -high), (middle, middle), (0.5, -0.5), (9.0, 9.0)),
        "ATC": ((high, -high), (middle, middle), (-0.5, 0.5), (9.0, 9.0)),
        "slope": ((high, -high), (middle, middle), (middle, middle), (9.0, 0.0)),
    }
    x, e, w, effect = (torch.tensor(values).double() for values in known[name.rpartition(": ")[2]])
    cells = torch.tensor([[0, 3], [2, 1] if float(effect[0]) != float(effect[1]) else [0, 3]])
    weight, lacks = torch.ones(2).double(), torch.eye(2).double()
    return Scored(x.new_empty(2, 0), w, x, e, weight=weight, effect=effect, cells=cells, lacks=lacks)


BY_CELLS = [
    f"{parts}: {what}"
    for parts in ("by effect", "cells 0", "cells 1")
    for what in ("scores", "counts", "squares", "overlap")
]


def test_every_block_of_all_lines_is_searched():
    names = [block.name for block in made_sums().blocks]
    assert sorted(names) == sorted(["total", "tails", "overlap", "slope", *WEIGHTED, *BY_CELLS])
    assert math.fsum(block.part for block in made_sums().blocks) == pytest.approx(1.0, rel=1e-12)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("place", range(len(made_sums().blocks)))
def test_no_pair_of_weighted_records_moves_a_block_by_more_than_its_sensitivity(place, seed):
    block, rows = made_sums().blocks[place], scored(300, seed)
    terms = block.of(rows) * rows.weight[:, None]
    assert float(torch.cdist(terms, terms).max()) <= block.sensitivity * (1 + 1e-9)


@pytest.mark.parametrize("name", ["total", "tails", "overlap", *BY_CELLS, "ATT", "ATC"])
def test_a_pair_of_records_moves_a_block_by_its_whole_sensitivity(name):
    block = next(block for block in made_sums().blocks if block.name == name)
    one, other = block.of(pair(name))
    assert float((one - other).norm()) == pytest.approx(block.sensitivity, rel=1e-12)


def test_the_pair_that_is_audited_differs_in_one_record_and_moves_all_sums_by_one():
    plan, none = planned("cohort", lines=("ATT", "ATC"), cells=None), torch.zeros(0).double()
    facts = made_facts(cuts=none, rule=None, tilts=torch.ones(2, 2).double())
    statistic, weight = LineSums(line_blocks(plan, facts, CLIPS["clip"])), torch.ones(3).double()
    first, other = (each_terms(statistic, replace(rows, weight=weight)) for rows in scored_pair((1e9, -1e9)))
    assert (first != other).any(1).tolist() == [True, False, False]
    assert float((first - other).norm()) == pytest.approx(1.0, rel=1e-12)


@pytest.mark.parametrize("parts", ["by effect", "cells 0", "cells 1"])
def test_a_record_that_stays_in_its_cell_moves_scores_by_more_than_one_that_leaves_it(parts):
    """2 C and not root 2 C: why the sums of cells cost as much as the sum of all."""
    block = next(block for block in made_sums().blocks if block.name == f"{parts}: scores")
    moved = pair("counts")
    stays = block.of(pair("scores"))
    leaves = block.of(replace(pair("scores"), effect=moved.effect, cells=moved.cells))
    assert float((stays[0] - stays[1]).norm()) == pytest.approx(2 * CLIPS["clip"])
    assert float((leaves[0] - leaves[1]).norm()) == pytest.approx(math.sqrt(2) * CLIPS["clip"])


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("clip", [0.5, 1.5, 1e6])
def test_no_pair_of_weighted_records_moves_all_sums_by_more_than_one(clip, seed):
    sums, rows = made_sums(clip), scored(400, seed)
    terms = each_terms(sums, rows)
    moved, times, bound = sums.moved()
    assert float(terms.abs().max()) <= bound  # of each number, whose rounding adds up in the l2 norm
    assert times == pytest.approx(math.sqrt(terms.shape[1]))
    assert float(torch.cdist(terms, terms).max()) <= moved * (1 + 1e-9)
    assert moved == 1.0


@pytest.mark.parametrize("statistic", ["squares", "sums"])
def test_search_uphill_finds_no_pair_that_moves_more_than_the_sensitivity(statistic):
    """Adversarial: the farthest of many pairs, moved on at random wherever that takes them further apart."""
    found = Squares(CLIPS["far"]) if statistic == "squares" else made_sums()
    generator, best = torch.Generator().manual_seed(7), 0.0
    rows = scored(200, 11)
    for _ in range(6):
        terms = each_terms(found, rows)
        apart = torch.cdist(terms, terms)
        best = max(best, float(apart.max()))
        farthest = torch.topk(apart.max(1).values, 20).indices.repeat(10)
        rows = subset(rows, farthest)

        def jitter(values: Tensor) -> Tensor:
            return values + 0.2 * torch.randn(len(values), generator=generator, dtype=torch.float64)

        a = (rows.a + rows.propensity).round()
        e = (rows.propensity + 0.1 * jitter(0 * rows.y)).clamp(0.001, 0.999)
        weight = jitter(rows.weight).clamp(0, 1)
        stays = torch.rand(rows.n, 1, generator=generator) < 0.8
        cells = torch.where(stays, rows.cells, rows.cells[torch.randperm(rows.n, generator=generator)])
        values = {"a": a - e, "y": jitter(rows.y), "propensity": e, "effect": jitter(rows.effect)}
        rows = replace(rows, **values, weight=weight, cells=cells)
    assert best <= 1 + 1e-9
    assert best > 0.8


def test_squares_move_by_one_and_by_no_more():
    rows, squares = scored(400, 3), Squares(CLIPS["far"])
    terms = each_terms(squares, rows)
    assert float(torch.cdist(terms, terms).max()) == pytest.approx(squares.moved()[0]) == 1.0


def test_one_block_alone_takes_the_whole_sensitivity_of_the_sums():
    """With a part of one the worst pair of a block moves all by one: scaling gives nothing away."""
    for name in ("total", "by effect: counts", "cells 1: counts", "cells 0: squares"):
        block = next(block for block in made_sums().blocks if block.name == name)
        sums = LineSums((replace(block, part=0.3),))
        one, other = each_terms(sums, pair(name))
        assert float((one - other).norm()) == pytest.approx(1.0, rel=1e-12)
        ((_, back),) = sums.parts(one)
        torch.testing.assert_close(back, block.of(pair(name))[0])


@pytest.mark.parametrize("statistic", [made_sums(), Squares(CLIPS["far"])])
def test_a_statistic_travels(statistic):
    rows = scored(50, 1)
    assert torch.equal(pickle.loads(pickle.dumps(statistic))(rows), statistic(rows))
    assert all(number > 0 for number in statistic.moved())


# -- what it costs


@pytest.mark.parametrize("name", DOMAINS)
@pytest.mark.parametrize("settings", [{}, {"intervals": True}, {"constant_only": True}])
def test_shares_of_a_plan_with_lines_add_up_to_its_budget(name, settings):
    plan = planned(name, **settings)
    assert math.fsum(plan.shares.shares.values()) == pytest.approx(1.0, abs=1e-9)
    assert math.fsum(plan.shares.of(step) ** 2 for step in plan.shares.shares) <= total_mu(BUDGET) ** 2 * (1 + 1e-12)
    assert math.fsum(plan.shares.shares[step] for step in LINES) == pytest.approx(plan.line_constants.share)
    assert plan.line_mu == pytest.approx(total_mu(BUDGET) * math.sqrt(plan.line_constants.share))
    without = planned(name, lines=None, **settings)
    assert not set(LINES) & set(without.shares.shares)


def test_what_is_charged_is_what_the_plan_says():
    session = session_of(BUDGET)
    domain, plan = DOMAINS["cohort"], planned("cohort")
    rows = rows_of(drawn("cohort"), domain)
    fit_composition(rows, domain, plan, session, domain.two_levels, schema=TableSchema.of(domain))
    entries = [session.ledger.entry(number) for number in sorted(session.entries)]
    paid = dict.fromkeys(LINES, 0.0)
    for entry in entries:
        if entry.charge.part in LINES:
            paid[entry.charge.part] += entry.count / entry.event.noise_multiplier**2
    assert paid == pytest.approx({step: plan.shares.of(step) ** 2 for step in LINES}, rel=1e-6)
    assert [entry.charge.part for entry in entries if entry.charge.part in LINES] == [LINES[0], LINES[1], LINES[1]]


# -- what is made of the sums


def test_what_the_far_clip_hides_is_that_of_normal_residuals():
    """Of rare treatment, against a draw: the variance of scores over that of clipped ones."""
    clip = torch.tensor([0.3, 1.0, 3.0]).double()
    z = torch.from_numpy(np.random.default_rng(0).normal(size=10**6))
    drawn_squares = [float(z.clamp(-c, c).square().mean()) for c in clip.tolist()]
    assert clipped_square(clip).tolist() == pytest.approx(drawn_squares, abs=0.004)
    fit = fitted("cohort")
    e = np.full(4, 0.03)
    own = facts_at(e)
    far = far_clip(planned("cohort"), own) / own.residual
    scores = np.concatenate([z.numpy()[:30_000] / 0.03, z.numpy()[30_000:] / 0.97])
    expected = np.square(scores).mean() / np.square(np.clip(scores, -far, far)).mean()
    assert own.hidden == pytest.approx(expected, rel=0.05)
    assert 1.0 <= fit.lines.facts.hidden < 1.05


def facts_at(e: np.ndarray) -> LineFacts:
    """Facts of lines where the propensity is e, of residuals with the deviation one."""
    people = torch.zeros(len(e), 2).double()
    nuisances = partial(residuals, 0.0, lambda batch: torch.from_numpy(e), 2, 0.005)
    plan = planned("cohort")
    quantile = torch.special.ndtri(torch.tensor((1 + plan.huber_quantile) / 2).double()).item()
    return line_facts(people, torch.zeros(len(e)).double(), nuisances, DOMAINS["cohort"], plan, quantile)


@pytest.mark.parametrize("what", ["scores", "overlap"])
@pytest.mark.parametrize("cells", [[0], [1, 2], [0, 1, 2, 3]])
def test_sums_over_cells_are_generalised_least_squares(cells, what):
    """Of the released total and the released cells: estimate and variance, against a dense computation."""
    plan, generator = planned("cohort"), np.random.default_rng(0)
    everybody, width = {"scores": ("total", 1), "overlap": ("overlap", 2)}[what]
    total, each = generator.normal(size=width), generator.normal(size=(4, width))
    found = {everybody: torch.from_numpy(total), f"by effect: {what}": torch.from_numpy(each.flatten())}
    units = {everybody: 3.0, f"by effect: {what}": 2.0}
    numbers = LineNumbers(made_facts(), 0.1, torch.zeros(1).double())
    law = _Law(numbers, plan, 1.5, {"by effect": 4}, found, units, Lost(0.0, 0.0, 1.0), None, 1, 10.0)
    variances = np.array([law.noise(everybody) ** 2, *[law.noise(f"by effect: {what}") ** 2] * 4])
    design = np.vstack([np.ones(4), np.eye(4)])
    precision = np.linalg.inv(design.T @ (design / variances[:, None]))
    estimates = precision @ design.T @ (np.vstack([total, each]) / variances[:, None])
    wanted = np.isin(np.arange(4), cells).astype(float)
    sums, noise = law.sum_of(everybody, "by effect", what, cells)
    np.testing.assert_allclose(sums.numpy(), wanted @ estimates, rtol=1e-10, atol=1e-12)
    assert noise == pytest.approx(wanted @ precision @ wanted, rel=1e-10)
    alone, own = law.sum_of(everybody, None, what, [0])
    assert torch.equal(alone, found[everybody])
    assert own == law.noise(everybody) ** 2


def test_a_cell_s_tail_is_its_share_of_everybody_s_by_squares():
    """Twice the squares of the others: twice their tail; half of it, and of a third of both sides, may be off."""
    plan = planned("cohort")
    plan = replace(plan, shares=Shares(1e6, plan.shares.shares))  # squares nearly without noise
    n, square = plan.mass, 0.05
    far = far_clip(plan, made_facts()) ** 2
    counts, squares = (
        torch.tensor([0.3, 0.7]).double() * n,
        torch.tensor([0.3 * 2, 0.7 * 4 / 7]).double() * square * far * n,
    )
    found = {"tails": torch.tensor([400.0, 120.0, 80.0, 20.0]).double()}
    found |= {"by effect: counts": counts, "by effect: squares": squares}
    units = dict.fromkeys(found, 1e-3)
    numbers = LineNumbers(made_facts(), square, torch.zeros(1).double())
    law = _Law(numbers, plan, 1.5, {"by effect": 2}, found, units, Lost(0.0, 0.0, 1.0), None, 1, 10.0)
    whole, cell = law.tail(None, [0], n), law.tail("by effect", [0], 0.3 * n)
    assert whole == law.tail("by effect", [0, 1], n)
    assert cell.taken == pytest.approx(0.6 / made_facts().hidden * whole.taken, rel=1e-3)
    share = cell.taken / whole.taken
    off = 0.25 * (whole.taken**2 + (whole.size / 3) ** 2)
    assert cell.variance == pytest.approx(share**2 * (whole.variance + off))


def test_the_noise_of_sums_is_what_their_variances_say():
    """Many noises on the same records: the spread of each estimate is its stated variance of noise."""
    plan, facts = planned("cohort", lines=ALL), made_facts()
    plan = replace(plan, shares=Shares(1e3, plan.shares.shares))  # so little noise that ratios are linear
    rows = scored(N, 5)
    rows = InMemory(replace(rows, y=rows.y.clamp(-0.7, 0.7), effect=rows.effect.clamp(-1, 1), weight=None))
    clip = CLIPS["clip"]
    square = (clip / (plan.line_constants.clip * math.sqrt(N) * plan.line_mu / 2) / far_clip(plan, facts)) ** 2
    assert square > 0
    blocks = line_blocks(plan, facts, line_clip(plan, facts, square))
    exact, noise = rows.total(LineSums(blocks)), 1 / plan.shares.of(LINE_SUMS)
    generator, runs = torch.Generator().manual_seed(3), []
    for _ in range(600):
        sums = exact + noise * torch.randn(len(exact), generator=generator, dtype=torch.float64)
        runs.append(lines_of(LineNumbers(facts, square, sums), plan, DOMAINS["cohort"]).estimates)
    stated = lines_of(LineNumbers(facts, square, exact), plan, DOMAINS["cohort"])
    of_cells = (*stated.groups, *stated.cells, *stated.policies)  # whose tails add noise of their own
    without = [name for name in stated.names if name not in of_cells]
    spread = torch.stack(runs).var(0)
    for name in without:
        at = stated.place(name)
        counted = float(stated.variances[at, PARTS.index("noise")] + stated.variances[at, PARTS.index("clip")])
        assert 0.5 < float(spread[at]) / counted < 1.2, name
    for name in of_cells:
        at = stated.place(name)
        counted = float(stated.variances[at, PARTS.index("noise")] + stated.variances[at, PARTS.index("clip")])
        assert 0.3 < float(spread[at]) / counted < 1.2, name


def test_records_of_one_person_widen_what_sampling_leaves():
    plan, numbers = planned("cohort"), fitted("cohort", budget=BUDGET).lines
    one, five = (lines_of(numbers, plan, DOMAINS["cohort"], None, records) for records in (1, 5))
    torch.testing.assert_close(one.estimates[:-2], five.estimates[:-2])
    assert (five.estimates[-2:] < one.estimates[-2:]).all()  # a rule seems to gain by records that err alike
    sampling = PARTS.index("sampling")
    torch.testing.assert_close(five.variances[0, sampling], 5 * one.variances[0, sampling])
    there = one.records > 0
    assert (five.variances[there, sampling] > 2 * one.variances[there, sampling]).all()
    torch.testing.assert_close(one.variances[:, 1:], five.variances[:, 1:])


def test_requested_lines_are_there_and_others_are_not():
    numbers = fitted("cohort").lines
    groups, rule = ("group 1", "group 2", "group 3"), ("rule over none", "rule over all")
    lines = lines_of(numbers, planned("cohort", None), DOMAINS["cohort"])
    policies = tuple(f"{cell}{over}" for cell in CELLS.labels for over in OVER)
    assert lines.names == (AVERAGE, *groups, *CELLS.labels, *policies, *WEIGHTED, "slope", *rule)
    assert tuple(lines.policies) == policies
    assert (lines.groups, lines.cells) == (groups, tuple(CELLS.labels))
    few, none = planned("cohort", BUDGET, ("ATT",), cells=None), torch.zeros(0).double()
    alone = made_facts(cuts=none, rule=None, tilts=torch.ones(1, 2).double())
    assert [block.name for block in line_blocks(few, alone, 1.5)] == ["total", "tails", "overlap", "ATT"]
    zero = LineNumbers(alone, 0.1, torch.zeros(9).double())
    assert lines_of(zero, few, DOMAINS["cohort"]).names == (AVERAGE, "ATT")


@pytest.mark.parametrize(("centre", "there"), [(0.1, "rule over none"), (-0.1, "rule over all")])
def test_effects_that_do_not_vary_make_no_groups_and_no_slope(centre, there):
    """Everybody is treated, or nobody: the rule's value over that is nought by definition, and is no line."""
    plan = planned("cohort", cells=None)
    facts = made_facts(centre=centre, cuts=torch.zeros(0).double(), effect_deviation=0.0)
    blocks = line_blocks(plan, facts, 1.5)
    assert [block.name for block in blocks] == ["total", "tails", "overlap", *WEIGHTED]
    lines = lines_of(LineNumbers(facts, 0.1, torch.zeros(15).double()), plan, DOMAINS["cohort"])
    assert lines.names == (AVERAGE, *WEIGHTED, there)
    assert lines.estimate(there) == abs(lines.estimate())
    assert lines.error(there) == lines.error()


@pytest.mark.parametrize("cost", [0.0, 0.4, -0.3])
@pytest.mark.parametrize("name", ["cohort", "trial"])
def test_values_count_what_treatments_cost(name, cost):
    """Without noise: the mean over all records of scores in the better direction less the cost, of those treated."""
    domain, cutoff = DOMAINS[name], 0.1
    plan = planned(name, None, cost=cost, cutoff=cutoff)
    facts = session_of(None), domain.two_levels
    fit = fit_composition(rows_of(drawn(name), domain), domain, plan, *facts, schema=TableSchema.of(domain))
    dense, lines = Dense(name, fit, fit.lines.facts), lines_of(fit.lines, plan, domain)
    sign = -1 if domain.better == "lower" else 1
    treated = sign * (dense.gain + dense.centre + lines.level) > cost + cutoff
    assert 0 < treated.mean() < 1
    gains = sign * dense.scores - cost
    seems = optimism(plan, fit.lines.facts)
    assert lines.estimate("rule over none") == pytest.approx((treated * gains).mean() - seems, abs=1e-9)
    assert lines.estimate("rule over all") == pytest.approx(-(~treated * gains).mean() - seems, abs=1e-9)
    assert lines.records[lines.place("rule over none")] == pytest.approx(treated.mean(), abs=1e-12)
    stated = float(lines.variances[lines.place("rule over none"), PARTS.index("sampling")])
    share, mean = treated.mean(), gains[treated].mean()
    spread = (dense.x[treated] ** 2).mean()  # about the centre of all, which is more than about their own mean
    assert stated == pytest.approx((share * spread + share * (1 - share) * mean**2) / N + (seems / 2) ** 2, rel=1e-6)
    assert stated >= (treated * gains).var() / N
    for cells, partition in zip(dense.cells, CELLS.partitions, strict=True):
        for k, label in enumerate(partition.labels):
            over_none, over_all = (lines.estimate(f"{label}{over}") for over in OVER)
            assert over_none == pytest.approx(((cells == k) * gains).mean(), abs=1e-9)
            assert over_all == pytest.approx(-((cells != k) * gains).mean(), abs=1e-9)
            assert over_none - over_all == pytest.approx(gains.mean(), abs=1e-9)
            assert lines.records[lines.place(f"{label} over all")] == pytest.approx((cells != k).mean(), abs=1e-12)
            stated = float(lines.variances[lines.place(f"{label} over none"), PARTS.index("sampling")])
            assert stated >= ((cells == k) * gains).var() / N


@pytest.mark.slow
def test_intervals_of_policies_hold_what_people_gain():
    """Of 40 cohorts whose models are right; binomial(40, .05) exceeds 12 with probability 1e-7."""
    domain, many, cost = DOMAINS["cohort"], np.random.default_rng(0).normal(size=(10**6, 2)).clip(-3, 3), 0.3
    gains = 0.4 + 1.6 * many[:, 0] - cost
    places = CELLS.positions(torch.from_numpy(many)).numpy()
    truths = {}
    for place, partition in enumerate(CELLS.partitions):
        first = sum(SIZES[:place])
        for k, label in enumerate(partition.labels):
            treated = places[:, place] == first + k
            truths |= {f"{label} over none": (treated * gains).mean(), f"{label} over all": -(~treated * gains).mean()}
    plan, missed = planned("cohort", lines=(POLICIES,), cost=cost), dict.fromkeys(truths, 0)
    for seed in range(40):
        generator = torch.Generator().manual_seed(seed)
        x = torch.randn(N, 2, generator=generator, dtype=torch.float64).clamp(-3, 3)
        a = (torch.rand(N, generator=generator) < (x[:, 0] / 2).sigmoid()).double()
        noise = torch.randn(N, generator=generator, dtype=torch.float64)
        y = (x[:, 1] / 2 + a * (0.4 + 1.6 * x[:, 0]) + noise).clamp(-8, 10)
        rows, paid = rows_of(CausalData(x, a, y), domain), session_of(BUDGET, seed)
        fit = fit_composition(rows, domain, plan, paid, domain.two_levels, schema=TableSchema.of(domain))
        lines = lines_of(fit.lines, plan, domain)
        for name, truth in truths.items():
            low, high = lines.interval(name)
            missed[name] += not low <= truth <= high
    assert max(missed.values()) <= 12
    assert sum(missed.values()) < 0.1 * 40 * len(missed)


def test_policies_need_no_further_sums():
    plan, without = (planned("cohort", lines=lines) for lines in (ALL, tuple(set(ALL) - {POLICIES})))
    assert plan.shares == without.shares
    blocks = [[(b.name, b.part, b.sensitivity) for b in line_blocks(of, made_facts(), 1.5)] for of in (plan, without)]
    assert sorted(blocks[0]) == sorted(blocks[1])
    assert planned_line(plan, 18.0) == planned_line(without, 18.0)


def test_everybody_as_the_one_cell_gains_the_average_less_the_cost():
    domain = DOMAINS["trial"]
    plan = planned("trial", None, (POLICIES,), cells=Subgroups.of("everybody", TableSchema.of(domain)), cost=0.2)
    facts = session_of(None), domain.two_levels
    fit = fit_composition(rows_of(drawn("trial"), domain), domain, plan, *facts, schema=TableSchema.of(domain))
    lines = lines_of(fit.lines, plan, domain)
    assert lines.names == (AVERAGE, "everybody", "everybody over none")  # over all it gains nothing
    assert lines.estimate("everybody over none") == pytest.approx(-lines.estimate() - 0.2, abs=1e-9)


def test_policies_without_cells_or_with_cells_of_their_names_are_refused():
    with pytest.raises(InputError, match=r"policies treat exactly the people .* give second_stage.cells, as \[{sex"):
        plan_within(N, BUDGET, DOMAINS["cohort"], lines=(POLICIES,))
    facts = {"x": {"categories": ["a", "a over all"]}}
    schema = TableSchema.from_dict(
        {"treatment": "t", "outcome": {"name": "y", "low": 0, "high": 1}, "covariates": facts}
    )
    cells = Subgroups.of([{"x": True}], schema)
    with pytest.raises(InputError, match="'x = a over all' is the name of a policy's value"):
        plan_within(N, BUDGET, schema.domain, lines=(), cells=cells)


def test_a_share_of_public_people_says_at_which_effect_a_rule_decides():
    domain, people = DOMAINS["trial"], drawn("trial").x[:400]
    schema = TableSchema.of(domain)
    rule = Choices.of(schema, 0.1, 0.0, 0.25, people)
    plan = AdaptiveSecondStage(intervals=False, rule=rule).plan(N, None, domain)
    assert (plan.lines, plan.cost, plan.cutoff) == (("rule",), 0.1, None)
    facts = session_of(None), domain.two_levels
    fit = fit_composition(rows_of(drawn("trial"), domain), domain, plan, *facts, schema=schema, rule=rule)
    effects = fit.features(domain.scale(people)) @ fit.effect.shrunk
    assert int((effects < fit.lines.facts.rule.at).sum()) == 100  # lower outcomes are better


@pytest.mark.parametrize("name", DOMAINS)
def test_two_events_of_a_rule_sum_what_one_would(name):
    """The sums of everybody first: at the effect that follows from them the vector is that of one event."""
    fit, plan = fitted(name), planned(name, PrivacyBudget(1.0, 1e-5), cost=0.1)
    rows, by, facts = residuals_of(name, fit), scored_by(name, fit), replace(fit.lines.facts, rule=None)
    two = private_lines(rows, plan, EXACT, by, facts, partial(ruled, plan, DOMAINS[name], None))
    one = private_lines(rows, plan, EXACT, by, two.facts)
    torch.testing.assert_close(two.sums, one.sums, rtol=1e-12, atol=1e-12)
    lines = lines_of(two, plan, DOMAINS[name])
    sign = -1 if DOMAINS[name].better == "lower" else 1
    assert two.facts.rule == pytest.approx((sign * 0.1 - lines.level, 0.1), abs=1e-12)


@pytest.mark.parametrize("high", [0.1, 0.3, 0.5, 0.9])
def test_no_group_is_empty_where_many_people_have_the_same_effect(high):
    """An effect of two levels: each cell that cuts separate has people, in parts that its name does not deny."""
    tau = (torch.arange(1_000) < 1_000 * high).double()
    for groups in (2, 3, 4):
        cuts = group_cuts(tau, groups)
        sizes = torch.bincount(torch.bucketize(tau, cuts, right=True), minlength=len(cuts) + 1)
        assert sizes.min() >= 0.75 * 1_000 / (len(cuts) + 1)
    spread = torch.randn(1_000, generator=torch.Generator().manual_seed(0)).double()
    assert len(group_cuts(spread, 3)) == 2


# -- where the stated overlap makes up for a propensity


def test_what_the_overlap_makes_up_for_is_summed_by_arms():
    """A stated overlap of .35, which is false: against the propensity as it was learnt, by numpy."""
    domain, records = Domain([-3.0] * 2, [3.0] * 2, -8.0, 10.0, overlap=0.35), drawn("cohort")
    plan = plan_within(N, None, domain, lines=())
    facts = session_of(None), domain.two_levels
    fit = fit_composition(rows_of(records, domain), domain, plan, *facts, schema=TableSchema.of(domain))
    found = parts_of(plan, fit.lines)["overlap"]
    first, nuisances = fit.nuisances.args
    made, then = nuisances.args
    worked = made(first(records))
    shapes = then.func.shapes(worked.x)
    logit = torch.logit(made.args[1](first(records))) + shapes @ then.func.logit
    f = torch.sigmoid(logit).numpy()  # as learnt, with what was left over
    e = np.clip(f, 0.35, 0.65)
    exact = [np.clip(1 - (1 - f) / (1 - e), 0, None).sum(), np.clip(1 - f / e, 0, None).sum()]
    assert min(exact) > 100
    np.testing.assert_allclose(found, exact, rtol=1e-9)
    np.testing.assert_allclose(fit.worked.propensity.numpy(), e, rtol=1e-12)
    assert lines_of(fit.lines, plan, domain).lacking == pytest.approx(sum(exact) / N, rel=1e-9)


def test_of_several_arms_each_lacks_what_it_had_without_the_overlap():
    learnt = torch.tensor([[0.02, 0.18, 0.8], [0.3, 0.3, 0.4], [0.05, 0.05, 0.9]]).double()
    expected = torch.tensor([[0.8, 0.0, 0.0], [0.0, 0.0, 0.0], [0.5, 0.5, 0.0]]).double()
    torch.testing.assert_close(lacking(learnt, within_overlap(learnt, 0.1)), expected)


def test_intervals_count_what_the_overlap_makes_up_for():
    """By the weight of those who lack an arm in each line, a residual deviation for each of it; not the slope."""
    plan = planned("cohort", None)
    numbers, domain = fitted("cohort").lines, DOMAINS["cohort"]
    requested = LineSums(line_blocks(plan, numbers.facts, line_clip(plan, numbers.facts, numbers.square)))
    lacks, parts = {"overlap": torch.tensor([[60.0, 150.0]]).double()}, []
    for block, values in requested.parts(numbers.sums):
        if block.name.endswith(": overlap"):  # the last cell alone lacks the reference, all others the arm
            found = torch.tensor([[0.0, 150.0 / (block.size // 2 - 1)]] * (block.size // 2 - 1) + [[60.0, 0.0]])
            lacks[block.name] = found.double()
        own = lacks[block.name].flatten() if block.name in lacks else values
        parts.append(own / block.unit(requested.share))
    none, some = (lines_of(own, plan, domain) for own in (numbers, replace(numbers, sums=torch.cat(parts))))
    assert len(lacks) == 4
    assert none.lacking == 0.0
    assert some.lacking == pytest.approx(210 / N, rel=1e-9)
    torch.testing.assert_close(some.estimates, none.estimates)
    added = (some.variances - none.variances)[:, PARTS.index("nuisances")].sqrt()
    mass, o = {name: N * float(some.records[some.place(name)]) for name in some.names}, domain.overlap
    residual = numbers.facts.residual
    expected = {AVERAGE: 210 / N, "slope": 0.0, "ATO": o * (1 - o) * 210 / mass["ATO"]}
    expected |= {"beta:0.5:0.5": math.sqrt(o * (1 - o)) * 210 / mass["beta:0.5:0.5"]}
    expected |= {"ATT": ((1 - o) * 60 + o * 150) / mass["ATT"], "ATC": (o * 60 + (1 - o) * 150) / mass["ATC"]}
    for place, partition in enumerate(CELLS.partitions):
        each = lacks[f"cells {place}: overlap"].sum(1).tolist()
        expected |= {label: min(of / mass[label], 1.0) for label, of in zip(partition.labels, each, strict=True)}
    each, cuts = lacks["by effect: overlap"].sum(1), cuts_of(plan, numbers.facts)
    ends = torch.cat([cuts, cuts.new_tensor([math.inf])])
    group = torch.bucketize(ends, numbers.facts.cuts - numbers.facts.centre)
    gains = (ends > -numbers.facts.centre).long()  # if treated
    for k, name in enumerate(some.groups):
        expected[name] = float(each[group == k].sum()) / mass[name]
    expected["rule over none"], expected["rule over all"] = (float(each[gains == k].sum()) / N for k in (1, 0))
    for place, partition in enumerate(CELLS.partitions):
        each = lacks[f"cells {place}: overlap"].sum(1).numpy()
        for k, label in enumerate(partition.labels):
            expected[f"{label} over none"], expected[f"{label} over all"] = each[k] / N, np.delete(each, k).sum() / N
    assert set(expected) == set(some.names)
    for line, missing in expected.items():
        assert float(added[some.place(line)]) == pytest.approx(residual * missing, rel=1e-6, abs=1e-9), line


def test_noise_alone_says_nothing_of_the_overlap():
    """What is said to lack at least is less than what does, in 97 of 100 draws, and the interval hardly counts it."""
    plan, none = planned("cohort", lines=(), cells=None), torch.zeros(0).double()
    facts = made_facts(cuts=none, rule=None, tilts=none.view(0, 2))
    blocks = line_blocks(plan, facts, line_clip(plan, facts, 0.1))
    size, generator = sum(block.size for block in blocks), torch.Generator().manual_seed(0)
    noise = torch.randn(200, size, generator=generator, dtype=torch.float64) / plan.line_step("line sums")
    assert [block.name for block in blocks] == ["total", "tails", "overlap"]
    noisy, silent = (
        [lines_of(LineNumbers(facts, 0.1, sums), plan, DOMAINS["cohort"]) for sums in numbers]
        for numbers in (noise, noise * (torch.arange(size) < size - 2))
    )
    assert np.mean([lines.lacking > 0 for lines in noisy]) < 0.05
    assert 1 < np.mean([one.error() / other.error() for one, other in zip(noisy, silent, strict=True)]) < 1.02


# -- when there are lines


def test_lines_of_few_records_are_hidden_and_refused_when_requested():
    domain = Domain([-3.0] * 8, [3.0] * 8, -8.0, 10.0, overlap=0.1)
    budget = PrivacyBudget(0.5, 1e-5)
    facts = 500, budget, domain
    plan = AdaptiveSecondStage().plan(*facts)
    assert plan.lines is None
    assert "hardly adjusted" in why_no_lines(plan)
    assert lost_of(plan).kept < plan.line_constants.least_kept
    with pytest.raises(InputError) as raised:
        AdaptiveSecondStage(lines=["ATT"]).plan(*facts)
    message = str(raised.value)
    assert "hardly adjusted" in message
    assert "\n" not in message
    many = AdaptiveSecondStage().plan(50_000, PrivacyBudget(2.0, 1e-5), domain)
    assert many.lines == ("groups",)
    assert hardly_adjusted(many) is None
    assert hardly_adjusted(planned("trial", budget)) is None  # nothing is lost of a known propensity
    assert lost_of(planned("trial", budget)) == (0.0, 0.0, 1.0)


def test_what_nuisances_lose_falls_with_the_budget():
    lost = [lost_of(planned("cohort", PrivacyBudget(epsilon, 1e-5))) for epsilon in (0.1, 1.0, 10.0, 1e6)]
    assert all(a.bias > b.bias and a.variance > b.variance and a.kept < b.kept for a, b in pairwise(lost))
    assert lost[-1].kept == pytest.approx(1.0, abs=1e-3)


WIDE = Domain([-3.0] * 40, [3.0] * 40, -8.0, 10.0, overlap=0.1)


@pytest.mark.parametrize("spread", [None, 0.1])
@pytest.mark.parametrize("treated", [None, 0.1, 0.5])
@pytest.mark.parametrize("name", ["cohort", "binary", "wide"])
def test_what_nuisances_lose_is_a_sum_over_features(name, treated, spread):
    """Both terms, feature by feature: what shrinking takes of the prior, and what noise is left."""
    domain = WIDE if name == "wide" else DOMAINS[name]
    plan = plan_within(N, BUDGET, domain, lines=())
    covariates = [False] * (plan.covariates if plan.wide else plan.retained)
    features = all_features(covariates, plan.constants.kinds, plan.heads)
    share = plan.treated if treated is None else treated
    rarer = (logit_curvature(plan.treated) / logit_curvature(share)) ** 2
    square = (0.4**2 if spread is None else spread) if name == "binary" else 1.0
    own = plan.constants
    regressions = {  # with the prior variance of a function, and the factors of its noise and of its square
        "propensity": (plan.propensity(covariates), own.propensity_variance, rarer, 1.0),
        "outcome": (plan.outcome(covariates), own.outcome_variance, 1.0, square),
        "effect": (plan.effect(None if plan.wide else covariates), plan.head_variance, 1.0, 1 / square),
    }
    lost, errs = {}, {}
    for each, (regression, variance, times, unit) in regressions.items():
        priors = prior_variances(features, variance, own, 1e9, plan.heads, confounds=False)
        places = {feature: k for k, feature in enumerate(regression.basis.features)}
        lost[each], errs[each] = [], []
        for feature, prior in zip(features, priors.tolist(), strict=True):
            kept, noise = 0.0, 0.0
            if feature in places:
                k = places[feature]
                noise = times * regression.noise / float(regression.basis.feature_weights[1 + k])
                kept = float(regression.prior[k]) / (float(regression.prior[k]) + noise)
            lost[each].append(unit * prior * (1 - kept) ** 2)
            errs[each].append(lost[each][-1] + unit * noise * kept**2)
        if name == "wide":  # covariates that are not chosen have a linear feature alone, and lose what bends
            held = sum(1 / r for r in range(1, plan.heads + 1)) / sum(1 / r for r in range(1, 41))
            beyond = (1 - held) * (1 - own.part_share("1")) * variance
            lost[each].append(unit * beyond)
            errs[each].append(unit * beyond)
    apart = 0.0 if share is None else abs(1 - 2 * share)
    looked = [feature.kind in "2x" for feature in features] + [False] * (name == "wide")
    bias = sum(
        (not seen) * math.sqrt(e * m) + apart * math.sqrt(e * t)
        for e, m, t, seen in zip(*lost.values(), looked, strict=True)
    )
    both = sum(e * (m + apart**2 * t) for e, m, t in zip(*errs.values(), strict=True))
    found = lost_of(plan, None, treated, spread)
    assert found.bias == pytest.approx(bias, rel=1e-9)
    assert found.variance == pytest.approx(both, rel=1e-9)
    assert found.bias > 0 < found.variance


@pytest.mark.parametrize("constants", [PlanConstants(), RuleConstants()])
def test_compositions_without_lines_say_why(constants):
    stage, facts = AdaptiveSecondStage(lines=["ATT"], constants=constants), (PrivacyBudget(4.0, 0.0), DOMAINS["cohort"])
    with pytest.raises(InputError, match="delta = 0"):
        stage.plan(N, *facts)
    plan = replace(stage, lines="auto").plan(N, *facts)
    assert plan.lines is None
    assert "delta = 0" in why_no_lines(plan)


@pytest.mark.parametrize("lines", [["nobody"], ["ATT", "ATT"], True, "average"])
def test_unknown_lines_are_refused(lines):
    with pytest.raises(InputError, match="give false, auto, or a list of groups, ATT"):
        AdaptiveSecondStage(lines=lines)


def test_without_lines_a_plan_is_what_it_was():
    plan = AdaptiveSecondStage(lines=False).plan(N, BUDGET, DOMAINS["cohort"])
    assert plan.lines is None
    assert "lines" not in plan.facts()
    assert why_no_lines(plan) == "none were requested"


# -- what is shown of lines


def test_robustness_is_the_least_bias_that_explains_an_effect_away():
    """RV = eta solves theta^2 = sigma^2 eta^2 / (1 - eta): the bound of section 6 with both shares alike."""
    for effect, deviation in ((0.87, 2.5), (-0.2, 3.0), (5.0, 1.0)):
        eta = robustness(effect, deviation)
        assert deviation * math.sqrt(eta * eta / (1 - eta)) == pytest.approx(abs(effect), rel=1e-10)
        assert 0 < eta < 1
    assert robustness(0.0, 1.0) == 0.0
    assert robustness(-0.87, 3.34) == pytest.approx(0.23, abs=0.005)  # "23 % of what is left of the outcome"


def test_lines_come_back_from_their_tensors():
    numbers = fitted("cohort", budget=BUDGET).lines
    again = LineNumbers.from_tensors(numbers.tensors())
    assert torch.equal(again.sums, numbers.sums)
    assert again.square == numbers.square
    for name, value in numbers.facts.tensors().items():
        assert torch.equal(again.facts.tensors()[name], value)
    lines = lines_of(numbers, planned("cohort"), DOMAINS["cohort"])
    twin = Averages.from_tensors(list(lines.names), lines.tensors())
    assert all(torch.equal(twin.tensors()[name], value) for name, value in lines.tensors().items())
    forged = lines.tensors() | {"variances": -lines.variances}
    with pytest.raises(ValueError, match="negative"):
        Averages.from_tensors(list(lines.names), forged)
    with pytest.raises(ValueError, match="shapes"):
        Averages.from_tensors(list(lines.names[1:]), lines.tensors())
    with pytest.raises(ValueError, match="shapes"):
        LineNumbers.from_tensors(numbers.tensors() | {"facts.tilts": torch.zeros(2)})


def test_a_line_is_asked_for_by_its_name_and_a_level():
    lines = lines_of(fitted("cohort", budget=BUDGET).lines, planned("cohort"), DOMAINS["cohort"])
    low, high = lines.interval("ATT", 0.9)
    assert low < lines.estimate("ATT") < high
    assert high - low == pytest.approx(2 * 1.6448536 * lines.error("ATT"), rel=1e-6)
    assert "ATT" in lines
    assert "nobody" not in lines
    with pytest.raises(MissingError, match="there are average, group 1"):
        lines.estimate("nobody")
    with pytest.raises(InputError, match="level = 1"):
        lines.interval(level=1)


# -- where records are


@pytest.mark.parametrize("name", ["cohort", "trial"])
@pytest.mark.parametrize("budget", [None, BUDGET])
def test_a_stream_gives_the_sums_of_memory(name, budget):
    records, domain = drawn(name), DOMAINS[name]
    whole = fitted(name, records, budget).lines
    parts = fitted(name, Batches(domain, records, 700), budget).lines
    torch.testing.assert_close(parts.sums, whole.sums, rtol=1e-7, atol=1e-7)
    assert parts.square == pytest.approx(whole.square, rel=1e-7)
    assert parts.facts.centre == pytest.approx(whole.facts.centre, abs=1e-9)


@pytest.mark.parametrize(("statistic", "power"), [(made_sums(), 1), (Squares(CLIPS["far"]), 2)])
def test_a_sum_is_that_of_each_record_times_its_weight(statistic, power):
    rows, ones = scored(200, 9), torch.ones(200).double()
    each = each_terms(statistic, replace(rows, weight=ones))
    for weight, given in ((rows.weight, rows.weight), (ones, None)):
        found = statistic(replace(rows, weight=given))
        torch.testing.assert_close(found, (weight[:, None] ** power * each).sum(0), rtol=1e-10, atol=1e-10)


def test_the_average_of_weighted_records_is_that_of_weighted_scores():
    ends = [3.0] * 2
    domain = Domain([-3.0] * 2, ends, -8.0, 10.0, overlap=0.1, weights={"name": "w", "high": 1.0})
    weight = torch.rand(N, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    records = drawn("cohort").with_weight(weight)
    plan, facts = plan_within(N, None, domain, lines=()), (session_of(None), domain.two_levels)
    fit = fit_composition(rows_of(records, domain), domain, plan, *facts, schema=TableSchema.of(domain))
    dense = Dense("cohort", fit, fit.lines.facts)
    found = lines_of(fit.lines, plan.at_weight(fit.weight), domain)
    assert found.estimate() == pytest.approx(np.average(dense.scores, weights=weight), abs=1e-9)
    sampling = (weight.numpy() ** 2 * dense.x**2).sum() / float(weight.sum()) ** 2
    assert float(found.variances[0, PARTS.index("sampling")]) == pytest.approx(sampling, rel=1e-9)


@pytest.mark.parametrize("name", [*TILTS, "beta:0.5:0.5", "beta:0:0", "beta:0.3:1", "beta:1:0.2"])
def test_weights_of_a_tilt_are_its_tangents(name):
    """At the treatment a record got: within [0, 1] over the largest, which a propensity within bounds attains."""
    low, high = 0.07, 0.9
    most, (a, b) = largest_weight(name, low, high), powers(name)
    e = np.linspace(low, high, 10_001)
    h, slope = (part.numpy() for part in tilt(name, torch.from_numpy(e)))
    np.testing.assert_allclose(h, e**a * (1 - e) ** b, rtol=1e-12)
    inner = slice(1, -1)
    np.testing.assert_allclose(slope[inner], np.gradient(h, e)[inner], atol=1e-3)
    weights = np.stack([h + slope * (1 - e), h - slope * e])
    assert weights.min() > -1e-12
    assert weights.max() == pytest.approx(most, rel=1e-5)


def test_an_estimand_by_powers_is_a_line_of_the_average_s_task():
    domain, records = DOMAINS["cohort"], drawn("cohort")
    learner = AverageEffect(domain, None, estimand=HALF).fit(records.x, records.a, records.y)
    pi = (records.x[:, 0] / 2).sigmoid().clamp(0.1, 0.9).numpy()
    truth = np.average(0.4 + 1.6 * records.x[:, 0].numpy(), weights=np.sqrt(pi * (1 - pi)))
    lines = learner.nonprivate_lines()
    assert abs(lines.estimate(HALF) - truth) < 4 * lines.error(HALF) < 1.0
    assert HALF not in lines.cells
    assert lines.titles()[lines.place(HALF)].startswith("people weighted by e^0.5 (1 - e)^0.5")
    for wrong in ("beta:2:0", "beta:0.5", "beta:-1:0", "ATX"):
        with pytest.raises(InputError, match="a and b from 0 to 1"):
            AverageEffect(domain, BUDGET, estimand=wrong).fit(records.x, records.a, records.y)
