"""What the user chose for a run, for summaries: groups by their names, and single settings."""

from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig

CURVES_FILE = "curves.json"
CHOICES = ("second_stage", "features", "split", "nuisance")
"""Groups that a summary names."""
# Said elsewhere in a summary, or of no consequence for what is released.
_ELSEWHERE = {*CHOICES, "data", "data.n", "learner", "release", "mechanism", "privacy.epsilon", "seed", "run_dir"}
_IDLE = ("trainer", "figure", "hydra")


def choices(config: DictConfig) -> dict[str, str | None]:
    """Return the choice of every group by its name; None for features that the second stage does not ask for.

    Args:
        config: The composed configuration.
    """
    chosen = HydraConfig.get().runtime.choices if HydraConfig.initialized() else {}
    names = {name: str(chosen.get(name) or _class(config, name)) for name in CHOICES}
    return names | ({} if "features" in config.second_stage else {"features": None})


def settings() -> dict[str, str]:
    """Return every other word of the command line that may change a release, as a value by its key."""
    words = HydraConfig.get().overrides.task if HydraConfig.initialized() else []
    pairs = (word.lstrip("+~").partition("=")[::2] for word in words)
    return {key: value for key, value in pairs if key not in _ELSEWHERE and key.split(".")[0] not in _IDLE}


def _class(config: DictConfig, group: str) -> str:
    """Return the class that a group's settings belong to."""
    return str(config[group].get("_target_", group)).rpartition(".")[2]
