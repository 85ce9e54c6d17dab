"""The mechanisms by their names."""

from torchdpcate.errors import InputError
from torchdpcate.release import (
    DPSGDHead,
    GaussianProcess,
    InfluencePerturbation,
    Mechanism,
    ObjectivePerturbation,
    OutputPerturbation,
    PlugIn,
    SmoothSensitivity,
    SufficientStatistics,
)

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
