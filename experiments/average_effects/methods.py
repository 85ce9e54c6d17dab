"""What is run on each data set: certified mechanisms, peers, the printed mechanism, and what has no privacy."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from experiments.average_effects.designs import Design, Sample
from experiments.average_effects.literal import hajek, literal
from experiments.covariate_balancing.outcome_table import DifferenceInMeans, plain_difference
from experiments.covariate_balancing.peers import HorvitzThompson, SubsampleAggregate
from experiments.covariate_balancing.root_polytope import error_width
from torchdpcate import PrivacyBudget, TableSchema
from torchdpcate.causal.estimand import ATE
from torchdpcate.estimators.average.covariate_balancing import make_plan
from torchdpcate.estimators.average.ratio_of_sums import NoisyEstimate
from torchdpcate.privacy.noise import NoiseSource

LEVEL = 0.95


@dataclass(frozen=True)
class Found:
    """Estimates and half widths of intervals, [runs]; nan where there is no interval."""

    estimate: Tensor
    half: Tensor


Method = Callable[[Design, Sample, float, int], dict[str, Found]]
"""From design, data sets, epsilon and a noise seed to what rows are called and what they found."""


def covariate_balancing(name: str, eta: float, loss: str = "auto") -> Method:
    """The library's ``CovariateBalancingEffect`` with these settings."""

    def run(design: Design, sample: Sample, epsilon: float, seed: int) -> dict[str, Found]:
        budget, estimand = PrivacyBudget(epsilon, 0.0), ATE(eta)
        plan = make_plan(sample.records.n, design.features, estimand, budget, loss=loss)
        return {name: found(plan.run(sample.records, NoiseSource.fixed(seed)))}

    return run


def peers(eta: float) -> Method:
    """After Lee et al. (2019), after Guha & Reiter (2024), and the private difference in means."""

    def run(design: Design, sample: Sample, epsilon: float, seed: int) -> dict[str, Found]:
        records, estimand, noise = sample.records, ATE(eta), NoiseSource.fixed(seed)
        facts = (records.n, TableSchema.of(design.domain), estimand, PrivacyBudget(epsilon, 0.0))
        plans = {
            "LGPR": HorvitzThompson(*facts),
            "GR": SubsampleAggregate(*facts),
            "difference in means": DifferenceInMeans(*facts),
        }
        return {name: found(plan.run(records, noise)) for name, plan in plans.items()}

    return run


def as_printed(design: Design, sample: Sample, epsilon: float, seed: int) -> dict[str, Found]:
    """The paper's own mechanism; not private. Its second row has the intervals of the note's simulation."""
    phi, bound = sample.printed
    batch, generator = sample.records.batch, torch.Generator().manual_seed(seed)
    drawn = literal(phi, bound, batch.z, batch.y, design.literal_eta, epsilon, generator)
    return {
        "literal": Found(drawn.estimate, drawn.half),
        "literal, note's interval": Found(drawn.estimate, drawn.note_half),
    }


def without_noise(design: Design, sample: Sample, epsilon: float, seed: int) -> dict[str, Found]:
    """The paper's estimator and the plain difference in means, neither private."""
    batch = sample.records.batch
    return {
        "no privacy, balanced": Found(*hajek(sample.printed[0], batch.z, batch.y)),
        "no privacy, difference in means": found(plain_difference(sample.records)),
    }


def found(conclusion: NoisyEstimate) -> Found:
    """Estimate and exact half width; the whole range where noise dominates the denominator."""
    none = ~conclusion.gaussian.isfinite()
    gaussian = conclusion.gaussian.nan_to_num(0.0, posinf=0.0)
    half = error_width(LEVEL, replace(conclusion, gaussian=gaussian))
    half = torch.where(conclusion.noise_dominated, 2.0, half)
    return Found(conclusion.estimate, half.masked_fill(none, math.nan))


def methods(design: Design) -> dict[str, Method]:
    """What is run with privacy on a design, by the name of its noise."""
    eta = design.literal_eta
    own = {"certified": covariate_balancing(f"certified, eta = {eta:g}", eta)}
    for loss in ("balancing", "logistic"):
        own[loss] = covariate_balancing(f"certified, {loss} loss, eta = {eta:g}", eta, loss)
    return {"literal": as_printed, **own, "peers": peers(eta)}
