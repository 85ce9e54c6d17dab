"""Tables 3 and 4: what a group of methods finds on some repeats of one law and size."""

import math
from collections.abc import Iterator

from experiments.average_effects.literal import hajek
from experiments.average_effects.methods import Found as Estimates
from experiments.average_effects.methods import found
from experiments.covariate_balancing.laws import LAWS, Law, Sample
from experiments.covariate_balancing.methods import EPSILONS, OVERLAPS, SHARES, certified, peers, printed
from experiments.covariate_balancing.outcome_table import plain_difference
from experiments.frame.study import CERTIFIED, FREE, NO_PRIVACY, OTHER, PRINTED, Found, Place, seed_of

TABLES = {"scenario 1": "table3_well_specified", "scenario 2": "table4_misspecified"}
PAPER = "CBSR private (paper)"
"""What the published tables call the paper's mechanism."""
GROUPS = ("without noise", "printed", "certified", "peers")
LEVELS = {"printed": "none holds", "certified": "certified", "peers": "certified", "without noise": "not private"}

Named = tuple[str, str, str, str, Estimates]
"""Role, variant, method, epsilon as words, and what it found on each data set."""


def simulate(scenario: str, n: int, group: str, first: int, runs: int) -> Iterator[Found]:
    """Yield the errors of a group of methods on the data sets of seeds first, first + 1, ...

    Args:
        scenario: Name of the law.
        n: Records of a data set.
        group: One of ``GROUPS``.
        first: First seed.
        runs: How many.
    """
    law = LAWS[scenario]
    sample = law.sample(n, range(first, first + runs))
    for role, variant, method, epsilon, one in _METHODS[group](law, sample, first):
        error = (one.estimate - sample.truth).abs()
        values = {"mse": error.square(), "relative_absolute_error": error / sample.truth}
        if bool(one.half.isfinite().all()):
            values |= {"coverage_percent": 100 * (error <= one.half).double(), "interval_length": 2 * one.half}
        for metric, each in values.items():
            place = Place(TABLES[scenario], law.setting, str(n), epsilon, variant, metric)
            yield Found(place, role, method, LEVELS[group], each.tolist())


def _free(law: Law, sample: Sample, first: int) -> Iterator[Named]:
    batch = sample.records.batch
    yield FREE, "", "balancing weights, no privacy", NO_PRIVACY, Estimates(*hajek(sample.scaled, batch.z, batch.y))
    plain = "difference in means, no privacy"
    yield OTHER, plain, plain, NO_PRIVACY, found(plain_difference(sample.records))


def _printed(law: Law, sample: Sample, first: int) -> Iterator[Named]:
    for epsilon in EPSILONS:
        for method, r in SHARES.items():
            seed = seed_of(law.name, sample.records.n, first, method, epsilon)
            role, variant = (PRINTED, PAPER) if math.isclose(r, 0.3) else (OTHER, method)
            yield role, variant, method, f"{epsilon:g}", printed(sample, r, epsilon, seed)


def _certified(law: Law, sample: Sample, first: int) -> Iterator[Named]:
    for epsilon in EPSILONS:
        for method, overlap in OVERLAPS.items():
            seed = seed_of(law.name, sample.records.n, first, method, epsilon)
            role, variant = (CERTIFIED, "") if overlap == law.domain.overlap else (OTHER, method)
            yield role, variant, method, f"{epsilon:g}", certified(law, sample, overlap, epsilon, seed)


def _peers(law: Law, sample: Sample, first: int) -> Iterator[Named]:
    for epsilon in EPSILONS:
        seed = seed_of(law.name, sample.records.n, first, "peers", epsilon)
        for method, one in peers(law, sample, epsilon, seed).items():
            role = PRINTED if method in ("LGPM", "GR") else OTHER
            yield role, method, f"{method}, the library's", f"{epsilon:g}", one


_METHODS = {"without noise": _free, "printed": _printed, "certified": _certified, "peers": _peers}
