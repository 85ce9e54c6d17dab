"""What the user chose for a run, for summaries: groups by their names, and single settings."""

from collections.abc import Collection, Iterable

from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig

# Elsewhere in a summary, or of no consequence for what is released.
_ELSEWHERE = {
    "task", "data", "data.n", "data.stream", "learner", "release", "mechanism", "privacy.epsilon", "seed", "run_dir",
    "force", "sweep.resume", "budget.shared", "budget.total.epsilon", "budget.total.delta", "budget.total.filter",
}  # fmt: skip
_IDLE = ("trainer", "figure", "hydra")


def choices(config: DictConfig, groups: Iterable[str]) -> dict[str, str | None]:
    """Return the choice of every group by its name; None of a group that the run has no use for.

    Args:
        config: The composed configuration.
        groups: Names of the groups.
    """
    chosen = HydraConfig.get().runtime.choices if HydraConfig.initialized() else {}
    return {name: str(chosen.get(name) or _class(config, name)) if name in config else None for name in groups}


def words() -> dict[str, str]:
    """Return the words of the command line that choose something, as values by their keys."""
    given = HydraConfig.get().overrides.task if HydraConfig.initialized() else []
    return dict(word.lstrip("+~").partition("=")[::2] for word in given)


def settings(summarised: Collection[str] = ()) -> dict[str, str]:
    """Return every word of the command line that may change a release, as a value by its key.

    Args:
        summarised: Keys of words that the task's summary has under keys of their own.
    """
    known = _ELSEWHERE.union(summarised)
    return {key: value for key, value in words().items() if key not in known and key.split(".")[0] not in _IDLE}


def _class(config: DictConfig, group: str) -> str:
    """Return the class that a group's settings belong to."""
    node = config[group]
    return str(node.get("_target_", group)).rpartition(".")[2] if isinstance(node, DictConfig) else str(node)
