"""Peers to compare with: inverse propensity weights (Lee et al. 2019), and means of groups (Guha & Reiter 2024)."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any, ClassVar

import torch
from torch import Tensor

from experiments.covariate_balancing.largest import stated_weights, weight_bounds
from torchdpcate.data.records import public_permutation
from torchdpcate.errors import InputError
from torchdpcate.estimators.average.effect_plan import (
    AverageEffectPlan,
    ErrorPrior,
    FirstFit,
    PlannedError,
    exact_fit,
    laplace,
    planned_sampling,
    with_typical_ranges,
)
from torchdpcate.estimators.average.ratio_of_sums import (
    SUMS,
    NoisyEstimate,
    RatioOfSums,
    Sums,
    Total,
    most_deviations,
    sum_and_squares,
    sums_law,
)
from torchdpcate.estimators.average.weighted import EffectFacts, released_ranges
from torchdpcate.fit.feature_maps import FeatureMap, on_domain
from torchdpcate.fit.linear_fits import ObjectiveFit, PreparedFit
from torchdpcate.fit.losses import Logistic
from torchdpcate.fit.minimise import linear_predictor, minimise
from torchdpcate.fit.stacked_records import Batch, Records, StackedRecords, arm
from torchdpcate.laws import AddedNoise
from torchdpcate.privacy.budget import PrivacyBudget, integer, positive
from torchdpcate.privacy.charge import propensity_by
from torchdpcate.privacy.mechanisms import LaplaceMechanism
from torchdpcate.release.average_effect import AverageEffectRelease, ReleasedWeights

NO_INTERVAL = "a bias where the log-odds of treatment are not linear in the covariates; it has no interval"
"""What its planned error does not count."""
SMALL_GROUPS = "the bias of small groups, and one where the log-odds of treatment are not linear in the covariates"
"""What its planned error does not count."""
_HALF = 0.5 * (1 - 1e-9)  # of epsilon for either stage, so that they never add up to more
_STOP = 1e-6  # gradient norm at the end of a group's fit; privacy does not rest on it


@dataclass(frozen=True, eq=False)
class InverseWeights(RatioOfSums):
    """The Horvitz-Thompson sum: outcomes over the probabilities of their arms.

    Attributes:
        facts: What is public, with the ranges of weights that released coefficients leave.
        theta: Coefficients of the propensity, [runs, p]; None before there are any.
        epsilon: Of the sum.
    """

    facts: EffectFacts
    theta: Tensor | None
    epsilon: float

    @cached_property
    def laws(self) -> Mapping[str, AddedNoise]:
        """See ``RatioOfSums``: in units of what a record moves the sum by."""
        return {"sum": AddedNoise(LaplaceMechanism(self.epsilon, 1.0), 1)}

    def sums(self, query: str, numbers: Mapping[str, Tensor]) -> Sums:
        """See ``RatioOfSums``."""
        treated, control = weight_bounds(self.facts).unbind(-1)
        terms = partial(_inverse_weighted, self.facts, self.theta)
        return Sums.within("sum", terms, self.facts.n, (-control, treated), self.facts.estimand.largest)

    def estimate(self, numbers: Mapping[str, Tensor]) -> NoisyEstimate:
        """See ``RatioOfSums``; without an interval: nothing is released of how much sampling moves the sum."""
        total, n, noise = numbers["sum"], self.facts.n, self.scales(numbers)["sum"]
        unknown = torch.full_like(total, math.inf)
        return NoisyEstimate.of_ratio((total / n).clamp(-1, 1), torch.full_like(total, n), unknown, (noise,), numbers)

    def public(self) -> dict[str, Any]:
        """Return what the coefficients leave of the weights, and the scale of the sum's noise."""
        assert self.facts.ranges is not None
        return {"sum_scale": self.scales({})["sum"][0].item(), **stated_weights(self.facts)}


def _inverse_weighted(facts: EffectFacts, theta: Tensor | None, batch: Batch) -> Tensor:
    """Return z y / e - (1 - z) y / (1 - e) of the records of a batch, [runs, b]."""
    assert theta is not None
    g, of = linear_predictor(batch.psi, theta), facts.estimand
    z = batch.z.expand_as(g)
    w = of.weights(g, z)
    w = w if facts.ranges is None else facts.ranges.within(w, z)
    return arm(batch) * w * batch.y


@dataclass(frozen=True, eq=False)
class HorvitzThompson(AverageEffectPlan):
    r"""The plan of a Horvitz-Thompson estimate: half of epsilon for the propensity, half for the sum.

    .. math::
        \tau = \frac1n \Big(\sum_i \frac{z_i y_i}{e_i} - \frac{(1 - z_i) y_i}{1 - e_i} + Lap(2 \Delta/\epsilon)\Big),
        \quad \Delta = W_1 + W_0 = \sup_x \frac1{e(x)} + \sup_x \frac1{1 - e(x)} \le \frac2\eta

    at the released coefficients of e, over all x of the domain. The propensity is logistic regression by objective
    perturbation with ridge gamma. A ``ridge`` lambda_0 makes it max(gamma, n lambda_0), and the epsilon that the
    smaller change of curvature then leaves goes into less noise.

    Attributes:
        ridge: lambda_0, least ridge a record for features scaled to largest entry 1; None has none.

    Raises:
        InputError: An estimand whose size is not the number of records, or a ridge that is not positive.

    Example:
        >>> import torch
        >>> from torchdpcate import Domain, PrivacyBudget, TableSchema
        >>> from torchdpcate.causal.estimand import ATE
        >>> schema, budget = TableSchema.of(Domain([0.0] * 4, [1.0] * 4, 0.0, 1.0)), PrivacyBudget(1.0, 0.0)
        >>> plan = HorvitzThompson(5000, schema, ATE(0.1), budget)
        >>> sums = plan.readout({}), plan.readout({"weights": torch.zeros(1, 5, dtype=torch.float64)})
        >>> [round(of.scales({})["sum"].item(), 3) for of in sums]
        [40.0, 8.0]
    """

    name: ClassVar[str] = "horvitz_thompson"
    formula: ClassVar[str] = (  # type: ignore[override]
        "Laplace noise of scale 2 (W_1 + W_0)/epsilon on the Horvitz-Thompson sum, W_z the largest weight of arm z at "
        "the released propensity, which is by objective perturbation with epsilon/2; covariate_balancing section 5"
    )
    intervals: ClassVar[bool] = False
    assumption: ClassVar[str] = (
        "the log-odds of treatment are linear in the covariates; where they are not, the estimate is biased"
    )

    ridge: float | None = None

    def __post_init__(self) -> None:
        if self.estimand.name != "ATE":
            raise InputError(f"a Horvitz-Thompson estimate is none of the {self.estimand.name}")
        if self.ridge is not None:
            positive("ridge", self.ridge)

    @property
    def facts(self) -> EffectFacts:
        """What is public before there are coefficients."""
        return EffectFacts(self.n, self.estimand)

    @cached_property
    def features(self) -> FeatureMap:
        """Of the propensity."""
        return on_domain(None, self.schema.domain)

    @property
    def half(self) -> PrivacyBudget:
        """Budget of either stage."""
        return PrivacyBudget(self.epsilon * _HALF, 0.0)

    @cached_property
    def fit(self) -> PreparedFit:
        """The propensity's fit, prepared; exact without privacy."""
        if self.budget is None:
            return exact_fit(Logistic(), self.n, self.features)
        fit = ObjectiveFit().prepare(Logistic(), self.n, self.features, self.half)
        least = 0.0 if self.ridge is None else self.n * self.ridge * self.features.largest_entry**2
        if least <= fit.ridge:
            return fit
        return ObjectiveFit(share=_share(least, fit)).prepare(Logistic(), self.n, self.features, self.half)

    @property
    def fits(self) -> dict[str, FirstFit]:
        """See ``AverageEffectPlan``: the propensity."""
        return {"weights": FirstFit(propensity_by(ObjectiveFit.name), self.fit, arm)}

    def readout(self, learnt: Mapping[str, Any]) -> InverseWeights:
        """See ``AverageEffectPlan``."""
        facts, theta = self.facts, learnt.get("weights")
        if theta is not None:
            facts = replace(facts, ranges=released_ranges(facts, self.features, theta, None))
        return InverseWeights(facts, theta, self.half.epsilon)

    def total(self, records: Records, learnt: Mapping[str, Any]) -> Total:
        """See ``AverageEffectPlan``."""
        return records.total

    def own_settings(self) -> dict[str, Any]:
        """See ``AverageEffectPlan``."""
        half = {} if self.budget is None else {"epsilon_weights": self.half.epsilon}
        ridge = {} if self.ridge is None else {"ridge": self.ridge}
        return {**super().own_settings(), **ridge, **half}

    def stated_learnt(self, release: AverageEffectRelease) -> dict[str, Tensor]:
        """See ``AverageEffectPlan``."""
        assert release.weights is not None
        return {"weights": release.weights.theta[None]}

    def extras(self, answers: Mapping[str, Tensor], found: NoisyEstimate) -> dict[str, Any]:
        """See ``AverageEffectPlan``: the weights."""
        return {"weights": ReleasedWeights(answers["weights"][0], self.features, self.estimand)}

    def planned(self, prior: ErrorPrior) -> PlannedError:
        """See ``AverageEffectPlan``; noise in the propensity moves it to first order."""
        noise = nuisances = 0.0
        if self.budget is not None:
            typical = replace(self.readout({}), facts=with_typical_ranges(self.facts, prior.least_propensity))
            noise = laplace(typical.scales({})["sum"].item() / self.n)
            nuisances = self.estimand.amplification * self.fit.imbalance * prior.mean / self.n
        sampling = planned_sampling(self.facts, prior)
        return PlannedError("horvitz_thompson", noise, nuisances, sampling, bias=NO_INTERVAL)


def _share(ridge: float, fit: PreparedFit) -> float:
    """Return the objective noise's share of epsilon at which the default ridge is the given, larger one."""
    kept = (1 - ObjectiveFit().share_of(Logistic())) / math.log1p(Logistic.curvature / fit.ridge)
    return 1 - kept * math.log1p(Logistic.curvature / ridge)


@dataclass(frozen=True, eq=False)
class SubsampleAggregate(AverageEffectPlan):
    r"""The plan of the mean over groups: the sum of their estimates, and of half their squares, as one event.

    .. math::
        T = \sum_k \tau_k + Lap\big(\tfrac2\epsilon\big), \quad
        Q = \sum_k \tau_k^2 + Lap\big(\tfrac4\epsilon\big), \quad
        \tau = \frac TM, \quad V = \frac{\overline S(T, Q)}{M (M - 1)} \le \frac1M

    with a one-sided bound of the squared deviations from their mean, ``most_deviations``. One record moves one of the M
    estimates, each in [-1, 1]: their sum and half the sum of their squares by at most 2 together (``sums_mechanism``).

    Attributes:
        groups: M, how many; None takes the root of n, rounded down.
        ridge: Of each group's summed logistic loss, for features scaled to largest entry 1.
        seed: Of the permutation that makes the groups.

    Raises:
        InputError: Fewer than two groups or more than records, or a ridge that is not positive.

    Example:
        >>> from torchdpcate import Domain, PrivacyBudget, TableSchema
        >>> from torchdpcate.causal.estimand import ATE
        >>> schema, budget = TableSchema.of(Domain([0.0], [1.0], 0.0, 1.0)), PrivacyBudget(1.0, 0.0)
        >>> plan = SubsampleAggregate(5000, schema, ATE(0.1), budget)
        >>> plan.groups, round(plan.readout({}).scale("sums"), 6)
        (70, 2.000004)
    """

    name: ClassVar[str] = "subsample_aggregate"
    formula: ClassVar[str] = (  # type: ignore[override]
        "Laplace noise of scale 2/epsilon on the sum of M group estimates, and of scale 4/epsilon on that of their "
        "squares, as one event; docs/guarantees/average_effects.md"
    )
    assumption: ClassVar[str] = (
        "the log-odds of treatment are linear in the covariates, and groups are so large that their bias is small; the "
        "interval counts neither"
    )

    groups: int | None = None
    ridge: float = 0.01
    seed: int = 0

    def __post_init__(self) -> None:
        many = math.isqrt(self.n) if self.groups is None else integer("groups", self.groups, least=2)
        if not 2 <= many <= self.n:
            raise InputError(
                f"groups = {many}: n = {self.n} records make no two groups; bring more records, or fewer groups"
            )
        object.__setattr__(self, "groups", many)
        positive("ridge", self.ridge)
        integer("seed", self.seed, least=0)

    @property
    def many(self) -> int:
        """M."""
        assert self.groups is not None
        return self.groups

    @cached_property
    def features(self) -> FeatureMap:
        """Of the propensity."""
        return on_domain(None, self.schema.domain)

    def readout(self, learnt: Mapping[str, Any]) -> "GroupMean":
        """See ``AverageEffectPlan``."""
        return GroupMean(self.many, self.epsilon)

    def total(self, records: StackedRecords, learnt: Mapping[str, Any]) -> Total:
        """See ``AverageEffectPlan``: over the groups' estimates."""
        estimates = group_estimates(records, self)
        return lambda exact: exact(estimates)

    def own_settings(self) -> dict[str, Any]:
        """See ``AverageEffectPlan``."""
        scale = {} if self.budget is None else {"sum_scale": self.readout({}).scale(SUMS)}
        own = {"groups": self.groups, "ridge": self.ridge, "seed": self.seed}
        return {**super().own_settings(), **own, **scale}

    def planned(self, prior: ErrorPrior) -> PlannedError:
        """See ``AverageEffectPlan``."""
        noise = 0.0 if self.budget is None else laplace(self.readout({}).scale(SUMS) / self.many)
        sampling = planned_sampling(EffectFacts(self.n, self.estimand), prior)
        return PlannedError("subsample_aggregate", noise, 0.0, sampling, bias=SMALL_GROUPS)


@dataclass(frozen=True, eq=False)
class GroupMean(RatioOfSums):
    """The mean of groups' estimates in [-1, 1]; see ``SubsampleAggregate``.

    Attributes:
        groups: M.
        epsilon: Of both sums.
    """

    groups: int
    epsilon: float

    @cached_property
    def laws(self) -> Mapping[str, AddedNoise]:
        """See ``RatioOfSums``."""
        return {SUMS: sums_law(self.groups, self.epsilon)}

    def sums(self, query: str, numbers: Mapping[str, Tensor]) -> Sums:
        """See ``RatioOfSums``; of the groups' estimates, [runs, M]."""
        return sum_and_squares(self.groups)

    def estimate(self, numbers: Mapping[str, Tensor]) -> NoisyEstimate:
        """See ``RatioOfSums``."""
        total, many = numbers["sum"], self.groups
        squares = most_deviations(total, numbers["spread"], many, self.scale(SUMS))
        deviation = (squares / (many * (many - 1))).clamp_max(1 / many).sqrt()
        noise = (self.scales(numbers)["sum"],)
        return NoisyEstimate.of_ratio(
            (total / many).clamp(-1, 1), torch.full_like(total, many), deviation, noise, numbers
        )


def group_positions(n: int, groups: int, seed: int) -> tuple[Tensor, Tensor]:
    """Return positions of each group's records, [M, most], and which of them there are: sizes differ by at most one.

    Example:
        >>> positions, there = group_positions(7, 3, seed=0)
        >>> there.sum(1).tolist(), sorted(positions[there].tolist())
        ([3, 2, 2], [0, 1, 2, 3, 4, 5, 6])
    """
    sizes = torch.full((groups,), n // groups)
    sizes[: n % groups] += 1
    step = torch.arange(int(sizes.max()))
    at = (sizes.cumsum(0) - sizes)[:, None] + step
    return public_permutation(n, seed, "subsample groups")[at.clamp_max(n - 1)], step < sizes[:, None]


def group_estimates(records: StackedRecords, plan: SubsampleAggregate) -> Tensor:
    """Return the Hajek contrast of each group by its own propensity, [runs, M]; 0 where an arm has no record.

    All groups of all data sets are fitted as one batch. The curator's.

    Args:
        records: One data set, or several side by side.
        plan: Public plan.
    """
    positions, there = group_positions(records.n, plan.many, plan.seed)
    psi, z, y = records.batch.psi, records.batch.z, records.batch.y
    psi = psi[..., positions, :].reshape(-1, *positions.shape[1:], psi.shape[-1])
    z, y = (part[..., positions].reshape(-1, positions.shape[1]) for part in (z, y))
    there = there.double().repeat(len(z) // plan.many, 1)
    start = psi.new_zeros(len(psi), psi.shape[-1])
    theta = minimise(psi, 2 * z - 1, there, Logistic(), plan.ridge * plan.features.largest_entry**2, start, _STOP)
    w = plan.estimand.weights((psi @ theta[:, :, None])[:, :, 0], z) * there
    means = [(w * arm * y).sum(1) / (w * arm).sum(1) for arm in (z, 1 - z)]  # nan in an arm without records
    return (means[0] - means[1]).nan_to_num(0.0).clamp(-1, 1).reshape(-1, plan.many)
