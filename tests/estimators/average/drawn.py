"""Readouts of records with noise, without a plan."""

from torchdpcate import NoiseSource
from torchdpcate.estimators.average.ratio_of_sums import NoisyEstimate, RatioOfSums, Total


def drawn(readout: RatioOfSums, total: Total, seed: int) -> NoisyEstimate:
    """Return the estimate by sums with noise of this seed, one a run of the total."""
    noise = NoiseSource.fixed(seed)
    answers = readout.ask(total, lambda query, exact: readout.laws[query].draw(noise, len(exact), exact))
    return readout.concluded(answers)
