"""Releases: mechanisms, files, the privacy statement."""

from torchdpcate.release.file import FORMAT_VERSION, load_release, save_release
from torchdpcate.release.influence import InfluencePerturbation, minimum_records
from torchdpcate.release.mechanism import (
    FunctionMechanism,
    Mechanism,
    PrivateAnswers,
    PrivateHead,
    QueryMechanism,
)
from torchdpcate.release.objective import ObjectivePerturbation, objective_noise
from torchdpcate.release.output import OutputPerturbation
from torchdpcate.release.release import FunctionRelease, QueryRelease, Release
from torchdpcate.release.smooth_sensitivity import SmoothSensitivity, local_sensitivity, smooth_bound
from torchdpcate.release.statement import PrivacyStatement, make_statement

__all__ = [
    "FORMAT_VERSION",
    "FunctionMechanism",
    "FunctionRelease",
    "InfluencePerturbation",
    "Mechanism",
    "ObjectivePerturbation",
    "OutputPerturbation",
    "PrivacyStatement",
    "PrivateAnswers",
    "PrivateHead",
    "QueryMechanism",
    "QueryRelease",
    "Release",
    "SmoothSensitivity",
    "load_release",
    "local_sensitivity",
    "make_statement",
    "minimum_records",
    "objective_noise",
    "save_release",
    "smooth_bound",
]
