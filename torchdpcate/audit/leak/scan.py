"""Leak scan: does a run's ``release/`` hold anything of its curator's?"""

import hashlib
import io
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from torchdpcate.audit.leak.chance import KINDS, Coincidences
from torchdpcate.audit.leak.files import Curator, read_curator, read_folder
from torchdpcate.audit.leak.search import (
    Finding,
    ReleasedNumbers,
    copied_records,
    copied_vectors,
    gather,
    make_pool,
    named_findings,
    number_findings,
    other_units,
    word_findings,
)
from torchdpcate.data.schema import TableSchema
from torchdpcate.errors import AuditFailure, ReleaseFileError
from torchdpcate.release.file import RELEASE_FILE, read_release_file

_BLUE = np.array([31, 119, 180])  # C0, the colour of the released effect
_MARGIN = 0.05 / 1.1  # of the axes' width, left free at either side of a curve
_APART = 4.0  # pixels between two curves before they can be distinguished
_SHIFTS = np.array([shift for shift in range(-80, 81, 5) if abs(shift) >= 10])
_FEWEST = 30  # columns
_TRIES, _BEST = 1000, 20


def drawn(png: bytes, released: np.ndarray, curves: dict[str, np.ndarray]) -> dict[str, float] | None:
    """Return which of the curator's curves an effect figure shows besides the released one.

    The released curve is known and calibrates the axes: its own pixels give the row of every effect. Along a
    curator's curve the share of columns with ink is then held against the shares along the same curve shifted
    up and down, which letters and frames fill as often.

    Args:
        png: The figure, as ``effect_figure`` draws it.
        released: Released effects, evenly spaced from the curve's left end to its right, [m].
        curves: The curator's effects there by name, each [m].

    Returns:
        Share of ink of every curve that is drawn, or None where the figure has no curve to calibrate by.
    """
    from PIL import Image

    image = np.asarray(Image.open(io.BytesIO(png)).convert("RGB")).astype(int)
    far = np.abs(image - _BLUE).max(2)
    blue, ink = far < 40, (image.min(2) < 140) & (far >= 60)
    columns = _curve_columns(ink)
    if len(columns) < _FEWEST:
        return None
    at = np.linspace(0, 1, len(columns))
    middle = np.interp(at, np.linspace(0, 1, len(released)), released)
    line = _rows_of_effects(blue[:, columns], middle)
    if line is None:
        return None
    found = {}
    for name, values in curves.items():
        effect = np.interp(at, np.linspace(0, 1, len(values)), values)
        path = line[0] + line[1] * effect
        apart = (np.abs(line[1] * (effect - middle)) > _APART) & (path > 1) & (path < len(image) - 2)
        if apart.sum() < _FEWEST:
            continue
        near = ink[:, columns[apart]]
        share = _filled(near, path[apart]).mean()
        usual = np.median([_filled(near, path[apart] + shift).mean() for shift in _SHIFTS])
        if share >= max(0.25, usual + 0.2):
            found[name] = float(share)
    return found


def _curve_columns(ink: np.ndarray) -> np.ndarray:
    """Return the columns that a curve spans: the axes', which the lower frame shows, without their margins."""
    row = np.flatnonzero(ink[ink.sum(1).argmax()])
    runs = np.split(row, np.flatnonzero(np.diff(row) > 1) + 1)
    frame = max(runs, key=len)
    if not len(frame):
        return frame
    margin = _MARGIN * (frame[-1] - frame[0])
    return np.arange(round(frame[0] + margin), round(frame[-1] - margin) + 1)


def _rows_of_effects(blue: np.ndarray, effect: np.ndarray) -> tuple[float, float] | None:
    """Return (a, b) with row = a + b effect along the released curve, from pairs of blue pixels [rows, columns].

    Other curves cross it and the legend repeats its colour, so the pair that explains most columns wins.
    """
    rows, columns = np.nonzero(blue)
    if len(rows) < _FEWEST:
        return None
    first, second = np.random.default_rng(0).integers(0, len(rows), (2, _TRIES))
    gap = effect[columns[second]] - effect[columns[first]]
    usable = np.abs(gap) > 0.3 * np.ptp(effect)
    first, second, gap = first[usable], second[usable], gap[usable]
    if not len(gap):
        return None
    b = (rows[second] - rows[first]) / gap
    a = rows[first] - b * effect[columns[first]]
    hits = np.array([_filled(blue, path).sum() for path in a[:, None] + b[:, None] * effect])
    refined = [_refined(rows, effect[columns], a[i], b[i]) for i in np.argsort(hits)[-_BEST:]]
    hits = np.array([_filled(blue, start + slope * effect).sum() for start, slope in refined])
    start, slope = refined[int(hits.argmax())]
    # a flat curve does not give the scale of its axis
    enough = hits.max() >= len(effect) / 3 and np.abs(slope) * np.ptp(effect) > 10
    return (start, slope) if enough else None


def _refined(rows: np.ndarray, effect: np.ndarray, start: float, slope: float) -> tuple[float, float]:
    """Fit the line anew to the pixels near it, a few times."""
    for window in (6.0, 4.0, 3.0, 3.0):
        near = np.abs(rows - start - slope * effect) <= window
        if np.ptp(effect[near]) == 0:
            break
        slope, start = (float(part) for part in np.polyfit(effect[near], rows[near], 1))
    return start, slope


def _filled(ink: np.ndarray, path: np.ndarray) -> np.ndarray:
    """Return in which columns there is ink within a pixel and a half of the path."""
    near = np.clip(np.rint(path).astype(int) + np.arange(-1, 2)[:, None], 0, len(ink) - 1)
    return ink[near, np.arange(len(path))].any(0)


@dataclass(frozen=True, eq=False)
class Stated:
    """What a release file states of itself, without its checksum.

    Attributes:
        file: Its name.
        tensors: Its tensors by name.
        facts: Shapes and public scales.
        privacy: The privacy statement.
        schema: Columns and bounds.
    """

    file: str
    tensors: dict[str, np.ndarray]
    facts: dict[str, Any]
    privacy: dict[str, Any]
    schema: dict[str, Any]

    @property
    def outcome_range(self) -> float:
        """R, in outcome units."""
        outcome = self.schema["outcome"]
        if "horizon" in outcome:
            return TableSchema.from_dict(self.schema).domain.outcome_range
        return float(outcome["high"]) - float(outcome["low"])


def read_stated(folder: Path) -> Stated | None:
    """Return what the release file of a folder states, or None if none can be read."""
    from safetensors import SafetensorError, safe_open

    for path in sorted(folder.glob("*.safetensors")):
        try:
            with safe_open(path, "pt") as file:
                tensors = {name: file.get_tensor(name).double().numpy() for name in file.keys()}  # noqa: SIM118
                metadata = file.metadata()
            parts = [json.loads(metadata[name]) for name in ("facts", "privacy", "schema")]
            found = Stated(path.name, tensors, *parts)
            if found.outcome_range > 0:
                return found
        except (SafetensorError, OSError, ValueError, KeyError, TypeError):
            continue
    return None


def too_little_noise(stated: Stated | None, curator: Curator, alpha: float) -> list[Finding]:
    r"""Hold the noise of released coefficients against the least that their statement allows.

    Output perturbation states its scale s. Objective perturbation moves theta by at least ||b|| / L, L the largest
    curvature of the objective. For Gaussian noise ||difference||^2 / s^2 is then at least chi-squared with p degrees of
    freedom; for noise of density exp(-||z|| / s), ||difference|| / s is at least Gamma(p).
    """
    from scipy.stats import chi2, gamma

    theta, clean = None if stated is None else stated.tensors.get("theta"), curator.vectors.get("theta_without_noise")
    if stated is None or theta is None or clean is None or theta.shape != clean.shape:
        return []
    law = _head_noise(stated) or _rule_noise(stated, curator)
    if law is None:
        return []
    kind, least = law
    moved, size = float(np.linalg.norm(theta - clean)), len(clean)
    chance = float(chi2.cdf((moved / least) ** 2, size) if kind == "gaussian" else gamma.cdf(moved / least, size))
    if chance > alpha:
        return []
    what = f"coefficients with far less noise than stated: {moved:.3g} where {least:.3g} each is the least"
    return [Finding(stated.file, "theta", what, f"{moved:.6g}", chance)]


def _head_noise(stated: Stated) -> tuple[str, float] | None:
    """Return law and least scale of the noise of a CATE's head: L is at most 2 n (B^2 + ridge), B <= 1."""
    try:
        if stated.privacy["mechanism"] == "output":
            return "gaussian", float(stated.facts["noise_scale"])
        public = stated.privacy["public"]
        n = next(block["n"] for block in stated.privacy["blocks"] if block["name"] == "second_stage")
        return "gaussian", float(public["perturbation_scale"]) / (2 * n * (1 + public["ridge"]))
    except (KeyError, TypeError, ValueError, StopIteration):
        return None


def _rule_noise(stated: Stated, curator: Curator) -> tuple[str, float] | None:
    """Return law and least scale of a rule's noise; the curator's folder has L."""
    try:
        kind, public = stated.privacy["mechanism"].rpartition("_")[2], stated.privacy["public"]
        if kind not in ("gamma", "box", "gaussian"):
            return None
        if "noise_scale" in public:
            return kind, float(public["noise_scale"])
        return kind, float(public["perturbation_scale"]) / curator.public_vectors["hessian_bound"].item()
    except (KeyError, TypeError, ValueError, AttributeError):
        return None


def copied_files(run: Path) -> list[Finding]:
    """Return files of ``release/`` that are byte for byte one of the curator's."""

    def files(folder: Path) -> dict[bytes, Path]:
        paths = [path for path in folder.glob("**/*") if path.is_file() and path.stat().st_size]
        return {hashlib.sha256(path.read_bytes()).digest(): path for path in paths}

    curator, released = files(run / "curator"), files(run / "release")
    return [
        Finding(released[key].name, "the file", "a copy of a curator's file", curator[key].name)
        for key in released.keys() & curator.keys()
    ]


def drawn_curves(run: Path, curator: Curator) -> list[Finding]:
    """Return figures of ``release/`` that show a curve of the curator's."""
    secret, public = (
        curator.vectors.get("effect_in_figure_without_noise"),
        curator.public_vectors.get("public.effect_in_figure"),
    )
    if secret is None or public is None:
        return []
    findings = []
    for path in sorted((run / "release").rglob("*.png")):
        try:
            shown = drawn(path.read_bytes(), public, {"effect_in_figure_without_noise": secret})
        except Exception:  # no image: `read_folder` says so
            continue
        for name, share in (shown or {}).items():
            name_in = path.relative_to(run / "release").as_posix()
            findings.append(Finding(name_in, "its pixels", f"the curve {name}", f"{share:.0%} of it drawn"))
    return findings


def records_asked_for(stated: Stated | None, curator: Curator) -> list[str]:
    """Note released queries that are records: public only by the user's word."""
    queries = None if stated is None else stated.tensors.get("queries")
    if queries is None or curator.rows is None:
        return []
    rows = {row.tobytes() for row in curator.rows[:, :-1] + 0.0}
    same = sum(row.tobytes() in rows for row in queries + 0.0)
    return [f"{same} of {len(queries)} released queries are records: they count as public"] if same else []


FALSE_ALARM = 1e-6
"""Bound of the probability that the scan of a folder with nothing in it reports a leak by chance."""

# How that is divided; with the two searches of complete vectors and records and the check of noise it adds up to one.
_SHARES = {
    "the curator's single numbers": 0.25,
    "the same in other units": 0.05,
    "the curator's vectors": 0.3,
    "these in other units": 0.05,
    "the records": 0.2,
}
_COMPLETE, _NOISE = 0.05, 0.05
_SHOWN = 20  # lines of a table


@dataclass(frozen=True)
class Comparison:
    """One search and its outcome.

    Attributes:
        against: What the release's numbers were held against.
        pairs: Pairs compared.
        expected: Expected chance matches, one a kind of released number (``KINDS``).
        matches: Matches among them.
    """

    against: str
    pairs: int
    expected: tuple[float, ...]
    matches: tuple[int, ...]


@dataclass(frozen=True)
class LeakReport:
    """What a scan found.

    Attributes:
        leaks: What chance does not explain.
        suspects: Short numbers that equal a curator's; chance may explain them, though it seldom does.
        notes: What could not be compared, and unusual files.
        comparisons: The searches.
        left_out: How many numbers were left out of them, and why.
    """

    leaks: tuple[Finding, ...]
    suspects: tuple[Finding, ...]
    notes: tuple[str, ...]
    comparisons: tuple[Comparison, ...]
    left_out: dict[str, int]


def scan(run: str | Path) -> LeakReport:
    r"""Search ``release/`` of a run for curator numbers, records, and words that have no business there.

    Everything in the folder is read: tensors, metadata, JSON, text, tables, archives, text of figures, names; the
    released curve's companions in ``effect.png``. A file that cannot be read to the end is a leak, because
    it cannot be checked. Read numbers are compared with

    - every number of ``curator/`` that is no setting, public fact or private release,
    - these times and over n and the outcome range, whatever the sign,
    - the records, loaded again from ``curator/config.yaml``: as encoded, scaled by their bounds, and all columns
      of their table,

    and a match is a released number that is the other one rounded to its own grid (``grid_step``): to the last bits,
    through float32, or to the digits printed. Complete vectors of equal length are compared, in any unit, with the
    noise itself too; numbers that stand together, with the records one by one; released coefficients must be
    as far from the noise-free ones as their stated noise.

    Left out and counted, because chance explains their matches: numbers of four digits or fewer (small integers,
    ages and other coarse grids, shares k/n of few records); numbers equal to a public one (settings, bounds,
    categories, queries, sizes, the ledger's); short roundings of longer numbers of the same release. Short
    numbers that stand by the name of what they equal ("treated: 185") are leaks all the same; without the name
    they are listed as suspects.

    Guarantee:
        A folder whose numbers are noisy or public raises an alarm by chance with probability below 1e-6 a scan:
        each search has a share of it, spent by ``Coincidences.beyond_chance``, with the chance of each match
        estimated from the curator's numbers nearby. Words, paths, names and unreadable files involve no chance.
        Legitimate noise below a millionth of the values it hides is reported as none.
        No finding does not prove that there is no leak: sums of few records, functions of several numbers, single
        numbers at float32 precision among many, and pixels are beyond it.

    Args:
        run: Run folder with ``release/`` and ``curator/``.

    Raises:
        InputError: No run.

    Example:
        >>> scan("nowhere")
        Traceback (most recent call last):
        torchdpcate.errors.InputError: run = nowhere: has no folder release; give a run's own, with release and curator
    """
    run = Path(run)
    curator = read_curator(run)
    contents = read_folder(run / "release")
    stated = read_stated(run / "release")
    if stated is not None:
        curator.outcome_range = stated.outcome_range
        curator.public.append(np.array([curator.outcome_range]))
    released = gather(contents, curator)

    comparisons, leaks, suspects, left_out = _numbers(released, curator)
    leaks += too_little_noise(stated, curator, FALSE_ALARM * _NOISE)
    leaks += word_findings(contents, curator) + copied_files(run) + drawn_curves(run, curator)
    unreadable = contents.unreadable | _unlike(run / "release" / RELEASE_FILE)
    leaks += [Finding(name, "the file", "cannot be checked", why) for name, why in unreadable.items()]
    notes = [*curator.notes, *contents.unusual]
    notes += records_asked_for(stated, curator)
    leaks = _once(leaks)
    known = {(leak.file, leak.place) for leak in leaks}
    suspects = [suspect for suspect in _once(suspects) if (suspect.file, suspect.place) not in known]
    return LeakReport(tuple(leaks), tuple(suspects), tuple(notes), tuple(comparisons), left_out)


def _unlike(path: Path) -> dict[str, str]:
    """Return by its name why a release file may hold more than it says; nothing of one that does not."""
    try:
        if path.is_file():
            read_release_file(path)
    except ReleaseFileError as error:
        return {path.name: str(error)}
    return {}


def _numbers(
    released: ReleasedNumbers, curator: Curator
) -> tuple[list[Comparison], list[Finding], list[Finding], dict[str, int]]:
    """Hold the release's numbers against every kind of curator number, by name, one by one and as vectors."""
    scalars = {name: np.array(value) for name, value in curator.scalars.items()}
    pools = [
        make_pool(numbers, curator)
        for numbers in (
            scalars,
            other_units(scalars, curator),
            curator.vectors,
            other_units(curator.vectors, curator),
            curator.records,
        )
    ]
    outcome, leaks, suspects = named_findings(released, curator)
    comparisons = [_row("these by their names", outcome)]
    for (against, share), pool in zip(_SHARES.items(), pools, strict=True):
        outcome, beyond, unlikely = number_findings(released, pool, FALSE_ALARM * share)
        comparisons.append(_row(against, outcome))
        leaks, suspects = leaks + beyond, suspects + unlikely
    copies: list[Finding] = []
    for against, search in (("complete vectors", copied_vectors), ("complete records", copied_records)):
        pairs, found = search(released, curator, FALSE_ALARM * _COMPLETE)
        comparisons.append(Comparison(against, pairs, (0.0,) * len(KINDS), (len(found), 0, 0)))
        copies += found
    hidden, fine = int(released.hidden.sum()), len(released.fine)
    left_out = {
        "public or repeated numbers of the release": hidden,
        "short numbers of the release": len(released.values) - hidden - fine,
        "public curator numbers": sum(pool.public for pool in pools[::2]),
        "short curator numbers": sum(pool.coarse for pool in pools[::2]),
    }
    copied = {(copy.file, copy.place) for copy in copies}
    single = [leak for leak in leaks if (leak.file, leak.place) not in copied]
    return comparisons, copies + single, suspects, left_out


def _row(against: str, outcome: Coincidences) -> Comparison:
    return Comparison(against, outcome.pairs, tuple(outcome.expected), tuple(outcome.found))


def _once(findings: list[Finding]) -> list[Finding]:
    """Drop what was found at the same place with the same value before."""
    return list({(f.file, f.place, f.value): f for f in reversed(findings)}.values())[::-1]


def leak_report(run: str) -> None:
    """Scan a run folder and print what was found.

    Args:
        run: Run folder.

    Raises:
        InputError: No run.
        AuditFailure: A leak.
    """
    report = scan(run)
    _print(report)
    if report.leaks:
        first = report.leaks[0]
        more = f" (and {len(report.leaks) - 1} more, see above)" if len(report.leaks) > 1 else ""
        raise AuditFailure(f"run = {run}: release/{first.file}, {first.place}: {first.what} ({first.value}){more}")


def _print(report: LeakReport) -> None:
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Column, Table

    console = Console()
    searches = Table("held against", "pairs", "by chance", "found", title="leak scan", caption=" / ".join(KINDS))
    for row in report.comparisons:
        expected = " / ".join(f"{value:.2g}" for value in row.expected)
        searches.add_row(row.against, f"{row.pairs:,}", expected, " / ".join(map(str, row.matches)))
    console.print(searches)
    for title, findings in (("leaks", report.leaks), ("may be chance: look at these", report.suspects)):
        if findings:
            names = ("file", "place", "what", "value", "by chance")
            table = Table(*(Column(name, overflow="fold") for name in names), title=title)
            for f in findings[:_SHOWN]:
                cells = (escape(text) for text in (f.file, f.place, f.what, f.value))
                table.add_row(*cells, f"{f.chance:.1g}" if f.chance else "no")
            console.print(table)
    found = f"{len(report.leaks)} found" if report.leaks else "nothing found that chance does not explain"
    left = ", ".join(f"{count:,} {what}" for what, count in report.left_out.items())
    console.print(f"leaks: {found} (false alarms: less than one in 10^6 scans). Left out: {left}.", highlight=False)
    for note in report.notes:
        console.print(f"note: {note}", markup=False, highlight=False)
