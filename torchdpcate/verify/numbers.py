"""Verification of released numbers: noise leaves them neither alike, nor round, nor larger than any release."""

from collections.abc import Iterator

import torch
from torch import Tensor

from torchdpcate.estimators.cate.mechanisms.plug_in import PlugIn
from torchdpcate.estimators.recompute import alike_problems, decimal_problems
from torchdpcate.release.average_effect import AverageEffectRelease
from torchdpcate.release.composed import ComposedRelease
from torchdpcate.release.composed_rule import ComposedRule
from torchdpcate.release.release import QueryRelease, Release

_PUBLIC = ("queries", "noise_scales", "features.", "energies", "scale", "curvatures", "law.")
# follow from others, which their mechanism works out anew: a bisection's grid, a plan, deviations
_FOLLOWS = ("main", "beside", "balance.before_sd", "balance.after_sd", "balance.expected", "balance.expected_sd")
_BITS = 14  # float32 weights near one with noise of a thousandth


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
        if tensor.is_floating_point() and not public:
            values = _judged(release, name, tensor.flatten().double())
            yield from alike_problems(name, values, _BITS)
            yield from decimal_problems(name, values)
    if isinstance(release, QueryRelease) and not bool((release.answers.abs() <= release.domain.outcome_range).all()):
        yield "an answer is larger than the outcome's range"


def _judged(release: Release, name: str, values: Tensor) -> Tensor:
    """Return the numbers that are at no bound."""
    if isinstance(release, ComposedRelease | ComposedRule):
        values = values[(values != 0) & (values.abs() != 1)]  # shrunk, a plan's standardisation, or clipped
    if isinstance(release, QueryRelease):
        values = values[values.abs() != release.domain.outcome_range]
    if isinstance(release, AverageEffectRelease) and name == "numbers":
        values = torch.tensor([v for v in values.tolist() if v != 0.0], dtype=torch.float64)  # a public centre's
    return values
