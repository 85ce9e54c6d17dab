"""Readouts of weighted records with noise, without a plan."""

from collections.abc import Mapping

from torchdpcate import NoiseSource
from torchdpcate.estimators.average.effect_estimator import EffectEstimator, EffectFacts, Total
from torchdpcate.estimators.average.noisy_estimate import NoisyEstimate


def drawn(
    readout: EffectEstimator, total: Total, facts: EffectFacts, epsilons: Mapping[str, float], seed: int
) -> NoisyEstimate:
    """Return the estimate by sums with noise of this seed, one a run of the total."""
    laws, noise = readout.laws(facts, epsilons), NoiseSource.fixed(seed)
    answers = readout.ask(total, facts, epsilons, lambda part, exact: laws[part].draw(noise, len(exact), exact))
    return readout.estimate(answers, facts, epsilons)
