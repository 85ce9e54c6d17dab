"""Constants of the public plans, one file of ``plans/`` a kind of plan: shares of the budget, and what is expected."""

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from functools import cache
from importlib import resources
from typing import Any, ClassVar, Self

import yaml

from torchdpcate.errors import InputError
from torchdpcate.fit.weighted_basis import KINDS

_COUNTS = ("quantile_levels", "most", "steps", "step_bounds", "reduced_steps")
_MOST = {
    "quantile_levels": 20,
    "most": 50,
    "pairs": 50,
    **dict.fromkeys(("steps", "step_bounds", "reduced_steps"), 10_000),
}
_LARGEST = 1e9  # of any other constant
_ANY_LENGTH = {"effect_sizes": 20}


@cache
def of_kind(kind: str) -> dict[str, Any]:
    """Return what the file of a kind of plan says, lists as tuples.

    Args:
        kind: Name of the file in ``plans/``, without its ending.
    """
    text = (resources.files(__package__) / "plans" / f"{kind}.yaml").read_text(encoding="utf-8")
    found: dict[str, Any] = _frozen(yaml.safe_load(text))
    return found


def _frozen(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _frozen(inner) for name, inner in value.items()}
    return tuple(map(_frozen, value)) if isinstance(value, list) else value


@dataclass(frozen=True)
class Expected:
    """What plans expect of records, whatever they are: public numbers, none of them found on data.

    Attributes:
        residual_scale: In outcome ranges.
        sampling: Variance of a record's clipped residual, in squared scales ...
        sampling_binary: ... and of a binary outcome.
        inside: Residuals within the clip beyond its quantile, which is that of the residuals before.
        effect_curvature: Mean curvature of the effect's features, over their weights: the mean of min(pi, 1 - pi), at
            most.
        logit_curvature: That of a logit's.
        apart: How propensities vary about the share of the treated: 0.3 is the mean of min(pi, 1 - pi) about one half.
        nuisances: Noise of the effect over that of its own steps.
        logit_prior: Prior variance of a logit's features over the planned one, by their weak ridge, ...
        logit_constant: ... and that of its constant.
        logit_size: Scale by which parts of a logit are shrunk.
        outcome_prior: As ``logit_prior``, of the outcome regression's features.
        noise_inflation: Variance of what is released over that of the late steps' noise: the burn-in steps' share is
            lost.
        most_wide: Covariates at most that have private windows: the curvatures of more are too many numbers.
        wide_sizes: n mu between which intervals widen the Huber clip ...
        wide_quantile: ... to this quantile.
        spreads: Clip of the mean's correction in standard deviations of normal residuals, below each n mu.
    """

    residual_scale: float
    sampling: float
    sampling_binary: float
    inside: float
    effect_curvature: float
    logit_curvature: float
    apart: float
    nuisances: float
    logit_prior: float
    logit_constant: float
    logit_size: float
    outcome_prior: float
    noise_inflation: float
    most_wide: int
    wide_sizes: tuple[float, float]
    wide_quantile: float
    spreads: tuple[tuple[float, float], ...]


EXPECTED = Expected(**of_kind("effect")["expected"])
"""What all plans expect."""


@dataclass(frozen=True)
class LineConstants:
    """Public constants of lines; see the file.

    Attributes:
        share: Of mu^2, of all lines.
        remainders: Of mu^2, of the second look at the nuisances of a cohort.
        plain_size: n mu below which its nuisances have lines and squares of covariates alone, before that look.
        squares: Of the lines' share, for the squares that the clip of scores follows from; sums have the rest.
        tails: Of the sums' part, for counts of scores near and beyond the clip.
        overlap: Of the sums' part, for how much of the propensity the overlap makes up for, where it is estimated.
        spreads: Of the sums' part, for squares by cells.
        counts: Of a partition's part, for how many records its cells have.
        clip: Power of root n mu / 2 at which scores are clipped, in their deviations.
        least_clip: In their deviations.
        slow_clip: In their deviations: from here on it grows more slowly.
        rarer: Power of ``rarity``.
        far: Clip of the squares in planned deviations: least and usual, n mu from which on it is usual, and from which
            on it grows.
        model: Part of a tail's correction that is taken for its own standard error.
        lost: Of what both nuisances lose of their features, as a standard error.
        extrapolated: Residual deviations by which models may err where the overlap makes up for the propensity.
        least_kept: Of the propensity's prior variance; below it a cohort has no lines.
        most_missed: Noise in the logit of what is left over, above which a cohort has none.
        group_size: n mu from which on there are groups by effect.
        groups: How many.
    """

    share: float
    remainders: float
    plain_size: float
    squares: float
    tails: float
    overlap: float
    spreads: float
    counts: float
    clip: float
    least_clip: float
    slow_clip: float
    rarer: float
    far: tuple[float, float, float, float]
    model: float
    lost: float
    extrapolated: float
    least_kept: float
    most_missed: float
    group_size: float
    groups: int

    def rarity(self, least: float, inverse: float) -> float:
        r"""Return by how much a clip of scores is wider where an arm is rare, :math:`(e \sqrt v)^{-.8}`.

        The root of v is a deviation of scores over one of residuals, and 1 / e the score of a residual in the rarer
        arm: a clip that is wide for scores may be within that arm's bulk, and take most of a skewed outcome's mean.

        Args:
            least: Propensity e of the rarer of both arms.
            inverse: Sum v of both arms' mean inverse propensities.

        Example:
            >>> own = line_constants()
            >>> own.rarity(0.5, 4.0), round(own.rarity(0.08, 1 / 0.08 + 1 / 0.92), 2)
            (1.0, 2.66)
        """
        return float((least * math.sqrt(inverse)) ** -self.rarer)


@cache
def line_constants() -> LineConstants:
    """Return the constants of lines."""
    return LineConstants(**of_kind("lines"))


@dataclass(frozen=True)
class PureShares:
    """Shares of epsilon of a plan of pure events: of steps, and of what these leave to each regression.

    Attributes:
        quantiles: Of each quantile, at least and at most.
        screening: Of the choice of covariates.
        moments: Of means and spreads of the covariates.
        curvatures: Of the effect's curvatures.
        outcome: Of what is left.
        propensity: Of what is left; the effect has the rest.
    """

    quantiles: tuple[float, float]
    screening: float
    moments: float
    curvatures: float
    outcome: float
    propensity: float


@dataclass(frozen=True, init=False)
class PlanConstants:
    r"""Public constants of a composed plan; shares are of mu^2.

    Attributes:
        quantile_levels: Halvings of a private quantile.
        rank_error: Wanted standard error of a quantile's rank, over n; its share then lies within ...
        quantile_shares: ... these bounds; there are three quantiles.
        moment_share: Means and spreads of the covariates.
        window_rank: Largest noise of a quantile's rank, over n, at which covariates are scaled by private windows;
            twice that where the propensity is estimated.
        window_share: Of those windows, at most: as much as their quantiles need for ``rank_error``.
        curvature_share: Mean curvatures of the features, of all regressions together.
        screening_share: Choice of covariates, where some are left out.
        nuisance_share: Of what is left: outcome regression and propensity; the head gets the rest.
        wide_nuisance_share: The same where nuisances are of all covariates, and the effect of a few.
        tail_variance: Prior variance there of a covariate's linear feature that was not chosen, over an even part of
            that of all linear ones, where the propensity is estimated: what is not requested confounds.
        propensity_share: Of the nuisances': the propensity, where it is not known.
        huber_quantiles: Quantile of the residuals at which they are clipped, at n mu = 100 and at 30,000.
        head_variance: Prior variance of the effect's features, in units of the squared residual scale S^2.
        outcome_variance: Of the outcome regression's, in units of its squared scale.
        propensity_variance: Of the logit's.
        choice_variance: The effect's, where the number of covariates is chosen.
        part_shares: Share of each kind of features, in the order of ``KINDS``, in a prior variance.
        pairs: Products of a covariate's slope with others (``PairsAbout``) that a private choice gives the effect ...
        pair_size: ... from this n mu on.
        pair_share: Of that choice.
        pair_variance: Share of these products in a prior variance, beside the others'.
        rough_sizes: n mu between which the shares of all kinds but the linear one grow from nearly nothing to those.
        most: Covariates retained at most.
        steps: Steps of a regression at n mu = 1,000, growing by its square root ...
        step_bounds: ... within these bounds. Large n mu has its own (``large`` in the file), unless a number here is
            not the default.
        burn_in: Share of the steps, and of their mu^2, that only moves to the solution.
        step_size: Of a step, over the inverse of the curvature.
        binary_part: Prior variances of the effect on a binary outcome, over those above: S is the outcome's range
            there, and effects are small beside it.
        spike: Prior probability that a part is zero.
        kinds: Kinds of features that may be requested.
        interval_shares: Of the steps that intervals take: matrix, counts, correction, average.
        interval_norm: Clip of |psi| in the matrix.
        interval_kinds: Kinds of features that an effect with intervals may have: waves are nearly functions of the
            others where covariates have few levels.
        interval_edge: Largest noise of the matrix, scaled to the plan, at which an effect with intervals has further
            kinds of features.
        shrinking_noise: Variance by which an effect's parts are shrunk, over that of their own noise and
            sampling: what the nuisances' errors add.
        missed: Variance of what an effect has beyond its features, over what is expected of it: of kinds of features
            that are not requested, where the propensity is known, and estimated; of covariates that were not chosen.
            See ``with_persons``.
        interval_clip: Clip of the effect in the average, in its planned standard deviations.
    """

    file: ClassVar[str] = "effect"

    quantile_levels: int
    rank_error: float
    quantile_shares: tuple[float, float]
    moment_share: float
    window_rank: float
    window_share: float
    curvature_share: float
    screening_share: float
    nuisance_share: float
    wide_nuisance_share: float
    tail_variance: float
    propensity_share: float
    huber_quantiles: tuple[float, float]
    head_variance: float
    outcome_variance: float
    propensity_variance: float
    choice_variance: float
    part_shares: tuple[float, ...]
    pairs: int
    pair_size: float
    pair_share: float
    pair_variance: float
    rough_sizes: tuple[float, float]
    most: int
    steps: float
    step_bounds: tuple[int, int]
    burn_in: float
    step_size: float
    binary_part: float
    spike: float
    kinds: str
    interval_shares: tuple[float, ...]
    interval_norm: float
    interval_kinds: str
    interval_edge: float
    shrinking_noise: float
    missed: tuple[float, ...]
    interval_clip: float

    def __init__(self, **given: Any) -> None:
        defaults = self.defaults()
        unknown = given.keys() - defaults.keys()
        if unknown:
            raise InputError(f"{min(unknown)}: is no constant of a plan; the constants are {', '.join(defaults)}")
        for name, default in defaults.items():
            value = given.get(name, default)
            value = tuple(value) if isinstance(default, tuple) else value
            _check(name, value, default)
            object.__setattr__(self, name, value)
        for kind in self.kinds:
            if kind not in KINDS[: len(self.part_shares)]:
                raise InputError(f"kinds = {self.kinds!r}: {kind!r} is no kind of feature; give letters of 12xsc")
        if not 0 < self.binary_part < math.inf:
            raise InputError(f"binary_part = {self.binary_part}: give a positive number, for instance 0.003")

    @classmethod
    def defaults(cls) -> dict[str, Any]:
        """Return the constants that are taken where no others are given, by name."""
        own = {} if cls.file == "effect" else of_kind(cls.file)["settings"]
        settings = of_kind("effect")["settings"] | own
        return {f.name: settings[f.name] for f in fields(cls)}

    @property
    def own_steps(self) -> bool:
        """Whether a number of the steps is not the default: large n mu then has no steps of its own."""
        defaults = self.defaults()
        return any(getattr(self, name) != defaults[name] for name in ("steps", "step_bounds", "burn_in", "step_size"))

    def of_binary(self) -> Self:
        """Return them with the prior variances of the effect on a binary outcome."""
        return self._times(self.binary_part, "head_variance", "choice_variance")

    def _times(self, part: float, *names: str) -> Self:
        return replace(self, **{name: part * getattr(self, name) for name in names})

    def part_share(self, kind: str) -> float:
        """Return a kind's share in a prior variance."""
        place = KINDS.index(kind)
        return self.part_shares[place] if place < len(self.part_shares) else self.pair_variance

    def to_text(self) -> list[str]:
        """Return the constants as statements have them: ``name=value``, values as JSON."""
        return [f"{f.name}={json.dumps(getattr(self, f.name))}" for f in fields(self)]

    @classmethod
    def from_text(cls, lines: Sequence[str]) -> Self:
        """Inverse of ``to_text``.

        Raises:
            InputError: They are not all of them in their order, or one is malformed.
        """
        try:
            pairs = [line.split("=", 1) for line in lines]
            if [name for name, _ in pairs] != [f.name for f in fields(cls)]:
                raise ValueError("other names")
            return cls(**{name: json.loads(value) for name, value in pairs})
        except (TypeError, ValueError) as error:
            raise InputError(f"constants of the plan are not what PlanConstants.to_text writes: {error}") from None


def _check(name: str, value: Any, default: Any) -> None:
    """Refuse a constant of another kind than its default, or beyond its bound: a plan's size follows from them."""
    if isinstance(default, str):
        if not isinstance(value, str) or len(set(value)) < len(value):
            raise InputError(f"{name} = {value!r}: give each letter once")
        return
    given, defaults = (value, default) if isinstance(default, tuple) else ((value,), (default,))
    if len(given) != len(defaults) and not (name in _ANY_LENGTH and 0 < len(given) <= _ANY_LENGTH[name]):
        raise InputError(f"{name} = {list(given)!r}: give {len(defaults)} numbers")
    most, whole = _MOST.get(name, _LARGEST), isinstance(defaults[0], int)
    for one in given:
        known = isinstance(one, int) and not isinstance(one, bool)
        if not (known or (isinstance(one, float) and not whole)) or not (name in _COUNTS) <= one <= most:
            kind = "an integer" if whole else "a number"
            raise InputError(f"{name} = {one!r}: give {kind} from {int(name in _COUNTS)} to {most:g}")


@dataclass(frozen=True, init=False)
class RuleConstants(PlanConstants):
    """Constants of a plan whose effect is estimated for its sign.

    Those of ``rule.yaml`` take the place of the effect's.

    Attributes:
        constant_variance: Prior variance of the effect's constant, in units of S^2: the sign needs no more of it than
            of the other features.
        linear_below: N mu below which the effect is linear and not shrunk, which would hurt its sign.
        linear_variance: Prior variance of a linear effect's features, and of those of all rules where their regret is
            planned, in units of S^2.
        least_correlation: Planned correlation of effect and score below which nothing can be learnt: the rule is then
            constant.
        effect_sizes: Standard deviations of effects over that of their prior, among which regrets are averaged: some
            effects are several times the outcome's noise. With more covariates than ``most`` there is one size, one.
        reduced_below: N mu below which a plan of at most ``most`` covariates may be reduced: without an outcome
            regression, and the propensity one number.
        reduced_steps: Steps of its effect.
        reduced_quantile_share: Of each of its two quantiles.
        reduced_moment_share: Of its means and spreads of the covariates.
        reduced_propensity_share: Of its propensity, where that is not known.
        reduced_correlation: Of a reduced score without noise with the effect, over that of one with all steps.
        reduced_noise: Standard deviation of a reduced effect's errors over that of its noise.
        reduced_variance: Prior variance of its features, by which they are requested.
        found_share: Of the weight of covariates that screening would choose if it saw the effect, what it finds beyond
            a choice at random: it looks at outcomes. With more covariates than ``most`` it is all.
        sums_below: N epsilon below which the effect of a rule by pure events may be one event of sums.
        sums_correlation: Of such a score without noise with the effect, over that of an objective's.
        public_sums_correlation: The same, of sums whose constants are all public.
        constant_gain: Such a rule is constant where its planned correlation is so many times that of a linear one: a
            constant does well where the effect's mean is far from zero alone.
    """

    file: ClassVar[str] = "rule"

    constant_variance: float
    linear_below: float
    linear_variance: float
    least_correlation: float
    effect_sizes: tuple[float, ...]
    reduced_below: float
    reduced_steps: int
    reduced_quantile_share: float
    reduced_moment_share: float
    reduced_propensity_share: float
    reduced_correlation: float
    reduced_noise: float
    reduced_variance: float
    found_share: float
    sums_below: float
    sums_correlation: float
    public_sums_correlation: float
    constant_gain: float

    def of_binary(self) -> Self:
        own = "constant_variance", "linear_variance", "reduced_variance"
        return super().of_binary()._times(self.binary_part, *own)


@dataclass(frozen=True, init=False)
class SelectionConstants(PlanConstants):
    """Constants of a plan whose steps score policies: those of effects, and clips of the scores.

    Those of ``selection.yaml`` take the place of the effect's.

    Attributes:
        least_clip: Of scores, in residual scales.
        clip_growth: C_1 is the root of n eta / ln K over this, in residual scales.
        farthest: Share of the records that may lie beyond the clip that a quantile finds, at most.
    """

    file: ClassVar[str] = "selection"

    least_clip: float
    clip_growth: float
    farthest: float


def effect_curvature(treated: float | None, known: bool) -> float:
    r"""Return the planned mean of min(pi, 1 - pi), by the public share of the treated.

    .. math:: \min(.3, s), \quad \min(.3, s (1 - .8 s)) \text{ where propensities vary}, \qquad s = \min(p, 1 - p)

    Args:
        treated: p; None takes .3.
        known: Whether it is the propensity of all, known by the design.

    Example:
        >>> [round(effect_curvature(share, known=False), 4) for share in (None, 0.5, 0.05)]
        [0.3, 0.3, 0.048]
    """
    if treated is None:
        return EXPECTED.effect_curvature
    rare = min(treated, 1 - treated)
    return min(EXPECTED.effect_curvature, rare if known else rare * (1 - EXPECTED.apart * rare))


def logit_curvature(treated: float | None) -> float:
    """Return the planned mean of pi (1 - pi), at most .2, by the public share of the treated; None takes that.

    Example:
        >>> [round(logit_curvature(share), 4) for share in (None, 0.5, 0.05)]
        [0.2, 0.2, 0.038]
    """
    most = EXPECTED.logit_curvature
    return most if treated is None else min(most, EXPECTED.apart * treated * (1 - treated))
