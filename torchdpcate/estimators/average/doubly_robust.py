"""Doubly robust average effects (AIPW): private nuisances on one block, noisy sums of scores on the other."""

from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY, dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import torch

from torchdpcate.causal.estimand import Estimand
from torchdpcate.causal.score import ScoreRanges
from torchdpcate.data.records import CausalData
from torchdpcate.data.schema import TableSchema
from torchdpcate.estimators.average.doubly_robust_plan import DoublyRobust, default_nuisances
from torchdpcate.estimators.average.effect_estimator import EffectFacts, planned_sampling
from torchdpcate.estimators.average.effect_plan import EffectPlan
from torchdpcate.estimators.average.learner import AverageEffectLearner
from torchdpcate.estimators.average.names import NUISANCE, RECORDS
from torchdpcate.estimators.average.noisy_estimate import NoisyEstimate
from torchdpcate.estimators.average.planned_error import ErrorPrior, PlannedError, laplace
from torchdpcate.estimators.average.score_sums import ScoreSums
from torchdpcate.nuisance.model import NuisanceRecipe
from torchdpcate.nuisance.trainer import check_device
from torchdpcate.privacy.guarantee import Condition, Level

if TYPE_CHECKING:
    from lightning.pytorch import Trainer


PRODUCT = "a bias where neither the propensity nor the outcome models follow the truth"
"""What its planned error does not count."""


@dataclass(eq=False, repr=False)
class DoublyRobustEffect(AverageEffectLearner):
    r"""Average effect by augmented inverse propensity weights, with the influence function's variance.

    A public share of the records trains propensity and outcome models with all of the budget; the others, which may
    spend all of it too, release the sum of scores by these nuisances, its denominator where there is one
    (``Estimand.score``), and the sum of squared centred scores for the interval. With good nuisances no regular
    estimator has less sampling variance, and errors of propensity and outcome model enter as a product; the cost is
    that half the records are scored, and noise of order 1/eta.

    Guarantee:
        Certified (epsilon, delta) with delta > 0: each record is in one block. Sensitivities of the sums are suprema
        over the domain for the released nuisances, at most 2/eta for the sum of the ATE. The interval counts sampling
        and the noise of the sums, not the product of both nuisances' errors: with 5,000 records and epsilon = 0.5
        intervals of 95 % covered 92 % on an observational design, from epsilon = 1 on 97 %. It rests on a propensity or
        outcome models that follow the truth: where ``nuisance`` can give neither, as linear ones cannot where both
        depend on a product of covariates, it may never hold the effect. Source: Robins, Rotnitzky & Zhao (1994),
        Chernozhukov et al. (2018); theory note ``covariate_balancing``, section 3.6;
        docs/guarantees/aipw.md.

    Args:
        domain: See ``AverageEffectLearner``, and for all arguments not named here.
        budget: Of all of it, with delta > 0 for the nuisances.
        nuisance: Recipe of the nuisances; None takes ``default_nuisances``, linear convex ones; ``NuisanceConfig``
            trains networks by DP-SGD.
        trainer: Makes a Lightning Trainer from keyword arguments; None takes ``default_trainer``.
        split: Share of the records that trains the nuisances, in (0, 1).
        seed: Public seed of split and nuisances.

    Attributes:
        nuisances_: The nuisances, paid for.

    Example:
        >>> import torch
        >>> from torchdpcate import Domain, PrivacyBudget
        >>> X, A = torch.rand(4000, 2), torch.arange(4000) % 2
        >>> Y = (0.3 + 0.4 * A) * torch.ones(4000)
        >>> learner = DoublyRobustEffect(Domain([0, 0], [1, 1], 0.0, 1.0), PrivacyBudget(4.0, 1e-5), overlap=0.2)
        >>> release = learner.fit(X, A, Y).release()
        >>> low, high = release.interval(0.95)
        >>> abs(release.estimate - 0.4) < 0.2, bool(low < release.estimate < high), release.privacy.mechanism
        (True, True, 'aipw')
    """

    _: KW_ONLY
    nuisance: NuisanceRecipe | None = None
    trainer: "Callable[..., Trainer] | None" = None
    split: float = 0.5
    seed: int = 0

    mechanism: ClassVar[type[EffectPlan]] = DoublyRobust
    streams: ClassVar[bool] = False

    @classmethod
    def supports(cls, estimand: type[Estimand]) -> bool:
        """Whether it has a doubly robust score."""
        return estimand.has_score()

    def check(self, n: int) -> None:
        """See ``AverageEffectLearner``; also refuses no delta, and what split, recipe and trainer refuse."""
        if self.trainer is not None:
            check_device(self.trainer)
        self.plan(n).public()

    @property
    def conditions(self) -> tuple[Condition, ...]:
        """Those of an estimand and of a recipe that are not the library's."""
        return self._own_conditions + self._plan.recipe.conditions(self.trainer)  # type: ignore[no-any-return]

    def plan(self, n: int) -> DoublyRobust:
        """See ``AverageEffectLearner``."""
        recipe = self.nuisance or default_nuisances(TableSchema.of(self.domain).domain)
        settings: dict[str, Any] = {"recipe": recipe, "trainer": self.trainer, "split": self.split, "seed": self.seed}
        return DoublyRobust(**self._facts(n), **settings)

    def planned_error(self, n: int, prior: ErrorPrior | None = None) -> PlannedError:
        """See ``AverageEffectLearner``: the prior says how far released nuisances reach and err."""
        prior, plan = self._prior(prior), self.plan(n)
        of, scored, noise, nuisances = self.target, plan.sizes[RECORDS], 0.0, 0.0
        p, z = torch.full((2,), prior.treated, dtype=torch.float64), torch.tensor([1.0, 0.0], dtype=torch.float64)
        half = torch.full_like(p, 0.5)
        b = of.score(z, half, p.clamp(of.overlap, 1 - of.overlap), half, half)[1]
        size = scored * (torch.stack([p[0], 1 - p[1]]) * b).sum().item()
        if plan.budget is not None:
            narrower = type(of)(max(of.overlap, prior.reach))
            scales = ScoreSums.of(ScoreRanges.widest(narrower), of, scored, plan.budget.epsilon).noise_scales
            each = {part: scale.item() / size for part, scale in scales.items()}
            noise = laplace(each["score"], prior.effect * each.get("size", 0.0))
            trained = plan.sizes[NUISANCE] * plan.budget.epsilon
            nuisances = min(prior.product * (plan.domain.dimension + 1) / trained, prior.furthest)
        sampling = planned_sampling(EffectFacts(scored, of), prior)
        return PlannedError("doubly_robust", noise, nuisances, sampling, bias=PRODUCT).in_units(self._unit())

    def _part_levels(self, n: int) -> tuple[Level, ...]:
        recipe = self.plan(n).recipe
        return tuple(Level.CONDITIONAL for _ in (() if recipe is None else recipe.conditions(self.trainer)))

    def _of(self, records: CausalData) -> CausalData:
        """See ``AverageEffectLearner``: in outcome units, as recipes of nuisances take them."""
        return records.copy()

    def _learnt_first(self, records: CausalData) -> Mapping[str, Any]:
        learnt: Mapping[str, Any] = self._plan.learn(records, self._session)
        (self.nuisances_,) = learnt["nuisances"]
        return {**learnt, **self._plan.ranges_of(learnt["nuisances"])}

    def _without_noise(self, records: CausalData) -> NoisyEstimate:
        plan = self._plan
        fitted = plan.budget is None
        return plan.of_models(records, [self.nuisances_]) if fitted else plan.without_noise(records)  # type: ignore[no-any-return]

    def _sizes(self, n: int) -> dict[str, int]:
        return self.plan(n).sizes
