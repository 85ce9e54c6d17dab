"""Pipelines run again: on a neighbour, what was paid for kept as it was; and on the same records with fresh noise."""

from torchdpcate.audit.replay.check import ReplayReport, Run, learner_pipeline, neighbours_for_replay, replay
from torchdpcate.audit.replay.entropy import check_fresh_noise, check_source
from torchdpcate.audit.replay.tape import Difference, RecordingNoise, ReplayingNoise

__all__ = [
    "Difference",
    "RecordingNoise",
    "ReplayReport",
    "ReplayingNoise",
    "Run",
    "check_fresh_noise",
    "check_source",
    "learner_pipeline",
    "neighbours_for_replay",
    "replay",
]
