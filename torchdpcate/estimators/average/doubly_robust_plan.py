"""What a doubly robust estimate does with blocks of records: nuisances on one, scores by them on the other."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from torchdpcate.causal.efficient_score import Scored, ScoreRanges
from torchdpcate.causal.estimand import Estimand
from torchdpcate.data.domain import Domain
from torchdpcate.data.records import CausalData
from torchdpcate.data.split import public_split, split_sizes
from torchdpcate.errors import InputError
from torchdpcate.estimators.average.noisy_estimate import NoisyEstimate
from torchdpcate.estimators.average.score_sums import release_scores
from torchdpcate.estimators.average.stated import NUISANCE, RECORDS
from torchdpcate.nuisance.convex import ConvexNuisanceConfig
from torchdpcate.nuisance.model import NuisanceModel
from torchdpcate.nuisance.ranges import nuisance_range
from torchdpcate.nuisance.recipe import NuisanceRecipe
from torchdpcate.nuisance.trainer import default_trainer
from torchdpcate.privacy.budget import PrivacyBudget
from torchdpcate.privacy.charge import TRAINING
from torchdpcate.privacy.noise import NoiseSource
from torchdpcate.privacy.session import FitSession

if TYPE_CHECKING:
    from lightning.pytorch import Trainer

_MOST_OVERLAP = 0.499  # a domain's; the clip of an effect may be a half


@dataclass(frozen=True, eq=False)
class DoublyRobustPlan:
    """Everything public about a doubly robust estimate.

    Attributes:
        estimand: Estimand and clip.
        domain: Public bounds, its overlap the clip.
        budget: Of either block; None without privacy.
        recipe: How nuisances are trained.
        trainer: Makes a Lightning Trainer.
        seed: Public seed of split and nuisances.
        n: Number of records.
        split: Share of them that trains the nuisances.
    """

    estimand: Estimand
    domain: Domain
    budget: PrivacyBudget | None
    recipe: NuisanceRecipe
    trainer: "Callable[..., Trainer]"
    seed: int
    n: int
    split: float

    @property
    def sizes(self) -> dict[str, int]:
        """Number of records of ``NUISANCE`` and of ``RECORDS``."""
        return dict(zip((NUISANCE, RECORDS), split_sizes(self.n, self.split), strict=True))

    @cached_property
    def blocks(self) -> dict[str, Tensor]:
        """Positions of the records of each."""
        return dict(
            zip((NUISANCE, RECORDS), public_split(self.n, self.split, self.seed, "average effect"), strict=True)
        )

    def clip(self, e: Tensor) -> Tensor:
        """Return propensities within the clip."""
        return e.clamp(self.estimand.overlap, 1 - self.estimand.overlap)

    def unit(self, mu: Tensor) -> Tensor:
        """Return outcomes, or their means, scaled to [0, 1]."""
        return ((mu - self.domain.outcome_low) / self.domain.outcome_range).clamp(0, 1)


def plan_doubly_robust(
    n: int,
    domain: Domain,
    estimand: Estimand,
    budget: PrivacyBudget | None,
    *,
    nuisance: NuisanceRecipe | None = None,
    trainer: "Callable[..., Trainer] | None" = None,
    split: float = 0.5,
    seed: int = 0,
) -> DoublyRobustPlan:
    """Split the records and check the nuisances' settings, on public facts alone.

    Args:
        n: Number of records.
        domain: Public bounds.
        estimand: Estimand and clip.
        budget: Of all of it, which either block may spend; None without privacy.
        nuisance: Recipe of the nuisances; None takes ``default_nuisances``.
        trainer: Makes a Lightning Trainer from keyword arguments; None takes ``default_trainer``.
        split: Share of the records that trains the nuisances.
        seed: Public seed of split and nuisances.

    Raises:
        InputError: A budget without delta, or what split and recipe refuse.
    """
    if budget is not None and budget.delta == 0:
        raise InputError(
            "delta = 0: private nuisances are only (epsilon, delta)-private; give a delta above 0, for instance 1e-5, "
            "or take CovariateBalancingEffect, which is pure"
        )
    clipped = Domain.from_dict({**domain.to_dict(), "overlap": min(estimand.overlap, _MOST_OVERLAP)})
    recipe = nuisance or default_nuisances(domain)
    plan = DoublyRobustPlan(estimand, clipped, budget, recipe, trainer or default_trainer, seed, n, split)
    recipe.check(plan.sizes[NUISANCE], clipped, budget, ())
    return plan


def default_nuisances(domain: Domain) -> ConvexNuisanceConfig:
    """Return linear nuisances with little noise: in a score the product of their errors counts, not each.

    The Huber threshold is half the outcome's range, for outcomes of few values, and propensity and outcomes have the
    same share of the gradient. On the confounded design of the theory note with n = 5,000 and epsilon = 0.5 the mean
    squared error was a quarter of that with the defaults of ``ConvexNuisanceConfig``.

    Args:
        domain: Public bounds.
    """
    return ConvexNuisanceConfig(
        degree=1,
        threshold=domain.outcome_range / 2,
        propensity_share=0.5,
        jacobian_share=0.15,
        median_share=0.01,
    )


def fit_nuisances(
    records: CausalData,
    plan: DoublyRobustPlan,
    session: FitSession,
    runs: int = 1,
) -> list[NuisanceModel]:
    """Train nuisances on each data set's own block, or ``runs`` times on one; data set by data set, as recipes do.

    Args:
        records: One data set, or several side by side: [runs, n] where records have [n].
        plan: Public plan; its budget pays.
        session: Pays, and draws the noise.
        runs: How many runs on one data set.
    """
    return [
        plan.recipe.fit(
            part,
            plan.domain,
            budget=plan.budget,
            also=(),
            session=session.scope([NUISANCE], TRAINING),
            trainer=plan.trainer,
            seed=plan.seed,
        )
        for part in _data_sets(records, plan, NUISANCE, runs)
    ]


def score_records(records: CausalData, plan: DoublyRobustPlan, models: Sequence[NuisanceModel]) -> Scored:
    """Return the scored block with the nuisances at its records.

    Args:
        records: One data set, or one for each model.
        plan: Public plan.
        models: Nuisances, one a run.
    """
    values = []
    for part, model in zip(_data_sets(records, plan, RECORDS, len(models)), models, strict=True):
        with torch.no_grad():
            at = model.values(part)
        values.append(torch.stack([at.pi, at.mu0, at.mu1]))
    e, mu0, mu1 = torch.stack(values, 1).double()
    z, y = (part[..., plan.blocks[RECORDS]].expand_as(e) for part in (records.a, records.y))
    return Scored(z, plan.unit(y), plan.clip(e), plan.unit(mu0), plan.unit(mu1))


def ranges_of(models: Sequence[NuisanceModel], plan: DoublyRobustPlan) -> ScoreRanges:
    """Return the ranges of the score over the domain by these nuisances, one a run: public where they are paid for."""
    ends = [nuisance_range(model, plan.domain) for model in models]
    e, mu = (torch.stack(parts).double() for parts in zip(*ends, strict=True))
    return ScoreRanges.of(plan.estimand, plan.clip(e), plan.unit(mu))


def doubly_robust(records: CausalData, plan: DoublyRobustPlan, noise: NoiseSource, runs: int = 1) -> NoisyEstimate:
    """Run the mechanism from fit to estimate on each data set, or ``runs`` times on one; for simulations and audits."""
    assert plan.budget is not None
    session = FitSession(noise)
    models = fit_nuisances(records, plan, session, runs)
    scored, ranges = score_records(records, plan, models), ranges_of(models, plan)
    return release_scores(scored, ranges, plan.estimand, plan.budget.epsilon, session)


def _data_sets(records: CausalData, plan: DoublyRobustPlan, block: str, runs: int) -> list[CausalData]:
    """Return the records of a block, one entry a run."""
    index = plan.blocks[block]
    x, z, y = records.x[..., index, :], records.a[..., index], records.y[..., index]
    known = None if records.propensity is None else records.propensity[..., index]
    if z.ndim == 1:
        return [CausalData(x, z, y, known)] * runs
    own = [None] * len(z) if known is None else list(known)
    return [CausalData(*parts) for parts in zip(x, z, y, own, strict=True)]
