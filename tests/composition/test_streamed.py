"""A composition on a stream against the same one in memory, on the same draws."""

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from torchdpcate.composition.builder import plan_within
from torchdpcate.composition.constants import PlanConstants, RuleConstants
from torchdpcate.composition.plan import DOUBLY_ROBUST, EFFECT
from torchdpcate.composition.pure_fits import PerturbedObjective
from torchdpcate.composition.records import fit_composition, rows_of
from torchdpcate.composition.steps import NoisySteps, most_additions, summation_error
from torchdpcate.composition.summaries import halvings
from torchdpcate.data.domain import Domain
from torchdpcate.data.records import CausalData, RecordStream
from torchdpcate.data.table import CachedStream
from torchdpcate.errors import BudgetError, InputError
from torchdpcate.papers.niu import Niu
from torchdpcate.privacy.budget import PrivacyBudget
from torchdpcate.privacy.charge import TRAINING
from torchdpcate.privacy.noise import NoiseSource
from torchdpcate.privacy.session import FitSession

BUDGET = PrivacyBudget(4.0, 1e-5)
FEW = PlanConstants(step_bounds=(5, 5), quantile_levels=3)


class Batches(RecordStream):
    """Records in batches of a size, and how often they were read."""

    def __init__(self, study, size, lost=0):
        self.schema, self.records, self.size, self.lost, self.readings = study.schema, study.records, size, lost, 0
        self.n = study.records.n

    def __iter__(self):
        self.readings += 1
        for rows in torch.arange(self.n - self.lost).split(self.size):
            yield CausalData(self.records.x[rows], self.records.a[rows], self.records.y[rows])


def opened(n, budget=BUDGET):
    session = FitSession.open({"records": n}, budget, NoiseSource.fixed(0))
    return session.scope(["records"], TRAINING)


def charges(session):
    entries = [session.ledger.entry(number) for number in sorted(session.entries)]
    return [(entry.charge, entry.event, entry.count) for entry in entries]


@pytest.mark.parametrize("design", ["A", "E"])
def test_passes_release_what_memory_does(design):
    study = Niu(design, n=3_000).load()
    records, domain, levels = study.records, study.domain, study.schema.two_levels
    plan = plan_within(records.n, BUDGET, domain, constants=FEW)
    whole, parts = opened(records.n), opened(records.n)
    expected = fit_composition(rows_of(records, domain), domain, plan, whole, levels)
    stream = Batches(study, 700)
    found = fit_composition(rows_of(stream, domain), domain, plan, parts, levels)
    assert charges(parts) == charges(whole)
    for name in ("shrunk", "variances", "curvatures"):
        torch.testing.assert_close(getattr(found.effect, name), getattr(expected.effect, name), rtol=1e-7, atol=1e-7)
    torch.testing.assert_close(found.standardisation.mean, expected.standardisation.mean, rtol=0, atol=1e-9)
    # each quantile, sum and gradient is a pass
    assert stream.readings == 3 + 2 + 3 * (1 + 5)
    assert found.worked is None  # no values at records


@pytest.mark.parametrize("covariates", [None, 20])
def test_passes_choose_the_pairs_that_memory_does(covariates):
    study = Niu("B", n=3_000).load()
    records, domain, levels = study.records, study.domain, study.schema.two_levels
    if covariates:  # of which the effect has a few
        extra = torch.rand(records.n, covariates, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
        records = CausalData(torch.cat([records.x, extra], 1), records.a, records.y)
        ends = (
            [*low, *[end] * covariates]
            for low, end in ((domain.covariate_low.tolist(), 0.0), (domain.covariate_high.tolist(), 1.0))
        )
        domain = Domain(*ends, domain.outcome_low, domain.outcome_high, overlap=domain.overlap)
        levels = (*levels, *[False] * covariates)
    constants = replace(FEW, pair_size=1.0, window_rank=1.0)
    plan = plan_within(records.n, BUDGET, domain, constants=constants)
    assert (plan.pairs, plan.wide) == (3, bool(covariates))
    whole, parts = opened(records.n), opened(records.n)
    expected = fit_composition(rows_of(records, domain), domain, plan, whole, levels)
    found = fit_composition(rows_of(Batches(replace(study, records=records), 700), domain), domain, plan, parts, levels)
    assert charges(parts) == charges(whole)
    assert found.effect.regression.basis.features == expected.effect.regression.basis.features
    assert "t" in found.effect.regression.basis.parts
    torch.testing.assert_close(found.effect.shrunk, expected.effect.shrunk, rtol=1e-7, atol=1e-7)


@pytest.mark.parametrize(
    "kind",
    ["continuous", "binary", "count", "trial", "wide", "lean", "doubly robust", "pure", "pure sums", "without privacy"],
)
def test_one_batch_is_to_the_bit_what_memory_is(kind, tmp_path):
    lean, pure = kind in ("lean", "pure sums"), kind in ("pure", "pure sums")
    study = Niu("B", n=150 if lean else 3_000).load()
    records, low, high, facts = study.records, -6.0, 14.0, {"overlap": 0.05}
    constants = {"wide": replace(FEW, most=2, pair_size=1.0)}.get(kind, FEW)
    constants = RuleConstants(step_bounds=(5, 5)) if lean else constants
    budget = (
        None if kind == "without privacy" else PrivacyBudget(1.0 if kind == "pure sums" else 4.0, 0.0 if pure else 1e-5)
    )
    if kind in ("binary", "count"):
        low, high, facts = 0.0, 1.0 if kind == "binary" else 20.0, {"overlap": 0.05, "outcome_kind": kind}
        y = (records.y > 3).double() if kind == "binary" else records.y.clamp(0, 20).round()
        study = replace(study, records=replace(records, y=y))
    elif kind == "trial":
        facts = {"propensity": 0.5}
    domain = Domain([-3.0] * 6, [3.0] * 6, low, high, **facts)
    learner = DOUBLY_ROBUST if kind == "doubly robust" else EFFECT
    asked = {"constants": constants, "intervals": kind == "trial"}
    plan = plan_within(study.records.n, budget, domain, learner, **asked)
    assert (plan.wide, plan.intervals, plan.scores) == (kind == "wide", kind == "trial", kind == "doubly robust")
    assert (plan.lean or plan.by_sums, plan.by_sums) == (lean, kind == "pure sums")
    with CachedStream(Batches(study, study.records.n), tmp_path, study.records.n) as copy:
        expected, found = compared(study, domain, plan, copy, budget)
    for name in ("shrunk", "estimates", "curvatures"):
        assert torch.equal(getattr(found.effect, name), getattr(expected.effect, name))
    assert torch.equal(found.standardisation.mean, expected.standardisation.mean)
    assert found.effect.scale == expected.effect.scale
    assert (found.numbers is None) or torch.equal(found.numbers.average, expected.numbers.average)
    batches = compared(study, domain, plan, None, budget)[1]
    torch.testing.assert_close(batches.effect.shrunk, expected.effect.shrunk, rtol=1e-7, atol=1e-7)


def test_a_lean_plan_of_a_rule_is_followed():
    study, budget = Niu("B", n=400).load(), PrivacyBudget(1.0, 1e-5)
    records, domain, levels = study.records, study.domain, study.schema.two_levels
    plan = plan_within(records.n, budget, domain, constants=RuleConstants())
    assert plan.lean
    whole, parts = opened(records.n, budget), opened(records.n, budget)
    expected = fit_composition(rows_of(records, domain), domain, plan, whole, levels)
    found = fit_composition(rows_of(Batches(study, 150), domain), domain, plan, parts, levels)
    assert charges(parts) == charges(whole)
    torch.testing.assert_close(found.effect.shrunk, expected.effect.shrunk, rtol=1e-7, atol=1e-7)


def test_a_known_propensity_is_not_fitted():
    study = Niu("B", n=2_000).load()
    domain = Domain([-3.0] * 6, [3.0] * 6, -6.0, 14.0, propensity=0.5)
    plan = plan_within(study.records.n, BUDGET, domain, constants=FEW)
    assert "propensity" not in plan.shares.shares
    records, whole, parts = study.records, opened(study.records.n), opened(study.records.n)
    expected = fit_composition(rows_of(records, domain), domain, plan, whole, domain.two_levels)
    found = fit_composition(rows_of(Batches(study, 700), domain), domain, plan, parts, domain.two_levels)
    assert charges(parts) == charges(whole)
    torch.testing.assert_close(found.effect.shrunk, expected.effect.shrunk, rtol=1e-7, atol=1e-7)


def compared(study, domain, plan, stream=None, budget=BUDGET):
    """Fit in memory and by a stream on the same draws; return both."""
    whole, parts = opened(plan.n, budget), opened(plan.n, budget)
    solver = PerturbedObjective() if budget is not None and budget.delta == 0 else None
    expected, found = (
        fit_composition(rows_of(of, domain), domain, plan, session, domain.two_levels, solver)
        for of, session in ((study.records, whole), (stream or Batches(study, 700), parts))
    )
    if budget is not None:
        assert charges(parts) == charges(whole)
    assert found.columns == expected.columns
    torch.testing.assert_close(found.effect.shrunk, expected.effect.shrunk, rtol=1e-7, atol=1e-7)
    return expected, found


def test_covariates_are_chosen():
    study = Niu("B", n=2_000).load()
    domain = Domain([-3.0] * 6, [3.0] * 6, -6.0, 14.0, overlap=0.05)
    plan = plan_within(study.records.n, BUDGET, domain, constants=replace(FEW, most=2))
    assert plan.screens
    expected, _ = compared(study, domain, plan)
    assert len(expected.columns) == plan.kept


def test_one_number_of_a_wide_plan_keeps_the_covariates_that_were_chosen():
    study = Niu("B", n=2_000).load()
    domain = Domain([-3.0] * 6, [3.0] * 6, -6.0, 14.0, overlap=0.05)
    plan = plan_within(study.records.n, BUDGET, domain, constants=replace(FEW, most=2), constant_only=True)
    assert plan.wide
    expected, found = compared(study, domain, plan)
    assert len(expected.columns) == len(found.standardisation.mean) == plan.kept == 2
    assert list(expected.columns) == sorted(expected.columns)


def test_binary_outcomes_are_fitted_by_logits():
    study = Niu("B", n=2_000).load()
    domain = Domain([-3.0] * 6, [3.0] * 6, 0.0, 1.0, outcome_kind="binary", overlap=0.05)
    study = replace(study, records=replace(study.records, y=(study.records.y > 3).double()))
    compared(study, domain, plan_within(study.records.n, BUDGET, domain, constants=FEW))


def test_intervals_rest_on_the_same_numbers():
    study = Niu("B", n=4_000).load()
    domain = Domain([-3.0] * 6, [3.0] * 6, -6.0, 14.0, propensity=0.5)
    plan = plan_within(study.records.n, BUDGET, domain, constants=FEW, intervals=True)
    expected, found = compared(study, domain, plan)
    assert found.law is not None
    torch.testing.assert_close(found.numbers.matrix, expected.numbers.matrix, rtol=0, atol=1e-9)
    torch.testing.assert_close(found.numbers.average, expected.numbers.average, rtol=1e-9, atol=1e-6)


@given(
    values=st.lists(st.floats(-1, 3, width=32), min_size=1, max_size=60),
    levels=st.integers(1, 8),
    low=st.floats(-0.5, 0.3),
    length=st.floats(0.1, 2),
)
def test_all_thresholds_of_a_halving_are_among_the_edges(values, levels, low, length):
    edges, ends = halvings(low, low + length, levels), [low, low + length]
    assert len(edges) == 2**levels - 1
    for bit in values[:levels]:
        middle = (ends[0] + ends[1]) / 2
        assert (edges == middle).any()
        ends = [middle, ends[1]] if bit > 0 else [ends[0], middle]


def test_counts_are_fitted_by_logarithms():
    study = Niu("B", n=2_000).load()
    domain = Domain([-3.0] * 6, [3.0] * 6, 0.0, 20.0, outcome_kind="count")
    study = replace(study, records=replace(study.records, y=study.records.y.clamp(0, 20).round()))
    plan = plan_within(study.records.n, BUDGET, domain, constants=FEW)
    assert plan.log_link
    whole, parts = opened(plan.n), opened(plan.n)
    expected = fit_composition(rows_of(study.records, domain), domain, plan, whole, domain.two_levels)
    found = fit_composition(rows_of(Batches(study, 700), domain), domain, plan, parts, domain.two_levels)
    torch.testing.assert_close(found.effect.shrunk, expected.effect.shrunk, rtol=1e-7, atol=1e-7)


def test_a_stream_whose_length_changes_is_refused():
    study = Niu("A", n=1_000).load()
    plan = plan_within(study.records.n, BUDGET, study.domain, constants=FEW)
    with pytest.raises(InputError, match="stays as it is"):
        fit_composition(
            rows_of(Batches(study, 300, lost=1), study.domain),
            study.domain,
            plan,
            opened(study.records.n),
            study.schema.two_levels,
        )


def test_nothing_is_read_that_the_budget_does_not_cover():
    study = Niu("A", n=1_000).load()
    plan = plan_within(study.records.n, BUDGET, study.domain, constants=FEW)
    stream = Batches(study, 300)
    with pytest.raises(BudgetError):
        fit_composition(
            rows_of(stream, study.domain),
            study.domain,
            plan,
            opened(study.records.n, PrivacyBudget(0.1, 1e-5)),
            study.schema.two_levels,
        )
    assert stream.readings == 0


@pytest.mark.parametrize(("rows", "most"), [(100, 110), (999, 1_001), (4_096, 1_001), (1, 1_001), (None, 1_000)])
def test_batches_say_how_often_a_number_is_rounded(rows, most):
    assert most_additions(1_000, rows) == most


@given(st.integers(1, 200), st.integers(1, 600), st.integers(0, 2**32))
def test_sums_by_batches_err_by_less_than_is_added_for_them(rows, n, seed):
    values = (1 - torch.rand(n, generator=torch.Generator().manual_seed(seed)).double().square()) / 3  # of one sign
    total = torch.zeros(1, dtype=torch.float64)
    for batch in values.split(rows):
        one = batch.new_zeros(1)
        for value in batch.split(1):  # the worst order that a sum may take
            one = one + value
        total = total + one
    bound = summation_error(n, 1.0, rows)
    assert abs(total.item() - math.fsum(values.tolist())) <= bound / 2


def test_noise_of_a_long_copied_stream_is_that_of_its_batches(tmp_path, monkeypatch):
    asked = []
    monkeypatch.setattr(NoisySteps, "rounding", lambda self, n, bound: asked.append(self.batch) or 0.0)
    study = Niu("A", n=500).load()
    n = study.records.n
    plan = plan_within(n, BUDGET, study.domain, constants=FEW)
    with CachedStream(Batches(study, 70), tmp_path, n // 10) as copy:
        fit_composition(rows_of(copy, study.domain), study.domain, plan, opened(n), study.schema.two_levels)
    assert asked
    assert set(asked) == {n // 10}
    asked.clear()
    fit_composition(rows_of(Batches(study, 70), study.domain), study.domain, plan, opened(n), study.schema.two_levels)
    assert set(asked) == {None}
