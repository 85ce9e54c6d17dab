"""The curator's folder of a run: settings, summary, coefficients without noise, and what its files answer."""

import json
import math
import os
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from omegaconf import DictConfig, OmegaConf
from torch import Tensor

from torchdpcate._files import PRIVATE, atomic_path, write_text
from torchdpcate._text import is_plain, plain
from torchdpcate.cli.task import family_of
from torchdpcate.data.records import ClippedValues
from torchdpcate.data.words import labels_of
from torchdpcate.errors import InputError
from torchdpcate.evaluation.curator_figures import bars_figure
from torchdpcate.privacy.events import GaussianEvent
from torchdpcate.privacy.ledger import Ledger
from torchdpcate.privacy.ledger_file import LEDGER
from torchdpcate.privacy.shared_ledger import SharedLedger
from torchdpcate.release.file import RELEASE_FILE, Release, load_release
from torchdpcate.release.lines import Lines

if TYPE_CHECKING:
    from matplotlib.figure import Figure

WORDS, COUNTS = ("mechanism", "level"), ("seed", "n")
SUMMARY_FILE = "summary.json"
"""What a run came to, unreleased numbers included, in the curator's folder."""
ARMS_FILE = "arms.json"
"""How treated and controls compare, there too: unreleased shares of propensities."""
UNRELEASED, RELEASED, PUBLIC = "unreleased", "released", "public"
"""Whence a number is: from records and paid by nobody, from the release, or from public facts."""
_MANY = 0.05  # of the records beyond the overlap: less needs no remedy
_LARGEST = 1e100  # beyond it, no number of a run


def summary_path(run: Path) -> Path:
    """Return where the summary of a run is.

    Args:
        run: The run's folder.
    """
    return run / "curator" / SUMMARY_FILE


def read_summary(path: Path) -> dict[str, Any]:
    """Return what is shown of a run, as a row of a table.

    Args:
        path: A run's ``curator/summary.json``.

    Raises:
        InputError: Not a summary of a run, or damaged.
    """
    try:
        if not os.path.isfile(path):  # reading a pipe would wait for ever
            raise OSError
        summary = json.loads(path.read_text(encoding="utf-8"))
        family = family_of(summary["task"])
        spent = summary["spent"]["total"]["epsilon"]
        settings = {_text(key): _text(value) for key, value in summary["requested"]["settings"].items()}
        names, run = ("data", *family.settings), path.parent.parent  # a run has some of the names
        return {
            "folder": run,
            "run": _folder_name(run),
            "task": summary["task"],
            **{name: "-" if (value := summary.get(name)) is None else _word(value) for name in names},
            **{name: _word(summary[name]) for name in WORDS},
            "settings": settings,
            **{name: _of(int, summary[name], lambda count: 0 <= count < 2**63) for name in COUNTS},
            "requested_epsilon": _positive(summary["requested"]["epsilon"]),
            "spent_epsilon": None if spent is None else _positive(spent),
            "spent_delta": _number(summary["spent"]["total"]["delta"]),
            "generated": _of(bool, summary["generated"]),
            **{name: _number(summary[name]) for name in ("planned_noise", *family.summary_keys()) if name in summary},
            "seconds": _positive(summary["seconds"]),
        }
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError, OSError):
        raise InputError(f"{path}: not a summary of a run, or damaged; remove it or run again") from None


def _of(kind: Any, value: Any, holds: Callable[[Any], bool] = lambda value: True) -> Any:
    """Return a value of a type, for which a condition holds."""
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool) or not holds(value):
        raise ValueError
    return value


def _number(value: Any) -> float:
    """Return a number; one that a run could not know is not a number."""
    return float("nan") if value is None else float(_of(int | float, value, lambda number: abs(number) < _LARGEST))


def _positive(value: Any) -> float:
    return _of(float, _number(value), lambda number: number >= 0)


def _word(value: Any) -> str:
    return _of(str, value, lambda word: is_plain(word) and len(word) < 100)


def _text(value: Any) -> str:
    """Return what a user may have written, fit for a terminal."""
    return plain(_of(str, value)[:1000])


def _folder_name(folder: Path) -> str:
    """Return the folder's name as text, whatever its bytes and the locale."""
    return plain(os.fsencode(folder.absolute().name).decode("utf-8", "backslashreplace"))


@dataclass(frozen=True)
class Part:
    """A part of the curator's page, of one run a question with its answer.

    Attributes:
        heading: Its title.
        said: Sentences, a paragraph each.
        figures: Figures, or pictures as png, by their captions.
        tables: Heads and cells of tables by their titles.
        whence: ``UNRELEASED``, ``RELEASED`` or ``PUBLIC``; empty where it is of several kinds.
    """

    heading: str
    said: Sequence[str] = ()
    figures: "Mapping[str, Figure | bytes]" = field(default_factory=dict)
    tables: Mapping[str, tuple[Sequence[str], Sequence[Sequence[str]]]] = field(default_factory=dict)
    whence: str = ""


def questions(run: Path) -> list[Part]:
    """Return what a curator asks of a run and what its files answer, a part a question, in the order of a fit.

    Args:
        run: Its folder, with a summary.

    Raises:
        InputError: One of the curator's files is damaged.
    """
    curator = run / "curator"
    try:
        summary = json.loads(summary_path(run).read_text(encoding="utf-8"))
        place = run / "release" / RELEASE_FILE
        release = load_release(place) if place.is_file() else None
        facts = json.loads((curator / ARMS_FILE).read_text()) if (curator / ARMS_FILE).is_file() else {}
        return [
            _clipped(summary, release),
            *_overlap(curator, facts),
            *_balance(curator),
            *_scores(release),
            _noise(summary, None if release is None else release.named),
            *_kept(curator, facts),
            *_pictured(curator, "What would each policy lose, and how likely was its choice?", "policies.png"),
            *_pictured(curator, "What did the noise change?", "forest.png"),
            _ledger(curator, summary),
        ]
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError, OSError):
        raise InputError(f"{curator}: a file of the run is damaged; run again") from None


def _pictured(curator: Path, heading: str, file: str, said: Sequence[str] = ()) -> Iterator[Part]:
    """Yield an unreleased part with the picture of a file, where it is there."""
    if (curator / file).is_file():
        yield Part(heading, said, {heading: (curator / file).read_bytes()}, whence=UNRELEASED)


def _clipped(summary: Mapping[str, Any], release: Release | None) -> Part:
    """Return which values were moved to their bounds."""
    heading, found = "What was clipped?", summary.get("moved_to_bounds") or {}
    if not found.get("values"):
        return Part(heading, ["No value was moved to a bound."], whence=UNRELEASED)
    moved = ClippedValues(found["rows"], found["values"])
    names = sorted(moved.moved, key=moved.share, reverse=True)
    words = names if release is None else labels_of(release.schema, names)
    said = f"Most often {words[0]}: {moved.count(names[0])} values were moved to a bound."
    figure = bars_figure(words, [100 * moved.share(name) for name in names], "values moved to a bound, %")
    return Part(heading, [said], {heading: figure}, whence=UNRELEASED)


def _overlap(curator: Path, facts: Mapping[str, Any]) -> Iterator[Part]:
    """Yield the propensities by arm, and which share of them is at the clip."""
    heading, stated = "Could either arm reach everybody?", facts.get("stated")
    if stated is None:
        if facts:
            yield Part(heading, ["The propensity is known by design."], whence=PUBLIC)
        return
    said = [
        f"By a logistic regression {facts['beyond']:.0%} of the records lie beyond the stated overlap of {stated:g}.",
        f"Of the propensities in use {facts['at_clip']:.0%} are at that clip.",
    ]
    if max(facts["beyond"], facts["at_clip"]) > _MANY:
        said.append(
            "The effect on these people rests on the model of the outcome alone. State a smaller overlap if it holds, "
            "restrict by public criteria, or ask for ATT or ATO."
        )
    yield from _pictured(curator, heading, "overlap.png", said)


def _balance(curator: Path) -> Iterator[Part]:
    """Yield how far the arms' covariates are apart before and after weighting."""
    said = []
    if (curator / "balance.csv").is_file():
        import pandas as pd

        most = pd.read_csv(curator / "balance.csv", index_col=0)[["before", "after"]].abs().max()
        said = [f"Largest difference {name} weighting: {value:.2f}; 0.1 is small." for name, value in most.items()]
    yield from _pictured(curator, "Are the arms alike after weighting?", "balance.png", said)


def _scores(release: Release | None) -> Iterator[Part]:
    averages = getattr(release, "averages", None)
    if averages is not None:
        said = [f"{averages.clipped:.1%} of the scores lie beyond their clip, by a released count."]
        yield Part("How many scores reach their clip?", said, whence=RELEASED)


def _noise(summary: Mapping[str, Any], lines: Lines | None) -> Part:
    """Return planned noise beside what was released."""
    heading, planned, of = "Is the noise as planned?", summary.get("planned_noise"), summary.get("planned_of")
    said = [] if planned is None else [f"Planned: {planned:.3g} in outcome units, of {of}."]
    known = [] if lines is None else [k for k, error in enumerate(lines.errors.tolist()) if math.isfinite(error)]
    if lines is None or not known:
        return Part(heading, [*said, "The release has no errors beside it."], whence=RELEASED)
    errors, noise = (each[known].nan_to_num().tolist() for each in (lines.errors, lines.noise))
    said.append(f"Released of {lines.titles[known[0]]}: error {errors[0]:.3g}, privacy noise {noise[0]:.3g} of it.")
    titles = [lines.titles[k] for k in known]
    figure = bars_figure(titles, errors, "standard error, outcome units; privacy noise within", noise, planned)
    return Part(heading, said, {heading: figure}, whence=RELEASED)


def _kept(curator: Path, facts: Mapping[str, Any]) -> Iterator[Part]:
    """Yield how the propensities in use follow those without privacy."""
    if "kept" in facts:
        said = [
            f"Per unit of log-odds without privacy those in use have {facts['kept']:.2f}.",
            "Below one the fit is shrunk, and confounding may be left.",
        ]
        yield from _pictured(curator, "How much of the propensity was kept?", "kept.png", said)


def _ledger(curator: Path, summary: Mapping[str, Any]) -> Part:
    """Return what was spent, on which steps, and what is left of a shared total."""
    heading, spent, given = "What was spent, and what is left?", summary["spent"]["total"], summary["requested"]
    costs = [("Requested", given), *([] if spent["epsilon"] is None else [("Spent", spent)])]
    said = [f"{name}: epsilon {cost['epsilon']:.4g}, delta {cost['delta']:.3g}." for name, cost in costs]
    config, ledger = curator / "config.yaml", curator / LEDGER
    shared = OmegaConf.select(OmegaConf.load(config), "budget.shared") if config.is_file() else None
    if shared is None:
        said.append("No ledger is shared with other runs on these records, so that nothing says what is left.")
    elif os.path.isfile(shared):
        left = SharedLedger.load(Path(shared)).left()
        rest = "nothing" if left is None else f"epsilon {left.epsilon:.4g}, delta {left.delta:.3g}"
        said.append(f"Left of the shared total: {rest}.")
    steps: defaultdict[str, float] = defaultdict(float)
    for entry in Ledger.load(ledger).entries if ledger.is_file() else ():
        if not isinstance(entry.event, GaussianEvent):  # whose squared precisions alone add up
            return Part(heading, said, whence=PUBLIC)
        steps[entry.charge.part or entry.charge.mechanism] += entry.count / entry.event.noise_multiplier**2
    shares = [100 * step / sum(steps.values()) for step in steps.values()]
    figures = {heading: bars_figure(list(steps), shares, "share of the budget by step, %")} if steps else {}
    return Part(heading, said, figures, whence=PUBLIC)


def write_curator(config: DictConfig, numbers: Mapping[str, Tensor], folder: Path) -> None:
    """Write ``config.yaml`` and, of coefficients without noise, ``numbers.safetensors`` into the curator's folder.

    Args:
        config: The composed configuration.
        numbers: What must never leave, by name; released coefficients must be as far from it as they state.
        folder: The curator's folder, which is there.
    """
    from safetensors.torch import save_file

    write_text(folder / "config.yaml", OmegaConf.to_yaml(config, resolve=True), PRIVATE)
    if numbers:
        with atomic_path(folder / "numbers.safetensors", PRIVATE) as temporary:
            save_file({name: tensor.detach().cpu().double().clone() for name, tensor in numbers.items()}, temporary)
