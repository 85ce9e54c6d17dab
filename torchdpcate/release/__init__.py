"""Releases: mechanisms, files, the privacy statement."""

from torchdpcate.evaluation import BalanceTable
from torchdpcate.release.account import Account
from torchdpcate.release.average_effect import AverageEffectRelease
from torchdpcate.release.card import make_card, write_card
from torchdpcate.release.digest import check_sums, write_sums
from torchdpcate.release.dp_sgd_head import DPSGDHead
from torchdpcate.release.estimate import Estimate
from torchdpcate.release.file import FORMAT_VERSION, load_release, save_release
from torchdpcate.release.gaussian_process import GaussianProcess
from torchdpcate.release.influence import InfluencePerturbation, minimum_records
from torchdpcate.release.interval_law import IntervalLaw, half_width
from torchdpcate.release.mechanism import (
    FunctionMechanism,
    Mechanism,
    Prepared,
    PrivateAnswers,
    PrivateHead,
    QueryMechanism,
)
from torchdpcate.release.objective import ObjectivePerturbation, objective_noise
from torchdpcate.release.offer import noise_at_queries
from torchdpcate.release.online import OnlineService, OnlineTerms
from torchdpcate.release.output import OutputPerturbation
from torchdpcate.release.plug_in import PlugIn
from torchdpcate.release.policy import PolicyRelease
from torchdpcate.release.post_processing import clipped, mean_effect, monotone, rank
from torchdpcate.release.registry import read_facts
from torchdpcate.release.release import EffectRelease, FunctionRelease, QueryRelease, Release
from torchdpcate.release.released_weights import ReleasedWeights
from torchdpcate.release.rule import RuleRelease
from torchdpcate.release.smooth_sensitivity import SmoothSensitivity, local_sensitivity, smooth_bound
from torchdpcate.release.statement import PrivacyStatement, make_statement
from torchdpcate.release.statistics import StatisticsRelease, SufficientStatistics
from torchdpcate.release.verify_file import verify_release

__all__ = [
    "FORMAT_VERSION",
    "Account",
    "AverageEffectRelease",
    "BalanceTable",
    "DPSGDHead",
    "EffectRelease",
    "Estimate",
    "FunctionMechanism",
    "FunctionRelease",
    "GaussianProcess",
    "InfluencePerturbation",
    "IntervalLaw",
    "Mechanism",
    "ObjectivePerturbation",
    "OnlineService",
    "OnlineTerms",
    "OutputPerturbation",
    "PlugIn",
    "PolicyRelease",
    "Prepared",
    "PrivacyStatement",
    "PrivateAnswers",
    "PrivateHead",
    "QueryMechanism",
    "QueryRelease",
    "Release",
    "ReleasedWeights",
    "RuleRelease",
    "SmoothSensitivity",
    "StatisticsRelease",
    "SufficientStatistics",
    "check_sums",
    "clipped",
    "half_width",
    "load_release",
    "local_sensitivity",
    "make_card",
    "make_statement",
    "mean_effect",
    "minimum_records",
    "monotone",
    "noise_at_queries",
    "objective_noise",
    "rank",
    "read_facts",
    "save_release",
    "smooth_bound",
    "verify_release",
    "write_card",
    "write_sums",
]
