"""How far one replaced training record moves the utilities of a public library: for the curator alone.

Single training records of ``task=policy_selection`` are replaced, the nuisances fitted again, and the policies'
utilities compared. ``nuisance_guarantee=none`` stands for learners without a bound. Exit code 1 if a guarantee is
refuted, 2 for a user's mistake.

    python -m experiments.spillover [nuisance_guarantee=stability,none] [neighbours=64] [folder=FOLDER] [WORDS OF TRAIN]
"""

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from hydra import compose, initialize_config_dir
from hydra.utils import instantiate
from omegaconf import DictConfig, OmegaConf, open_dict
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from torch import Tensor

from experiments.spillover.figure import spillover_figure
from experiments.spillover.learned import LearnedNuisances
from experiments.spillover.report import SpilloverReport
from experiments.spillover.search import spillover_audit
from torchdpcate._files import PRIVATE, write_text
from torchdpcate.audit.report import make_folder
from torchdpcate.cli.overrides import checked_overrides
from torchdpcate.cli.plain_values import readable_words
from torchdpcate.cli.task import data_source
from torchdpcate.cli.tasks.policies import make_library, make_nuisances
from torchdpcate.composition.records import with_positions
from torchdpcate.data.records import CausalData
from torchdpcate.data.study import Study, StudySource
from torchdpcate.errors import AuditFailure, InputError, TorchDPCateError
from torchdpcate.estimators.selection.scores import training_and_scoring
from torchdpcate.evaluation.figures import save_figure
from torchdpcate.fit.arms.base import FittedNuisances, ScoreNuisances, SelectionFacts
from torchdpcate.papers.rules import RareRegion
from torchdpcate.privacy.budget import integer
from torchdpcate.registry import conf_dir

TASK = "policy_selection"
_NONE, _GROUP = "none", "nuisance_guarantee"
_DEFAULT = ("stability", _NONE)
_NEIGHBOURS, _WIDTH = 64, 130


def spillover(words: Sequence[str]) -> None:
    """Audit the learners of a configuration, print what was found, and write it where ``folder=FOLDER`` says.

    Args:
        words: Words of ``train task=policy_selection``; ``nuisance_guarantee`` may name several with commas between.
            Besides ``neighbours=N``, refits of each search, and ``folder=FOLDER``.

    Raises:
        InputError: A user's mistake.
        AuditFailure: A neighbour refutes a guarantee.
    """
    folder, neighbours, guarantees, rest = _parse(words)
    configs = {name: _compose(rest, name) for name in guarantees}
    config = next(iter(configs.values()))
    source: StudySource = data_source(config)
    study = source.load()
    facts, train, score = _blocks(config, study)
    library = make_library(config, study.schema).setup(facts.domain, facts.actions)
    learners = {_name(learner): learner for learner in map(_nuisances, configs.values())}
    for learner in learners.values():
        learner.check(facts, None)
    if folder is not None:
        make_folder(folder)  # before minutes of work that could then not be written
    rare, truth = None, None
    if isinstance(source, RareRegion):
        high = dict(zip(facts.domain.names, facts.domain.covariate_high.tolist(), strict=True))
        rare, truth = {name: (low, high[name]) for name, low in source.region.items()}, _Truth(source)
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, transient=True) as progress:
        bar = progress.add_task("audit", total=None)
        report = spillover_audit(
            train,
            score,
            facts,
            library,
            learners,
            epsilon=config.privacy.epsilon,
            neighbours=neighbours,
            rare=rare,
            truth=truth,
            seed=config.seed,
            on_progress=lambda name, done, total: progress.update(bar, description=name, completed=done, total=total),
        )
    console = Console()
    console.width = max(console.width, _WIDTH)  # wider than the terminal rather than cut
    console.print(report)
    if folder is not None:
        _write(report, folder)
    if report.refuted:
        names = ", ".join(learner.name for learner in report.learners if learner.refuted)
        raise AuditFailure(f"spillover: a neighbour refutes the guarantee of {names}")


@dataclass(frozen=True, eq=False)
class _Truth(FittedNuisances):
    """The law of a generator of two arms, in the place of nuisances."""

    source: RareRegion

    def propensity(self, x: Tensor) -> Tensor:
        second = self.source.propensity(x)
        return torch.stack([1 - second, second], dim=1)

    def outcome(self, x: Tensor) -> Tensor:
        return self.source.outcome(x)


def _name(learner: ScoreNuisances) -> str:
    return type(learner.outcome if isinstance(learner, LearnedNuisances) else learner).__name__


def _parse(words: Sequence[str]) -> tuple[Path | None, int, tuple[str, ...], list[str]]:
    """Return our own words: folder, neighbours and guarantees; and the others, Hydra's."""
    own: dict[str, str] = {}
    rest: list[str] = []
    for word in words:
        key, _, value = word.partition("=")
        if key == "task":
            raise InputError(f"{word}: it is of task={TASK} alone; leave it out")
        if key not in ("folder", "neighbours", _GROUP):
            rest.append(word)
        elif key in own or not value:
            raise InputError(f"{word}: give each key once, with a value")
        else:
            own[key] = value
    configured = any(word.startswith(f"{_GROUP}.") for word in rest)
    chosen = own[_GROUP].split(",") if _GROUP in own else _DEFAULT[: 1 if configured else None]
    neighbours = own.get("neighbours", str(_NEIGHBOURS))
    if not neighbours.isdecimal():
        raise InputError(f"neighbours = {neighbours}: give a whole number above 0")
    folder = Path(own["folder"]) if "folder" in own else None
    return folder, integer("neighbours", int(neighbours), least=1), tuple(dict.fromkeys(chosen)), rest


def _compose(words: Sequence[str], guarantee: str) -> DictConfig:
    """Return the configuration of one guarantee; ``none``, no choice of the library's, is beside this file."""
    own = [word for word in words if guarantee == _NONE and word.startswith(f"{_GROUP}.")]
    chosen = f"{_GROUP}=fixed" if guarantee == _NONE else f"{_GROUP}={guarantee}"
    given = readable_words([f"task={TASK}", *(word for word in (*words, chosen) if word not in own)])
    with checked_overrides(given), initialize_config_dir(str(conf_dir()), version_base="1.3"):
        config = compose("config", overrides=given)
    if guarantee == _NONE:
        learners = OmegaConf.load(Path(__file__).with_name("none.yaml"))
        settings = OmegaConf.from_dotlist([word.removeprefix(f"{_GROUP}.") for word in own])
        with open_dict(config):
            config.nuisance_guarantee = OmegaConf.merge(learners, settings)
    return config


def _nuisances(config: DictConfig) -> ScoreNuisances:
    """Return the nuisances of a configuration, those without a guarantee too."""
    if "LearnedNuisances" in config.nuisance_guarantee._target_:
        return instantiate(config.nuisance_guarantee)
    return make_nuisances(config)


def _blocks(config: DictConfig, study: Study) -> tuple[SelectionFacts, CausalData, CausalData]:
    """Return the public facts, the training and the scoring block, split as ``PolicySelector`` splits them."""
    records, domain, actions = study.records, study.domain, study.schema.actions
    positions = with_positions(actions, records)
    first, second = training_and_scoring(records.n, config.selection.split, config.seed)
    floor = domain.overlap if config.selection.overlap is None else float(config.selection.overlap)
    facts = SelectionFacts(domain, actions, floor, len(first), len(second))
    return facts, positions.subset(first), positions.subset(second)


def _write(report: SpilloverReport, folder: Path) -> None:
    write_text(folder / "spillover.json", json.dumps(report.to_dict(), indent=2) + "\n", PRIVATE)
    save_figure(spillover_figure(report), folder / "spillover.png", PRIVATE)
    for name in ("spillover.json", "spillover.png"):
        print(f"written: {folder / name}")


def main(words: Sequence[str]) -> int:
    """Run the audit and return the exit code: one line and 2 for a user's mistake."""
    try:
        spillover(words)
    except Exception as error:
        cause = error.__cause__ if isinstance(error.__cause__, InputError) else error
        if not isinstance(cause, TorchDPCateError) and type(error).__module__.split(".")[0] not in (
            "hydra",
            "omegaconf",
        ):
            raise
        print("spillover:", *str(cause).split(), file=sys.stderr)
        return 1 if isinstance(cause, AuditFailure) else 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
