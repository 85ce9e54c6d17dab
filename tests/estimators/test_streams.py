"""Every family by a stream: one batch is to the bit what memory is, several agree, and what cannot is one line.

Of records with weights, and of a censored outcome, what does not count changes nothing, in memory and by streams.
"""

from dataclasses import replace

import pytest
import torch

from tests.composition.cases import Batches
from tests.estimators.families import made
from tests.in_parts import LocalParts
from tests.registered import DRLearner, EffectRule, PolicySelector, RLearner, SubgroupEffects
from torchdpcate import Domain, NoiseSource, PrivacyBudget
from torchdpcate.candidates.kinds import Constants, Thresholds
from torchdpcate.composition.settings import AdaptiveSecondStage, LightningFit, WideAndDeep
from torchdpcate.data.checked import fingerprint
from torchdpcate.data.records import CausalData
from torchdpcate.data.schema import TableSchema
from torchdpcate.data.streams import CachedStream
from torchdpcate.errors import InputError

N = 2_000
LOW, HIGH = [0.0] * 3, [1.0] * 3
RANGE, WEIGHTS = {"better": "higher"}, {"weights": {"name": "w", "high": 2, "mean": 1}}
HORIZON = {"time": "t", "event": "d", "horizon": 2.0, "censoring": {"floor": 0.4}}
DOMAINS = {
    "observed": Domain(LOW, HIGH, -2.0, 4.0, overlap=0.1, **RANGE),
    "trial": Domain(LOW, HIGH, -2.0, 4.0, propensity=0.5, **RANGE),
    "column": Domain(LOW, HIGH, -2.0, 4.0, overlap=0.1, propensity="pi", **RANGE),
    "weights": Domain(LOW, HIGH, -2.0, 4.0, overlap=0.1, **RANGE, **WEIGHTS),
    "weights of a trial": Domain(LOW, HIGH, -2.0, 4.0, propensity=0.5, **RANGE, **WEIGHTS),
    "follow-up": Domain(LOW, HIGH, 0.0, 2.0, overlap=0.1, censoring=HORIZON, **RANGE),
    "three arms": TableSchema.of(
        {
            "treatment": {"name": "a", "categories": [1, 2, 5]},
            "outcome": {"name": "y", "low": -2, "high": 4, "better": "higher"},
            "covariates": {f"x{j}": {"low": 0, "high": 1} for j in range(3)},
            "overlap": 0.1,
        }
    ),
}
BUDGET, PURE = PrivacyBudget(4.0, 1e-5), PrivacyBudget(4.0, 0.0)
KEPT = (torch.arange(N) % 2 == 0).double()


def drawn(facts: str = "observed") -> CausalData:
    """Return records; of weights half have none, and of follow-up times many end before the horizon."""
    random, arms = torch.Generator().manual_seed(0), (1, 2, 5) if facts == "three arms" else (0, 1)
    x, u = (torch.rand(N, k, generator=random, dtype=torch.float64) for k in (3, 1))
    pi = 0.3 + 0.4 * x[:, 0]
    a = (u[:, 0] < pi).double() if len(arms) == 2 else torch.tensor(arms).double()[(3 * u[:, 0]).long()]
    noise = 0.2 * torch.randn(N, generator=random, dtype=torch.float64)
    y = (0.3 * x[:, 1] + (a > arms[0]) * (x[:, 0] - 0.4) + noise).clamp(-2, 4)
    if facts == "follow-up":
        horizon = DOMAINS[facts].censoring
        both = horizon.within(torch.stack([(y + 2).clamp(0, 3), (x[:, 2] < 0.6).double()], 1))
        return CausalData(x, a, horizon.outcome(both), follow_up=both)
    own = {"propensity": pi} if facts == "column" else {"weight": KEPT} if facts.startswith("weights") else {}
    return CausalData(x, a, y, **own)


def changed(name: str, facts: str, records: CausalData) -> CausalData:
    """Return other records, that differ in nothing that counts."""
    gone = ~DOMAINS[facts].censoring.observed(records.follow_up) if facts == "follow-up" else KEPT == 0
    assert 0.05 < gone.double().mean() <= 0.5
    x, a, y = records.x.clone(), records.a.clone(), records.y.clone()
    x[gone] = 1 - x[gone]
    if facts != "follow-up":  # whose censoring has a curve for each arm
        a[gone] = 1 - a[gone]
    if name != "policies" and facts != "follow-up":  # the private centre of policies' outcomes is that of all records
        y[gone] = 4.0
    return replace(records, x=x, a=a, y=y)


def fit(learner, records: CausalData):
    """Fit in memory; a weight is in units of its bound."""
    weight = None if records.weight is None else 2 * records.weight
    y = records.y if records.follow_up is None else records.follow_up
    return learner.fit(records.x, records.a, y, records.propensity, weight=weight)


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


OF_ARMS = {"policies": [Constants([1, 2, 5]), Thresholds("x0", [0.5], below=1, above=5)]}
CASES = [
    ("effect", "weights of a trial", BUDGET),
    ("line subgroups", "follow-up", BUDGET),
    ("policies", "trial", PURE),
    ("average", "weights", BUDGET),
    ("average of a trial", "column", PURE),
    ("effect", "three arms", BUDGET),
    ("balancing", "observed", PURE),
    ("rule", "weights", PURE),
    *(("effect", facts, BUDGET) for facts in ("observed", "column", "weights", "follow-up")),
    *(("effect", facts, PURE) for facts in ("observed", "weights", "follow-up")),
    *(("rule", "observed", budget) for budget in (BUDGET, PURE)),
    *(("average", facts, BUDGET) for facts in ("observed", "follow-up")),
    *(("average of a trial", facts, PURE) for facts in ("trial", "weights of a trial")),
    *(("line subgroups", facts, BUDGET) for facts in ("observed", "weights")),
    *(("subgroups", facts, PURE) for facts in ("column", "weights of a trial")),
    *(("policies", facts, BUDGET) for facts in ("observed", "weights", "three arms")),
    *(("policies", facts, PURE) for facts in ("observed", "weights of a trial")),
]


def learner(name: str, facts: str, budget: PrivacyBudget):
    settings = OF_ARMS if (name, facts) == ("policies", "three arms") else {}
    return made(name, DOMAINS[facts], budget, noise=NoiseSource.fixed(3), **settings)


@pytest.mark.first(6)
@pytest.mark.parametrize(("name", "facts", "budget"), CASES)
def test_one_batch_is_memory_to_the_bit_and_several_agree(name, facts, budget, tmp_path):
    records = drawn(facts)
    memory = fit(learner(name, facts, budget), records)
    expected = shown(memory)
    if facts.startswith(("weights", "follow-up")):
        assert torch.equal(shown(fit(learner(name, facts, budget), changed(name, facts, records))), expected)
    records = records.subset(NoiseSource.fixed(3).permutation(N))  # the order of a fit in memory
    with CachedStream(Batches(DOMAINS[facts], records, N), tmp_path, N) as one:
        streamed = learner(name, facts, budget).fit_stream(one)
        assert torch.equal(shown(streamed), expected)
        assert streamed.release().privacy.to_dict() == memory.release().privacy.to_dict()
    several = shown(learner(name, facts, budget).fit_stream(Batches(DOMAINS[facts], records, 1_100)))
    torch.testing.assert_close(several, expected, rtol=1e-6, atol=1e-6)


@pytest.mark.first(2)
@pytest.mark.parametrize("name", ["average of a trial", "policies", "effect", "balancing", "subgroups"])
def test_one_part_is_a_stream_to_the_bit_and_several_agree(name):
    facts = {"average of a trial": "trial", "subgroups": "column"}.get(name, "observed")

    def fitted(stream):
        return shown(learner(name, facts, PURE).fit_stream(stream))

    domain, records = DOMAINS[facts], drawn(facts)
    stream = Batches(domain, records, 400)
    parts = [Batches(domain, records.subset(torch.arange(*ends)), 400) for ends in ((0, 700), (700, 1_100), (1_100, N))]
    expected = fitted(stream)
    assert torch.equal(fitted(LocalParts([stream])), expected)
    torch.testing.assert_close(fitted(LocalParts(parts)), expected, rtol=1e-6, atol=1e-6)


def test_medians_of_outcomes_in_parts_are_refused_unpaid():
    told, stream = learner("policies", "trial", PURE), Batches(DOMAINS["trial"], drawn("trial"), N)
    with pytest.raises(InputError, match=r"a number of each record would leave its part; .*propensity: out"):
        told.fit_stream(LocalParts([stream]))
    assert not told.ledger_.entries


FROM_RECORDS = Thresholds("x0", [0.5], fitted_on=fingerprint([[0.0]], [0], [0.0]))
NETWORK, SOLVER = AdaptiveSecondStage(nuisance=WideAndDeep()), AdaptiveSecondStage(solver=LightningFit())
REFUSED = {
    "blocks.*use second_stage=adaptive": ("two blocks", {}),
    "nuisance WideAndDeep.*use nuisance=auto": ("effect", {"second_stage": NETWORK}),
    "solver LightningFit.*leave it out": ("effect", {"second_stage": SOLVER}),
    "features of all records.*use task=rule": ("two stages", {}),
    "made from records": ("fixed policies", {"policies": [Constants([0, 1]), FROM_RECORDS]}),
}


@pytest.mark.parametrize("words", REFUSED)
def test_what_needs_all_records_is_one_line_before_any_is_read(words):
    name, settings = REFUSED[words]
    told, stream = made(name, DOMAINS["observed"], BUDGET, **settings), Batches(DOMAINS["observed"], drawn(), 300)
    with pytest.raises(InputError, match=f"^stream: all records are needed at once: .*{words}.*fit"):
        told.fit_stream(stream)
    assert stream.readings == 0
    assert not hasattr(told, "ledger_")
