"""The regressions of a composition: outcome, propensity and effect, of two arms or more and of doubly robust scores."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

import torch
from torch import Tensor

from torchdpcate.causal.score import project_to_floor
from torchdpcate.composition.fit_plans import (
    count_level,
    effect_coefficients,
    effect_plan,
    effect_variances,
    logistic_plan,
    outcome_plan,
    planned_curvatures,
    without_ridge,
)
from torchdpcate.composition.linear_fit import (
    CountFit,
    FitPlan,
    Fits,
    HuberFit,
    Learnt,
    LinearFit,
    LogisticFit,
    NoisyNewton,
    Solution,
    Solver,
    count_means,
)
from torchdpcate.composition.plan import ComposedPlan
from torchdpcate.composition.priors import Regression
from torchdpcate.composition.pure_fits import EffectSums, clip_slopes, private_sums
from torchdpcate.composition.rows import InMemory, Rows
from torchdpcate.composition.settings import Additive, ComposedNuisance, Shrink
from torchdpcate.composition.steps import BATCH, EFFECT_UNITS, NoisySteps, propensity_of
from torchdpcate.composition.summaries import private_curvatures
from torchdpcate.data.records import CausalData
from torchdpcate.fit.weighted_basis import Feature, HiddenUnits, WeightedBasis, lengths, simplex

Scores = Callable[[Tensor, Tensor], Tensor]
"""From features [n, 1 + p] and standardised covariates [n, k] of records to scores, [n]."""
Means = Callable[..., Tensor]
"""From a batch to its outcome's means, [n]."""
Propensity = Callable[[CausalData], Tensor] | float | None
"""From a batch to its propensities, or that of all records; None takes the records' own."""
HUBER, COUNTS, TWO_VALUES = "huber", "counts", "two values"
"""How an outcome is regressed."""


# -- regressions of a batch


@dataclass(frozen=True, eq=False)
class OutcomeFits(Fits):
    """The outcome regression, about a released centre.

    Attributes:
        basis: Features.
        scale: Released, at which residuals are clipped; the outcome's range where it has two values.
        centre: Released.
        link: How it is regressed.
    """

    basis: WeightedBasis
    scale: float
    centre: float
    link: str

    @property
    def kind(self) -> type[LinearFit]:
        kinds: dict[str, type[LinearFit]] = {TWO_VALUES: LogisticFit, COUNTS: CountFit, HUBER: HuberFit}
        return kinds[self.link]

    def __call__(self, batch: CausalData) -> LinearFit:
        psi, y = self.basis(batch.x), batch.y - self.centre
        weight = 1 / lengths(psi)
        if self.link == TWO_VALUES:  # y is -1/2 or 1/2 of the range, which is the scale
            return LogisticFit(psi, weight, (y / self.scale + 0.5).clamp(0, 1), self.slope)
        if self.link == COUNTS:
            return CountFit(psi, weight, y, self.slope, self.centre, count_level(self.centre, self.scale))
        return HuberFit(psi, weight, y, self.slope)

    def means(self, scores: Tensor) -> Tensor:
        """Return the outcome's means about the centre, [n], at scores [n]."""
        if self.link == TWO_VALUES:
            return self.scale * (torch.sigmoid(scores) - 0.5)
        if self.link == COUNTS:
            return count_means(scores, count_level(self.centre, self.scale)) - self.centre
        return scores


@dataclass(frozen=True, eq=False)
class PropensityFits(Fits):
    """The regression of the treatment, or of one of several arms against all others.

    Attributes:
        basis: Features.
        arm: Its position; None where there are two.
    """

    basis: WeightedBasis
    arm: int | None = None

    @property
    def kind(self) -> type[LinearFit]:
        return LogisticFit

    def __call__(self, batch: CausalData) -> LinearFit:
        psi = self.basis(batch.x)
        treated = batch.a if self.arm is None else (batch.a == self.arm).double()
        return LogisticFit(psi, 1 / lengths(psi), treated, self.slope)


@dataclass(frozen=True, eq=False)
class EffectFits(Fits):
    """The effect's regression, of batches of ``residuals``.

    Attributes:
        basis: Features.
    """

    basis: WeightedBasis
    norm: float = field(default=0.5, kw_only=True)

    def __call__(self, batch: CausalData) -> LinearFit:
        return effect_fit(self.basis(batch.x), batch.y, batch.a, propensity_of(batch), self.slope)

    def curved(self, batch: CausalData) -> tuple[Tensor, Tensor]:
        """See ``Fits``: as of the mean treatment."""
        psi, pi = self.basis(batch.x), propensity_of(batch)
        return psi, 1 / (lengths(psi) * torch.maximum(pi, 1 - pi)) * pi * (1 - pi)


@dataclass(frozen=True, eq=False)
class ArmsFits(Fits):
    r"""How more than two arms differ: the Huber regression of residuals on :math:`d \otimes \psi(z)`.

    .. math:: d = v_a - \sum_b \pi_b v_b, \qquad w = \frac{1}{|\psi| \max_b |v_b - \sum_c \pi_c v_c|}

    so that a record's gradient is at most S, as it is of two arms, and one record moves the sum by at most 2 S: the
    pull of a residual is at most S, and :math:`w\,|d|\,|\psi| \le 1`, for a record is in one arm. Without w the
    K - 1 blocks would not cost K - 1 times either: with :math:`v_a = V^\top e_a`,

    .. math:: |d| = |V^\top (e_a - \pi)| = |e_a - \pi| / \sqrt2 \le 1, \qquad
        |e_a - \pi|^2 = (1 - \pi_a)^2 + \sum_{b \ne a} \pi_b^2 \le 2 (1 - \pi_a)^2 \le 2,

    where :math:`V V^\top = (I - 1 1^\top / K) / 2`, since the points lie at distance one. Of batches of
    ``residuals``. Coefficients are those of the K - 1 functions, one after the other.

    Attributes:
        basis: Features.
        points: v, [K, K - 1].
    """

    basis: WeightedBasis
    points: Tensor

    def __call__(self, batch: CausalData) -> LinearFit:
        centred = centred_arms(self.points, propensity_of(batch))
        return arms_fit(self.basis(batch.x), batch.y, centred, batch.a, self.slope)


def effect_fit(psi: Tensor, residual: Tensor, treatment: Tensor, pi: Tensor, scale: float) -> HuberFit:
    r"""Return the effect's regression, whose gradients are at most S: :math:`w = 1 / (|\psi| \max(\pi, 1 - \pi))`.

    Args:
        psi: Features [n, 1 + p].
        residual: y - m, [n].
        treatment: a - pi, [n].
        pi: Propensities [n].
        scale: S.
    """
    weight = 1 / (lengths(psi) * torch.maximum(pi, 1 - pi))
    return HuberFit(psi * treatment[:, None], weight, residual, scale)


def arms_fit(psi: Tensor, residual: Tensor, centred: Tensor, a: Tensor, scale: float) -> HuberFit:
    """Return the regression of how the arms differ, whose gradients are at most S; see ``ArmsFits``.

    Args:
        psi: Features [n, 1 + p].
        residual: y - m, [n].
        centred: As ``centred_arms`` returns them.
        a: Positions of the arms, [n].
        scale: S.
    """
    own = centred[torch.arange(len(a), device=a.device), a.long()]
    weight = 1 / (psi.norm(dim=1) * centred.norm(dim=2).amax(1))
    return HuberFit((own[:, :, None] * psi[:, None]).flatten(1), weight, residual, scale)


def centred_arms(points: Tensor, pi: Tensor) -> Tensor:
    """Return v_a less the mean of all arms at each record, [n, K, K - 1].

    Args:
        points: v, [K, K - 1].
        pi: Probabilities of the arms, [n, K].
    """
    return points - (pi @ points)[:, None]


def arm_means(outcome: Tensor, functions: Tensor, centred: Tensor) -> Tensor:
    r"""Return the mean outcome of each arm, :math:`\mu_a = m + (v_a - \sum_b \pi_b v_b)^\top b`, [n, K].

    Args:
        outcome: m, [n].
        functions: b, [n, K - 1].
        centred: As ``centred_arms`` returns them.
    """
    return outcome[:, None] + (centred @ functions[:, :, None])[:, :, 0]


# -- what nuisances make of a batch


def outcome_means(fits: OutcomeFits, scores: Scores, bounds: tuple[float, float], batch: CausalData) -> Tensor:
    """Return means of the outcome at a batch, within its bounds, [n].

    Args:
        fits: The regression.
        scores: That it learnt.
        bounds: Of the outcome.
        batch: The records.
    """
    means = fits.means(scores(fits.basis(batch.x), batch.x))
    return (fits.centre + means).clamp(*bounds)


def arm_propensities(basis: WeightedBasis, scores: Sequence[Scores], batch: CausalData) -> Tensor:
    """Return propensities at a batch as they were learnt, [n]; of more than two arms probabilities, [n, K].

    Each of several arms is fitted against all others; the fits are divided by their sum.

    Args:
        basis: Features.
        scores: That were learnt, of each arm where there are more than two.
        batch: The records.
    """
    psi = basis(batch.x)
    each = [torch.sigmoid(own(psi, batch.x)) for own in scores]
    if len(each) == 1:
        return each[0]
    found = torch.stack(each, 1)
    return found / found.sum(1, keepdim=True).clamp_min(1e-12)


def within_overlap(learnt: Tensor, overlap: float) -> Tensor:
    """Return the nearest propensities [n], or probabilities of arms [n, K], that keep a public overlap."""
    return learnt.clamp(overlap, 1 - overlap) if learnt.ndim == 1 else project_to_floor(learnt, overlap)


def lacking(learnt: Tensor, bounded: Tensor) -> Tensor:
    r"""Return what share of each arm's weight the overlap makes up for, [n, K]: :math:`(1 - f_k / \pi_k)_+`.

    Args:
        learnt: f, without the overlap, [n], or of more than two arms [n, K].
        bounded: pi, within it.

    Example:
        >>> learnt = torch.tensor([0.0625, 0.5], dtype=torch.float64)
        >>> lacking(learnt, within_overlap(learnt, 0.125)).tolist()
        [[0.0, 0.5], [0.0, 0.0]]
    """
    f, pi = (p if p.ndim == 2 else torch.stack([1 - p, p], 1) for p in (learnt, bounded))
    return (1 - f / pi).clamp_min(0)


@dataclass(frozen=True, eq=False, repr=False)
class WorkedOut(CausalData):
    """What nuisances make of records: these with the nuisances' values, which are the curator's.

    Attributes:
        outcome: The outcome's mean, [n].
        lacks: See ``lacking``; nought where the propensity is known.
    """

    outcome: Tensor = field(kw_only=True)
    lacks: Tensor = field(kw_only=True)


def residuals(
    outcome: Means | float, propensity: Propensity, arms: int, overlap: float, batch: CausalData
) -> WorkedOut:
    """Return inputs of the effect's regression: a - pi (of more than two arms their positions), y - m, and pi.

    Args:
        outcome: m; a number is the released centre.
        propensity: pi, as learnt; a number is that of all records; None takes the records' own.
        arms: Number of arms.
        overlap: Public bound of what was learnt.
        batch: The records.
    """
    m = torch.full_like(batch.y, outcome) if isinstance(outcome, float) else outcome(batch)
    learnt = propensity_at(batch, propensity)
    pi = within_overlap(learnt, overlap) if callable(propensity) else learnt
    treatment = batch.a - pi if arms == 2 else batch.a
    lacks = lacking(learnt, pi)
    return WorkedOut(batch.x, treatment, batch.y - m, pi, weight=batch.weight, outcome=m, lacks=lacks)


def propensity_at(batch: CausalData, propensity: Propensity) -> Tensor:
    """Return propensities at a batch; see ``residuals``."""
    if isinstance(propensity, float):
        return torch.full_like(batch.a, propensity)
    return propensity_of(batch) if propensity is None else propensity(batch)


# -- fits

_OWN = 0.5  # least share of a chosen product's mean square that other features do not have


@dataclass(frozen=True, eq=False)
class Fitted(Learnt):
    """What a nuisance's regression released.

    Attributes:
        curvatures: Released mean curvatures of its features, [1 + p, 1 + p].
    """

    curvatures: Tensor = field(kw_only=True)


@dataclass(frozen=True, eq=False)
class FittedEffect:
    """Released numbers of the effect's regression, in outcome units; of K arms those of K - 1 functions in a row.

    Attributes:
        regression: What was requested.
        curvatures: Released mean curvatures of the features, [1 + p, 1 + p].
        coefficients: As released, with their ridge, [1 + p].
        estimates: t, the ridge undone, [1 + p].
        variances: v, of the estimates' noise and sampling, [1 + p].
        shrunk: Posterior means, part by part, or the estimates where the plan shrinks nothing; the constant as it is.
        scale: S.
        solution: Coefficients as released, and the late iterates and gradients that they are made of.
    """

    regression: Regression
    curvatures: Tensor
    coefficients: Tensor
    estimates: Tensor
    variances: Tensor
    shrunk: Tensor
    scale: float
    solution: Solution


@dataclass(frozen=True, eq=False)
class Regressions:
    """Fits of one plan on records with standardised covariates.

    Attributes:
        plan: The public plan.
        steps: Pays, and draws noise.
        two_levels: Whether each retained covariate has two levels.
        solver: How fits are solved.
        nuisance: How outcome regression and propensity are learnt; None takes their features, by ``solver``.
        pairs: Products that were chosen for the effect.
        units: Combinations of released hidden units that the effect has as features; None where there are none.
    """

    plan: ComposedPlan
    steps: NoisySteps
    two_levels: tuple[bool, ...]
    solver: Solver = field(default_factory=NoisyNewton)
    nuisance: ComposedNuisance | None = None
    pairs: tuple[Feature, ...] = ()
    units: HiddenUnits | None = None

    def outcome_fits(self, scale: float, centre: float) -> OutcomeFits:
        """Return the outcome regression at released scale and centre; see ``OutcomeFits``."""
        link = TWO_VALUES if self.plan.binary else COUNTS if self.plan.log_link else HUBER
        basis = self.plan.outcome(self.two_levels).basis
        return OutcomeFits(1.0 if link == TWO_VALUES else scale, basis, scale, centre, link)

    def outcome(self, rows: Rows, fits: OutcomeFits) -> Fitted:
        """Return m(x) = E[Y | x]."""
        plan, regression = self.plan, self.plan.outcome(self.two_levels)
        d = self._curvatures("outcome", rows, regression, fits)
        if plan.binary:
            return self._learn("outcome", rows, fits, d, *logistic_plan(plan, "outcome", regression, d))
        return self._learn("outcome", rows, fits, d, outcome_plan(plan, regression, d, fits.scale, fits.centre))

    def propensity(self, rows: Rows) -> tuple[Callable[[CausalData], Tensor], Fitted]:
        """Return pi(x) as learnt, and what its regression released: of more than two arms that of the first."""
        plan, regression = self.plan, self.plan.propensity(self.two_levels)
        arms = [None] if plan.arms == 2 else list(range(plan.arms))
        each = [PropensityFits(plan.slope("propensity"), regression.basis, arm) for arm in arms]
        d = self._curvatures("propensity", rows, regression, each[0])
        found = [
            self._learn("propensity", rows, fits, d, *logistic_plan(plan, step, regression, d))
            for step, fits in zip(plan.propensity_steps, each, strict=True)
        ]
        scores = tuple(one.scores for one in found)
        return partial(arm_propensities, regression.basis, scores), found[0]

    def effect(self, rows: Rows, scale: float) -> FittedEffect:
        """Return the effect's regression.

        Args:
            rows: ``residuals``.
            scale: S, released, at which residuals are clipped.
        """
        plan = self.plan
        regression = plan.effect(self.two_levels, self.pairs, self.units)
        if plan.by_sums:
            return self._effect_by_sums(regression, rows, scale)
        fits: Fits = EffectFits(scale, regression.basis)
        planned = plan.effect_curvature * regression.basis.feature_weights
        if plan.arms > 2:
            norm = math.sqrt((plan.arms - 1) / (2 * plan.arms))  # of an arm, one half of two arms
            fits = ArmsFits(scale, regression.basis, simplex(plan.arms), norm=norm)
            planned = planned.repeat(plan.arms - 1)
        d = private_curvatures(rows, fits, planned, "effect curvatures", self.steps)
        if self.pairs and self.units is None:  # hidden units are what is beyond all features, which stay then
            regression, d = self._apart(regression, d)
            fits = EffectFits(scale, regression.basis)
        requested = effect_plan(plan, regression, d, scale)
        solution = self.solver.solution(rows.fit(fits, len(d)), requested, self.steps)
        theta = solution.coefficients
        estimates, variances = without_ridge(theta, requested), effect_variances(plan, d, scale)
        final = effect_coefficients(plan, regression, estimates, variances, scale)
        return FittedEffect(regression, d, theta, estimates, variances, final, scale, solution)

    def _apart(self, regression: Regression, curvatures: Tensor) -> tuple[Regression, Tensor]:
        """Return the effect's regression without chosen products that others make up, and curvatures of its features.

        A step or a hump of two values is a line, so that its product is one of others: what they have in common would
        be shrunk in each. The curvatures say so, which are released before.

        Args:
            regression: With all chosen products.
            curvatures: Released mean ones of its features, [1 + p, 1 + p].
        """
        place = {feature: at for at, feature in enumerate(regression.basis.features, 1)}
        own = 1 / (torch.linalg.inv(curvatures).diagonal() * curvatures.diagonal())
        pairs = tuple(pair for pair in self.pairs if pair not in place or own[place[pair]] > _OWN)
        if pairs == self.pairs:
            return regression, curvatures
        found = self.plan.effect(self.two_levels, pairs)
        weights = found.basis.feature_weights
        alike = [(at, place[feature]) for at, feature in enumerate(found.basis.features, 1) if feature in place]
        new, old = torch.tensor([(0, 0), *alike]).T
        unit = (weights[new] / regression.basis.feature_weights[old]).sqrt()
        # planned ones of features that fewer products make room for
        kept = (self.plan.effect_curvature * weights).diag()
        kept[new[:, None], new] = curvatures[old[:, None], old] * unit.outer(unit)
        return found, kept

    def hidden_units(self, rows: Rows, scale: float) -> tuple[Tensor, Tensor]:
        """Return weights and biases of hidden units that are trained for the effect beside its features.

        Args:
            rows: ``Residuals`` of records in memory.
            scale: As of ``effect``.
        """
        assert isinstance(rows, InMemory)
        assert self.nuisance is not None
        assert self.nuisance.network is not None
        batch, regression = rows.records, self.plan.effect(self.two_levels, self.pairs)
        psi = batch.x.new_empty(batch.n, regression.basis.dimension)
        for rows_of_psi, part in zip(psi.split(BATCH), batch.x.split(BATCH), strict=True):
            rows_of_psi.copy_(regression.basis(part))  # they are in memory once
        planned = self.plan.effect_curvature * regression.basis.feature_weights
        fit = HuberFit(psi, torch.ones_like(batch.y), batch.y, scale)
        requested = effect_plan(self.plan, regression, planned.diag(), scale, EFFECT_UNITS)
        return self.nuisance.network.hidden_units(fit, requested, batch, self.steps)

    def _effect_by_sums(self, regression: Regression, rows: Rows, scale: float) -> FittedEffect:
        """Return the effect by one event of sums."""
        plan, looks = self.plan, "moments" in self.plan.shares.shares
        k = len(regression.basis.features)  # none of a constant
        sums = private_sums(rows, EffectSums(scale, k, looks), "effect", self.steps)
        unit = scale / (plan.mass * plan.inside * plan.effect_curvature)
        slopes = torch.cat([torch.ones(1).double(), clip_slopes(self.two_levels[:k], looks)])
        theta = unit * sums / (slopes * regression.basis.feature_weights.sqrt())
        d = (plan.effect_curvature * regression.basis.feature_weights).diag()
        variances = regression.noise * scale**2 / regression.basis.feature_weights
        final = effect_coefficients(plan, regression, theta, variances, scale)
        return FittedEffect(
            regression, d, theta, theta, variances, final, scale, Solution(theta, theta, torch.zeros_like(theta))
        )

    def _learn(self, what: str, rows: Rows, fits: Fits, d: Tensor, requested: FitPlan, *shrink: Shrink) -> Fitted:
        """Return a regression of a nuisance, as a step pays for it."""
        learnt = self._learnt(what).learn(rows.fit(fits, len(d)), requested, rows.x, self.steps, *shrink)
        return Fitted(**vars(learnt), curvatures=d)

    def _curvatures(self, step: str, rows: Rows, regression: Regression, fits: Fits) -> Tensor:
        return private_curvatures(rows, fits, planned_curvatures(regression), f"{step} curvatures", self.steps)

    def _learnt(self, step: str) -> ComposedNuisance:
        nuisance = self.nuisance or Additive(self.solver)
        if self.plan.one_propensity:
            return Additive(self.solver)  # of one number
        if self.plan.estimates_propensity and nuisance.by_features is not None:
            return nuisance.by_features  # whose noise intervals count
        return nuisance.chosen(step, self.plan.size)
