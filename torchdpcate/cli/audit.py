"""``torchdpcate audit``: attacks on our own claims, and the search of a run's release for what must not be there."""

import io
import os
import textwrap
from collections.abc import Callable, Collection, Iterator
from pathlib import Path

import numpy as np
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Column, Table

from torchdpcate._text import plain
from torchdpcate.audit.attack import AuditResult
from torchdpcate.audit.report import AuditSettings, audit_all, find, make_folder, read_report, registry, write_report
from torchdpcate.cli.curator import summary_path
from torchdpcate.cli.parser import nearest
from torchdpcate.cli.tables import facts, terminal_width
from torchdpcate.data.study import read_queries
from torchdpcate.errors import AuditFailure, InputError, TorchDPCateError
from torchdpcate.pages.figures import Made, figures_of
from torchdpcate.pages.reader import PAGE, reader_page
from torchdpcate.privacy.budget import integer
from torchdpcate.release.file import RELEASE_FILE, SUMS_FILE, Release, check_sums, load_release
from torchdpcate.release.signature import signature_path
from torchdpcate.verify.card import texts_beside
from torchdpcate.verify.file import verify_release

_HELP = """usage: torchdpcate audit mechanism=NAME [folder=FOLDER] [epsilon=1] [delta=1e-5] [confidence=0.95] [trials=N]
       torchdpcate audit --all [folder=FOLDER] [processes=N] [epsilon=1] ...
       torchdpcate audit leak RUN [reference=FILE]

Attack a mechanism on its worst-case neighbours: a lower bound on epsilon beside the claim. Exit code 1 if the bound
exceeds the claim. --all attacks every mechanism and writes a page, its numbers and a figure into the folder, where
mechanism=NAME folder=FOLDER makes one mechanism's row anew; by default as many processes share the work as there are
processors, up to 8.
leak makes everything in the release folder of a run, or of a sweep, again from its release file and compares; reference
is the public table that report was given.

mechanisms:
"""
_REFERENCE = "reference="
_MOST = 8  # processes, by default: each may take 2 GB
KEYS = ("mechanism", "folder", "processes", *AuditSettings.__dataclass_fields__)


def audit(words: list[str]) -> None:
    """Run the command.

    Args:
        words: Command-line words after ``audit``.

    Raises:
        InputError: A user's mistake.
        AuditFailure: A bound exceeds its claim, or a release holds something of the curator's.
    """
    if not words or {"-h", "--help"} & set(words):
        named = registry()
        print(_HELP + facts((f"  {name}", f"{case.attack}: {case.pair}") for name, case in named.items()))
        return
    if words[0] == "leak":
        _leak(words[1:])
        return
    if words[0] == "spillover":
        raise InputError(
            "audit spillover: no score rests on what other records taught; the paper's: torchdpcate study spillover"
        )
    given, every = _parse([word for word in words if word != "--all"]), "--all" in words
    if every == ("mechanism" in given):
        raise InputError("audit: give either mechanism=NAME or --all")
    if "processes" in given and not every:
        raise InputError("processes: one mechanism is one process's work; use --all")
    processes = integer("processes", given.pop("processes", min(_MOST, os.cpu_count() or 1)), least=1)
    written = every or "folder" in given
    folder, name = Path(str(given.pop("folder", "audit"))), given.pop("mechanism", None)
    settings = AuditSettings(**given)  # type: ignore[arg-type]
    cases = list(registry().values()) if every else [find(str(name))]
    report: dict[str, AuditResult] = {}
    if written:  # before minutes of work that could then not be written
        report = {} if every else read_report(cases[0].name, settings, folder)
        make_folder(folder)
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, transient=True) as progress:
        bar = progress.add_task("audit", total=None)
        results = audit_all(
            cases,
            settings,
            on_progress=lambda label, done, total: progress.update(bar, description=label, completed=done, total=total),
            processes=processes,
        )
    _show(results)
    if written:
        report |= {result.mechanism: result for result in results}
        for path in write_report(list(report.values()), settings, folder):
            print(f"written: {path}")
    refuted = [result for result in results if result.refuted]
    if refuted:
        found = "; ".join(f"{r.mechanism}: bound {r.bound:.4g} above the claim {r.claimed:.4g}" for r in refuted)
        raise AuditFailure(f"claim refuted at confidence {settings.confidence:g}: {found}")


def _leak(words: list[str]) -> None:

    places = [word for word in words if not word.startswith(_REFERENCE)]
    given = [word.removeprefix(_REFERENCE) for word in words if word.startswith(_REFERENCE)]
    if len(places) != 1 or len(given) > 1:
        raise InputError("audit leak: give one run folder, and reference=FILE if report was given one")
    found = leaks(places[0], *given)
    if found:
        more = f"; and {len(found) - 1} more" if len(found) > 1 else ""
        raise AuditFailure(f"{places[0]}: {found[0]}{more}")
    print(f"{places[0]}: all that is to be published follows from release files, and nothing else is there")


def _parse(words: list[str]) -> dict[str, object]:
    """Return the settings given as KEY=VALUE."""
    given: dict[str, object] = {}
    for word in words:
        key, equals, value = word.partition("=")
        if not equals or key not in KEYS:
            near = nearest(key, (*KEYS, "leak", "--all"), "no word is near it")
            raise InputError(
                f"audit: {word}: {near}; give --all, leak RUN, or KEY=VALUE with a key of {', '.join(KEYS)}"
            )
        if key in given or word.endswith("="):
            raise InputError(f"audit: {word}: give each key once, with a value")
        try:
            given[key] = value if key == "folder" else OmegaConf.from_dotlist([word])[key]
        except OmegaConfBaseException as error:
            raise InputError(f"audit: {word}: {error}") from None
    return given


def _show(results: list[AuditResult]) -> None:
    others = (Column(name, overflow="fold") for name in ("attack", "level", "claim", "bound", "runs"))
    table = Table(Column("mechanism", no_wrap=True), *others, title="torchdpcate: audited", title_justify="left")
    for r in results:
        claim = "none" if r.claimed is None else f"{r.claimed:.4g}"
        mark = " (exceeds the claim)" if r.refuted else ""
        table.add_row(r.mechanism, r.attack, r.level, claim, f"{r.bound:.4g}{mark}", f"{r.trials:,}")
    Console().print(table)
    first = results[0]
    words = (
        f"bound: lower bound on epsilon, confidence {first.confidence:g} each, replace-one adjacency; for Gaussian and "
        "DP-SGD mechanisms within the family of such mechanisms, so that only one above the claim refutes without it"
    )
    print(textwrap.fill(words, terminal_width()))


_AGAIN = "is not what its release makes: remove it, or write it anew (train, report)"
_RARE = 1e-6
"""Probability that noise of the least scale is refused."""
_PIXEL = 8  # of 255: coordinates that differ in their last places move a pixel's shade


def leaks(folder: str | Path, reference: str | None = None) -> tuple[str, ...]:
    """Return what in ``release/`` of a run, or of the runs of a sweep, does not follow from release files.

    Refused are a release file that does not verify; any other file, but checksums and the signature, that is not what
    the release makes under that name (figures may differ by roundings of their coordinates); links and folders; names
    in ``SHA256SUMS`` of files that are not there; and coefficients with next to no noise, held against the curator's.

    Args:
        folder: Run folder, or a folder of runs.
        reference: Table of a public population that ``report`` was given, by which pages are made again.

    Returns:
        A sentence each, which begins with the file; empty where all is as it should be.

    Raises:
        InputError: No run, or one without its curator's files.
    """
    root = Path(folder)
    places = sorted(path.parent for path in root.glob("**/release") if (path.parent / "curator").is_dir())
    own = (root / "release").is_dir() or summary_path(root).exists()
    if not places or (own and root not in places):
        raise InputError(f"run = {folder}: has no folders release and curator; give a run's own, or a folder of runs")
    return tuple(
        f"{(place / 'release').relative_to(root) / name}: {why}"
        for place in places
        for name, why in _run(place, reference)
    )


def _run(run: Path, reference: str | None) -> Iterator[tuple[str, str]]:
    """Return what is wrong with a run's folder, with the name of each file."""
    folder = run / "release"
    path = folder / RELEASE_FILE
    try:
        verify_release(path)
        release = load_release(path)
        absent = check_sums(folder).absent if (folder / SUMS_FILE).is_file() else []
    except TorchDPCateError as error:
        yield RELEASE_FILE, str(error).removeprefix(f"{path}: ")
        return
    if absent:
        yield SUMS_FILE, f"lists {plain(absent[0])}, which is not there"
    rows = None if reference is None else read_queries(reference, release.schema)
    texts = texts_beside(release) | {PAGE: lambda: reader_page(release, path=path, reference=rows)}
    made = {name: _encoded(make) for name, make in texts.items()} | dict(figures_of(release))
    yield from _others(folder, made, {RELEASE_FILE, SUMS_FILE, signature_path(path).name})
    yield from _noiseless(run, release)


def _encoded(make: Callable[[], str]) -> Callable[[], bytes]:
    return lambda: make().encode()


def _others(folder: Path, made: Made, own: Collection[str]) -> Iterator[tuple[str, str]]:
    """Return the files of a folder that are not made of what they should be."""
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        if path.is_symlink() or not path.is_file():
            yield plain(name), "is no file of its own"
        elif name not in made and name not in own:
            yield plain(name), "is none that the library writes there"
        elif name in made:
            try:
                again = made[name]()
            except InputError as error:
                yield name, f"cannot be made again ({error})"
                continue
            if not _same(path.read_bytes(), again):
                yield name, _AGAIN


def _same(data: bytes, again: bytes) -> bool:
    """Whether two files are the same; figures also where their pixels are, with nothing beside the pixels."""
    if data == again or not again.startswith(_PNG):
        return data == again
    from PIL import Image

    try:
        one, other = (np.asarray(Image.open(io.BytesIO(each)).convert("RGBA")).astype(int) for each in (data, again))
        alike = one.shape == other.shape and bool((np.abs(one - other) <= _PIXEL).all())
        return alike and list(_chunks(data)) == list(_chunks(again))
    except Exception:  # whatever is no picture
        return False


_PNG = b"\x89PNG\r\n\x1a\n"


def _chunks(png: bytes) -> Iterator[bytes]:
    """Return the parts of a PNG that are no pixels, whatever is behind its end included."""
    start = len(_PNG)
    while start < len(png):
        end = start + 12 + int.from_bytes(png[start : start + 4])
        if png[start + 4 : start + 8] != b"IDAT":
            yield png[start:end]
        start = end


def _noiseless(run: Path, release: Release) -> Iterator[tuple[str, str]]:
    r"""Return whether released coefficients have far less noise than their statement allows.

    Of p numbers with noise of scale s, all are within t s of the exact ones with a probability of at most t^p.
    Objective perturbation by b moves the minimiser by at least b / L, L the largest curvature, which is the curator's.
    """
    from safetensors import SafetensorError
    from safetensors.numpy import load_file

    numbers = run / "curator" / "numbers.safetensors"
    try:
        exact = load_file(numbers)
        theta, public = exact["theta_without_noise"], release.privacy.public
        scale = public.get("noise_scale") or public["perturbation_scale"] / float(exact["hessian_bound"])
        moved = np.abs(release.tensors()["theta"].numpy() - theta).max()
    except SafetensorError as error:
        raise InputError(f"{numbers}: is damaged, and the released noise cannot be checked; train again") from error
    except (OSError, ValueError, LookupError, TypeError):
        return  # a kind without such coefficients
    if moved < _RARE ** (1 / theta.size) * scale:
        yield RELEASE_FILE, f"theta has far less noise than stated: {moved:.3g} where {scale:.3g} each is the least"
