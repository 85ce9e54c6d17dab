"""The mechanisms by their names."""

from torchdpcate.errors import InputError
from torchdpcate.estimators.cate.mechanisms.base import Mechanism
from torchdpcate.estimators.cate.mechanisms.dp_sgd_head import DPSGDHead
from torchdpcate.estimators.cate.mechanisms.gaussian_process import GaussianProcess
from torchdpcate.estimators.cate.mechanisms.influence import InfluencePerturbation
from torchdpcate.estimators.cate.mechanisms.objective import ObjectivePerturbation
from torchdpcate.estimators.cate.mechanisms.output import OutputPerturbation
from torchdpcate.estimators.cate.mechanisms.plug_in import PlugIn
from torchdpcate.estimators.cate.mechanisms.smooth_sensitivity import SmoothSensitivity
from torchdpcate.estimators.cate.mechanisms.statistics import SufficientStatistics

MECHANISMS: dict[str, type[Mechanism]] = {
    cls.name: cls
    for cls in (
        ObjectivePerturbation,
        OutputPerturbation,
        SufficientStatistics,
        GaussianProcess,
        DPSGDHead,
        PlugIn,
        SmoothSensitivity,
        InfluencePerturbation,
    )
}
"""Mechanisms by the name that ``release_queries`` and ``release_function`` take."""


def make_mechanism(mechanism: "str | Mechanism") -> Mechanism:
    """Return the mechanism of this name, or the mechanism itself.

    Raises:
        InputError: No mechanism of this name.
    """
    if isinstance(mechanism, Mechanism):
        return mechanism
    if mechanism not in MECHANISMS:
        raise InputError(f"mechanism = {mechanism}: choose one of {', '.join(sorted(MECHANISMS))}")
    return MECHANISMS[mechanism]()
