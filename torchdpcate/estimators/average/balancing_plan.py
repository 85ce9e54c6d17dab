"""The plan of a covariate balancing effect: weights, an outcome model, and the sums of a balanced difference."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar, Self

from torch import Tensor

from torchdpcate.causal.estimand import make_estimand
from torchdpcate.errors import InputError
from torchdpcate.estimators.average.balance import expected_balance
from torchdpcate.estimators.average.effect_plan import (
    AverageEffectPlan,
    ErrorPrior,
    FirstFit,
    PlannedError,
    exact_fit,
    planned_noise,
    planned_sampling,
    planned_size,
    with_typical_ranges,
)
from torchdpcate.estimators.average.ratio_of_sums import NoisyEstimate, Total
from torchdpcate.estimators.average.weighted import (
    EITHER,
    BalancedDifference,
    EffectFacts,
    left_imbalance,
    released_ranges,
    weigh,
)
from torchdpcate.fit.feature_maps import FeatureMap
from torchdpcate.fit.linear_fits import ObjectiveFit, PreparedFit
from torchdpcate.fit.losses import BalancingLoss, CrossEntropy, Logistic, Loss
from torchdpcate.fit.stacked_records import Records, arm, outcome
from torchdpcate.plan import RECORDS
from torchdpcate.privacy.budget import PrivacyBudget, as_number
from torchdpcate.privacy.charge import Purpose, fits_by
from torchdpcate.privacy.events import PureEvent
from torchdpcate.release.average_effect import AverageEffectRelease, ReleasedWeights
from torchdpcate.release.blocks import Block

STAGE_ONE, OUTCOME_MODEL = "stage_one", "outcome_model"
BOTH_MODELS = "a bias where neither the log-odds of treatment nor the mean outcomes are linear in the basis"
"""What its planned error does not count."""


@dataclass(frozen=True, eq=False)
class BalancingPlan(AverageEffectPlan):
    """The plan of a covariate balancing effect: weights, an outcome model, and the sums of a balanced difference.

    Attributes:
        features: Basis, set up.
        balancing: Whether weights are fitted by the balancing loss, rather than the logistic one.
        propensity: Stage one, prepared.
        outcome: The outcome model, prepared.
        facts: What is public for it.
        epsilons: Epsilon of every part, by name.
    """

    name: ClassVar[str] = BalancedDifference.name
    formula: ClassVar[str] = BalancedDifference.formula  # type: ignore[override]
    close: ClassVar[float] = 1e-9

    features: FeatureMap
    balancing: bool
    propensity: PreparedFit
    outcome: PreparedFit
    facts: EffectFacts
    epsilons: Mapping[str, float]

    @property
    def loss(self) -> str:
        """Name of the loss of stage one."""
        return "balancing" if self.balancing else "logistic"

    @property
    def noise(self) -> float:
        """Noise per record in the balance that stage one leaves; public."""
        return self.propensity.imbalance / self.facts.n

    @property
    def fits(self) -> dict[str, FirstFit]:
        """See ``AverageEffectPlan``: stage one, and the outcome model."""
        weights, model = fits_by(ObjectiveFit.name)
        return {
            "weights": FirstFit(weights, self.propensity, arm),
            OUTCOME_MODEL: FirstFit(model, self.outcome, outcome),
        }

    def readout(self, learnt: Mapping[str, Any]) -> BalancedDifference:
        return BalancedDifference(self.released(learnt), self.epsilons)

    def released(self, learnt: Mapping[str, Tensor]) -> EffectFacts:
        """Return what is public for stage two, with the ranges that coefficients leave where there are some."""
        if "weights" not in learnt:
            return self.facts
        ranges = released_ranges(self.facts, self.features, learnt["weights"], learnt[OUTCOME_MODEL])
        return replace(self.facts, ranges=ranges)

    @property
    def assumptions(self) -> tuple[str, ...]:
        """See ``Plan``: what the contrast rests on with these fits."""
        return (EITHER,)

    def stated_budget(self) -> dict[str, Any]:
        """See ``AverageEffectPlan``: the epsilons of all parts."""
        charged = {name: law.event for name, law in self.readout({}).laws.items()}
        whole = {part: event.epsilon for part, event in charged.items() if isinstance(event, PureEvent)}
        return {f"epsilon_{part}": epsilon for part, epsilon in {**self.epsilons, **whole}.items()}

    def own_settings(self) -> dict[str, Any]:
        return {
            "loss": self.loss,
            "outcome_bounds": [self.facts.low, self.facts.high],
            "basis": self.features.title,
            "noise_per_record": self.noise,
            "slope_bound": self.facts.slope_bound if self.facts.imbalance > 0 else 0.0,
        }

    @classmethod
    def budget_of(cls, public: Mapping[str, Any], block: Block) -> PrivacyBudget:
        """See ``AverageEffectPlan``: what was charged, which the epsilons of all parts explain."""
        return PrivacyBudget(as_number(block.epsilon), as_number(block.delta))

    @classmethod
    def stated_settings(cls, release: AverageEffectRelease) -> dict[str, Any]:
        """See ``AverageEffectPlan``: by public facts and charges.

        Raises:
            InputError: There is no such plan; any other error of ``UNFIT`` means the same.
        """
        assert release.weights is not None
        privacy, public, features = release.privacy, release.privacy.public, release.weights.features
        estimand = make_estimand(str(public["estimand"]), release.domain.overlap)
        balancing = {"balancing": True, "logistic": False}[public["loss"]]
        low, high = map(as_number, public["outcome_bounds"])
        if not 0 <= low < high <= 1:
            raise InputError(f"({low:g}, {high:g}): no bounds of an outcome model")
        block = next(block for block in privacy.blocks if block.name == RECORDS)
        weights = BalancingLoss(estimand) if balancing else Logistic()
        losses: dict[str, Loss] = {"weights": weights, OUTCOME_MODEL: CrossEntropy()}
        purposes = {"weights": Purpose.WEIGHTS, OUTCOME_MODEL: Purpose.OUTCOME_MODEL}
        fits, epsilons = [], {}
        for k, (name, loss) in enumerate(losses.items()):
            (charge,) = block.of(purposes[name])
            own = {key.removeprefix(f"{name}_"): value for key, value in public.items() if key.startswith(f"{name}_")}
            fits.append(ObjectiveFit.recompute(own, charge.event, loss, privacy.n, features))
            assert isinstance(charge.event, PureEvent)
            epsilons[(STAGE_ONE, OUTCOME_MODEL)[k]] = charge.event.epsilon
        parts = BalancedDifference.parts
        epsilons |= {part: as_number(public[f"epsilon_{part}"]) for part in parts if f"epsilon_{part}" in public}
        left, slope = left_imbalance(fits[0].imbalance, estimand, balancing), as_number(public["slope_bound"])
        if slope < 0 or (slope > 0 and not left):
            raise InputError(f"slope_bound = {slope:g}: does not count")
        return {
            "features": features,
            "balancing": balancing,
            "propensity": fits[0],
            "outcome": fits[1],
            "facts": EffectFacts(privacy.n, estimand, low, high, left, slope),
            "epsilons": epsilons,
        }

    def total(self, records: Records, learnt: Mapping[str, Tensor]) -> Total:
        """See ``AverageEffectPlan``: with the weights and centres that were learnt."""
        weighted = partial(weigh, self.released(learnt), learnt["weights"], learnt[OUTCOME_MODEL])
        return lambda exact: records.total(lambda batch: exact(weighted(batch)))

    def extras(self, answers: Mapping[str, Tensor], found: NoisyEstimate) -> dict[str, Any]:
        """See ``AverageEffectPlan``: coefficients, and the balance to expect of them."""
        theta, model, fit = answers["weights"], answers[OUTCOME_MODEL], self.propensity
        size, table = found.size[0].item(), None
        if self.balancing:
            table = expected_balance(theta[0], self.features, fit.ridge, fit.imbalance, size)
        return {
            # the learner's own weights may have been shown records since
            "weights": ReleasedWeights(theta[0], self.features.twin(), self.estimand),
            "outcome_theta": model[0],
            "balance": table,
        }

    def stated_learnt(self, release: AverageEffectRelease) -> dict[str, Tensor]:
        assert release.weights is not None
        assert release.outcome_theta is not None
        return {"weights": release.weights.theta[None], OUTCOME_MODEL: release.outcome_theta[None]}

    def noiseless(self) -> Self:
        """See ``AverageEffectPlan``; fits have no noise either."""
        loss: Loss = BalancingLoss(self.estimand) if self.balancing else Logistic()
        return replace(
            self,
            budget=None,
            propensity=exact_fit(loss, self.n, self.features),
            outcome=exact_fit(CrossEntropy(), self.n, self.features),
            facts=replace(self.facts, imbalance=0.0, slope_bound=0.0),
        )

    def planned(self, prior: ErrorPrior) -> PlannedError:
        noise = 0.0
        if self.budget is not None:
            facts = with_typical_ranges(self.facts, prior.least_propensity)
            noise = planned_noise(BalancedDifference(facts, self.epsilons), prior.treated)
        sampling = planned_sampling(self.facts, prior)
        return PlannedError("covariate_balancing", noise, self.planned_imbalance(prior), sampling, bias=BOTH_MODELS)

    def planned_imbalance(self, prior: ErrorPrior) -> float:
        r"""Return the standard deviation that the noise of stage one is planned to give the estimate.

        .. math:: \min\Big\{\frac{a\, \sigma_V\, s \sqrt{p}}{N},\; b\Big\}

        with sigma_V the noise in each of p entries of the summed gradient, a its amplification where the logistic loss
        was fitted, and s how far the outcome model's slopes are off; b is what confounds by the prior, more of which no
        noise brings back.
        """
        amplified = self.estimand.amplification * (not self.balancing) + self.balancing
        size = planned_size(self.facts, prior.treated)
        moved = amplified * self.propensity.imbalance * prior.slope * math.sqrt(self.features.dimension) / size
        return min(moved, prior.confounding)
