"""Peer: estimates of many small groups, whose mean is released (Guha & Reiter 2024)."""

import math
from dataclasses import KW_ONLY, dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from torchdpcate.causal.estimand import Estimand
from torchdpcate.data.split import public_permutation
from torchdpcate.erm.losses import Logistic
from torchdpcate.erm.records import Records, StackedRecords
from torchdpcate.erm.solver import minimise
from torchdpcate.errors import InputError
from torchdpcate.estimators.average.balanced_difference import SUMS
from torchdpcate.estimators.average.effect_estimator import EffectFacts, planned_sampling
from torchdpcate.estimators.average.learner import AverageEffectLearner
from torchdpcate.estimators.average.noisy_estimate import NoisyEstimate
from torchdpcate.estimators.average.peers import SubsampleAggregate, mean_estimate
from torchdpcate.estimators.average.planned_error import ErrorPrior, PlannedError, laplace
from torchdpcate.estimators.average.stated import AverageMechanism
from torchdpcate.estimators.average.sum_and_squares import sum_and_half_squares, sums_mechanism
from torchdpcate.features.maps import FeatureMap
from torchdpcate.privacy.budget import integer, positive
from torchdpcate.privacy.mechanisms import LaplaceMechanism
from torchdpcate.privacy.noise import NoiseSource
from torchdpcate.privacy.session import FitSession

SMALL_GROUPS = "the bias of small groups, and one where the log-odds of treatment are not linear in the covariates"
"""What its planned error does not count."""
_STOP = 1e-6  # gradient norm at the end of a group's fit; privacy does not rest on it


@dataclass(frozen=True, eq=False)
class SubsamplePlan:
    """Everything public about an aggregate of groups.

    Attributes:
        estimand: Estimand and clip.
        groups: M, how many.
        ridge: Of each group's propensity, in the scale of the features psi.
        seed: Of the permutation that makes the groups.
        sums: Noise of the sum of the groups' estimates and of half their squares, together.
    """

    estimand: Estimand
    groups: int
    ridge: float
    seed: int
    sums: LaplaceMechanism


def plan_subsample(
    n: int,
    features: FeatureMap,
    estimand: Estimand,
    epsilon: float,
    *,
    groups: int | None = None,
    ridge: float = 0.01,
    seed: int = 0,
) -> SubsamplePlan:
    r"""Calibrate both sums as one event.

    One record moves one of the M estimates, each in [-1, 1]: their sum and half the sum of their squares by at most 2
    together (``sums_mechanism``).

    Args:
        n: Number of records.
        features: Of the propensity, set up on the domain.
        estimand: Estimand and clip.
        epsilon: Of all of it.
        groups: M; None takes the root of n, rounded down.
        ridge: Of a group's summed logistic loss, for features scaled to largest entry 1.
        seed: Of the permutation.

    Raises:
        InputError: Fewer than two groups or more than records, or a ridge that is not positive.

    Example:
        >>> from torchdpcate import Domain
        >>> from torchdpcate.causal.estimand import ATE
        >>> from torchdpcate.features.user_maps import on_domain
        >>> plan = plan_subsample(5000, on_domain(None, Domain([0.0], [1.0], 0.0, 1.0)), ATE(0.1), 1.0)
        >>> plan.groups, round(plan.sums.scale, 6)
        (70, 2.0)
    """
    many = math.isqrt(n) if groups is None else integer("groups", groups, least=2)
    if not 2 <= many <= n:
        raise InputError(f"groups = {many}: n = {n} records make no two groups; bring more records, or fewer groups")
    scaled = positive("ridge", ridge) * features.largest_entry**2
    return SubsamplePlan(estimand, many, scaled, seed, sums_mechanism(many, epsilon))


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


def group_estimates(records: StackedRecords, plan: SubsamplePlan) -> Tensor:
    """Return the Hajek contrast of each group by its own propensity, [runs, M]; 0 where an arm has no record.

    All groups of all data sets are fitted as one batch. The curator's.

    Args:
        records: One data set, or several side by side.
        plan: Public plan.
    """
    positions, there = group_positions(records.n, plan.groups, plan.seed)
    psi, z, y = records.batch.psi, records.batch.z, records.batch.y
    psi = psi[..., positions, :].reshape(-1, *positions.shape[1:], psi.shape[-1])
    z, y = (part[..., positions].reshape(-1, positions.shape[1]) for part in (z, y))
    there = there.double().repeat(len(z) // plan.groups, 1)
    start = psi.new_zeros(len(psi), psi.shape[-1])
    theta = minimise(psi, 2 * z - 1, there, Logistic(), plan.ridge, start, _STOP)
    w = plan.estimand.weights((psi @ theta[:, :, None])[:, :, 0], z) * there
    means = [(w * arm * y).sum(1) / (w * arm).sum(1) for arm in (z, 1 - z)]  # nan in an arm without records
    return (means[0] - means[1]).nan_to_num(0.0).clamp(-1, 1).reshape(-1, plan.groups)


def release_mean(estimates: Tensor, plan: SubsamplePlan, session: FitSession) -> NoisyEstimate:
    r"""Pay for the sum of estimates and the sum of their squares, as one event, and conclude.

    .. math::
        T = \sum_k \tau_k + Lap\big(\tfrac2\epsilon\big), \quad
        Q = \sum_k \tau_k^2 + Lap\big(\tfrac4\epsilon\big), \quad
        \tau = \frac TM, \quad V = \frac{\overline S(T, Q)}{M (M - 1)} \le \frac1M

    with a one-sided bound of the squared deviations from their mean, ``most_deviations``.

    Args:
        estimates: Of the groups, [runs, M], in [-1, 1].
        plan: Public plan.
        session: Pays, and draws the noise.
    """
    session.pay(plan.sums.event, part=SUMS)
    noisy = session.noise.released(plan.sums.add_noise(sum_and_half_squares(estimates), session.noise))
    return mean_estimate(noisy[:, 0], 2 * noisy[:, 1], plan.groups, plan.sums.released_scale(2))


def subsample_aggregate(
    records: StackedRecords, plan: SubsamplePlan, noise: NoiseSource, runs: int = 1
) -> NoisyEstimate:
    """Run the mechanism from fit to estimate on each data set, or ``runs`` times on one; for simulations and audits."""
    estimates = group_estimates(records, plan)
    return release_mean(estimates if len(estimates) > 1 else estimates.expand(runs, -1), plan, FitSession(noise))


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

    mechanism: ClassVar[type[AverageMechanism]] = SubsampleAggregate
    streams: ClassVar[bool] = False

    def check(self, n: int) -> None:
        """See ``AverageEffectLearner``; also refuses groups, ridge and seed out of range."""
        integer("seed", self.seed, least=0)
        self.plan(n)

    def plan(self, n: int) -> SubsamplePlan:
        """See ``AverageEffectLearner``."""
        epsilon = 1.0 if self.budget is None else self.budget.epsilon
        return plan_subsample(
            n, self.features(), self.target, epsilon, groups=self.groups, ridge=self.ridge, seed=self.seed
        )

    def planned_error(self, n: int, prior: ErrorPrior | None = None) -> PlannedError:
        """See ``AverageEffectLearner``."""
        prior, plan = self._prior(prior), self.plan(n)
        noise = 0.0 if self.budget is None else laplace(plan.sums.released_scale(2) / plan.groups)
        sampling = planned_sampling(EffectFacts(n, self.target), prior)
        return PlannedError("subsample_aggregate", noise, 0.0, sampling, bias=SMALL_GROUPS).in_units(self._unit())

    def _fit_first(self, records: Records) -> None:
        self._plan = self.plan(records.n)

    def _release_estimate(self, records: Records, session: FitSession) -> NoisyEstimate:
        assert isinstance(records, StackedRecords)
        return release_mean(group_estimates(records, self._plan), self._plan, session)

    def _without_noise(self, records: Records) -> NoisyEstimate:
        assert isinstance(records, StackedRecords)
        total, half = sum_and_half_squares(group_estimates(records, self._plan)).T
        return mean_estimate(total, 2 * half, self._plan.groups, 0.0)

    def _public(self) -> dict[str, Any]:
        plan, groups = self._plan, {"groups": self._plan.groups, "ridge": self.ridge, "seed": self.seed}
        if self.budget is None:
            return groups
        return {**groups, f"epsilon_{SUMS}": self.budget.epsilon, "sum_scale": plan.sums.released_scale(2)}
