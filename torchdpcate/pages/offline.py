"""What a page's script needs to evaluate a released function by itself: released numbers and public facts."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from torchdpcate.candidates.kinds import Constants, Thresholds
from torchdpcate.data.covariates import Covariate, Numeric
from torchdpcate.fit.feature_maps import Identity
from torchdpcate.fit.weighted_basis import MOST, HiddenUnits, effects_of
from torchdpcate.release.combined import Combined
from torchdpcate.release.composed import ComposedRelease, ComposedRule
from torchdpcate.release.file import Release
from torchdpcate.release.rule import PolicyRelease, RuleRelease
from torchdpcate.release.subgroups import LEVEL

STEPS = 200
"""Positions of a slider between its bounds."""


@dataclass(frozen=True)
class Question:
    """One covariate as a reader is requested it.

    Attributes:
        name: Column of the table.
        start: Value at first: near the released mean where there is one, else the middle of the bounds.
        low: Lower public bound; of categories 0.
        high: Upper public bound; of categories 0.
        levels: Public categories, in order; empty of a number.
        typical: Public range that most values of a number lie in, where one is declared.
        unit: What a number is measured in, in words; empty if nothing is said.
        missing: The number that a value which is not known has; None where it must be known.
    """

    name: str
    start: Any
    low: float = 0.0
    high: float = 0.0
    levels: tuple[Any, ...] = ()
    typical: tuple[float, float] | None = None
    missing: float | None = None
    unit: str = ""

    @property
    def label(self) -> str:
        """Its name, with its unit where one is stated."""
        return f"{self.name}, {self.unit}" if self.unit else self.name

    @property
    def whole(self) -> bool:
        """Whether a slider moves in whole numbers: public bounds are whole, and far enough apart."""
        return self.low == int(self.low) and self.high == int(self.high) and self.high - self.low >= 10

    @property
    def step(self) -> float:
        """What a slider moves by."""
        return 1.0 if self.whole else (self.high - self.low) / STEPS


def questions(release: Release) -> list[Question]:
    """Return what to ask a reader for, covariate by covariate.

    Args:
        release: Of effects, of a rule or of a chosen policy.

    Example:
        >>> from torchdpcate.release.rule import _example
        >>> [(question.name, question.start) for question in questions(_example())]
        [('x0', 0.5)]
    """
    starts: Mapping[str, Tensor] = {}
    if isinstance(release, ComposedRelease):  # means of each covariate's encoded columns on its scale, from 0 to 1
        mean = (release.domain.scale(release.reference).mean(0) + 1) / 2
        starts = {name: mean[list(places)] for name, places in release.schema.places.items()}
    return [_question(covariate, starts.get(covariate.name)) for covariate in release.schema.covariates]


def _question(covariate: Covariate, typical: Tensor | None) -> Question:
    if covariate.levels:
        levels = tuple(covariate.levels)
        if typical is None:
            return Question(covariate.name, levels[0], levels=levels)
        position = round(typical.item()) if len(typical) == 1 else int(typical.argmax())
        return Question(covariate.name, levels[position], levels=levels)
    assert isinstance(covariate, Numeric)
    column, gone = covariate.columns[0], covariate.middle if covariate.missing else None
    low, high = column.low, column.high
    middle = 0.5 if typical is None else typical[0].item()
    start = covariate.decode_unit(torch.tensor([middle], dtype=torch.float64))[0, 0].item()
    requested = Question(covariate.name, start, low, high)
    steps = round((start - low) / requested.step)
    near, unit = min(low + steps * requested.step, high), getattr(covariate, "unit", "")
    return Question(covariate.name, near, low, high, (), column.typical, gone, unit)


MOST_FEATURES = 150
"""Features beyond which a page has no intervals beside its sliders: two matrices of them would make it too long."""


def offline_model(release: Release) -> dict[str, Any] | str:
    r"""Return what a page needs to evaluate a release, as plain types, or why it cannot.

    A composed effect is :math:`g(x) = \mathrm{clip}(\sum_j \beta_j f_j(z), \pm R)` with
    :math:`\beta_j = \theta_j \sqrt{e_j}` over features f_j of standardised covariates z; its interval has the middle
    and variance of ``EffectLaw.interval``, in the same features. Of more than two arms there are such coefficients for
    each. A linear rule is an affine function of covariates
    scaled to [-1, 1]; a policy by cuts is a tree.

    Args:
        release: Of effects, of a rule, or of a chosen policy.

    Returns:
        Numbers and names; or one sentence that says why this release has no such form.
    """
    if release.arms and isinstance(release, ComposedRelease):
        arms = {"arms": list(release.arm_titles), "arm": 0}  # the page asks which, the first one before
        return _requested(release) | {"effect": _effect(release)} | arms
    if isinstance(release, ComposedRelease):
        return _requested(release) | {"effect": _effect(release)}
    if isinstance(release, ComposedRule):
        cost = release.cost + release.cutoff
        return _requested(release) | {
            "effect": _effect(release.effect),
            "least": _finite(cost),
            "direction": release.domain.direction,
        }
    if isinstance(release, RuleRelease) and isinstance(release.features, Identity):
        return _requested(release) | {"score": _affine(release)}
    if isinstance(release, PolicyRelease) and isinstance(release.policy, Constants | Thresholds):
        return _requested(release) | {"tree": _tree(release), "actions": list(release.actions)}
    if isinstance(release, Combined):
        return "The answer is made of all sites' functions; torchdpcate predict evaluates them."
    return (
        f"The sliders need a function of few numbers; this release of {release.kind} evaluates networks, kernels or "
        "functions, which torchdpcate predict does."
    )


def _requested(release: Release) -> dict[str, Any]:
    """Return the covariates with their public bounds or levels, and where the sliders begin."""
    domain, places = release.domain, release.schema.places
    found = [_covariate(question, places[question.name]) for question in questions(release)]
    low, high = domain.covariate_low.tolist(), domain.covariate_high.tolist()
    scales = {} if domain.linear else {"scales": [domain.covariate_scales.numbers(j) for j in range(domain.dimension)]}
    return {"covariates": found, "low": low, "high": high, "level": LEVEL, **scales}


def _covariate(question: Question, places: range) -> dict[str, Any]:
    shown: dict[str, Any] = {"name": question.label, "first": places.start, "width": len(places)}
    if question.levels:
        return shown | {"levels": list(map(str, question.levels)), "start": question.levels.index(question.start)}
    shown |= {"typical": list(question.typical)} if question.typical is not None else {}
    shown |= {} if question.missing is None else {"middle": question.missing}
    return shown | {"low": question.low, "high": question.high, "step": question.step, "start": question.start}


def _betas(release: ComposedRelease, roots: Tensor) -> list[list[float]]:
    """Return the coefficients of each arm's effect in the features without their weights, [K - 1, 1 + p]."""
    each = torch.eye(release.basis.dimension, dtype=torch.float64)
    return (effects_of(each, release.coefficients, len(release.arms) + 1).T * roots).tolist()


def _beta(release: ComposedRelease, roots: Tensor) -> list[float]:
    """Return the coefficients of the effect in the features without their weights, [1 + p]."""
    beta = release.coefficients * roots
    beta[0] += release.shift
    return beta.tolist()


def _units(units: HiddenUnits) -> dict[str, Any]:
    """Return the numbers of combinations of hidden units, a row each."""
    of_units = {"weights": units.weights.tolist(), "biases": units.biases.tolist()}
    return of_units | {"base": units.base.config(), "mixed": units.mixed.T.tolist(), "less": units.less.T.tolist()}


def _effect(release: ComposedRelease) -> dict[str, Any]:
    """Return coefficients in the features without their weights, standardisation, and the law of the error."""
    roots, law = release.basis.feature_weights.sqrt(), release.law
    columns = range(release.domain.dimension) if release.columns is None else release.columns
    found = {
        "columns": list(columns),
        "mean": release.standardisation.mean.tolist(),
        "sd": release.standardisation.sd.tolist(),
        "most": MOST,
        "features": release.basis.config(),
        **({} if release.basis.units is None else {"units": _units(release.basis.units)}),
        **({"betas": _betas(release, roots)} if release.arms else {"beta": _beta(release, roots)}),
        "bound": release.domain.outcome_range,
        **({"indicators": list(release.domain.indicators)} if release.domain.has_missing else {}),
    }
    if law is None or release.basis.dimension > MOST_FEATURES:
        return found
    deviations = torch.special.ndtri(torch.tensor((1 + LEVEL) / 2, dtype=torch.float64)).item()
    if release.form == "constant":  # whose interval is the average's
        middle, variance = law.average, law.average_variance
        if release.lines is not None:
            middle, variance = release.lines.estimate(), release.lines.error() ** 2
        alone = {"estimates": [middle], "correction": 0.0, "centre": [1.0], "covariance": [0.0], "nuisances": None}
        one = {"features": [], "beta": [release.average_effect]}
        return found | one | {"law": alone | {"variance": variance, "deviations": deviations}}
    square = roots[:, None] * roots
    return found | {
        "law": {
            "estimates": (law.estimates * roots).tolist(),
            "correction": law.correction,
            "centre": (law.centre / roots).tolist(),
            "covariance": _lower(law.covariance * square),
            "nuisances": None if law.nuisances is None else _lower(law.nuisances * square),
            "variance": law.correction_variance + law.missed,
            "deviations": deviations,
        }
    }


def _lower(matrix: Tensor) -> list[float]:
    """Return a quadratic form's coefficients, row by row to the diagonal: those beside it count twice."""
    both = matrix + matrix.T
    both.diagonal().div_(2)
    rows, columns = torch.tril_indices(*matrix.shape)
    return both[rows, columns].tolist()


def _affine(release: RuleRelease) -> dict[str, Any]:
    """Return intercept and slopes of the score in covariates scaled to [-1, 1]."""
    scale = 1 / math.sqrt(release.features.dimension)
    intercept, slopes = release.theta[0].item() * scale, release.theta[1:] * scale
    if not release.features.config()["centred"]:
        intercept, slopes = intercept + slopes.sum().item() / 2, slopes / 2
    return {"intercept": intercept, "slopes": slopes.tolist()}


def _tree(release: PolicyRelease) -> Any:
    """Return a policy as a tree: {column, cut, above, below}, leaves labels."""
    policy, names = release.policy, release.domain.names
    if isinstance(policy, Constants):
        return policy.labels[0]
    assert isinstance(policy, Thresholds)
    above, below = (
        (release.actions[1], release.actions[0]) if policy.labels is None else (labels[0] for labels in policy.labels)
    )
    return {"column": names.index(policy.covariates[0]), "cut": policy.cuts[0], "above": above, "below": below}


def columns_used(release: PolicyRelease) -> set[int] | None:
    """Return the positions of the encoded columns that a policy by cuts looks at; None of any other policy."""
    if not isinstance(release.policy, Constants | Thresholds):
        return None
    tree = _tree(release)
    return {tree["column"]} if isinstance(tree, dict) else set()


def _finite(number: float) -> float:
    """Return a number that JSON knows: treating nobody or everybody needs no infinity."""
    return max(min(number, 1e300), -1e300)
