"""Pipelines run again: on a neighbour, with the charged outputs kept; and on the same records with fresh noise."""

from torchdpcate._lazy import exports

__getattr__, __dir__, __all__ = exports(
    __name__,
    {
        "check": ("ReplayReport", "Run", "learner_pipeline", "neighbours_for_replay", "replay"),
        "entropy": ("check_fresh_noise", "check_source"),
        "tape": ("Difference", "RecordingNoise", "ReplayingNoise"),
    },
)
