"""The searches of the leak scan that compare vectors and records."""

from dataclasses import dataclass

import numpy as np
from scipy.special import pdtrc

from torchdpcate.audit.leak.chance import COARSE, SHORTEST, grid_step, multiples_of
from torchdpcate.audit.leak.curator import Curator
from torchdpcate.audit.leak.files import Numbers
from torchdpcate.audit.leak.search import Finding, Released, is_public


def copied_vectors(released: Released, curator: Curator, alpha: float) -> tuple[int, list[Finding]]:
    """Return how many pairs of vectors were compared, and the released copies of a curator's vector.

    A vector to compare with is one of the curator's, a column of the records, or the noise itself: what a
    released vector and the curator's differ by.
    """
    of_length = _of_length(released, curator)
    others = [(name, vector) for name, vector in {**curator.vectors, **curator.records}.items()]
    for name, vector in curator.vectors.items():
        if len(vector) in of_length:
            held = of_length[len(vector)]
            for numbers, row in zip(held.owners, held.rows, strict=True):
                if numbers.values.ndim == 1:
                    others.append((f"the noise of {numbers.place} ({numbers.place} less {name})", row - vector))
    jobs = [(name, vector, of_length[len(vector)]) for name, vector in others if len(vector) in of_length]
    pairs = sum(len(held.rows) for *_, held in jobs)
    findings = []
    for name, vector, held in jobs:
        finite = held.finite & np.isfinite(vector)
        free = finite & ~held.public & ~is_public(np.abs(vector), curator)
        slope, chance = multiples_of(np.where(finite, vector, 0.0), np.where(finite, held.rows, 0.0), free)
        for i in np.flatnonzero(np.isfinite(slope) & (chance <= np.log(alpha / pairs))):
            times = "" if abs(slope[i] - 1) < 1e-6 else f"{slope[i]:.6g} times "
            what = f"{len(vector)} numbers, without noise: {times}{name}"
            by, shown = held.owners[i], _shown(held.rows[i])
            findings.append(Finding(by.file, by.place, what, shown, float(np.exp(chance[i]) * pairs)))
    return pairs, findings


@dataclass(frozen=True, eq=False)
class _Held:
    """The released vectors of one length: [k, m] numbers, where they stand, and which are finite or public."""

    rows: np.ndarray
    owners: list[Numbers]
    finite: np.ndarray
    public: np.ndarray


def _of_length(released: Released, curator: Curator) -> dict[int, _Held]:
    """Return the released vectors by their length, all of one length together."""
    found: dict[int, list[tuple[Numbers, np.ndarray]]] = {}
    for numbers in released.found:
        for rows in _rows(numbers.values):
            found.setdefault(rows.shape[1], []).append((numbers, rows))
    held = {}
    for length, parts in found.items():
        rows = np.concatenate([rows for _, rows in parts])
        owners = [numbers for numbers, part in parts for _ in part]
        held[length] = _Held(rows, owners, np.isfinite(rows), is_public(np.abs(rows), curator))
    return held


def _rows(values: np.ndarray) -> list[np.ndarray]:
    """Return the vectors of an array, [k, m] each: itself, or its rows and columns."""
    if values.ndim == 0 or values.size < SHORTEST:
        return []
    flat = values.reshape(-1, values.shape[-1]) if values.ndim > 1 else values[None]
    return [rows for rows in ([flat] if values.ndim == 1 else [flat, flat.T]) if rows.shape[1] >= SHORTEST]


def copied_records(released: Released, curator: Curator, alpha: float) -> tuple[int, list[Finding]]:
    r"""Return how many places were compared with records, and those that hold several numbers of one record.

    A number of few digits may equal a record's by chance; two or three of the same record hardly do. A number r
    of grid step u is within u / 2 of a given value by chance with probability about 2 u / (3 r) if the two are
    of like size, so that record i meets k of the numbers of a place with at most the Poisson tail of mean
    lambda_i, their sum; the chance of a place is the sum over the records.
    """
    if curator.rows is None:
        return 0, []
    size = np.abs(curator.rows)
    compared = (size >= COARSE * grid_step(size, curator.sizes)) & ~is_public(size, curator)
    size = np.where(compared, size, np.nan)
    fine = np.isin(released.places[:, 0], released.fine)
    numbers, place = released.places[fine].T
    several = [p for p in np.unique(place) if (place == p).sum() > 1]
    findings = []
    for p in several:
        index = np.unique(numbers[place == p])
        values, steps = np.abs(released.values[index]), released.steps[index]
        met = _met(size, values, steps)
        most = int(met.max(initial=0))
        if most < 2:
            continue
        weight = np.concatenate([[0.0], np.cumsum(2 * steps / (3 * values))])
        near = weight[np.searchsorted(values, 2 * size)] - weight[np.searchsorted(values, size / 2)]
        chance = float(pdtrc(most - 1, np.where(compared, near, 0.0).sum(1)).sum())
        if chance <= alpha / len(several):
            found, row = released.found[p], int(met.argmax())
            what = f"{most} numbers of one record (the first such is record {row})"
            findings.append(Finding(found.file, found.place, what, _shown(found.values), chance * len(several)))
    return len(several) * len(size), findings


def _met(size: np.ndarray, values: np.ndarray, steps: np.ndarray) -> np.ndarray:
    """Return how many of the sorted values each record [n, q] meets, [n]."""
    middle = np.clip(np.searchsorted(values, size), 0, len(values) - 1)
    before = np.maximum(middle - 1, 0)
    closest = np.where(np.abs(values[before] - size) < np.abs(values[middle] - size), before, middle)
    hit = np.abs(values[closest] - size) <= np.maximum(steps[closest] / 2 * (1 + 1e-9), 2.0**-51 * size)
    met = np.sort(np.where(hit, closest, -1), axis=1)
    first = np.concatenate([met[:, :1] >= 0, (np.diff(met, axis=1) > 0) & (met[:, 1:] >= 0)], axis=1)
    return first.sum(1)


def _shown(values: np.ndarray) -> str:
    return ", ".join(f"{value:.6g}" for value in values.ravel()[:3]) + ", ..."
