"""What is run on the data sets of a law: the printed mechanism, the certified one, peers, and what has no privacy."""

from dataclasses import dataclass

import torch

from experiments.average_effects.literal import literal
from experiments.average_effects.literal import printed as printed_shares
from experiments.average_effects.methods import Found, found
from experiments.covariate_balancing.laws import LEAST_OVERLAP, Law, Sample
from experiments.covariate_balancing.outcome_table import DifferenceInMeans
from experiments.covariate_balancing.peers import HorvitzThompson, SubsampleAggregate
from torchdpcate import PrivacyBudget, TableSchema
from torchdpcate.causal.estimand import ATE
from torchdpcate.estimators.average.covariate_balancing import make_plan
from torchdpcate.privacy.noise import NoiseSource

EPSILONS = (0.5, 1.0, 5.0)
SHARES = {"printed, r = 0.3": 0.3, "printed, r = 1/6": 1 / 6}
"""Rows of the printed mechanism by the share of epsilon that its variance gets: section 4.1's, and the supplement's."""
OVERLAPS = {"certified": LEAST_OVERLAP, "certified, overlap 0.1": 0.1}
"""Rows of the certified default by its public clip of the propensity."""
PEERS = ("LGPM", "GR", "difference in means")


@dataclass(frozen=True)
class Row:
    """What a method found on some data sets.

    Attributes:
        method: Its name.
        epsilon: Budget; inf without privacy.
        found: Estimates and half widths of intervals.
    """

    method: str
    epsilon: float
    found: Found


def printed(sample: Sample, r: float, epsilon: float, seed: int) -> Found:
    """Return what the paper's own mechanism finds; it is not private for any epsilon."""
    batch, generator = sample.records.batch, torch.Generator().manual_seed(seed)
    drawn = literal(sample.scaled, 1.0, batch.z, batch.y, LEAST_OVERLAP, epsilon, generator, printed_shares(r))
    return Found(drawn.estimate, drawn.half)


def certified(law: Law, sample: Sample, overlap: float, epsilon: float, seed: int) -> Found:
    """Return what the library's default finds, ``CovariateBalancingEffect`` with a pure budget."""
    plan = make_plan(sample.records.n, law.features, ATE(overlap), PrivacyBudget(epsilon, 0.0))
    return found(plan.run(sample.records, NoiseSource.fixed(seed)))


def peers(law: Law, sample: Sample, epsilon: float, seed: int) -> dict[str, Found]:
    """Return what the library's versions of Lee et al. (2019), Guha & Reiter (2024) and two private means find."""
    records, noise = sample.records, NoiseSource.fixed(seed)
    facts = (records.n, TableSchema.of(law.features.domain), ATE(LEAST_OVERLAP), PrivacyBudget(epsilon, 0.0))
    plans = (HorvitzThompson(*facts), SubsampleAggregate(*facts), DifferenceInMeans(*facts))
    return {name: found(plan.run(records, noise)) for name, plan in zip(PEERS, plans, strict=True)}
