"""All audits in one go, with every mechanism's worst-case neighbours; the page, its numbers and its figure."""

import json
import os
import re
import signal
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from difflib import get_close_matches
from functools import partial
from importlib import import_module
from importlib.metadata import version
from multiprocessing import active_children, get_context, parent_process
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING, Any

import torch

from torchdpcate._files import atomic_path
from torchdpcate.audit.attack import AGAIN, AuditResult, audit
from torchdpcate.errors import InputError, ProcessError
from torchdpcate.privacy.budget import PrivacyBudget, integer, number
from torchdpcate.privacy.charge import Charge, Purpose
from torchdpcate.privacy.worst_case import WORST_CASES, WorstCase
from torchdpcate.registry import modules_with
from torchdpcate.verify.statement import plan_names

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def registry() -> dict[str, WorstCase]:
    """Return every declared worst case by name, in the order of the modules' names.

    Example:
        >>> "objective" in registry()
        True
    """
    modules = modules_with(r"^ *@worst_case\(")
    for module in modules:
        import_module(module)
    place = {module: at for at, module in enumerate(modules)}  # whatever was imported earlier
    return dict(sorted(WORST_CASES.items(), key=lambda named: place.get(named[1].make.__module__, len(place))))


def find(name: str) -> WorstCase:
    """Return the worst case of this name.

    Raises:
        InputError: There is none; the message has the nearest.
    """
    cases = registry()
    if name not in cases:
        near = get_close_matches(name, cases, 3)
        found = f"the nearest is {' or '.join(near)}; " if near else ""
        raise InputError(f"mechanism = {name}: no such audit; {found}torchdpcate audit lists all {len(cases)}")
    return cases[name]


_HOW_TO_READ = """\
Each mechanism is run many times on the worst known pair of neighbouring data sets, which `torchdpcate audit` lists. An
attack tells which of the two it was; how often it is right or wrong bounds epsilon from below. A bound above the claim
refutes it. A bound near the claim shows that no noise is wasted. A bound far below it shows little. Claims are epsilon
and delta; `audit.json` beside this page has the neighbours, the number of runs and all rates."""

_WHAT_THE_BOUND_IS = """\
Rates are bounded by Clopper & Pearson (1934) on other runs than chose the threshold. Of an (epsilon, delta) or pure
claim the bound is the largest epsilon that the rates refute at that delta. A Gaussian or DP-SGD claim is a whole
trade-off curve: the bound is the epsilon, at that delta, of the most private curve of its kind that the rates do not
refute, so it exceeds the claim exactly where the rates refute the claimed curve. Where a bound exceeds its claim, all
is run again up to four times, and only five in a row refute it. Of adaptive charges the best strategy's epsilon is
computed, without runs."""

_ATTAINED = 0.9  # of a claim: a bound that counts as one of real records that attain it
_WHAT_IS_ATTAINED = f"""\
A bound of {_ATTAINED:.0%} of the claim or more shows that real records attain what the plan's sensitivity allows, up to
the doubt of counting. Of these plans no pair is known that does so for every law of their noise: more may be proved of
them than any records need."""

_MECHANISM = re.compile(r"^\| `(\w+)` \| (?:certified|conditional|heuristic) \|", re.MULTILINE)

_LEAST = 1e-2  # epsilon at which a bound of nearly nothing is drawn


def page(results: list[AuditResult], command: str, confidence: float, folder: Path, figure: str) -> str:
    """Return the page: how to read it, the table, the figure, what is not attained.

    Args:
        results: What was found.
        command: That found it.
        confidence: Of each bound.
        folder: Where the page will lie; a mechanism's name links to the page there that has its row.
        figure: File name of the figure.
    """
    pages = guarantee_pages(folder)
    return "\n".join(
        [
            "# Claims and attacks",
            "",
            f"Written by `{command}` (torchdpcate {version('torchdpcate')}). Adjacency: replace one record, n public.",
            f"Each bound holds with confidence {confidence:g}.",
            "",
            _HOW_TO_READ,
            "",
            *_also(folder),
            "| mechanism | level | claim | bound |",
            "| --- | --- | --- | --- |",
            *(_row(result, pages.get(result.mechanism)) for result in results),
            "",
            f"![Claimed epsilon and lower bound of every mechanism]({figure})",
            "",
            "## Plans whose claim no pair of records attains",
            "",
            _WHAT_IS_ATTAINED,
            "",
            *_unattained(results),
            "",
            "## What the bound is",
            "",
            f"{_WHAT_THE_BOUND_IS} Chance alone refutes an honest mechanism with a probability of at most "
            f"{(1 - confidence) ** (AGAIN + 1):.2g}.",
            "",
        ]
    )


def guarantee_pages(folder: Path) -> dict[str, str]:
    """Return the file name of the page of each mechanism: the page whose table has the mechanism's row."""
    texts = {path.name: path.read_text(encoding="utf-8") for path in sorted(folder.glob("*.md"))}
    return {mechanism: page for page, text in texts.items() for mechanism in _MECHANISM.findall(text)}


def _also(folder: Path) -> list[str]:
    """Return a line that links to the pages that are about no single mechanism, where they lie in the folder."""
    others = {"common.md": "what holds for all of them", "composition.md": "how costs add up"}
    links = [f"[{text}]({name})" for name, text in others.items() if (folder / name).exists()]
    return [f"See also: {', '.join(links)}.", ""] if links else []


def attained(results: Sequence[AuditResult], plan: str) -> dict[str, float]:
    """Return which share of its claim each attack shows of a plan's releases, by the attack's name.

    Args:
        results: What was found.
        plan: Name of its mechanism in statements.
    """
    release = Charge(Purpose.RELEASE, plan)
    own = (result for result in results if any(target.charge == release for target in result.attacks))
    return {result.mechanism: result.bound / result.claimed for result in own if result.claimed is not None}


def _unattained(results: Sequence[AuditResult]) -> Iterator[str]:
    """Yield the plans of the library of whose claim some attack shows less, or that none attacks."""
    for plan in sorted(plan_names()):
        shares = attained(results, plan)
        less = [f"{share:.3f} of it by `{name}`" for name, share in shares.items() if share < _ATTAINED]
        if less or not shares:
            yield f"- `{plan}`: {', '.join(less) or 'no attack on a claim of its own'}"


def _row(result: AuditResult, linked: str | None) -> str:
    link = f"[{result.mechanism}]({linked})" if linked else result.mechanism
    claim = "none" if result.claimed is None else f"{result.claimed:.4g}, {result.delta:g}"
    bound = f"{result.bound:.3f}" + (" **exceeds the claim**" if result.refuted else "")
    cells = [link, f"**{result.level}**", claim, bound]
    return f"| {' | '.join(cells)} |"


def audit_figure(results: list[AuditResult]) -> "Figure":
    """Draw claim and bound of each mechanism, one row a mechanism, epsilon on a logarithmic axis."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 1.4 + 0.42 * len(results)), layout="constrained")
    axes = figure.subplots()
    for place, result in enumerate(results):
        bound, claims = max(result.bound, _LEAST), result.claimed is not None
        claim = result.claimed if result.claimed is not None else result.nominal
        color = "C3" if result.bound > claim else "C0"
        axes.plot([bound, claim], [place, place], color="0.85", lw=5, solid_capstyle="butt", zorder=1)
        axes.plot(bound, place, "o", color=color, zorder=3, label="_" if place else "lower bound by attack")
        axes.text(bound, place - 0.26, f"{result.bound:.3g}", ha="center", va="bottom", fontsize=8)
        axes.plot(claim, place, "|", ms=18, mew=2.5, color="black" if claims else "0.65", zorder=2)
    axes.plot([], [], "|", ms=14, mew=2.5, color="black", label="claim")
    axes.plot([], [], "|", ms=14, mew=2.5, color="0.65", label="nothing claimed; noise as for this epsilon")
    axes.set_yticks(range(len(results)), [f"{r.mechanism} ({r.level})" for r in results])
    axes.set_ylim(len(results) - 0.4, -0.8)
    axes.set_xscale("log")
    axes.set_xlabel("epsilon")
    axes.grid(axis="x", alpha=0.3)
    figure.legend(loc="outside upper center", ncols=3, frameon=False, fontsize=9)
    return figure


def in_processes(
    attack: Callable[[str], AuditResult],
    names: list[str],
    processes: int,
    on_done: Callable[[str, int, int], None],
) -> list[AuditResult]:
    """Attack mechanisms, each in the next process that is free, on one thread.

    Args:
        attack: Of a mechanism of this name; a function of a module, for processes are started anew.
        names: Of the mechanisms; the results are in their order.
        processes: How many.
        on_done: Called with (the last mechanism that was done, mechanisms done, mechanisms in all).

    Raises:
        ProcessError: A process was killed.
    """
    others = set(active_children())
    pool = ProcessPoolExecutor(min(processes, len(names)), get_context("spawn"), initializer=_begin)
    try:
        running = {pool.submit(attack, name): name for name in names}
        for done, one in enumerate(as_completed(running), 1):
            one.result()
            on_done(running[one], done, len(names))
        return [one.result() for one in running]
    except BrokenProcessPool:
        raise ProcessError(
            f"processes = {processes}: one of them was killed, perhaps for want of memory; give fewer, or 1"
        ) from None
    finally:
        for process in set(active_children()) - others:
            process.terminate()
        # The pool's thread waits for its processes too: who waited beside it could be told of one that was waited for.
        pool.shutdown(cancel_futures=True)


def _begin() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the first process's, which ends the others
    torch.set_num_threads(1)
    Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    parent = parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


PAGE, NUMBERS, FIGURE = "README.md", "audit.json", "audit.png"
"""Names of the files that ``write_report`` writes."""


@dataclass(frozen=True)
class AuditSettings:
    """At what the mechanisms are run, and how hard they are attacked.

    Attributes:
        epsilon: Budget of each mechanism.
        delta: The same; pure mechanisms leave it aside.
        confidence: Of each bound.
        trials: Runs on either data set; None chooses them from the wanted power.

    Raises:
        InputError: A number out of range.
    """

    epsilon: float = 1.0
    delta: float = 1e-5
    confidence: float = 0.95
    trials: int | None = None

    def __post_init__(self) -> None:
        if not 0 < number("confidence", self.confidence) < 1:
            raise InputError(f"confidence = {self.confidence}: give a probability strictly between 0 and 1")
        if not self.budget.delta > 0:
            raise InputError("delta = 0: most mechanisms need delta above 0, for instance 1e-5; pure ones ignore it")
        if self.trials is not None:
            object.__setattr__(self, "trials", integer("trials", self.trials, least=100))

    @property
    def budget(self) -> PrivacyBudget:
        """(epsilon, delta) of each mechanism."""
        return PrivacyBudget(self.epsilon, self.delta)


def audit_all(
    cases: Iterable[WorstCase],
    settings: AuditSettings,
    on_progress: Callable[[str, int, int], None] = lambda label, done, total: None,
    processes: int = 1,
) -> list[AuditResult]:
    """Attack the mechanisms one after the other, or some side by side.

    Args:
        cases: Declarations, as ``registry`` returns them.
        settings: Budget, confidence, runs.
        on_progress: Called with (name of the mechanism, runs done, runs in total); with several processes, with (the
            mechanism that was done last, mechanisms done, mechanisms in total).
        processes: That share the work; above 1 they are started anew and take the registry's declarations of
            these names.

    Raises:
        InputError: A number of processes below 1.
        ProcessError: A process was killed.
    """
    cases = list(cases)
    if integer("processes", processes, least=1) > 1 and len(cases) > 1:
        return in_processes(partial(_attacked, settings), [case.name for case in cases], processes, on_progress)
    results = []
    for case in cases:
        on_progress(case.name, 0, 1)
        results.append(_audited(case, settings, progress=partial(on_progress, case.name)))
    return results


def _attacked(settings: AuditSettings, name: str) -> AuditResult:
    return _audited(find(name), settings)


def _audited(case: WorstCase, settings: AuditSettings, **how: Any) -> AuditResult:
    budget, confidence, trials = settings.budget, settings.confidence, settings.trials
    return audit(case, budget, confidence=confidence, trials=trials, **how)


def make_folder(folder: Path) -> None:
    """Make the folder of a report and see that its three files can be written there.

    Raises:
        InputError: They cannot.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        taken = [name for name in (PAGE, NUMBERS, FIGURE) if (folder / name).is_dir()]
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise InputError(f"folder = {folder}: cannot be written to ({error.strerror}); give another one") from None
    if taken:
        raise InputError(f"folder = {folder}: {taken[0]} in it is a folder; give another one")


def read_report(mechanism: str, settings: AuditSettings, folder: Path) -> dict[str, AuditResult]:
    """Return the results of the report in a folder by mechanism, of which one's row is to be made anew.

    Args:
        mechanism: That one.
        settings: With which it will be attacked.
        folder: Where ``write_report`` wrote.

    Raises:
        InputError: No report is there, or one with other settings or without this mechanism.
    """
    try:
        numbers = json.loads((folder / NUMBERS).read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"folder = {folder}: no report to put a row into ({error.strerror}); use --all") from None
    if numbers["settings"] != asdict(settings):
        raise InputError(f"folder = {folder}: its report has the settings {numbers['settings']}; give the same")
    rows = ({key: value for key, value in row.items() if key != "refuted"} for row in numbers["results"])
    results = {row["mechanism"]: AuditResult.from_dict(row) for row in rows}
    if mechanism not in results:
        raise InputError(f"mechanism = {mechanism}: the report in {folder} has no such row; use --all")
    return results


def write_report(results: list[AuditResult], settings: AuditSettings, folder: Path) -> list[Path]:
    """Write the page, the numbers and the figure into the folder, all or none, and return their paths.

    Args:
        results: What was found.
        settings: With which settings.
        folder: Made if it is not there.

    Raises:
        InputError: The folder cannot be written to.
    """
    from torchdpcate.evaluation.figures import save_figure

    make_folder(folder)
    numbers = {
        "torchdpcate": version("torchdpcate"),
        "settings": asdict(settings),
        "results": [result.to_dict() | {"refuted": result.refuted} for result in results],
    }
    changed = [f"{key}={value:g}" for key, value in asdict(settings).items() if value != getattr(AuditSettings(), key)]
    command = " ".join(["torchdpcate audit --all", *changed])
    paths = [folder / name for name in (PAGE, NUMBERS, FIGURE)]
    with ExitStack() as files:
        text, data, figure = (files.enter_context(atomic_path(path)) for path in paths)
        text.write_text(page(results, command, settings.confidence, folder, FIGURE), encoding="utf-8")
        data.write_text(json.dumps(numbers, indent=1, allow_nan=False) + "\n", encoding="utf-8")
        save_figure(audit_figure(results), figure)
    return paths
