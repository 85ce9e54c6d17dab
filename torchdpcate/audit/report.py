"""All audits in one go, and what is published of them: a page, its numbers, a figure."""

import json
import tempfile
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

from torchdpcate._files import atomic_path
from torchdpcate.audit.attack import AuditResult, audit
from torchdpcate.audit.page import audit_figure, page
from torchdpcate.audit.processes import in_processes
from torchdpcate.audit.registry import find
from torchdpcate.errors import InputError
from torchdpcate.privacy.budget import PrivacyBudget, integer, number
from torchdpcate.privacy.worst_case import WorstCase

PAGE, NUMBERS, FIGURE = "README.md", "audit.json", "audit.png"
"""Names of the files that ``write_report`` writes."""

TRUTH = "influence_truth.json"  # of experiments/audit


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


def shipped_results() -> dict[str, Any] | None:
    """Return the results that came with the package, by mechanism; None where none did.

    Each value has the fields of ``AuditResult``; they were found on the worst-case pairs of the registry by the
    version of the package named in the file, not on a user's records. Under ``influence_truth`` stands, by kind of
    head, the largest change by one record found, over the local sensitivity that mechanism ``influence`` assumes
    (``experiments/audit``).
    """
    numbers = _shipped(NUMBERS, "docs/guarantees")
    if numbers is None:
        return None
    results = {result["mechanism"]: result for result in numbers["results"]}
    truth = _shipped(TRUTH, "experiments/audit")
    if truth is not None:
        results["influence_truth"] = {head: found["worst_change_over_scale"] for head, found in truth["heads"].items()}
    return results


def _shipped(name: str, folder: str) -> dict[str, Any] | None:
    """Return a json file of an installed wheel, or of the folder of a checkout."""
    here = Path(__file__).resolve()
    for path in (here.with_name(name), here.parents[2] / folder / name):
        if path.is_file():
            return json.loads(path.read_text(encoding="utf-8"))
    return None
