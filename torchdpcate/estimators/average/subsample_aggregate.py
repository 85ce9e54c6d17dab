"""Peer: estimates of many small groups, whose mean is released (Guha & Reiter 2024)."""

import math
from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass
from functools import cached_property
from typing import Any, ClassVar

import torch
from torch import Tensor

from torchdpcate.data.split import public_permutation
from torchdpcate.erm.losses import Logistic
from torchdpcate.erm.records import StackedRecords
from torchdpcate.erm.solver import minimise
from torchdpcate.errors import InputError
from torchdpcate.estimators.average.balanced_difference import SUMS
from torchdpcate.estimators.average.effect_estimator import EffectFacts, planned_sampling
from torchdpcate.estimators.average.effect_plan import EffectPlan
from torchdpcate.estimators.average.learner import AverageEffectLearner
from torchdpcate.estimators.average.noisy_estimate import NoisyEstimate
from torchdpcate.estimators.average.planned_error import ErrorPrior, PlannedError, laplace
from torchdpcate.estimators.average.sum_and_squares import most_deviations, sum_and_half_squares, sums_mechanism
from torchdpcate.features.maps import FeatureMap
from torchdpcate.features.user_maps import on_domain
from torchdpcate.laws import AddedNoise
from torchdpcate.plan import Query
from torchdpcate.privacy.budget import integer, positive
from torchdpcate.privacy.session import FitSession
from torchdpcate.release.average_effect import AverageEffectRelease
from torchdpcate.release.release import Release

SMALL_GROUPS = "the bias of small groups, and one where the log-odds of treatment are not linear in the covariates"
"""What its planned error does not count."""
_STOP = 1e-6  # gradient norm at the end of a group's fit; privacy does not rest on it


@dataclass(frozen=True, eq=False)
class SubsampleAggregate(EffectPlan):
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
        >>> plan.groups, round(plan.scale("sums"), 6)
        (70, 2.000004)
    """

    name: ClassVar[str] = "subsample_aggregate"
    formula: ClassVar[str] = (  # type: ignore[override]
        "Laplace noise of scale 2/epsilon on the sum of M group estimates, and of scale 4/epsilon on that of their "
        "squares, as one event; docs/guarantees/subsample_aggregate.md"
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

    @cached_property
    def queries(self) -> Mapping[str, Query]:
        """See ``Plan``: both sums."""
        if self.budget is None:
            return {}
        return self.summed({SUMS: AddedNoise(sums_mechanism(self.many, self.budget.epsilon), 2, float(self.many))})

    def own_settings(self) -> dict[str, Any]:
        """See ``EffectPlan``."""
        groups = {"groups": self.groups, "ridge": self.ridge, "seed": self.seed}
        if self.budget is None:
            return groups
        return {**groups, f"epsilon_{SUMS}": self.budget.epsilon, "sum_scale": self.scale(SUMS)}

    @classmethod
    def stated_settings(cls, release: AverageEffectRelease) -> dict[str, Any]:
        """See ``EffectPlan``."""
        public = release.privacy.public
        integer("groups", public["groups"], least=2)
        return {name: public[name] for name in ("groups", "ridge", "seed")}

    def sums(
        self, records: StackedRecords, session: FitSession, learnt: Mapping[str, Tensor], runs: int = 1
    ) -> Mapping[str, Tensor]:
        """See ``EffectPlan``."""
        return {SUMS: self.ask_each(session, runs, SUMS, sum_and_half_squares(group_estimates(records, self)))}

    def estimate(self, answers: Mapping[str, Tensor]) -> NoisyEstimate:
        """See ``EffectPlan``."""
        return mean_estimate(answers[SUMS], self.many, self.scale(SUMS))

    def answers(self, release: Release) -> dict[str, Tensor]:
        """See ``Plan``."""
        assert isinstance(release, AverageEffectRelease)
        total, squares = release.numbers["sum"], release.numbers["spread"]
        return {SUMS: torch.tensor([[total, squares / 2]], dtype=torch.float64)}

    def without_noise(self, records: StackedRecords) -> NoisyEstimate:
        """See ``EffectPlan``."""
        return mean_estimate(sum_and_half_squares(group_estimates(records, self)), self.many, 0.0)


def mean_estimate(sums: Tensor, groups: int, scale: float) -> NoisyEstimate:
    """Return the estimate from sums of the groups' estimates and of half their squares, [runs, 2], with noise."""
    total, squares = sums[:, 0], 2 * sums[:, 1]
    variance = (most_deviations(total, squares, groups, scale) / (groups * (groups - 1))).clamp_max(1 / groups)
    return NoisyEstimate.of_mean(total, groups, variance.sqrt(), scale, {"sum": total, "spread": squares})


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


@dataclass(eq=False, repr=False)
class SubsampleAggregateEffect(AverageEffectLearner):
    r"""Average effect as the mean over small groups, a peer to compare with.

    A public permutation makes M groups. Each fits its own logistic propensity, clips it to [eta, 1 - eta] and takes the
    Hajek contrast of weighted outcomes; a group with an empty arm counts 0. The mean over groups gets Laplace noise of
    scale 2 / (M epsilon): it does not depend on eta, but small groups are biased, and M is only the root of n. The
    interval does not count that bias, and rests on log-odds of treatment that are linear in the covariates.

    Guarantee:
        Certified, pure: epsilon for the sum of estimates and that of their squares, which the interval rests on,
        together. The interval counts how groups differ and the noise; it does not count the bias of small groups.
        Source: after Guha & Reiter (2024), Differentially private estimation of weighted average treatment effects for
        binary outcomes; subsample and aggregate is by Nissim, Raskhodnikova & Smith (2007); theory note
        ``covariate_balancing``, section 5; docs/guarantees/subsample_aggregate.md.

    Args:
        domain: See ``AverageEffectLearner``, and for all arguments not named here.
        budget: Of all of it; its delta is not used.
        groups: M, public; None takes the root of n, rounded down.
        ridge: Public ridge of each group's summed logistic loss, for features scaled to largest entry 1.
        seed: Public seed of the permutation.

    Example:
        >>> from torchdpcate import Domain, PrivacyBudget
        >>> X, A = torch.rand(4000, 2), torch.arange(4000) % 2
        >>> Y = (0.3 + 0.4 * A) * torch.ones(4000)
        >>> learner = SubsampleAggregateEffect(Domain([0, 0], [1, 1], 0.0, 1.0), PrivacyBudget(8.0, 0.0), overlap=0.2)
        >>> release = learner.fit(X, A, Y).release()
        >>> abs(release.estimate - 0.4) < 0.2, release.privacy.mechanism
        (True, 'subsample_aggregate')
    """

    _: KW_ONLY
    groups: int | None = None
    ridge: float = 0.01
    seed: int = 0

    mechanism: ClassVar[type[EffectPlan]] = SubsampleAggregate
    streams: ClassVar[bool] = False

    def check(self, n: int) -> None:
        """See ``AverageEffectLearner``; also refuses groups, ridge and seed out of range."""
        self.plan(n).public()

    def plan(self, n: int) -> SubsampleAggregate:
        """See ``AverageEffectLearner``."""
        return SubsampleAggregate(**self._facts(n), groups=self.groups, ridge=self.ridge, seed=self.seed)

    def planned_error(self, n: int, prior: ErrorPrior | None = None) -> PlannedError:
        """See ``AverageEffectLearner``."""
        prior, plan = self._prior(prior), self.plan(n)
        noise = 0.0 if self.budget is None else laplace(plan.scale(SUMS) / plan.many)
        sampling = planned_sampling(EffectFacts(n, self.target), prior)
        return PlannedError("subsample_aggregate", noise, 0.0, sampling, bias=SMALL_GROUPS).in_units(self._unit())
