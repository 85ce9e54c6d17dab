"""Stage one by the K-norm gradient mechanism: coefficients by how far they are from stationary, drawn exactly."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import torch
from torch import Tensor

from experiments.covariate_balancing.gradient_sampler import CurvedBalancingLoss, GradientSampler, L1Set, cell_loss
from torchdpcate.causal.estimand import ATE
from torchdpcate.data.domain import Domain
from torchdpcate.errors import InputError
from torchdpcate.fit.feature_maps import FeatureMap, on_domain
from torchdpcate.fit.linear_fits import PreparedFit, PrivateLinearFit
from torchdpcate.fit.losses import BalancingLoss, Loss
from torchdpcate.fit.minimise import default_tolerance
from torchdpcate.fit.private_fit import SOLVER_SHARE
from torchdpcate.fit.stacked_records import Batch, Records, StackedRecords, Target, arm
from torchdpcate.privacy.budget import PrivacyBudget, as_number, positive
from torchdpcate.privacy.events import Event, PureEvent
from torchdpcate.privacy.guarantee import Condition, Guarantee, Level
from torchdpcate.privacy.mechanisms import KNormMechanism, k_norm_deviation
from torchdpcate.privacy.noise import NoiseSource
from torchdpcate.privacy.worst_case import Game

LEAST_ACCEPTANCE = 1e-3
"""Share of proposals that a dry run must keep; below it the mechanism is refused."""

_DRY_RECORDS, _DRY_PROPOSALS = 1_000, 256
_CONDITIONS = (
    Condition(
        "running time",
        "nobody learns how long the draw took: how many proposals are rejected depends on the records",
    ),
    Condition("no cap", "the loop ends only with a proposal that is kept", True),
)


@dataclass(frozen=True)
class KNormGradient(PrivateLinearFit):
    r"""K-norm gradient mechanism on a bounded set, by the exact gradient-map sampler.

    .. math:: f(\theta) \propto \exp\Big(-\frac{\varepsilon}{2\Delta_K} \Big\|\sum_i \ell'(g_i)\psi_i + \gamma\theta
        \Big\|_K\Big)\, 1\{\theta \in \Theta\}, \qquad \Delta_\infty = 2 W \max|\psi_j|, \; \Delta_2 = 2 W

    with :math:`\Theta = \{\max|\psi_j|\, \|\theta\|_1 \le L\}`, where no propensity is clipped, and 99 % of the budget;
    the rest is for the solver's stop and the grid of the noise. For the balancing losses of ATE, ATT and ATC. Those
    of ATT and ATC have little curvature at one corner of the set: of p features about (eta / (1 - eta))^p of the
    proposals are kept.

    A dry run on public records refuses hopeless settings. Where the best coefficients of the true records lie well
    outside the set, few proposals are kept all the same, and the draw takes long: that must not be published, and an
    interrupted draw loses its budget. Objective perturbation has similar noise, and neither a set nor the condition.

    Guarantee:
        Conditional, pure epsilon: running time is not observed. Source: Reimherr & Awan (2019); Ohnishi & Awan (2024),
        corrected; theory note ``covariate_balancing``, section 3.5; experiments/covariate_balancing/k_norm_gradient.md.

    Args:
        order: Norm of the gradient: infinity, least where covariates fill a cube, or 2.
        ridge: gamma of the sum, public; None takes the least, of at least 1, at which the solver's stop has a small
            privacy cost.

    Raises:
        InputError: If an argument is outside its range.

    Example:
        >>> from torchdpcate import Domain
        >>> from torchdpcate.causal.estimand import ATE
        >>> from torchdpcate.fit.feature_maps import on_domain
        >>> features = on_domain(None, Domain([0.0], [1.0], 0.0, 1.0))
        >>> fit = KNormGradient(2).prepare(BalancingLoss(ATE(0.1)), 5000, features,
        ...                                PrivacyBudget(1 / 0.99, 0.0))
        >>> round(math.sqrt(2) * fit.public["gradient_sensitivity"], 8), fit.level.value  # of phi = sqrt(2) psi
        (28.28427125, 'conditional')
    """

    name: ClassVar[str] = "k_norm_gradient"
    balancing_only: ClassVar[bool] = True
    level: ClassVar[Level] = Level.CONDITIONAL
    conditions: ClassVar[tuple[Condition, ...]] = _CONDITIONS

    order: float = math.inf
    ridge: float | None = None

    def __post_init__(self) -> None:
        """Refuse another norm, and a ridge that is not positive."""
        if self.order not in (2, math.inf):
            raise InputError(f"order = {self.order}: give 2 or infinity")
        if self.ridge is not None:
            positive("ridge", self.ridge)

    def prepare(self, loss: Loss, n: int, features: FeatureMap, budget: PrivacyBudget) -> PreparedFit:
        """See ``PrivateLinearFit``.

        Raises:
            InputError: A loss without the sampler's convexity, a ridge too small for the solver's stop, or so much
                noise that a dry run on public records keeps next to no proposal.
        """
        return self._prepared(loss, n, features, budget.epsilon, None)

    @classmethod
    def recompute(
        cls, public: Mapping[str, Any], event: Event, count: int, loss: Loss, n: int, features: FeatureMap
    ) -> PreparedFit:
        """See ``PrivateLinearFit``; the dry run, on which no claim rests, is not repeated."""
        if not isinstance(event, PureEvent):
            raise InputError(f"charge = {event}: none of the K-norm gradient mechanism")
        fit = cls(math.inf if public["order"] == "infinity" else 2, public["gamma"])
        acceptance = min(as_number(public["dry_run_acceptance"]), 1.0)
        return fit._prepared(loss, n, features, event.epsilon, acceptance)

    def _prepared(
        self, loss: Loss, n: int, features: FeatureMap, epsilon: float, acceptance: float | None
    ) -> PreparedFit:
        """Calibrate at this epsilon, with the share of proposals that are kept, which a dry run finds if it is None."""
        balancing = _unclipped(loss)
        largest, size = features.largest_entry, features.dimension
        region = L1Set(balancing.estimand.score_bound / largest)
        sensitivity = gradient_sensitivity(balancing, largest, self.order)
        stop = default_tolerance(balancing.slope, 1.0)
        ridge = self.ridge or _least_ridge(balancing, n, size, sensitivity, stop)
        scale = 2 * sensitivity / ((1 - SOLVER_SHARE) * epsilon)
        sampler = GradientSampler(balancing, ridge, region, scale, self.order, stop)
        cover = solver_cover(sampler, n, size, SOLVER_SHARE * epsilon)
        solver_scale = cover.released_scale(size)
        share = dry_run(sampler, n, features) if acceptance is None else acceptance
        if share < LEAST_ACCEPTANCE:
            raise InputError(
                f"fitter = k_norm_gradient: of proposals for {n} public records of {size} features at epsilon = "
                f"{epsilon:.3g} it would keep {share:.1e}; give more epsilon, a larger overlap or fewer "
                "features, or take fitter=objective"
            )

        public = {
            "fitter": self.name,
            "order": "infinity" if self.order == math.inf else "2",
            "gamma": ridge,
            "radius": region.radius,
            "gradient_sensitivity": sensitivity,
            "gradient_scale": scale,
            "solver_scale": solver_scale,
            "dry_run_acceptance": share,
        }
        return PreparedFit(
            PureEvent(epsilon),
            public,
            partial(_draw, cover, sampler),
            k_norm_deviation(size, self.order) * scale / largest,
            ridge,
            self.level,
            self.conditions,
            warning=f"fitter = {self.name}: draws until a proposal is kept, for ever if the records' propensities "
            f"go beyond overlap = {balancing.estimand.overlap:g}; to interrupt it reveals that; fitter=objective "
            "ends",
        )


def _draw(
    cover: KNormMechanism,
    sampler: GradientSampler,
    records: Records,
    target: Target,
    noise: NoiseSource,
    runs: int,
) -> Tensor:
    """See ``PreparedFit.draw``."""
    return cover.add_noise(sampler.draw(records, target, noise, runs), noise)


def gradient_sensitivity(loss: BalancingLoss, largest_entry: float, order: float) -> float:
    r"""Return Delta, how far one record moves the summed gradient at any theta, with ||psi|| <= 1.

    .. math:: \|\ell'(g)\psi - \ell'(g')\psi'\|_K \le 2 W \sup\|\psi\|_K, \qquad
        \sup\|\psi\|_2 \le 1, \quad \sup\|\psi\|_\infty \le \max|\psi_j|

    The ridge is the same on both data sets.

    Args:
        loss: Whose slope is W.
        largest_entry: max\|psi_j\|.
        order: Of the norm.

    Example:
        >>> from torchdpcate.causal.estimand import ATE
        >>> round(gradient_sensitivity(BalancingLoss(ATE(0.1)), 0.5, math.inf), 9)
        10.0
    """
    return 2 * loss.slope * (largest_entry if order == math.inf else 1.0)


def solver_cover(sampler: GradientSampler, n: int, size: int, epsilon: float) -> KNormMechanism:
    r"""Return the noise that hides how far the solver stops from the solution, for all it costs in all.

    The solution lies within r = tau / gamma. With x the growth of the set that r leads out of against the one that it
    keeps in, lambda = n kappa + gamma the steepest that the gradient is, and c of ``cell_loss``, noise of density
    exp(-||xi||_2 / s_0) costs

    .. math:: 4 c + 4 p r + 2 p \ln(1 + x) + 2 x R \lambda / s + (4 r + 2 x R) / s_0, \qquad
        1 + x = \frac{1 + a}{1 - a}, \quad a = r \sqrt p / R

    Proof: experiments/covariate_balancing/k_norm_gradient.md.

    Args:
        sampler: Set up.
        n: Number of records.
        size: p.
        epsilon: What all of it may cost.

    Raises:
        InputError: The ridge is too small for the stop.
    """
    radius, stray = sampler.region.radius, sampler.tolerance / sampler.ridge
    out = stray * math.sqrt(size) / radius
    growth = 2 * out / (1 - out) if out < 1 else math.inf
    steepest = n * sampler.loss.curvature + sampler.ridge
    fixed = 4 * (cell_loss(size, sampler.order) + size * stray) + 2 * size * math.log1p(growth)
    fixed += 2 * growth * radius * steepest / sampler.scale
    if fixed >= epsilon:
        raise InputError(
            f"ridge = {sampler.ridge:.3g}: too small for {n} records, for the solver's stop would cost more than "
            f"{epsilon:.2g} of epsilon; give a larger ridge, or none to have it chosen"
        )
    # the noise counts twice, in the density and in its normaliser: half of the remaining epsilon for each
    return KNormMechanism((epsilon - fixed) / 2, 2 * stray + growth * radius)


def dry_run(sampler: GradientSampler, n: int, features: FeatureMap) -> float:
    """Return the share of proposals that are kept on public records: a grid of the domain, treated by fair coins.

    At most 1,000 records stand for n, with noise and ridge in proportion, so that the solutions have the same law.

    Args:
        sampler: Set up for n records.
        n: Number of records.
        features: Feature map, set up.
    """
    few = min(n, _DRY_RECORDS)
    x = features.domain.grid(few)
    z = (torch.rand(few, generator=torch.Generator().manual_seed(0)) < 0.5).double()
    records = StackedRecords(Batch(x, features(x), z, torch.zeros_like(z)))
    small = GradientSampler(
        sampler.loss,
        sampler.ridge * few / n,
        sampler.region,
        sampler.scale * few / n,
        sampler.order,
        sampler.tolerance,
    )
    floor = small.floor(records, arm).expand(_DRY_PROPOSALS)
    return small.propose(records, arm, NoiseSource.fixed(0), floor)[1].mean().item()


def _unclipped(loss: Loss) -> CurvedBalancingLoss:
    """The loss, if its log determinants are convex on the set.

    Raises:
        InputError: They are not, or there is no set.
    """
    if not isinstance(loss, BalancingLoss) or loss.estimand.scoring_rule != "exponential":
        raise InputError(
            "fitter = k_norm_gradient: draws for the balancing losses of ATE, ATT and ATC alone, not for logistic ones "
            "(as the ATO's is); take fitter=objective"
        )
    if loss.estimand.score_bound <= 0:
        raise InputError("overlap = 0.5: all propensities are 0.5, and there is nothing to fit; give a smaller overlap")
    return CurvedBalancingLoss(loss.estimand)


def _least_ridge(loss: BalancingLoss, n: int, size: int, sensitivity: float, stop: float) -> float:
    """Ridge at which the steepness of the gradient makes the stop cost a quarter of the solver's share, or 1."""
    return max(1.0, 8 * stop * math.sqrt(size) * n * loss.curvature / (sensitivity * SOLVER_SHARE))


_LOSS = BalancingLoss(ATE(0.43))
_FEATURES = on_domain(None, Domain([-1.0], [1.0], 0.0, 1.0))
_FITTER = KNormGradient(ridge=18.0)  # a large one, so that few records fill the set and many proposals are kept
_OTHERS = ((-1.0, 1.0, 7), (0.0, 0.0, 16), (0.0, 1.0, 9))


def _records(dataset: int) -> StackedRecords:
    """Records (x, z), as often as said, and one at x = -1 whose treatment is the dataset."""
    rows = [(x, z) for x, z, count in (*_OTHERS, (-1.0, float(dataset), 1)) for _ in range(count)]
    x, z = torch.tensor(rows, dtype=torch.float64).T
    return StackedRecords(Batch(x[:, None], _FEATURES(x[:, None]), z, torch.zeros_like(z)))


def _log_density(theta: Tensor, dataset: int, ridge: float, scale: float) -> Tensor:
    """Of the law at theta [runs, p] in the set, up to a constant: minus the gradient's norm in units of s."""
    gradient = _records(dataset).slopes(_LOSS, arm, theta)[1] + ridge * theta
    return -torch.linalg.vector_norm(gradient, _FITTER.order, dim=1) / scale


def _gradient(budget: PrivacyBudget) -> Game:
    datasets, pure = [_records(dataset) for dataset in (0, 1)], PrivacyBudget(budget.epsilon, 0.0)
    fit = _FITTER.prepare(_LOSS, datasets[0].n, _FEATURES, pure)
    ridge, scale = fit.ridge, fit.public["gradient_scale"]
    return Game(
        draw=lambda dataset, runs, noise: fit.draw(datasets[dataset], arm, noise, runs),
        event=fit.event,
        guarantee=Guarantee(fit.level, pure, fit.conditions, source="covariate_balancing section 3.5"),
        evidence=lambda theta: _log_density(theta, 1, ridge, scale) - _log_density(theta, 0, ridge, scale),
        most_runs=60_000,
    )
