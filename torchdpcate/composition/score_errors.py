"""What errors of both nuisances and the clip do to the mean of doubly robust scores, from released numbers."""

import math
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor

from torchdpcate.composition.constants import EXPECTED
from torchdpcate.composition.linear_fit import FitPlan, newton_law
from torchdpcate.composition.plan import ArmRegression, ComposedPlan
from torchdpcate.composition.priors import EmpiricalBayes, held_shares, prior_variances
from torchdpcate.data.records import public_generator
from torchdpcate.fit.weighted_basis import KINDS, WeightedBasis, all_features, lengths

_HALVINGS = 60
_DEVIATIONS = (1e-6, 1e3)  # of residuals, in clips
_NODES, _FARTHEST = 41, 5.0  # of a normal number


class ArmScores(NamedTuple):
    r"""Scores :math:`(\varphi - c)/S` of one arm at points, [N].

    Attributes:
        middle: Their means, [N].
        pull: What they move by per unit of the outcome, with its sign, [N].
        share: Probability of the arm, [N].
    """

    middle: Tensor
    pull: Tensor
    share: Tensor


class ClippedArmScores(NamedTuple):
    r"""Clipped scores of one arm at points, [N] each.

    Attributes:
        inside: Probability that a score is not clipped.
        mean: Of the clipped score.
        square: Mean of its square.
        product: Mean of it times the residual's pull in the outcome regression.
    """

    inside: Tensor
    mean: Tensor
    square: Tensor
    product: Tensor


def first_order(pi: Tensor, control: Tensor, treated: Tensor) -> tuple[Tensor, Tensor]:
    r"""Return what the mean clipped score moves by per unit of errors of m_0 and m_1 at points, [N] each.

    .. math:: (p_0 - p_1)\,\pi - (1 - p), \qquad (p_0 - p_1)(1 - \pi) + 1 - p,
        \qquad p = E[\pi p_1 + (1 - \pi) p_0] .

    A treated score moves by :math:`1 - 1/\pi` per unit of m_1, a control's by 1, if they are not clipped; those that
    are stay where they are but for c, the mean of :math:`m_1 - m_0`, which they lie about.

    Args:
        pi: Propensities, [N].
        control: Probability p_0 that a control's score is not clipped, [N].
        treated: p_1, that of a treated one, [N].

    Example:
        >>> half, all_of_them = torch.tensor([0.5]), torch.tensor([1.0])
        >>> [v.item() for v in first_order(half, all_of_them, all_of_them)]
        [0.0, 0.0]
    """
    out = 1 - (pi * treated + (1 - pi) * control).mean()
    return (control - treated) * pi - out, (control - treated) * (1 - pi) + out


class ClippedNormal(NamedTuple):
    """Of a normal number, clipped to [-1, 1]: how likely it is inside, its mean and that of its square."""

    inside: Tensor
    mean: Tensor
    square: Tensor


def clipped_normal(mean: Tensor, deviation: Tensor) -> ClippedNormal:
    r"""Return moments of normal numbers that are clipped to [-1, 1].

    With :math:`\alpha, \beta = (\mp 1 - \mu)/s` and :math:`p = \Phi(\beta) - \Phi(\alpha)`

    .. math:: \mu p + s (\phi(\alpha) - \phi(\beta)) + 1 - \Phi(\beta) - \Phi(\alpha), \quad
        (\mu^2 + s^2) p + 2 \mu s (\phi(\alpha) - \phi(\beta)) + s^2 (\alpha\phi(\alpha) - \beta\phi(\beta)) + 1 - p .

    Args:
        mean: Of the numbers, any shape.
        deviation: Their standard deviations, positive.

    Example:
        >>> [abs(round(v.item(), 4)) for v in clipped_normal(torch.zeros(1).double(), torch.ones(1).double())]
        [0.6827, 0.0, 0.5161]
    """
    a, b = (-1 - mean) / deviation, (1 - mean) / deviation
    below_a, below_b = torch.special.ndtr(a), torch.special.ndtr(b)
    at_a, at_b = (torch.exp(-x.square() / 2) / math.sqrt(2 * math.pi) for x in (a, b))
    inside, moved = below_b - below_a, deviation * (at_a - at_b)
    square = (mean.square() + deviation.square()) * inside + 2 * mean * moved
    square = square + deviation.square() * (a * at_a - b * at_b) + 1 - inside
    return ClippedNormal(inside, mean * inside + moved + 1 - below_b - below_a, square)


def normal_residual(arms: tuple[ArmScores, ArmScores], square: float) -> float:
    """Return the standard deviation of normal residuals by which clipped scores have this mean square, by halving.

    Args:
        arms: Controls and treated.
        square: Released, in (0, 1).
    """
    size = max(float((1 / arm.pull.abs()).max()) for arm in arms)
    low, high = (math.log(s * size) for s in _DEVIATIONS)
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        s = math.exp(middle)
        found = sum(float((arm.share * clipped_normal(arm.middle, s * arm.pull.abs()).square).mean()) for arm in arms)
        low, high = (middle, high) if found < square else (low, middle)
    return math.exp(high)


def clipped_by_normal(arm: ArmScores, residual: float, slope: float) -> ClippedArmScores:
    """Return what the clip does where residuals are normal.

    Args:
        arm: Controls or treated.
        residual: Standard deviation of the residuals.
        slope: At which the outcome regression clips them.
    """
    z = torch.linspace(-_FARTHEST, _FARTHEST, _NODES, dtype=torch.float64)
    weight = torch.softmax(-z.square() / 2, 0) * (residual * z).clamp(-slope, slope)
    scores = (arm.middle[:, None] + residual * arm.pull[:, None] * z).clamp(-1, 1)
    return ClippedArmScores(*clipped_normal(arm.middle, residual * arm.pull.abs()), scores @ weight)


def clipped_of_two_values(arm: ArmScores, mean: Tensor, width: float) -> ClippedArmScores:
    """Return what the clip does where the outcome has two values, of which the regression's pull is one apart.

    Args:
        arm: Controls or treated.
        mean: Probability of the higher value, [N].
        width: From the lower to the higher value.
    """
    high, low = arm.middle + (1 - mean) * width * arm.pull, arm.middle - mean * width * arm.pull
    inside = mean * (high.abs() < 1) + (1 - mean) * (low.abs() < 1)
    high, low = high.clamp(-1, 1), low.clamp(-1, 1)
    square = mean * high.square() + (1 - mean) * low.square()
    return ClippedArmScores(inside, mean * high + (1 - mean) * low, square, mean * (1 - mean) * (high - low))


_LARGE = 1e9  # n mu at which a prior has all kinds of features
TOGETHER = 0.75
"""Of what both nuisances lose of a feature, as a bias: who is ill is treated, and fares worse."""
_STEEPEST = 0.25  # of a sigmoid
_RARE = 0.01  # least probability of either value of an outcome, where slopes are taken


class FittedNuisance(NamedTuple):
    """A nuisance's regression and what it released.

    Attributes:
        step: That paid for it.
        requested: How it was set up.
        curvatures: Mean curvatures of its features, [p, p].
        coefficients: [p].
        solution: The same before they were shrunk, [p].
        slope: Bound of a record's gradient.
    """

    step: str
    requested: FitPlan
    curvatures: Tensor
    coefficients: Tensor
    solution: Tensor
    slope: float


class _Errors(NamedTuple):
    """Errors of coefficients.

    Attributes:
        covariance: [p, p].
        response: Of the coefficients to what the records add to the gradient's linear part, [p, p].
    """

    covariance: Tensor
    response: Tensor


class _Moves(NamedTuple):
    """Errors of the outcome's means at points, of all coefficients and of features that were not requested.

    Attributes:
        control: What they move m_0 by, [N, p].
        treated: What they move m_1 by, [N, p].
        covariance: Of the coefficients, [p, p].
        joint: Their covariance with the records' part of the mean score, over the clip, [p].
    """

    control: Tensor
    treated: Tensor
    covariance: Tensor
    joint: Tensor


@dataclass(frozen=True, eq=False)
class ScoreErrors:
    r"""The law of what errors of both nuisances move the mean of clipped scores by: released numbers and public facts.

    Unclipped, the mean score is off by exactly

    .. math:: E[B], \quad
        B(x) = \delta\pi(x) \Big(\frac{\delta m_1(x)}{\hat\pi(x)} + \frac{\delta m_0(x)}{1 - \hat\pi(x)}\Big).

    With :math:`p_a(x)` the probability that a score of arm a is not clipped and p their mean, the clip adds, to first
    order,

    .. math:: L = E[(p_0 - p_1)((1 - \pi)\,\delta m_1 + \pi\,\delta m_0)] + (1 - p)\,E[\delta m_1 - \delta m_0],

    which is zero where nothing is clipped, and to order zero :math:`E\,\mathrm{clip}(\varphi - c) - E[\varphi - c]`.
    The variance is that of B, that of L, twice L's covariance with the records' part of the mean score, if it is
    positive, the square of the last, and that of a bias by what both nuisances lose of one feature,

    .. math:: .75 \sum_j (l_j l'_j)^{1/2}, \quad l_j = p_j \Big(\frac{v_j}{p_j + v_j}\Big)^2,

    p_j the prior variance of a feature and v_j its noise, all of p_j where no feature is requested: who is ill is
    treated, and fares worse. Residuals are normal, of the deviation that the released squares say, or of
    two values. Means are over points of a public seed with the released correlations.

    Errors of coefficients are those of ``NewtonPoints`` (``newton_law``) with curvatures by the released propensity;
    features that were not requested have their share of a prior, relative to the linear ones as these were found.

    Attributes:
        plan: The public plan.
        two_levels: Whether each retained covariate has two levels.
        points: That stand for the records, [N, k].
        propensity: Its regression.
        outcome: That of both arms.
        means: m_0 and m_1 at the points, in outcome units.
        bounds: Of the outcome.
        per_person: Records of each person.
    """

    plan: ComposedPlan
    two_levels: tuple[bool, ...]
    points: Tensor
    propensity: FittedNuisance
    outcome: FittedNuisance
    means: tuple[Tensor, Tensor]
    bounds: tuple[float, float]
    per_person: int = 1

    def deviation(self, centre: float, clip: float, square: float) -> float:
        """Return the standard deviation, in outcome units.

        Args:
            centre: c, about which scores are clipped, released.
            clip: S, at which, released.
            square: Mean of squares of clipped scores over the clip, released.
        """
        pi, (m0, m1) = self._pi, self.means
        middle = (m1 - m0 - centre) / clip
        scores = ArmScores(middle, -1 / ((1 - pi) * clip), 1 - pi), ArmScores(middle, 1 / (pi * clip), pi)
        if self.plan.binary:
            width, residual = self._width, 0.0
            shares = self._shares
            control, treated = (clipped_of_two_values(s, m, width) for s, m in zip(scores, shares, strict=True))
        else:
            residual = normal_residual(scores, square)
            control, treated = (clipped_by_normal(s, residual, self.outcome.slope) for s in scores)
        moves = self._moves(residual, control, treated)
        of_control, of_treated = first_order(pi, control.inside, treated.inside)
        row = (of_control @ moves.control + of_treated @ moves.treated) / len(pi)
        linear = float(row @ moves.covariance @ row) + 2 * clip * max(float(row @ moves.joint), 0.0)
        bias = clip * float((pi * treated.mean + (1 - pi) * control.mean - middle).mean())
        return math.sqrt(max(self._product(moves), 0.0) + max(linear, 0.0) + bias**2 + self._confounding(residual) ** 2)

    def _confounding(self, residual: float) -> float:
        """Return what parts move the mean score by that both nuisances lose, by shrinkage or as no feature is theirs.

        Args:
            residual: Standard deviation of residuals, of an outcome of many values.
        """
        plan, constants = self.plan, self.plan.constants
        logit, arms = plan.propensity(self.two_levels), plan.both_arms(self.two_levels)
        shared = arms.basis.shared
        of_pi = self._lost(logit.basis, logit.prior, logit.noise, constants.propensity_variance)
        of_m = self._lost(shared, arms.prior[: len(shared.features)], arms.noise, constants.outcome_variance)
        unit = self._width * _STEEPEST if plan.binary else max(self.outcome.slope, residual)
        return TOGETHER * unit * float((of_pi * of_m).sqrt().sum())

    def _lost(self, basis: WeightedBasis, prior: Tensor, noise: float, variance: float) -> Tensor:
        """Return the prior variances that a function loses: of all features, and at last of what has none, [p + 1].

        Args:
            basis: Features that it has, which keep p / (p + v) of a part.
            prior: Their prior variances p, in units of the squared scale.
            noise: That of a function of weight one, of which v follow.
            variance: Prior variance of a function.
        """
        plan, kinds = self.plan, self.plan.constants.kinds
        features = all_features(self.two_levels, kinds, plan.heads)
        lost = prior_variances(features, variance, plan.constants, _LARGE, plan.heads, confounds=False)
        v = noise / basis.feature_weights[1:]
        places = [features.index(feature) for feature in basis.features]
        lost[places] *= (v / (prior + v)).square()
        heads = len(self.two_levels) if plan.heads is None else plan.heads
        beyond = 1.0 if plan.heads is None else 1 - plan.constants.part_share(KINDS[0])
        unseen = 1 - held_shares(features[:1], heads, plan.covariates)
        return torch.cat([lost, variance * beyond * unseen])

    def _product(self, moves: _Moves) -> float:
        """Return the variance of E[B]: the mean of the product of two covariances over pairs of points."""
        rows, covariance = self._propensity_errors
        pulls = moves.treated / self._pi[:, None] + moves.control / (1 - self._pi)[:, None]
        both = rows.T @ pulls / len(rows)
        return float(((covariance @ both @ moves.covariance) * both).sum())

    @cached_property
    def _logistic_pi(self) -> Tensor:
        """Propensities at the points before they are held to the overlap, [N]."""
        return torch.sigmoid(self.plan.propensity(self.two_levels).basis(self.points) @ self.propensity.coefficients)

    @cached_property
    def _pi(self) -> Tensor:
        return self._logistic_pi.clamp(self.plan.overlap, 1 - self.plan.overlap)

    @property
    def _width(self) -> float:
        return self.bounds[1] - self.bounds[0]

    @property
    def _shares(self) -> tuple[Tensor, Tensor]:
        """Probabilities of the higher of two values in both arms, [N]."""
        control, treated = ((m - self.bounds[0]) / self._width for m in self.means)
        return control, treated

    @cached_property
    def _propensity_errors(self) -> tuple[Tensor, Tensor]:
        """Rows [N, p] and covariance [p, p] of the propensity's errors."""
        basis = self.plan.propensity(self.two_levels).basis
        phi, slope = basis(self.points), self._pi * (1 - self._pi)
        weight = 1 / lengths(phi)
        unit = _units(self.propensity.curvatures, _moments(phi, weight))
        # where the fit clips a probability, a record's gradient stays as it is
        curved = slope * ((self._logistic_pi - 0.5).abs() < self.propensity.slope - 0.5)
        squares = (unit * _moments(phi, weight * curved), unit * _moments(phi, weight.square() * slope))
        found = self._logistic(self.propensity, basis.parts, basis.feature_weights, *squares).covariance
        variance = self.plan.constants.propensity_variance
        left, variances = self._left_out(basis, variance, self.propensity.coefficients, found, EXPECTED.logit_prior)
        return curved[:, None] * torch.cat([phi, left], 1), torch.block_diag(found, variances.diag())

    def _moves(self, residual: float, control: ClippedArmScores, treated: ClippedArmScores) -> _Moves:
        """Return the errors of the outcome's means; residual: its standard deviation, of an outcome of many values."""
        plan, pi, fitted = self.plan, self._pi, self.outcome
        regression = plan.both_arms(self.two_levels)
        basis, none = regression.basis, torch.zeros_like(self._pi)
        psi = basis(self.points, none), basis(self.points, none + 1)
        share, weight = (1 - pi, pi), (1 / lengths(psi[0]), 1 / lengths(psi[1]))

        def over_arms(of: tuple[Tensor, Tensor]) -> Tensor:
            return sum((_moments(psi[a], share[a] * of[a]) for a in (0, 1)), torch.zeros(()))

        unit = _units(fitted.curvatures, over_arms(weight))
        squared = weight[0].square(), weight[1].square()
        if plan.binary:
            rate0, rate1 = (m.clamp(_RARE, 1 - _RARE) for m in self._shares)
            slopes = rate0 * (1 - rate0), rate1 * (1 - rate1)
            hessian, sampling = (unit * over_arms((w[0] * slopes[0], w[1] * slopes[1])) for w in (weight, squared))
            found = self._logistic(fitted, basis.parts, basis.feature_weights, hessian, sampling)
            steep = self._width * slopes[0][:, None], self._width * slopes[1][:, None]
            weak, scale = EXPECTED.logit_prior, 1.0
        else:
            found = self._huber(residual, unit * over_arms(weight), unit * over_arms(squared))
            steep = torch.ones_like(pi)[:, None], torch.ones_like(pi)[:, None]
            weak, scale = EXPECTED.outcome_prior, fitted.slope**2
        pulls = zip(psi, share, weight, (control.product, treated.product), strict=True)
        joint = found.response @ sum(((s * w * c) @ f / len(f) for f, s, w, c in pulls), torch.zeros(()))
        left, variances = self._left_out_of_arms(regression, found.covariance, weak, scale)
        return _Moves(
            steep[0] * torch.cat([psi[0], left[0]], 1),
            steep[1] * torch.cat([psi[1], left[1]], 1),
            torch.block_diag(found.covariance, variances.diag()),
            torch.cat([self.per_person * joint, torch.zeros_like(variances)]),
        )

    def _logistic(
        self,
        fitted: FittedNuisance,
        parts: dict[str, list[int]],
        feature_weights: Tensor,
        hessian: Tensor,
        sampling: Tensor,
    ) -> _Errors:
        """Return the errors of a logit's coefficients, whose ridge is undone and whose parts are shrunk.

        Args:
            fitted: The regression.
            parts: Positions of its coefficients by kind.
            feature_weights: Of its features, [p].
            hessian: Mean curvature, [p, p].
            sampling: Mean of squares of gradients, [p, p].
        """
        every, requested = torch.eye(len(hessian), dtype=torch.float64), fitted.requested
        planned = requested.scaling.diag() if requested.curvature is None else requested.curvature
        undo = every + torch.linalg.solve(planned, requested.ridge.diag())
        found = self._linear(fitted, hessian, sampling, undo)
        t, variances = undo @ fitted.solution, found.covariance.diagonal()
        drawn = variances.clone()
        for part in parts.values():
            sizes = EXPECTED.logit_size / (len(part) * feature_weights[part]).sqrt()
            drawn[part] = EmpiricalBayes(self.plan.constants.spike).moments(t[part], variances[part], sizes)[1]
        return _Errors(drawn.diag(), found.response)

    def _huber(self, residual: float, hessian: Tensor, squares: Tensor) -> _Errors:
        """Return the errors of the outcome's coefficients where residuals are normal, of mean curvatures within."""
        slope = self.outcome.slope
        law = clipped_normal(torch.zeros(1).double(), torch.tensor([residual / slope]).double())
        every = torch.eye(len(hessian), dtype=torch.float64)
        return self._linear(self.outcome, law.inside * hessian, law.square * slope**2 * squares, every)

    def _linear(self, fitted: FittedNuisance, hessian: Tensor, sampling: Tensor, undo: Tensor) -> _Errors:
        """Return the errors of ``undo`` times the mean of Newton points: noise, sampling, and what it never reaches."""
        n, noise = self.plan.mass, 2 * fitted.slope / self.plan.shares.of(fitted.step)
        response, covariance = newton_law(fitted.requested, n * hessian, noise)
        response, covariance = undo @ response, undo @ covariance @ undo.T
        covariance = covariance + self.per_person * n * response @ sampling @ response.T
        lost = torch.eye(len(hessian), dtype=torch.float64) - n * response @ hessian
        t = undo @ fitted.solution
        return _Errors(covariance + lost @ (t.outer(t) + covariance) @ lost.T, response)

    def _left_out_of_arms(
        self, regression: ArmRegression, covariance: Tensor, weak: float, scale: float
    ) -> tuple[tuple[Tensor, Tensor], Tensor]:
        """Return features that neither arm's mean has, [N, l] for controls and for the treated, and variances [l]."""
        basis, constants, theta = regression.basis, self.plan.constants, self.outcome.coefficients
        k = basis.shared.dimension
        part = scale * constants.outcome_variance, theta[:k], covariance[:k, :k], weak
        shared, of_shared = self._left_out(basis.shared, *part)
        if basis.contrast is None:
            return (shared, shared), of_shared
        part = scale * constants.head_variance / 4, theta[k:], covariance[k:, k:], weak
        contrast, of_contrast = self._left_out(basis.contrast, *part)
        arms = torch.cat([shared, -contrast], 1), torch.cat([shared, contrast], 1)
        return arms, torch.cat([of_shared, of_contrast])

    def _left_out(
        self, basis: WeightedBasis, variance: float, theta: Tensor, covariance: Tensor, weak: float
    ) -> tuple[Tensor, Tensor]:
        """Return features at the points that a function does not have, [N, l], and their prior variances, [l].

        The prior is the plan's, times the mean square of the linear features that were requested over what it expects
        of these, or ``weak`` where there are none. Covariates that were not retained have a linear feature each.

        Args:
            basis: Features that it has.
            variance: Prior variance of a function.
            theta: Coefficients, [1 + p].
            covariance: Of their errors, [1 + p, 1 + p].
            weak: That ratio where there are none.
        """
        plan = self.plan
        features = all_features(self.two_levels, plan.constants.kinds, plan.heads)
        prior = prior_variances(features, variance, plan.constants, _LARGE, plan.heads)
        linear = [position for position, feature in enumerate(basis.features, 1) if feature.kind == "1"]
        if linear:
            expected = prior[[features.index(basis.features[position - 1]) for position in linear]].sum()
            squares = theta[linear].square() + covariance.diagonal()[linear]
            weak = float((basis.feature_weights[linear] * squares).sum() / expected)
        there = set(basis.features)
        out = [j for j, feature in enumerate(features) if feature not in there]
        of_out = WeightedBasis(tuple(features[j] for j in out), torch.ones(1 + len(out), dtype=torch.float64))
        found, variances, unseen = of_out(self.points)[:, 1:], weak * prior[out], plan.covariates - len(self.two_levels)
        if not unseen:
            return found, variances
        held = float(held_shares(features[:1], plan.retained, plan.covariates))
        each = weak * float(prior[: plan.retained].sum()) * (1 - held) / held / unseen
        generator = public_generator(0, "covariates left out")
        far = torch.randn(len(found), unseen, generator=generator, dtype=torch.float64)
        return torch.cat([found, far], 1), torch.cat([variances, variances.new_full((unseen,), each)])


def _moments(features: Tensor, weight: Tensor) -> Tensor:
    """Return the mean of weight f f' over points, [p, p]."""
    return features.T @ (weight[:, None] * features) / len(features)


def _units(released: Tensor, model: Tensor) -> Tensor:
    """Return what makes the diagonal of curvatures at points the released one, [p, p].

    A feature that is zero at all points, as a product of two covariates that are nearly all missing may be, stays so:
    it has no part in a mean over them.
    """
    of_model = model.diagonal()
    root = torch.where(of_model > 0, released.diagonal() / of_model, 1.0).sqrt()
    return root.outer(root)
