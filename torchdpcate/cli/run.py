"""What the runs of every task have in common: noise, warnings, the release's folder, the summary, what is printed."""

import json
import shlex
import shutil
import sys
import time
import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf

from torchdpcate._files import PRIVATE, PUBLIC, atomic_path, private_folder, publish, reserved, seal, write_text
from torchdpcate._process import gpu_memory
from torchdpcate._text import is_plain, plain
from torchdpcate.cli.curator import summary_path, write_curator
from torchdpcate.cli.sweep import run_words
from torchdpcate.cli.tables import facts
from torchdpcate.cli.task import Figures, TaskSpec, is_generated, settings
from torchdpcate.data.checked import file_fingerprint
from torchdpcate.data.study import StreamedStudy, Study
from torchdpcate.errors import InputError, PrivacyWarning, TorchDPCateError, VerificationError, lacks_room, reason_of
from torchdpcate.estimators.base import large_delta
from torchdpcate.estimators.planned_noise import PlannedNoise, shown, worth_asking
from torchdpcate.evaluation.figures import save_figure
from torchdpcate.pages.figures import figures_of
from torchdpcate.privacy.budget import PrivacyBudget
from torchdpcate.privacy.ledger import Ledger
from torchdpcate.privacy.ledger_file import LEDGER
from torchdpcate.privacy.noise import NoiseSource
from torchdpcate.privacy.shared_ledger import SharedLedger
from torchdpcate.privacy.unit import PrivacyUnit
from torchdpcate.release.file import RELEASE_FILE, SUMS_FILE, Release, unreleased, write_sums
from torchdpcate.release.statement import LONGEST_CHOICE
from torchdpcate.verify.card import STATEMENT_JSON, STATEMENT_MD, texts_beside
from torchdpcate.verify.file import verify_release
from torchdpcate.verify.finding import answer

OF_EFFECTS = ("cate", "average_effect", "subgroups")
"""Tasks whose planned noise is that of an effect."""
_NEXT: tuple[str, ...] = ("report {}", "sign {} --key FILE")
_NEXT_UNCLAIMED: tuple[str, ...] = (
    "verify {}",
    "predict {} PEOPLE.csv -o ANSWERS.csv",
)  # nothing by which it would be published
_NUMBER = 2 * 8  # bytes of a number, twice
_RECORDS, _ENDS = "records.sha256", 1 << 20  # by what runs on the same files are known, and bytes of each end
_EPSILON, _SHARE = 10.0, 0.25  # above which a guarantee, and noise beside the outcome's range, are warned of
_ROOM = 8 << 20  # bytes of a release without its long tensors: small models, statement, figures, checksums

Any_Release = TypeVar("Any_Release", bound=Release)


def run(task: TaskSpec, config: DictConfig, folder: Path) -> None:
    """Fit, release, measure, and write ``release/`` and ``curator/``, with ``summary.json``, into ``folder``.

    Everything that can be refused without the records' privacy at stake is refused before the folder is made and before
    anything is spent.

    Args:
        task: The task, which says what is built, measured and written.
        config: The composed configuration.
        folder: Run folder, not there yet.

    Raises:
        InputError: A user's mistake.
    """
    start = time.perf_counter()
    task.folder = folder
    configure(task, config)
    with warnings_said():
        task.study = task.load()
    task = task.suited()
    budget = PrivacyBudget(config.privacy.epsilon, config.privacy.delta)
    shared = shared_ledger(config, task.study.unit)
    ledger = folder / "curator" / LEDGER
    counted = ledger if shared is None else shared.run(ledger, label=str(folder))
    task.learner = task.learner_of(budget, noise=noise_source(config), ledger_path=counted)
    task.check()
    planned = task.planned = task.planned_noise(task.learner, task.n, budget)
    # fixed noise protects nobody, so that no budget is named beside it
    size = planned.line if config.privacy.noise_seed is None else planned.size
    print(f"plan: {size}; of {planned.of}{verdict(task, planned)}", flush=True)
    if task.study.unit.is_person:
        print(f"unit: {unit_line(task.study.unit, task.n, budget)}", flush=True)
    if planned.feasible is False and not config.force:
        raise InputError(refusal(planned))
    if task.study.queries is not None:
        task.study.domain.check_covariates(task.study.queries, "query")
    _warn(config, task.study)
    for warning in budget_warnings(config, planned):
        say_warning(warning)
    records = records_of(config)
    if records is not None and shared is None:
        warn_of_runs(folder, records)

    place, before = folder / "release", task.size()
    with (
        nothing_left_unpaid(folder),
        reserved(place, _ROOM + _NUMBER * before),  # what cannot be written is not paid
        gpu_memory(f"task = {task.name}", "take fewer records, features or queries"),
    ):
        if records is not None:
            private_folder(folder / "curator")
            write_text(folder / "curator" / _RECORDS, records + "\n", PRIVATE)
        task.fit()
        with reserved(place, max(1, _NUMBER * (task.size() - before))):
            task.release = stated(task.released(), shared, config.privacy.chosen)
    write_release(task.release, place)
    with task.attempt("statement and checksums"):
        write_statement(task.release, place)
    unverified = check_written(task.release, place, folder / "curator" / "refused")
    with task.attempt("message to the other sites"):
        task.share()
    summary = dict[str, Any]()
    with task.attempt("curator/summary.json"):
        summary |= _write_summary(task, planned, start)
    _write_rest(task, summary)
    with task.attempt("what is printed of it"):
        _show(task, summary)
    _say_unwritten(task, unverified)


def configure(task: TaskSpec, config: DictConfig) -> None:
    """Give a task its configuration; refuse a budget, or what no class below would ever see.

    Raises:
        InputError: Such a setting.
    """
    PrivacyBudget(config.privacy.epsilon, config.privacy.delta)
    if config.privacy.chosen is not None:
        chosen_words(config.privacy.chosen)
    logger = OmegaConf.select(config, "trainer.logger")
    if logger is not None:
        from torchdpcate.fit.watching import check_logger

        check_logger(str(logger))
    if OmegaConf.select(config, "queries.count", default=1) < 1:
        raise InputError(f"queries.count = {config.queries.count}: request at least one query")
    task.config = task.checked(config).copy()
    OmegaConf.resolve(task.config)


def unit_line(unit: PrivacyUnit, n: int, budget: PrivacyBudget) -> str:
    """Return in one line who is protected, and what that leaves by record.

    Example:
        >>> unit_line(PrivacyUnit.person("id", 2), 100, PrivacyBudget(1.0, 0.0))
        'person (id), 50 persons with 2 of the records each; by record epsilon = 0.5, delta = 0'
    """
    own = unit.record_budget(budget)
    persons = f"{n // unit.records:,} {unit.name}s with {unit.records} of the records each"
    return f"{unit.name} ({unit.column}), {persons}; by record epsilon = {own.epsilon:.4g}, delta = {own.delta:.3g}"


def verdict(task: TaskSpec, planned: PlannedNoise) -> str:
    """Return that an effect with this noise is not worth asking for, where a plan would call it so; else nothing.

    Args:
        task: With its study.
        planned: Noise that was planned, of an effect or of a rule.
    """
    if task.name not in OF_EFFECTS or not planned.known:
        return ""
    worth = worth_asking(planned.value, task.study.schema, planned.relative)
    no, _, why = worth.partition(": ")
    because = f" ({why})" if why and planned.inconclusive is None else ""
    return f"; not worth asking at this n and budget{because}" if no == "no" else ""


def refusal(planned: PlannedNoise) -> str:
    """Return why nothing is trained where noise is planned to exceed the outcome's range, in one line."""
    return (
        f"planned noise {shown(planned.value)} (outcome units) of {planned.of} exceeds the outcome's range of "
        f"{shown(planned.outcome_range, 4)} at n = {planned.n:,}, epsilon = {planned.budget.epsilon:.4g}: torchdpcate "
        "plan shows what n or epsilon would do, and which target is worth asking; force=true trains all the same"
    )


def noise_source(config: DictConfig) -> NoiseSource:
    """Return the system's entropy, or the fixed noise of a test."""
    seed = config.privacy.noise_seed
    return NoiseSource.system() if seed is None else NoiseSource.fixed(seed)


def shared_ledger(config: DictConfig, unit: PrivacyUnit) -> SharedLedger | None:
    """Return the ledger over all runs on the same records, if one is named.

    Args:
        config: The composed configuration.
        unit: Who is protected.

    Raises:
        InputError: See ``SharedLedger``; a total without a ledger, half a total, generated records or others that are
            in no file, or a site without one.
    """
    path, total = config.budget.shared, config.budget.total
    given = {name: total[name] for name in ("epsilon", "delta") if total[name] is not None}
    if path is None:
        if given or total.filter is not None:
            raise InputError("budget.total: is of a ledger over several runs; name its file by budget.shared=PATH")
        if OmegaConf.select(config, "sites.path") is not None and not is_generated(config):
            raise InputError(
                "budget.shared: a site counts all its starts in one ledger, for each sends noisy sums and is charged; "
                "give budget.shared=PATH, and for a new one budget.total.epsilon and budget.total.delta"
            )
        return None
    if len(given) == 1:
        raise InputError(f"budget.total: has {' '.join(given)} alone; give both epsilon and delta")
    if is_generated(config):
        raise InputError("budget.shared: generated data are nobody's records, so that no total is kept; leave it out")
    files = _files(config)
    if files is None:
        raise InputError("budget.shared: these data have no data.path, by whose files the ledger knows the records")
    records = file_fingerprint(files)
    return SharedLedger(str(path), records, PrivacyBudget(**given) if given else None, total.filter, unit)


def records_of(config: DictConfig) -> str | None:
    """Return by what a run's records are known to runs beside it; None of generated data and of noise that is fixed.

    It is the curator's. Of a large file its ends count alone, so that nothing is read twice.
    """
    files = None if config.privacy.noise_seed is not None or is_generated(config) else _files(config)
    return None if files is None else file_fingerprint(files, ends=_ENDS)


def warn_of_runs(folder: Path, records: str) -> None:
    """Say which runs beside this one are on the same files; once a sweep.

    Args:
        folder: Run folder.
        records: Of ``records_of``.
    """
    if sweeps() and HydraConfig.get().job.num > 0:
        return
    root = folder.parent.parent if sweeps() else folder.parent
    own = folder.parent if sweeps() else folder
    places, found = list[Path](), list[Path]()
    with suppress(OSError):
        places += [*root.glob(f"*/curator/{_RECORDS}"), *root.glob(f"*/*/curator/{_RECORDS}")]
    for place in places:
        run = place.parent.parent
        with suppress(OSError, ValueError):
            if own not in (run, run.parent) and place.read_text(encoding="ascii").strip() == records:
                found.append(run)
    if found:
        found.sort()
        more = f" and {len(found) - 1} more" if len(found) > 1 else ""
        say_warning(
            f"run_dir = {folder}: is on the same files as {found[0]}{more}: what you publish of these runs adds up, "
            "and no ledger counts it; budget.shared=LEDGER keeps one total"
        )


def _files(config: DictConfig) -> str | list[str] | None:
    """Return the files of the records, where the data have some."""
    files = OmegaConf.select(config, "data.path")
    return files if files is None or isinstance(files, str) else list(files)


def _warn(config: DictConfig, study: Study | StreamedStudy) -> None:
    """Say on stderr what a user is allowed to do and should think about."""
    delta, n = float(config.privacy.delta), study.records.n // study.unit.records
    if delta > 1 / n:
        what = f"all of a {study.unit.name}'s records" if study.unit.is_person else "a whole record"
        say_warning(f"privacy.{large_delta(delta, n, what)}")
    if sweeps() and study.effect is None and config.budget.shared is None:
        say_warning("each run of a sweep spends a budget of its own on the same records; what you publish adds up")


def budget_warnings(config: DictConfig, planned: PlannedNoise) -> Iterator[str]:
    """Yield what the budget means where it protects little, or leaves little to be seen.

    Args:
        config: The composed configuration.
        planned: The noise to expect.
    """
    epsilon = float(config.privacy.epsilon)
    if epsilon > _EPSILON and config.privacy.noise_seed is None and not is_generated(config):
        yield (
            f"privacy.epsilon = {epsilon:g}: above {_EPSILON:g} the guarantee says little, for what a record holds may "
            f"change the odds of a release by a factor of e^{epsilon:g}; 1 is usual"
        )
    if planned.inconclusive:
        yield f"nothing will be concluded from this release: {planned.inconclusive}"
    share = planned.value / planned.outcome_range
    if _SHARE < share < float("inf"):
        yield (
            f"privacy.epsilon = {epsilon:g}: the noise to expect, {shown(planned.value)} of {planned.of}, is "
            f"{share:.0%} of the outcome's range, so that little may be seen; torchdpcate plan shows what n or epsilon "
            "would do"
        )


def say_warning(warning: str) -> None:
    """Print a warning on stderr, as one line."""
    print(f"torchdpcate: warning: {plain(' '.join(warning.split()))}", file=sys.stderr)


@contextmanager
def warnings_said() -> Iterator[None]:
    """Print the library's own warnings as one line each; those of other libraries pass."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", UserWarning)
        warnings.simplefilter("ignore", PrivacyWarning)  # said of runs, in the words of the command line
        yield
    for warning in caught:
        if warning.category is UserWarning:
            say_warning(str(warning.message))
        else:
            warnings.showwarning(warning.message, warning.category, warning.filename, warning.lineno)


def sweeps() -> bool:
    """Return whether this run is one of a sweep."""
    return HydraConfig.initialized() and HydraConfig.get().mode == RunMode.MULTIRUN


@contextmanager
def nothing_left_unpaid(folder: Path) -> Iterator[None]:
    """Remove the curator's folder where records or the disk are refused before anything was spent on them."""
    try:
        yield
    except (InputError, OSError):
        ledger = folder / "curator" / LEDGER
        if not ledger.is_file() or not Ledger.load(ledger).entries:
            shutil.rmtree(folder / "curator", ignore_errors=True)
            if not sweeps():
                with suppress(OSError):
                    folder.rmdir()
        raise


def stated(release: Any_Release, shared: SharedLedger | None, chosen: str | None) -> Any_Release:
    """Return the release with a statement of what the run alone knows: other runs of a sweep, and who chose epsilon.

    Args:
        release: The release.
        shared: The ledger that the run shares with others, if any, by which its statement knows of them.
        chosen: The curator's words, of ``chosen_words``; None says nothing.
    """
    said: dict[str, Any] = {} if chosen is None else {"chosen": chosen_words(chosen)}
    if shared is None and sweeps():
        text = (
            f"run {HydraConfig.get().job.num} (counted from 0) of a sweep over the same records: each run spends a "
            "budget of its own, what is published of them adds up, and a choice among them by what they showed of "
            "these records is paid for nowhere"
        )
        said["tuning"] = {"runs": None, "text": text}
    return replace(release, privacy=replace(release.privacy, **said)) if said else release  # type: ignore[type-var]


def chosen_words(chosen: object) -> str:
    """Return the curator's words on who chose epsilon and why, in one line.

    Raises:
        InputError: They are no words, or cannot be shown.
    """
    words = " ".join(chosen.split()) if isinstance(chosen, str) else ""
    if not words or not is_plain(words) or len(words) > LONGEST_CHOICE:
        raise InputError(
            f"privacy.chosen = {plain(chosen)[:80]}: say in up to {LONGEST_CHOICE} letters who chose epsilon, and why"
        )
    return words


def write_release(release: Release, folder: Path) -> None:
    """Write the release into its folder, made here if need be: first of all that is written, for it is paid."""
    folder.mkdir(parents=True, exist_ok=True)
    release.save(folder / RELEASE_FILE)


def write_statement(release: Release, folder: Path) -> None:
    """Write the privacy statement beside the release, and the checksums of both: all of these files or none.

    A release with some of them does not verify; one without any does.
    """
    try:
        texts = texts_beside(release)
        for name in (STATEMENT_JSON, STATEMENT_MD):
            write_text(folder / name, texts[name](), PUBLIC)
        write_sums(folder)
    except Exception:
        for name in (STATEMENT_JSON, STATEMENT_MD, SUMS_FILE):
            (folder / name).unlink(missing_ok=True)
        raise


def check_written(release: Release, folder: Path, refused: Path) -> str:
    """Verify what was written before anybody is told of it.

    Args:
        release: The release; what it cost is on the ledger already.
        folder: Its folder.
        refused: Where its files go, the curator's, if they do not verify; not there yet.

    Returns:
        Why it could not be verified, for want of memory or a disk; empty where it was.

    Raises:
        VerificationError: They do not; says why, and what to do.
    """
    path = folder / RELEASE_FILE
    try:
        verify_release(path)
    except Exception as error:  # a recomputation of an added class may end in any
        if lacks_room(error):
            return reason_of(error)
        folder.rename(refused)
        seal(refused.parent)
        known = isinstance(error, TorchDPCateError)
        why = str(error).removeprefix(f"{path}: ") if known else f"{type(error).__name__}: {error}"
        raise VerificationError(
            f"the release does not verify ({why}); {unreleased(release)}; its files are in {refused}"
        ) from (None if known else error)
    return ""


def _summary(task: TaskSpec) -> dict[str, Any]:
    """Return what every task says of a run."""
    config, study, learner, release = task.config, task.study, task.learner, task.release
    return {
        "task": task.name,
        "data": study.name,
        "generated": is_generated(config),
        "learner": type(learner).__name__,
        "release": release.kind,
        "mechanism": release.privacy.mechanism,
        "level": release.privacy.level,
        "claim": release.privacy.claim,
        "epsilon": release.privacy.epsilon,
        "delta": release.privacy.delta,
        "requested": {
            "epsilon": float(config.privacy.epsilon),
            "delta": float(config.privacy.delta),
            "settings": settings({*task.settings, *task.summarised}),
            "words": run_words(),
        },
        "spent": _by_unit(learner.ledger_.spent(), study.unit),
        "n": study.records.n,
        **({"unit": study.unit.to_dict()} if study.unit.is_person else {}),
        "blocks": learner.sizes_,
        "seed": config.seed,
    }


def _by_unit(spent: Mapping[str, Any], unit: PrivacyUnit) -> dict[str, Any]:
    """Return what blocks spent by record, and what all of it comes to by unit."""
    total = dict(spent["total"])
    if total["epsilon"] is not None:
        total["epsilon"], total["delta"] = unit.cost(total["epsilon"], total["delta"])
        total["naive_epsilon"] = unit.records * total["naive_epsilon"]
    return {**spent, "total": total}


def _write_summary(task: TaskSpec, planned: PlannedNoise, start: float) -> dict[str, Any]:
    """Write ``summary.json`` with the seconds since the start, and return it; without what cannot be computed."""
    plan = {"planned_noise": planned.to_dict()["expected_noise"], "planned_of": planned.of}
    summary = _summary(task) | plan | task.choices()
    clipped = task.study.records.clipped
    if clipped.rows:
        summary["moved_to_bounds"] = {"rows": clipped.rows, "values": dict(clipped.moved)}
    with task.attempt("what came out, in curator/summary.json"):
        summary |= task.results()
    summary["seconds"] = round(time.perf_counter() - start, 3)
    with task.attempt("curator/summary.json"):
        write_text(summary_path(task.folder), json.dumps(summary, indent=2) + "\n", PRIVATE)
    return summary


def _write_rest(task: TaskSpec, summary: dict[str, Any]) -> None:
    """Write the curator's files, tables and figures, renew the checksums, and say who may read what."""
    curator, release = task.folder / "curator", task.folder / "release"
    with task.attempt("curator/config.yaml and numbers.safetensors"):
        write_curator(task.config, task.exact(), curator)
    figures: Figures = {}
    with task.attempt("further tables and figures"):
        figures = task.write(summary)
    _draw(task, figures)
    with task.attempt("checksums of the figures"):
        write_sums(release)
    with task.attempt("permissions"):
        publish(release)
        seal(curator)


def _draw(task: TaskSpec, figures: Figures) -> None:
    """Draw the readers' figures and these of the curator's."""
    for name, written in figures_of(task.release).items():
        place = task.folder / "release" / name
        with task.attempt(f"release/{name}"), atomic_path(place, PUBLIC) as temporary:
            temporary.write_bytes(written())
    for name, drawn in figures.items():
        with task.attempt(f"curator/{name}"):
            save_figure(drawn(), task.folder / "curator" / name, PRIVATE)


def _say_unwritten(task: TaskSpec, unverified: str) -> None:
    """Say in one line what is missing beside a release that is complete.

    Args:
        task: With what could not be written.
        unverified: Why the release could not be verified; empty where it was.

    Raises:
        TorchDPCateError: The summary is missing, so that reports do not know the run.
    """
    path = task.folder / "release" / RELEASE_FILE
    told = [f"the release is complete and verified, {path}"]
    if unverified:
        told = [f"the release is complete, {path}, and not verified ({unverified}): torchdpcate verify {path}"]
    if task.unwritten:
        told.append(f"not written: {', '.join(task.unwritten)}")
    if not summary_path(task.folder).is_file():
        raise TorchDPCateError("; ".join(told))
    if unverified or task.unwritten:
        say_warning("; ".join(told))


def _show(task: TaskSpec, summary: dict[str, Any]) -> None:
    """Print what was released, what it finds, and what comes next."""
    folder = task.folder
    places = (("release", folder / "release" / RELEASE_FILE), ("curator's files", folder / "curator"))
    seconds = ("seconds", f"{summary['seconds']:.1f}")
    print(facts([*_shown(task, summary), *places, seconds], title="torchdpcate: released"))
    for name, files in (("logger", "unreleased*"), ("enable_checkpointing", "*.ckpt")):
        written = next((folder / "curator" / "logs").glob(files), None)
        if OmegaConf.select(task.config, f"trainer.{name}") and written is None:
            print(f"trainer.{name}={task.config.trainer[name]}: no network was trained by itself; nothing written")
    for line in task.closing(summary):
        print(line)
    print(f"\n{ending(task)}")


def ending(task: TaskSpec) -> str:
    """Return the last lines of a run: what was found, which claim it has, and what to do with it.

    Args:
        task: With its release.
    """
    release, planned = task.release, task.planned
    sentences, rests_on = answer(release)
    if planned.relative is not None and planned.relative > 1.001:  # which a composition's never is
        alone = f"about {shown(planned.value / planned.relative)} instead of {shown(planned.value)}"
        sentences.append(f"One private number for all would err less: {alone}, if effects vary as little as planned.")
    said = {"finding": sentences, "rests on": rests_on}
    claim, then, commands = release.privacy.claim, "the page for readers, and your signature:", _NEXT
    found = [("" if place else what, words) for what, some in said.items() for place, words in enumerate(some)]
    if not release.privacy.claims:
        answers = release.function is not None or release.decision is not None
        claim, then = f"{claim}; no claim: publish nothing of it", "for you alone, what it says and answers:"
        commands = _NEXT_UNCLAIMED if answers else _NEXT_UNCLAIMED[:1]
    place = shlex.quote(str(task.folder))  # commands are not broken, so that they can be copied
    rows = facts([*found, ("claim", claim), ("next", then)])
    return "\n".join([rows, *(f"  torchdpcate {words.format(place)}" for words in commands)])


def _shown(task: TaskSpec, summary: Mapping[str, Any]) -> Iterable[tuple[str, str]]:
    yield "what", f"{task.release.kind} by {summary['mechanism']}, {summary['learner']} on {summary['data']}"
    if task.taken:
        yield "taken", task.taken
    yield "guarantee", summary["level"]
    yield "claim", summary["claim"]
    by = ", by record" if "unit" in summary else ""
    for block, spent in summary["spent"].items() if summary["epsilon"] is not None else ():
        if block == "total":
            unit = task.study.unit
            persons = f"{summary['n'] // unit.records:,} {unit.name}s, " if by else ""
            yield f"spent, total{f', by {unit.name}' if by else ''}", _spent(spent, summary["n"], persons)
        else:
            yield f"spent, {block}{by}", _spent(spent, summary["blocks"][block])
    for name, text in task.shown().items():
        if summary.get(name) is not None:
            yield text, f"{summary[name]:.4g}"
    if task.study.records.clipped.rows:
        yield "unreleased: values moved to their bounds", str(task.study.records.clipped)


def _spent(spent: Mapping[str, Any], size: int, persons: str = "") -> str:
    return (
        f"epsilon {spent['epsilon']:.4g}, delta {spent['delta']:.3g} ({persons}{size:,} records); "
        f"{spent['naive_epsilon']:.4g} if epsilons were added"
    )
