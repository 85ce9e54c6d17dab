"""What a doubly robust estimate does with blocks of records: nuisances on one, scores by them on the other."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor

from torchdpcate.causal.score import Scored, ScoreRanges
from torchdpcate.data.domain import Domain
from torchdpcate.data.records import CausalData
from torchdpcate.data.split import public_split, split_sizes
from torchdpcate.errors import InputError
from torchdpcate.estimators.average.effect_plan import EffectPlan
from torchdpcate.estimators.average.names import NUISANCE, RECORDS
from torchdpcate.estimators.average.noisy_estimate import NoisyEstimate
from torchdpcate.estimators.average.score_sums import ScoreSums, conclude, epsilons_of, laws_of
from torchdpcate.laws import CLOSE, Training
from torchdpcate.nuisance.convex import ConvexNuisanceConfig
from torchdpcate.nuisance.kinds import nuisance_range
from torchdpcate.nuisance.model import NuisanceModel, NuisanceRecipe
from torchdpcate.nuisance.trainer import default_trainer
from torchdpcate.plan import Query
from torchdpcate.privacy.budget import as_number, integer
from torchdpcate.privacy.charge import ARMS, DP_SGD, JOINT, MEDIAN, TRAINING
from torchdpcate.privacy.noise import NoiseSource
from torchdpcate.privacy.session import FitSession
from torchdpcate.release.average_effect import AverageEffectRelease
from torchdpcate.release.release import Release

if TYPE_CHECKING:
    from lightning.pytorch import Trainer

_RANGES = "score_ranges"
_MOST_OVERLAP = 0.499  # a domain's; the clip of an effect may be a half


@dataclass(frozen=True, eq=False)
class DoublyRobust(EffectPlan):
    """The plan of sums of doubly robust scores by nuisances that have a block of their own.

    Attributes:
        nuisance: What the recipe of the nuisances is called.
        split: Share of the records that trains the nuisances.
        seed: Public seed of split and nuisances.
        recipe: How nuisances are trained; None where a plan is made of a release, which does not say.
        trainer: Makes a Lightning Trainer.

    Raises:
        InputError: A budget without delta, an estimand without a score, or what split and recipe refuse.
    """

    name: ClassVar[str] = "aipw"
    formula: ClassVar[str] = (  # type: ignore[override]
        "Laplace noise on sums of doubly robust scores and of their squares, scales Delta/epsilon by ranges of the "
        "released nuisances, at most 2/eta and 4/eta^2 for the ATE, as one event; covariate_balancing section 3.6"
    )
    assumption: ClassVar[str] = (
        "the released propensity or the released outcome models follow the truth; where neither does, the estimate is "
        "biased and the interval may never hold the effect"
    )
    rests_on: ClassVar[tuple[str, ...] | None] = None
    uses_delta: ClassVar[bool] = True

    nuisance: str = ""
    split: float = 0.5
    seed: int = 0
    recipe: NuisanceRecipe | None = None
    trainer: "Callable[..., Trainer] | None" = None

    def __post_init__(self) -> None:
        if self.budget is not None and self.budget.delta == 0:
            raise InputError(
                "delta = 0: private nuisances are only (epsilon, delta)-private; give a delta above 0, for instance "
                "1e-5, or take CovariateBalancingEffect, which is pure"
            )
        if not self.estimand.has_score():
            raise InputError(f"estimand = {self.estimand.name}: has no doubly robust score")
        integer("seed", self.seed, least=0)
        if self.recipe is not None:
            object.__setattr__(self, "nuisance", type(self.recipe).__name__)
            self.recipe.check(self.sizes[NUISANCE], self.domain, self.budget, ())

    @cached_property
    def domain(self) -> Domain:
        """Public bounds, their overlap the clip."""
        facts = self.schema.domain.to_dict()
        return Domain.from_dict({**facts, "overlap": min(self.estimand.overlap, _MOST_OVERLAP)})

    @property
    def sizes(self) -> dict[str, int]:
        """Number of records of ``NUISANCE`` and of ``RECORDS``."""
        return dict(zip((NUISANCE, RECORDS), split_sizes(self.n, self.split), strict=True))

    @cached_property
    def blocks(self) -> dict[str, Tensor]:
        """Positions of the records of each."""
        parts = public_split(self.n, self.split, self.seed, "average effect")
        return dict(zip((NUISANCE, RECORDS), parts, strict=True))

    @cached_property
    def queries(self) -> Mapping[str, Query]:
        """See ``Plan``: the nuisances, and the sums of scores, each on records of its own."""
        if self.budget is None:
            return {}
        training = Training(self.budget, ((DP_SGD,), (MEDIAN, JOINT)), (ARMS,))
        sums = self.summed(laws_of(self.sizes[RECORDS], self.estimand, self.budget.epsilon))
        return {"nuisances": Query(TRAINING, training, blocks=(NUISANCE,)), **sums}

    def own_settings(self) -> dict[str, Any]:
        """See ``EffectPlan``."""
        facts = {"nuisance": self.nuisance, "split": self.split, "seed": self.seed}
        if self.budget is None:
            return facts
        epsilons = epsilons_of(self.budget.epsilon, self.estimand)
        return {**facts, **{f"epsilon_{part}": own for part, own in epsilons.items()}}

    def following(self, answers: Mapping[str, Tensor]) -> dict[str, Any]:
        """See ``Plan``: the ranges that the nuisances leave, and the scales of noise by them."""
        if self.budget is None:
            return {}
        sums = self.scores(answers)
        ranges, of = sums.ranges, self.estimand
        together = {"score_range": [end.item() for end in ranges.ends]} if of.public_size else {}
        return {
            **{f"{part}_scale": scale.item() for part, scale in sums.noise_scales.items()},
            **together,
            "size_range": [ranges.least.amin().item(), ranges.most.amax().item()],
            _RANGES: answers["ranges"][0].tolist(),
        }

    @classmethod
    def stated_settings(cls, release: AverageEffectRelease) -> dict[str, Any]:
        """See ``EffectPlan``."""
        public = release.privacy.public
        return {"nuisance": str(public["nuisance"]), "split": as_number(public["split"]), "seed": public["seed"]}

    def sums(
        self, records: CausalData, session: FitSession, learnt: Mapping[str, Any], runs: int = 1
    ) -> Mapping[str, Tensor]:
        """See ``EffectPlan``; by the nuisances of each run that were learnt."""
        models = learnt["nuisances"]
        answers = self.ranges_of(models)
        scored = score_records(records, self, models)
        return {**answers, **self.scores(answers).ask(scored, partial(self.ask_each, session, 1))}

    def learn(self, records: CausalData, session: FitSession, runs: int = 1) -> Mapping[str, Any]:
        """See ``EffectPlan``: the nuisances of each run, which no release holds."""
        return {"nuisances": fit_nuisances(records, self, session, runs)}

    def ranges_of(self, models: Sequence[NuisanceModel]) -> dict[str, Tensor]:
        """Return the ranges of scores by these nuisances, one a run, that are paid for, as an answer [runs, 8]."""
        ranges = ranges_of(models, self)
        return {"ranges": torch.cat([ranges.low, ranges.high, ranges.least, ranges.most], 1)}

    def scores(self, answers: Mapping[str, Tensor]) -> ScoreSums:
        """Return the sums of scores by the ranges that the nuisances leave."""
        assert self.budget is not None
        ranges = ScoreRanges(*answers["ranges"].split(2, 1))
        return ScoreSums.of(ranges, self.estimand, self.sizes[RECORDS], self.budget.epsilon)

    def estimate(self, answers: Mapping[str, Tensor]) -> NoisyEstimate:
        """See ``EffectPlan``."""
        return self.scores(answers).estimate(answers)

    def answers(self, release: Release) -> dict[str, Tensor]:
        """See ``Plan``; with the ranges that the nuisances leave, as stated."""
        assert isinstance(release, AverageEffectRelease)
        stated = [as_number(end) for end in release.privacy.public[_RANGES]]
        ranges = {"ranges": torch.tensor([stated], dtype=torch.float64)}
        sums = self.scores(ranges)
        places, (low, high) = sums.places(_numbers(release)), (end.item() for end in sums.ranges.ends)
        shifted = sums.n * abs(low + high) / (high - low)
        return {**ranges, **{part: self.placed(part, place, shifted) for part, place in places.items()}}

    def problems(self, release: Release) -> Iterator[str]:
        """See ``Plan``; ranges of scores are those of some nuisances."""
        assert isinstance(release, AverageEffectRelease)
        sums, of = self.scores(self.answers(release)), self.estimand
        widest, least, most = ScoreRanges.widest(of), sums.ranges.least.amin().item(), sums.ranges.most.amax().item()
        slack = CLOSE * widest.largest
        if not of.score_sizes_are_possible(least, most):
            yield f"its size_range is none of the {of.name} at this overlap"
        inner = ((sums.ranges.low, widest.low), (widest.high, sums.ranges.high), (sums.ranges.least, widest.least))
        fits = all(bool((one >= other - slack).all()) for one, other in (*inner, (widest.most, sums.ranges.most)))
        ordered = bool((sums.ranges.low <= sums.ranges.high).all() and (sums.ranges.least <= sums.ranges.most).all())
        if not (fits and ordered and sums.ranges.change.item() >= of.least_score_change(most) - slack):
            yield f"its ranges of scores are none of the {of.name} at this overlap"
        yield from sums.far_problems(_numbers(release))
        yield from super().problems(release)

    def without_noise(self, records: CausalData) -> NoisyEstimate:
        """See ``EffectPlan``; by nuisances without noise."""
        exact = replace(self, budget=None)
        return self.of_models(records, fit_nuisances(records, exact, FitSession(NoiseSource.system())))

    def of_models(self, records: CausalData, models: Sequence[NuisanceModel]) -> NoisyEstimate:
        """Return the estimate by these nuisances without noise in its sums. The curator's, never to be published."""
        return conclude(score_records(records, self, models), ranges_of(models, self), self.estimand)

    def clip(self, e: Tensor) -> Tensor:
        """Return propensities within the clip."""
        return e.clamp(self.estimand.overlap, 1 - self.estimand.overlap)

    def unit(self, mu: Tensor) -> Tensor:
        """Return outcomes, or their means, scaled to [0, 1]."""
        return ((mu - self.domain.outcome_low) / self.domain.outcome_range).clamp(0, 1)


def _numbers(release: AverageEffectRelease) -> dict[str, Tensor]:
    """Return the numbers of a release, [1] each."""
    return {name: torch.tensor([value], dtype=torch.float64) for name, value in release.numbers.items()}


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
    plan: DoublyRobust,
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
    assert plan.recipe is not None
    return [
        plan.recipe.fit(
            part,
            plan.domain,
            budget=plan.budget,
            also=(),
            session=session.scope([NUISANCE], TRAINING),
            trainer=plan.trainer or default_trainer,
            seed=plan.seed,
        )
        for part in _data_sets(records, plan, NUISANCE, runs)
    ]


def score_records(records: CausalData, plan: DoublyRobust, models: Sequence[NuisanceModel]) -> Scored:
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


def ranges_of(models: Sequence[NuisanceModel], plan: DoublyRobust) -> ScoreRanges:
    """Return the ranges of the score over the domain by these nuisances, one a run: public where they are paid for."""
    ends = [nuisance_range(model, plan.domain) for model in models]
    e, mu = (torch.stack(parts).double() for parts in zip(*ends, strict=True))
    return ScoreRanges.of(plan.estimand, plan.clip(e), plan.unit(mu))


def _data_sets(records: CausalData, plan: DoublyRobust, block: str, runs: int) -> list[CausalData]:
    """Return the records of a block, one entry a run."""
    index = plan.blocks[block]
    x, z, y = records.x[..., index, :], records.a[..., index], records.y[..., index]
    known = None if records.propensity is None else records.propensity[..., index]
    if z.ndim == 1:
        return [CausalData(x, z, y, known)] * runs
    own = [None] * len(z) if known is None else list(known)
    return [CausalData(*parts) for parts in zip(x, z, y, own, strict=True)]
