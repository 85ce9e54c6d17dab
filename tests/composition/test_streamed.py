"""A composition on a stream against the same one in memory, on the same draws."""

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from experiments.designs.niu import Niu
from tests.composition.cases import Batches, Given, batch
from torchdpcate._process import BATCH
from torchdpcate.composition import rows as composition_rows
from torchdpcate.composition import steps as composition_steps
from torchdpcate.composition.builder import plan_within
from torchdpcate.composition.constants import PlanConstants
from torchdpcate.composition.covariates import Waves
from torchdpcate.composition.interval_events import Average
from torchdpcate.composition.linear_fit import HuberFit
from torchdpcate.composition.records import fit_composition, rows_of
from torchdpcate.composition.regressions import PropensityFits
from torchdpcate.composition.steps import NoisySteps, Shares, summation_error
from torchdpcate.composition.summaries import Curvatures, Moments
from torchdpcate.data.domain import Domain
from torchdpcate.data.streams import CachedStream
from torchdpcate.errors import BudgetError, InputError
from torchdpcate.privacy.budget import PrivacyBudget
from torchdpcate.privacy.charge import TRAINING
from torchdpcate.privacy.noise import NoiseSource
from torchdpcate.privacy.session import FitSession

BUDGET = PrivacyBudget(4.0, 1e-5)
FEW = PlanConstants(step_bounds=(5, 5), quantile_levels=3)


def opened(n, budget=BUDGET):
    session = FitSession.open({"records": n}, budget, NoiseSource.fixed(0))
    return session.charging(["records"], TRAINING)


def charges(session):
    entries = [session.ledger.entry(number) for number in sorted(session.entries)]
    return [(entry.charge, entry.event, entry.count) for entry in entries]


def fitted(stream, study, plan, budget=BUDGET):
    """Fit a plan to a stream of a study's records."""
    rows, session = rows_of(stream, study.domain), opened(plan.n, budget)
    return fit_composition(rows, study.domain, plan, session, study.schema.domain.two_levels)


PAIRED = replace(FEW, pair_size=1.0, window_rank=1.0)
CASES = {  # records, further covariates, constants and settings of the plan
    "continuous": (2_000, 0, {"constants": FEW}),
    "pairs": (3_000, 0, {"constants": PAIRED}),
    "without privacy": (3_000, 0, {"constants": FEW, "budget": None}),
    "large": (1_000, 20, {"budget": PrivacyBudget(1e6, 1e-5)}),
}


def case(name):
    """A study, its domain, the plan of a case and its budget."""
    n, covariates, settings = CASES[name]
    settings = {"budget": BUDGET, **settings}
    study = Niu("B", n=n).load()
    extra = torch.rand(study.records.n, covariates, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    ends = [3.0] * 6 + [1.0] * covariates
    domain = Domain([-end for end in ends], ends, -6.0, 14.0, overlap=0.05)
    records = replace(study.records, x=torch.cat([study.records.x, extra], 1))
    plan = plan_within(records.n, domain=domain, **settings)
    return replace(study, records=records), domain, plan, settings["budget"]


def test_a_stream_is_fitted_and_charged_as_records_in_memory_in_some_seventy_readings():
    """At the largest n mu; a file is read twice before, and each of two copies is a reading too."""
    study, domain, plan, budget = case("large")
    assert plan.steps < 20
    assert plan.wide
    assert plan.pairs
    stream, whole, parts = Batches(study.schema, study.records, 1_000), opened(plan.n, budget), opened(plan.n, budget)
    expected, found = (
        fit_composition(rows_of(of, domain), domain, plan, session, domain.two_levels)
        for of, session in ((study.records, whole), (stream, parts))
    )
    assert stream.readings <= 68 - 4
    assert charges(parts) == charges(whole)
    assert found.columns == expected.columns
    assert found.effect.regression.basis.features == expected.effect.regression.basis.features
    for name in ("shrunk", "variances", "curvatures"):
        torch.testing.assert_close(getattr(found.effect, name), getattr(expected.effect, name), rtol=1e-7, atol=1e-7)
    torch.testing.assert_close(found.standardisation.mean, expected.standardisation.mean, rtol=0, atol=1e-9)
    assert found.worked is None  # no values at records


@pytest.mark.parametrize("name", ["continuous", "pairs", "without privacy"])
def test_many_records_in_memory_are_many_batches_and_release_the_same(name, monkeypatch):
    study, domain, plan, budget = case(name)
    monkeypatch.setattr(composition_rows, "BATCH", 700)

    def fit():
        session = opened(plan.n, budget)
        return fit_composition(rows_of(study.records, domain), domain, plan, session, domain.two_levels)

    whole = fit()
    monkeypatch.setattr(composition_rows, "_MOST_AT_ONCE", 1_000)
    assert [batch.n for batch in rows_of(study.records, domain).batches()][:2] == [700, 700]
    rows, fits = rows_of(study.records, domain), PropensityFits(1.0, plan.propensity(domain.two_levels).basis)
    dense = fits.of(study.records)
    found = rows.fit(fits, dense.shape[1]).at_once()
    for name in ("predictors", "weights", "targets"):
        torch.testing.assert_close(getattr(found, name), getattr(dense, name))
    parts = fit()
    torch.testing.assert_close(parts.effect.shrunk, whole.effect.shrunk, rtol=1e-7, atol=1e-7)
    torch.testing.assert_close(parts.outcome, whole.outcome, rtol=1e-7, atol=1e-7)


def test_a_stream_whose_length_changes_is_refused():
    study = Niu("A", n=1_000).load()
    plan = plan_within(study.records.n, BUDGET, study.domain, constants=FEW)
    with pytest.raises(InputError, match="stays as it is"):
        fitted(Batches(study.schema, study.records, 300, lost=1), study, plan)


def test_nothing_is_read_that_the_budget_does_not_cover():
    study = Niu("A", n=1_000).load()
    plan = plan_within(study.records.n, BUDGET, study.domain, constants=FEW)
    stream = Batches(study.schema, study.records, 300)
    with pytest.raises(BudgetError):
        fitted(stream, study, plan, PrivacyBudget(0.1, 1e-5))
    assert stream.readings == 0


@settings(max_examples=20)
@given(st.integers(1, 200), st.integers(1, 300), st.integers(0, 2**32))
def test_sums_by_batches_err_by_less_than_is_added_for_them(rows, n, seed):
    values = (1 - torch.rand(n, generator=torch.Generator().manual_seed(seed)).double().square()) / 3  # of one sign
    total = torch.zeros(1, dtype=torch.float64)
    for some in values.split(rows):
        one = some.new_zeros(1)
        for value in some.split(1):  # the worst order that a sum may take
            one = one + value
        total = total + one
    bound = summation_error(n, 1.0, rows)
    assert abs(total.item() - math.fsum(values.tolist())) <= bound / 2


def test_noise_of_a_long_copied_stream_is_that_of_its_batches(tmp_path, monkeypatch):
    requested = []
    monkeypatch.setattr(NoisySteps, "rounding", lambda self, n, bound: requested.append(self.batch) or 0.0)
    study = Niu("A", n=500).load()
    n = study.records.n
    plan = plan_within(n, BUDGET, study.domain, constants=FEW)
    with CachedStream(Batches(study.schema, study.records, 70), tmp_path, n // 10) as copy:
        fitted(copy, study, plan)
    assert requested
    assert set(requested) == {n // 10}
    requested.clear()
    fitted(Batches(study.schema, study.records, 70), study, plan)
    assert set(requested) == {None}


@pytest.mark.parametrize("n", [1_000, 10**7])
def test_curvatures_and_gradients_of_long_tables_have_the_noise_of_short_ones(n):
    """At 10^7 records the rounding of sums in any order would be 126 % of a curvature's sensitivity."""
    steps, p = NoisySteps(FitSession(NoiseSource.system()), Shares(1.0, {"curvatures": 1.0})), 40
    assert steps.sensitivity(Curvatures(Given(), p), n) == pytest.approx(math.sqrt(2), rel=1e-3)
    assert steps.rounding(n, 1.0) * math.sqrt(p) < 1e-3


THIRD = torch.full((3 * BATCH + 1, 1), 1 / 3, dtype=torch.float64)
ONE = torch.ones(len(THIRD), dtype=torch.float64)
SUMS = {
    "gradient": lambda: HuberFit(THIRD, ONE, -ONE, 1.0).gradient(torch.zeros(1).double()),
    "curvatures": lambda: Curvatures(Given(), 1)(batch(THIRD, ONE)),
    "moments": lambda: Moments()(batch(THIRD)),
    "screening": lambda: Waves()(batch(THIRD, ONE)),
    "intervals": lambda: Average(lambda z: z, (0.3, 0.6), ONE[:1], 1.0)(batch(THIRD, ONE, ONE, ONE / 3)),
}


@pytest.mark.parametrize("kind", SUMS)
def test_no_sum_takes_more_records_than_a_batch_at_once(kind, monkeypatch):
    parts = []
    monkeypatch.setattr(composition_steps, "added", lambda each: parts.extend(each) or sum(parts))
    SUMS[kind]()
    assert len(parts) == 4
