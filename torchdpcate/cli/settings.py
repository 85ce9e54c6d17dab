"""What the user chose for a run, for summaries: groups by their names, and single settings."""

import os

from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig

CURVES_FILE = "curves.json"
CHOICES = ("second_stage", "features", "split", "nuisance")
"""Groups that the summary of a CATE names."""
RULE_GROUPS = ("weights", "outcome", "loss", "matching")
"""Groups of which a rule is made, each learner of some of them."""
SELECTION_GROUPS = ("policies", "certificate", "selection")
"""Groups of which a choice among policies is made."""
AVERAGE_GROUPS = ("effect",)
"""Groups of which an average effect is made."""
_RULE_CHOICES = ("features", *RULE_GROUPS)
# Said elsewhere in a summary, or of no consequence for what is released.
_ELSEWHERE = {
    *CHOICES, *_RULE_CHOICES, *SELECTION_GROUPS, *AVERAGE_GROUPS, "effect.estimand", "effect.public_sample", "task",
    "data", "data.n", "data.stream", "learner", "release", "mechanism", "privacy.epsilon", "seed", "run_dir",
}  # fmt: skip
_IDLE = ("trainer", "figure", "hydra")
_LONGEST = 60  # letters of a file's name in a summary


def choices(config: DictConfig) -> dict[str, str | None]:
    """Return the choice of every group by its name; None for features that the second stage does not ask for.

    Args:
        config: The composed configuration.
    """
    chosen = HydraConfig.get().runtime.choices if HydraConfig.initialized() else {}
    return {name: str(chosen.get(name) or _class(config, name)) if name in config else None for name in CHOICES}


def rule_choices(config: DictConfig) -> dict[str, str | None]:
    """Return the choice of every group that rules have by its name; None where this rule has none.

    Args:
        config: The configuration, resolved and without the groups that its rule does not use.
    """
    chosen = HydraConfig.get().runtime.choices if HydraConfig.initialized() else {}
    return {name: str(chosen.get(name) or _class(config, name)) if name in config else None for name in _RULE_CHOICES}


def selection_choices(config: DictConfig) -> dict[str, str | None]:
    """Return the choice of every group that tells choices among policies apart by its name.

    Args:
        config: The configuration without the groups that this choice does not use.
    """
    chosen = HydraConfig.get().runtime.choices if HydraConfig.initialized() else {}
    path = config.policies.path
    return {
        "certificate": str(chosen.get("certificate") or _class(config, "certificate")),
        "policies": str(chosen.get("policies")) if path is None else os.path.basename(str(path))[:_LONGEST],
        "nuisance": str(chosen.get("nuisance") or _class(config, "nuisance")) if "nuisance" in config else None,
    }


def average_choices(config: DictConfig) -> dict[str, str | None]:
    """Return the choice of every group that tells average effects apart by its name, and the estimand.

    Args:
        config: The configuration without the groups that this effect does not use.
    """
    chosen = HydraConfig.get().runtime.choices if HydraConfig.initialized() else {}
    names = ("effect", "features", "nuisance")
    known = {name: str(chosen.get(name) or _class(config, name)) if name in config else None for name in names}
    return known | {"estimand": str(config.effect.get("estimand", "ATE"))}


def words() -> dict[str, str]:
    """Return the words of the command line that choose something, as values by their keys."""
    given = HydraConfig.get().overrides.task if HydraConfig.initialized() else []
    return dict(word.lstrip("+~").partition("=")[::2] for word in given)


def settings() -> dict[str, str]:
    """Return every other word of the command line that may change a release, as a value by its key."""
    return {key: value for key, value in words().items() if key not in _ELSEWHERE and key.split(".")[0] not in _IDLE}


def _class(config: DictConfig, group: str) -> str:
    """Return the class that a group's settings belong to."""
    node = config[group]
    return str(node.get("_target_", group)).rpartition(".")[2] if isinstance(node, DictConfig) else str(node)
