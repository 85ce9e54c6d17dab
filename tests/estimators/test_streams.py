"""Every family by a stream: one batch is to the bit what memory is, several agree, and what cannot is one line."""

import pytest
import torch

from tests.composition.cases import Batches
from tests.in_parts import LocalParts
from tests.registered import (
    ComposedAverageEffect,
    CovariateBalancingEffect,
    DRLearner,
    EffectRule,
    KnownPropensityEffect,
    OutcomeWeightedLearner,
    PolicySelector,
    RLearner,
    SubgroupEffects,
    TwoStageRule,
)
from torchdpcate import Domain, NoiseSource, PrivacyBudget
from torchdpcate.candidates.kinds import Constants, Thresholds
from torchdpcate.composition.linear_fit import LightningFit
from torchdpcate.composition.settings import AdaptiveSecondStage, WideAndDeep
from torchdpcate.data.checked import fingerprint
from torchdpcate.data.records import CausalData
from torchdpcate.data.schema import TableSchema
from torchdpcate.data.streams import CachedStream
from torchdpcate.errors import InputError
from torchdpcate.heads.recipes import LinearSecondStage

N = 2_000
LOW, HIGH = [0.0] * 3, [1.0] * 3
OBSERVED = Domain(LOW, HIGH, -2.0, 4.0, overlap=0.1, better="higher")
TRIAL = Domain(LOW, HIGH, -2.0, 4.0, propensity=0.5, better="higher")
COLUMN = Domain(LOW, HIGH, -2.0, 4.0, overlap=0.1, propensity="pi", better="higher")
THREE = TableSchema.of(
    {
        "treatment": {"name": "a", "categories": [1, 2, 5]},
        "outcome": {"name": "y", "low": -2, "high": 4, "better": "higher"},
        "covariates": {f"x{j}": {"low": 0, "high": 1} for j in range(3)},
        "overlap": 0.1,
    }
)
BUDGET, PURE = PrivacyBudget(4.0, 1e-5), PrivacyBudget(4.0, 0.0)
CELLS = [{"x0": [0.5]}, {"x1": [0.3, 0.6]}]
POLICIES = [Constants([0, 1]), Thresholds("x0", [0.25, 0.5, 0.75])]


def drawn(arms=(0, 1)) -> CausalData:
    random = torch.Generator().manual_seed(0)
    x, u = (torch.rand(N, k, generator=random, dtype=torch.float64) for k in (3, 1))
    pi = 0.3 + 0.4 * x[:, 0]
    a = (u[:, 0] < pi).double() if len(arms) == 2 else torch.tensor(arms).double()[(3 * u[:, 0]).long()]
    noise = 0.2 * torch.randn(N, generator=random, dtype=torch.float64)
    return CausalData(x, a, (0.3 * x[:, 1] + (a > arms[0]) * (x[:, 0] - 0.4) + noise).clamp(-2, 4), pi)


def shown(learner):
    """Return the numbers that a learner released, or chose by."""
    if isinstance(learner, PolicySelector):
        return learner.utilities_
    release = learner.release()
    if isinstance(learner, SubgroupEffects):
        return release.effects.estimate
    if isinstance(learner, EffectRule):
        return release.effect.theta
    return release.theta if isinstance(learner, RLearner | DRLearner) else torch.tensor(list(release.numbers.values()))


FAMILIES = {
    "r": lambda **s: RLearner(OBSERVED, BUDGET, **s),
    "r, pure": lambda **s: RLearner(OBSERVED, PURE, **s),
    "r, intervals": lambda **s: RLearner(TRIAL, BUDGET, **s),
    "r, propensity by column": lambda **s: RLearner(COLUMN, BUDGET, **s),
    "r, three arms": lambda **s: RLearner(THREE, BUDGET, **s),
    "dr": lambda **s: DRLearner(OBSERVED, BUDGET, **s),
    "rule": lambda **s: EffectRule(OBSERVED, BUDGET, **s),
    "rule, pure": lambda **s: EffectRule(OBSERVED, PURE, **s),
    "average, composed": lambda **s: ComposedAverageEffect(OBSERVED, BUDGET, **s),
    "average, balancing": lambda **s: CovariateBalancingEffect(OBSERVED, PURE, **s),
    "average, trial": lambda **s: KnownPropensityEffect(TRIAL, PURE, **s),
    "average, propensity by column": lambda **s: KnownPropensityEffect(COLUMN, PURE, **s),
    "subgroups, scores": lambda **s: SubgroupEffects(OBSERVED, BUDGET, subgroups=CELLS, **s),
    "subgroups, by column": lambda **s: SubgroupEffects(COLUMN, PURE, subgroups=CELLS, **s),
    "subgroups, randomised": lambda **s: SubgroupEffects(OBSERVED, PURE, subgroups=CELLS, propensity="randomised", **s),
    "subgroups, three arms": lambda **s: SubgroupEffects(THREE, PURE, subgroups=CELLS, propensity="randomised", **s),
    "policies": lambda **s: PolicySelector(OBSERVED, BUDGET, policies=POLICIES, **s),
    "policies, pure": lambda **s: PolicySelector(OBSERVED, PURE, policies=POLICIES, **s),
    "policies, trial": lambda **s: PolicySelector(TRIAL, PURE, policies=POLICIES, **s),
    "policies, three arms": lambda **s: PolicySelector(
        THREE, BUDGET, policies=[Constants([1, 2, 5]), Thresholds("x0", [0.5], below=1, above=5)], **s
    ),
}


@pytest.mark.first(6)
@pytest.mark.parametrize("name", FAMILIES)
def test_one_batch_is_memory_to_the_bit_and_several_agree(name, tmp_path):
    def made():
        return FAMILIES[name](noise=NoiseSource.fixed(3))

    domain = made().domain
    records = drawn((1, 2, 5) if domain is THREE else (0, 1))
    own = records.propensity if domain is COLUMN else None
    memory = made().fit(records.x, records.a, records.y, own)
    records = records.with_propensity(own).subset(NoiseSource.fixed(3).permutation(N))  # the order of a fit in memory
    expected = shown(memory)
    with CachedStream(Batches(domain, records, N), tmp_path, N) as one:
        learner = made().fit_stream(one)
        assert torch.equal(shown(learner), expected)
        assert learner.release().privacy.to_dict() == memory.release().privacy.to_dict()
    several = shown(made().fit_stream(Batches(domain, records, 1_100)))
    torch.testing.assert_close(several, expected, rtol=1e-6, atol=1e-6)


QUICK = "average, trial", "subgroups, randomised", "policies, pure"


@pytest.mark.parametrize(
    "name",
    [*QUICK, *(pytest.param(name, marks=pytest.mark.slow) for name in ("r, pure", "average, balancing"))],
)
def test_one_part_is_a_stream_to_the_bit_and_several_agree(name):
    def fitted(stream):
        return shown(FAMILIES[name](noise=NoiseSource.fixed(3)).fit_stream(stream))

    domain = FAMILIES[name]().domain
    records = drawn((1, 2, 5) if domain is THREE else (0, 1))
    records = records if domain is COLUMN else records.with_propensity(None)
    stream = Batches(domain, records, 400)
    parts = [Batches(domain, records.subset(torch.arange(*ends)), 400) for ends in ((0, 700), (700, 1_100), (1_100, N))]
    expected = fitted(stream)
    assert torch.equal(fitted(LocalParts([stream])), expected)
    torch.testing.assert_close(fitted(LocalParts(parts)), expected, rtol=1e-6, atol=1e-6)


def test_medians_of_outcomes_in_parts_are_refused_unpaid():
    learner, stream = FAMILIES["policies, trial"](), Batches(TRIAL, drawn().with_propensity(None), N)
    with pytest.raises(InputError, match=r"number of each record .* leave propensity: out of the domain$"):
        learner.fit_stream(LocalParts([stream]))
    assert not learner.ledger_.entries


REFUSED = {
    "blocks": (RLearner(OBSERVED, BUDGET, second_stage=LinearSecondStage()), "blocks.*use second_stage=adaptive"),
    "network": (
        RLearner(OBSERVED, BUDGET, second_stage=AdaptiveSecondStage(nuisance=WideAndDeep())),
        "nuisance WideAndDeep.*use nuisance=auto",
    ),
    "solver": (
        RLearner(OBSERVED, BUDGET, second_stage=AdaptiveSecondStage(solver=LightningFit())),
        "solver LightningFit.*leave it out",
    ),
    "weighted rule": (OutcomeWeightedLearner(TRIAL, PURE), "features of all records.*use task=rule"),
    "two stages": (TwoStageRule(OBSERVED, PURE), "features of all records.*use task=rule"),
    "policies from records": (
        PolicySelector(
            OBSERVED,
            PURE,
            policies=[Constants([0, 1]), Thresholds("x0", [0.5], fitted_on=fingerprint([[0.0]], [0], [0.0]))],
        ),
        "made from records",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_needs_all_records_is_one_line_before_any_is_read(name):
    learner, expected = REFUSED[name]
    stream = Batches(OBSERVED, drawn(), 300)
    with pytest.raises(InputError, match=f"^stream: all records are needed at once: .*{expected}.*fit"):
        learner.fit_stream(stream)
    assert stream.readings == 0
    assert not hasattr(learner, "ledger_")
