"""Constants of the public plan: how a budget is divided among steps, and what is asked of the records."""

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Self

from torchdpcate.errors import InputError
from torchdpcate.features.weighted_basis import KINDS

_TUPLES = (
    "quantile_shares",
    "huber_quantiles",
    "part_shares",
    "rough_sizes",
    "step_bounds",
    "interval_shares",
    "effect_sizes",
)
_COUNTS = ("quantile_levels", "most", "steps", "step_bounds", "lean_steps")
_MOST = {
    "quantile_levels": 20,
    "most": 50,
    "pairs": 50,
    **dict.fromkeys(("steps", "step_bounds", "lean_steps"), 10_000),
}
_LARGEST = 1e9  # of any other constant
_ANY_LENGTH = {"effect_sizes": 20}


@dataclass(frozen=True)
class PlanConstants:
    r"""Public constants of a composed plan; shares are of mu^2.

    They were tuned on generated data alone (``experiments/defaults/tune.py`` says which).

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
            that of all linear ones, where the propensity is estimated: what is not asked for confounds.
        propensity_share: Of the nuisances': the propensity, where it is not known.
        huber_quantiles: Quantile of the residuals at which they are clipped, at n mu = 100 and at 30,000.
        head_variance: Prior variance of the effect's features, in units of the squared residual scale S^2.
        outcome_variance: Of the outcome regression's, in units of its squared scale.
        propensity_variance: Of the logit's.
        choice_variance: The effect's, where the number of covariates is chosen.
        part_shares: Share of each kind of features, in the order of ``KINDS``, in a prior variance.
        pairs: Products of a covariate with a step of another that a private choice gives the effect ...
        pair_size: ... from this n mu on.
        pair_share: Of that choice.
        pair_variance: Share of these products in a prior variance, beside the others'.
        rough_sizes: n mu between which the shares of all kinds but the linear one grow from nearly nothing to those.
        most: Covariates kept at most.
        steps: Steps of a regression at n mu = 1,000, growing by its square root ...
        step_bounds: ... within these bounds.
        warm: Share of the steps, and of their mu^2, that only moves to the solution.
        step_size: Of a step, over the inverse of the curvature.
        binary_part: Prior variances of the effect on a binary outcome, over those above: S is the outcome's range
            there, and effects are small beside it.
        spike: Prior probability that a part is zero.
        kinds: Kinds of features that may be asked for.
        interval_shares: Of the steps that intervals take: matrix, counts, correction, average.
        interval_norm: Clip of |psi| in the matrix.
        interval_kinds: Kinds of features that an effect with intervals may have: waves are nearly functions of the
            others where covariates have few levels.
        interval_edge: Largest noise of the matrix, scaled to the plan, at which an effect with intervals has further
            kinds of features.
        shrinking_noise: Variance by which an effect's parts are drawn to zero, over that of their own noise and
            sampling: what the nuisances' errors add.
        missed: What an effect has beyond its released features, over what their prior makes of these, in variance.
        interval_reach: Clip of the effect in the average, in its planned standard deviations.
        score_margin: How far below the largest the quantile of an average effect's scores lies at least, in standard
            errors of one of its counts, without which a search may end at the top.
    """

    quantile_levels: int = 10
    rank_error: float = 0.03
    quantile_shares: tuple[float, float] = (0.015, 0.12)
    moment_share: float = 0.065
    window_rank: float = 0.1
    window_share: float = 0.06
    curvature_share: float = 0.046
    screening_share: float = 0.17
    nuisance_share: float = 0.4
    wide_nuisance_share: float = 0.5
    tail_variance: float = 3.0
    propensity_share: float = 0.45
    huber_quantiles: tuple[float, float] = (0.43, 0.9)
    head_variance: float = 0.1
    outcome_variance: float = 0.3
    propensity_variance: float = 0.3
    choice_variance: float = 0.3
    part_shares: tuple[float, ...] = (0.62, 0.2, 0.12, 0.04, 0.02)
    pairs: int = 3
    pair_size: float = 10_000.0
    pair_share: float = 0.04
    pair_variance: float = 0.15
    rough_sizes: tuple[float, float] = (300.0, 3_000.0)
    most: int = 12
    steps: float = 40
    step_bounds: tuple[int, int] = (40, 60)
    warm: float = 0.2
    step_size: float = 0.27
    binary_part: float = 0.003
    spike: float = 0.7
    kinds: str = "12xsc"
    interval_shares: tuple[float, ...] = (0.06, 0.02, 0.08, 0.02)
    interval_norm: float = 2.0
    interval_kinds: str = "12x"
    interval_edge: float = 1.0
    shrinking_noise: float = 1.3
    missed: float = 2.0
    interval_reach: float = 3.0
    score_margin: float = 0.0

    def __post_init__(self) -> None:
        for name in (f.name for f in fields(self) if f.name in _TUPLES):
            object.__setattr__(self, name, tuple(getattr(self, name)))
        unknown = [kind for kind in self.kinds if kind not in KINDS[: len(self.part_shares)]]
        if unknown:
            raise InputError(f"kinds = {self.kinds!r}: {unknown[0]!r} is no kind of feature; give letters of 12xsc")
        for f in fields(self):
            _check(f.name, getattr(self, f.name), f.default)
        if not 0 < self.binary_part < math.inf:
            raise InputError(f"binary_part = {self.binary_part}: give a positive number, for instance 0.003")

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


@dataclass(frozen=True)
class RuleConstants(PlanConstants):
    """Constants of a plan whose effect is asked for its sign.

    They were tuned on generated data alone (``experiments/rules_and_selection/tune.py`` says which).

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
        lean_below: N mu below which a plan of at most ``most`` covariates may be lean: without an outcome regression,
            and the propensity one number.
        lean_steps: Steps of its effect.
        lean_quantile_share: Of each of its two quantiles.
        lean_moment_share: Of its means and spreads of the covariates.
        lean_propensity_share: Of its propensity, where that is not known.
        lean_correlation: Of a lean score without noise with the effect, over that of one with all steps.
        lean_noise: Standard deviation of a lean effect's errors over that of its noise.
        lean_variance: Prior variance of its features, by which they are asked for.
        found_share: Of the weight of covariates that screening would choose if it saw the effect, what it finds beyond
            a choice at random: it looks at outcomes. With more covariates than ``most`` it is all.
        sums_below: N epsilon below which the effect of a rule by pure events may be one event of sums.
        sums_correlation: Of such a score without noise with the effect, over that of an objective's.
        bare_correlation: The same, of sums whose constants are all public.
        constant_gain: Such a rule is constant where its planned correlation is so many times that of a linear one: a
            constant does well where the effect's mean is far from zero alone.
    """

    nuisance_share: float = 0.35
    tail_variance: float = 10.0
    head_variance: float = 0.3
    spike: float = 0.05
    constant_variance: float = 0.3
    linear_below: float = 500.0
    linear_variance: float = 1.0
    least_correlation: float = 0.35
    effect_sizes: tuple[float, ...] = (0.5, 1.0, 4.0)
    lean_below: float = 500.0
    lean_steps: int = 1
    lean_quantile_share: float = 0.1
    lean_moment_share: float = 0.1
    lean_propensity_share: float = 0.05
    lean_correlation: float = 0.95
    lean_noise: float = 1.3
    lean_variance: float = 8.0
    found_share: float = 0.3
    sums_below: float = 500.0
    sums_correlation: float = 0.85
    bare_correlation: float = 0.8
    constant_gain: float = 1.8

    def of_binary(self) -> Self:
        """See ``PlanConstants``."""
        own = "constant_variance", "linear_variance", "lean_variance"
        return super().of_binary()._times(self.binary_part, *own)


@dataclass(frozen=True)
class SelectionConstants(PlanConstants):
    """Constants of a plan whose steps score policies: those of effects, and clips of the scores.

    They were tuned on generated data alone (``experiments/rules_and_selection/tune_selection.py`` says which).

    Attributes:
        least_clip: Of scores, in residual scales.
        clip_growth: C_1 is the root of n eta / ln K over this, in residual scales.
        farthest: Share of the records that may lie beyond the clip that a quantile finds, at most.
    """

    binary_part: float = 1.0  # not tuned for scores
    tail_variance: float = 10.0
    least_clip: float = 1.0
    clip_growth: float = 8.0
    farthest: float = 0.01
