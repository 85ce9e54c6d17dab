"""Both stages of a covariate balancing effect, on one data set or on many side by side."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from torchdpcate.erm.records import Batch, Records, arm, outcome, predictor
from torchdpcate.estimators.average.effect_estimator import EffectFacts, Total, Weighted, released_ranges
from torchdpcate.estimators.average.noisy_estimate import NoisyEstimate
from torchdpcate.estimators.average.plan import BalancingPlan
from torchdpcate.privacy.charge import Charge, Purpose, propensity_by
from torchdpcate.privacy.noise import NoiseSource
from torchdpcate.privacy.session import FitSession


@dataclass(frozen=True, eq=False)
class Learnt:
    """What stage one fixes.

    Attributes:
        theta: Coefficients of the propensity, [runs, p].
        model: Coefficients of the outcome model, [runs, p]; None where there is none.
    """

    theta: Tensor
    model: Tensor | None


def learn(records: Records, plan: BalancingPlan, session: FitSession, runs: int = 1) -> Learnt:
    """Fit propensity and outcome model privately: one run for each data set, or ``runs`` of them on one.

    Args:
        records: One data set, or several side by side.
        plan: Public plan.
        session: Pays, and draws the noise.
        runs: How many.
    """
    first, second = plan.propensity, plan.outcome
    runs, noise = max(runs, records.sets), session.noise
    session.pay(first.event, first.level, first.count, charge=propensity_by(plan.fitters[0]))
    theta = noise.released(first.draw(records, arm, noise, runs))
    if second is None:
        return Learnt(theta, None)
    charge = Charge(Purpose.OUTCOME_MODEL, plan.fitters[1])
    session.pay(second.event, second.level, second.count, charge=charge)
    return Learnt(theta, noise.released(second.draw(records, outcome, noise, runs)))


def released_facts(plan: BalancingPlan, learnt: Learnt) -> EffectFacts:
    """Return what is public for stage two once the coefficients are."""
    return replace(plan.facts, ranges=released_ranges(plan.facts, plan.features, learnt.theta, learnt.model))


def total_of(records: Records, plan: BalancingPlan, learnt: Learnt) -> Total:
    """Return what sums over the records with the weights and centres that were learnt."""
    ranges = released_ranges(plan.facts, plan.features, learnt.theta, learnt.model)

    def weighted(batch: Batch) -> Weighted:
        g = predictor(batch.psi, learnt.theta)
        z, y = batch.z.expand_as(g), batch.y.expand_as(g)
        m = torch.full_like(g, (plan.facts.low + plan.facts.high) / 2)
        if learnt.model is not None:
            m = torch.sigmoid(predictor(batch.psi, learnt.model)).clamp(plan.facts.low, plan.facts.high)
        return Weighted(z, y, *ranges.clamp(plan.estimand.weights(g, z), z, m))

    return lambda terms: records.total(lambda batch: terms(weighted(batch)))


def estimate_batch(records: Records, plan: BalancingPlan, noise: NoiseSource, runs: int = 1) -> NoisyEstimate:
    """Run the mechanism from fit to estimate on each data set, or ``runs`` times on one; for simulations and audits.

    Args:
        records: One data set, or several side by side.
        plan: Public plan.
        noise: Where the noise comes from.
        runs: How many runs on one data set.
    """
    session = FitSession(noise)
    learnt = learn(records, plan, session, runs)
    return plan.estimator.run(total_of(records, plan, learnt), released_facts(plan, learnt), plan.epsilons, session)
