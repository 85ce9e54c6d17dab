"""Verification of released numbers: noise leaves them neither alike, nor round, nor larger than any release."""

import math
from collections.abc import Iterator

from torch import Tensor

from torchdpcate.composition.covariates import LEAST_SPREAD
from torchdpcate.composition.summaries import LEAST_VARIANCE
from torchdpcate.estimators.cate.mechanisms.composed import Composed
from torchdpcate.estimators.cate.mechanisms.plug_in import PlugIn
from torchdpcate.privacy.noisy_numbers import alike_problems, decimal_problems
from torchdpcate.release.average_effect import AverageEffectRelease
from torchdpcate.release.composed import ComposedRelease
from torchdpcate.release.composed_rule import ComposedRule
from torchdpcate.release.release import QueryRelease, Release

_PUBLIC = ("queries", "noise_scales", "features.", "energies", "scale", "curvatures", "law.", "interval.nuisances.")
# follow from others, which their mechanism works out anew: a bisection's grid, a plan, deviations
_FOLLOWS = (
    "main",
    "beside",
    "scores",
    "balance.before_sd",
    "balance.after_sd",
    "balance.expected",
    "balance.expected_sd",
)
_BITS = 14  # float32 weights near one with noise of a thousandth
_FEW = 4  # answers that may be one number: near queries


def number_problems(release: Release) -> Iterator[str]:
    """Return what in the released numbers of a release that claims something no noise leaves; see ``recompute``.

    A number at a public bound, to which it is clipped, is not judged, nor a coefficient that is shrunk to zero.

    Args:
        release: As read from its file.
    """
    if not release.privacy.claims or release.privacy.mechanism == PlugIn.name:
        return
    for name, tensor in release.tensors().items():
        public = name.startswith(_PUBLIC) or name in _FOLLOWS or name.endswith(".median")  # of a public grid
        if tensor.is_floating_point() and not public and name != "answers":
            values = _judged(release, name, tensor.flatten().double())
            yield from alike_problems(name, values, _BITS)
            yield from decimal_problems(name, values)
    if isinstance(release, QueryRelease):
        yield from _answers(release)


def _answers(release: QueryRelease) -> Iterator[str]:
    """Problems of answers: equal ones may be of queries that differ in no column that is used, or of a constant."""
    answers, bound = release.answers, release.domain.outcome_range
    if not bool((answers.abs() <= bound).all()):
        yield "an answer is larger than the outcome's range"
    inside = answers.abs() != bound
    yield from decimal_problems("answers", answers[inside])
    columns = (release.head or {}).get("columns")
    queries = release.queries if columns is None else release.queries[:, list(map(int, columns))]
    different = len(queries[inside].unique(dim=0)) if bool(inside.any()) else 0
    constant = len(answers[inside].unique()) == 1
    if constant and different > _FEW and release.privacy.mechanism != Composed.name:
        yield "answers holds one number alone, which noise does not leave"


def _judged(release: Release, name: str, values: Tensor) -> Tensor:
    """Return the numbers that are at no bound."""
    if name == "nuisances.propensity" and release.domain.known_propensity is not None:
        return values[:0]  # none was fitted
    if isinstance(release, ComposedRelease | ComposedRule):
        values = values[(values != 0) & (values.abs() != 1)]  # shrunk, a plan's standardisation, or clipped
        if name == "standardisation.sd":
            for least in (math.sqrt(LEAST_VARIANCE), LEAST_SPREAD):
                values = values[(values / least - 1).abs() > 1e-9]
    if isinstance(release, AverageEffectRelease) and name == "numbers":
        values = values[(values * 2**12).round() != values * 2**12]
        values = values[: 0 if len(values) < 2 else None]  # a single one may be a public centre
    return values
