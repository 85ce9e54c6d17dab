"""The searches of the leak scan: numbers, words, vectors and records of the curator's in a release."""

import html
import re
import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from scipy.special import pdtrc

from torchdpcate.audit.leak.chance import (
    COARSE,
    KINDS,
    SHORTEST,
    Coincidences,
    coincidences,
    grid_step,
    kind_of,
    multiples_of,
)
from torchdpcate.audit.leak.files import Contents, Curator, Numbers, words_of

_TOLD = 1000  # steps of a number of four digits
UNLIKELY = 0.01
"""Matches of at most this chance are worth a look, even where chance may explain them."""

_SAME = 2.0**-50
_SMALL = range(3, 129)  # ages scaled to [0, 1] are thirds, fortieths, ...: so may a public share be
_PLAIN = {"the", "and", "head", "without", "noise", "covariate", "line"}  # in a curator's names, but no names
_PATH = re.compile(r"(?<![\w:/.~])(?:~|[A-Za-z]:)?(?:/[\w.@+-]+){2,}|(?<!\w)[A-Za-z]:\\{1,2}[\w.@+\\-]+")


@dataclass(frozen=True)
class Finding:
    """Something in the release folder that should not be there.

    Attributes:
        file: File in the release folder.
        place: Where in it.
        what: What it is, in a few words, with the curator's name of it.
        value: The number or text found.
        chance: Expected number of chance matches at least as strong; 0 where chance plays no part.
    """

    file: str
    place: str
    what: str
    value: str
    chance: float = 0.0


@dataclass(frozen=True, eq=False)
class ReleasedNumbers:
    """The distinct numbers of a release folder, sizes above 0.

    Attributes:
        found: Where the numbers stand, as they were found.
        values: One number of each size, [k].
        steps: Grid steps, [k].
        noise_size: How far noise moved each from a curator's number of the same place, else infinite, [k].
        hidden: Numbers that say nothing: public ones, and roundings of others in the release, [k].
        places: (index into ``values``, index into ``found``) of every number, sorted, [m, 2].
    """

    found: list[Numbers]
    values: np.ndarray
    steps: np.ndarray
    noise_size: np.ndarray
    hidden: np.ndarray
    places: np.ndarray

    @cached_property
    def fine(self) -> np.ndarray:
        """Indices of numbers with enough digits to be compared."""
        return np.flatnonzero(~self.hidden & (np.abs(self.values) >= COARSE * self.steps))

    def where(self, index: int) -> list[Numbers]:
        """Return where a number stands."""
        first, last = np.searchsorted(self.places[:, 0], [index, index + 1])
        return [self.found[i] for i in np.unique(self.places[first:last, 1])]


def gather(contents: Contents, curator: Curator) -> ReleasedNumbers:
    """Return the distinct numbers of a release folder, compared with the public ones."""
    found = contents.numbers
    flat = np.concatenate([np.zeros(0), *(numbers.values.ravel() for numbers in found)])
    owner = np.repeat(np.arange(len(found)), [numbers.values.size for numbers in found])
    noise = np.concatenate([np.zeros(0), *(_noise(numbers.values, curator) for numbers in found)])
    kept = np.isfinite(flat) & (flat != 0)
    size, first, inverse = np.unique(np.abs(flat[kept]), return_index=True, return_inverse=True)
    steps = grid_step(size, (*curator.sizes, *_SMALL))
    noise_size = np.full(len(size), np.inf)
    np.minimum.at(noise_size, inverse, noise[kept])
    alone = np.array([numbers.alone for numbers in found], dtype=bool)[owner[kept]]
    hidden = is_public(size, curator) | _rounding(size, steps, np.unique(size[inverse[alone]]))
    places = np.stack([inverse, owner[kept]], axis=1)[np.argsort(inverse, kind="stable")]
    return ReleasedNumbers(found, flat[kept][first], steps, noise_size, hidden, places)


def _noise(values: np.ndarray, curator: Curator) -> np.ndarray:
    """Return the root mean squared distance to the nearest curator's vector of that length, for each entry."""
    distance = np.inf
    if values.ndim == 1 and values.size >= SHORTEST:
        for other in curator.vectors.values():
            if other.shape == values.shape:
                apart = float(np.sqrt(np.nanmean((values - other) ** 2)))
                # a copy is no noise: its numbers are compared as they are
                distance = min(distance, apart if apart > 1e-6 * float(np.abs(values).max()) else np.inf)
    return np.full(values.size, distance)


def is_public(size: np.ndarray, curator: Curator) -> np.ndarray:
    """Return which sizes are public numbers, as doubles or through float32."""
    pool = np.unique(np.abs(np.concatenate([np.zeros(0), *map(np.ravel, curator.public)])))
    slack = np.where(size.astype(np.float32) == size, 2.0**-24, _SAME) * size
    return np.searchsorted(pool, size + slack, side="right") > np.searchsorted(pool, size - slack, side="left")


def _rounding(size: np.ndarray, steps: np.ndarray, longer: np.ndarray) -> np.ndarray:
    """Return which short numbers are roundings of a longer one of the release, which is compared itself."""
    half = steps / 2 * (1 + 1e-9)
    near = np.searchsorted(longer, size + half, side="right") - np.searchsorted(longer, size - half, side="left")
    itself = np.isin(size, longer)
    return (near - itself > 0) & (size < 1e9 * steps)


@dataclass(frozen=True, eq=False)
class Pool:
    """Curator numbers of one kind: distinct sizes, sorted, with the name of each.

    Attributes:
        sizes: Sizes above 0, [m].
        names: Name of each, [m].
        public: How many were left out because they are public.
        coarse: How many because they have four digits or fewer.
    """

    sizes: np.ndarray
    names: np.ndarray
    public: int = 0
    coarse: int = 0


def make_pool(named: Mapping[str, np.ndarray], curator: Curator, coarse: bool = False) -> Pool:
    """Return the pool of named curator numbers, without public ones and (unless ``coarse``) short ones."""
    flat = np.abs(np.concatenate([np.zeros(0), *(np.ravel(values) for values in named.values())]))
    label = np.repeat(np.array(list(named), dtype=object), [np.size(values) for values in named.values()])
    size, first = np.unique(flat[np.isfinite(flat)], return_index=True)
    label = label[np.isfinite(flat)][first]
    public, short = is_public(size, curator), size < COARSE * grid_step(size, curator.sizes)
    out = (size == 0) | public | (short & (not coarse))
    return Pool(size[~out], label[~out], int(public.sum()), int((short & ~public).sum()))


def other_units(named: Mapping[str, np.ndarray], curator: Curator) -> dict[str, np.ndarray]:
    """Return curator numbers times and over the outcome range and the numbers of records."""
    units = {"the outcome range": curator.outcome_range, **{f"n = {n}": float(n) for n in curator.sizes}}
    return {
        f"{name} {word} {unit}": values * by if word == "times" else values / by
        for name, values in named.items()
        for unit, by in units.items()
        for word in ("times", "over")
        if by != 1
    }


def number_findings(
    released: ReleasedNumbers, pool: Pool, alpha: float
) -> tuple[Coincidences, list[Finding], list[Finding]]:
    """Hold the release's numbers against a pool, each kind with its share of alpha.

    Returns:
        The outcome, the matches beyond chance, and the short numbers among the others that chance explains badly.
    """
    outcome = coincidences(
        released.values[released.fine], released.steps[released.fine], released.noise_size[released.fine], pool.sizes
    )
    beyond: list[Finding] = []
    unlikely: list[Finding] = []
    for kind, name in enumerate(KINDS):
        members = np.flatnonzero(outcome.kinds == kind)
        part = outcome.among(members)
        significant = len(part.beyond_chance(alpha / len(KINDS)))
        for rank, (i, chance) in enumerate(zip(part.matched, part.expected_by_rank, strict=True)):
            if rank < significant or (name == "short" and chance <= UNLIKELY):
                finding = _match(released, int(released.fine[members[i]]), pool, int(part.nearest[i]), float(chance))
                (beyond if rank < significant else unlikely).append(finding)
    # among many there are some by chance, which need no naming
    return outcome, [f for f in beyond if f.chance <= 0.5] or beyond, unlikely


def _match(released: ReleasedNumbers, index: int, pool: Pool, other: int, chance: float) -> Finding:
    value, places = released.values[index], released.where(index)
    more = f" (and in {len(places) - 1} more places)" if len(places) > 1 else ""
    what = f"{kind_of(abs(value), released.steps[index], pool.sizes[other])}: {pool.names[other]}{more}"
    return Finding(places[0].file, places[0].place, what, repr(float(value)), chance)


def named_findings(released: ReleasedNumbers, curator: Curator) -> tuple[Coincidences, list[Finding], list[Finding]]:
    """Return the outcome by name, leaks found by name, and matches that chance may explain.

    A number that equals one of the curator's and stands by its name is a leak however few digits it has: an
    integer of 10 or more, or a number of four digits. Without the name, few digits may be chance. Such numbers that
    stand by any such name are what the search compares. A number of a text stands by the words next to it: a sentence
    about means and errors has many numbers that are none of these.
    """
    pool = make_pool({name: np.array(value) for name, value in curator.scalars.items()}, curator, coarse=True)
    index = np.flatnonzero(~released.hidden & (np.abs(released.values) >= 10 * released.steps))
    found = coincidences(released.values[index], released.steps[index], released.noise_size[index], pool.sizes)
    sizes = np.abs(released.values[index])
    told = (sizes >= _TOLD * released.steps[index]) | (sizes == np.rint(sizes))
    called_any = told & _standing_by(released, index, set().union(*map(_words, curator.scalars)))
    named: list[Finding] = []
    bare: list[Finding] = []
    for i in found.matched:
        value, step = abs(released.values[index[i]]), released.steps[index[i]]
        other, name = pool.sizes[found.nearest[i]], str(pool.names[found.nearest[i]])
        significant = value >= _TOLD * step or (value == other and value == np.rint(value))
        places = released.where(index[i])
        called = [p for p in places if _words(name) & _beside(p, value)] if significant else []
        place, what = (called or places)[0], f"{kind_of(value, step, other)}: {name}"
        finding = Finding(place.file, place.place, what, f"{value:.10g}", float(found.chance[i]))
        (named if called else bare).append(finding)
    return found.among(np.flatnonzero(called_any)), named, [finding for finding in bare if finding.chance <= UNLIKELY]


def _standing_by(released: ReleasedNumbers, index: np.ndarray, names: set[str]) -> np.ndarray:
    """Return which numbers stand by one of these words."""
    return np.array([any(names & _beside(p, abs(released.values[i])) for p in released.where(i)) for i in index], bool)


def _beside(numbers: Numbers, size: float) -> frozenset[str]:
    """Return the words that a number of this size stands by."""
    sizes = np.abs(numbers.values.ravel())
    return frozenset().union(*(words for words, each in zip(numbers.beside, sizes, strict=False) if each == size))


def _words(text: str) -> frozenset[str]:
    return words_of(text) - _PLAIN


def word_findings(contents: Contents, curator: Curator) -> list[Finding]:
    """Return words of the records' table and places on a machine that stand in the release."""
    findings = []
    readings = [_readings(words.text) for words in contents.words]
    tokens = {token for texts in readings for text in texts for token in re.findall(r"\w+", text)}
    public = _composed(curator.public_text)
    candidates = {
        word: re.compile("".join([*_edge(word[0], "(?<!\\w)"), re.escape(word), *_edge(word[-1], "(?!\\w)")]))
        for word in dict.fromkeys(map(_composed, curator.words))
        if word.strip() and word not in public
        if any(map(_within_text, word)) or tokens.issuperset(re.findall(r"\w+", word))
    }
    for words, texts in zip(contents.words, readings, strict=True):
        for word, pattern in candidates.items():
            if any(word in text and pattern.search(text) for text in texts):
                findings.append(Finding(words.file, words.place, "a word of the records' table", word))
        named = [path for path in curator.paths if re.search(rf"(?<![\w.]){re.escape(path)}(?!\w)", words.text)]
        for path in dict.fromkeys([*_PATH.findall(words.text), *named]):
            findings.append(Finding(words.file, words.place, "a place on a machine", path))
    return findings


def _composed(text: str) -> str:
    """Return a text with each letter and its marks as one, as far as there is such a letter."""
    return unicodedata.normalize("NFC", text)


def _readings(text: str) -> list[str]:
    """Return a text as it is, and without the escapes of JSON and of HTML."""
    found = [text]
    if "\\" in text:
        plain = re.sub(r"\\u([0-9a-fA-F]{4})", lambda digits: chr(int(digits[1], 16)), text)
        plain = plain.encode("utf-16", "surrogatepass").decode("utf-16", "replace")  # pairs of escapes are one letter
        found.append(re.sub(r"\\(.)", r"\1", plain))
    if "&" in text:
        found += [html.unescape(reading) for reading in found]
    return [_composed(reading) for reading in dict.fromkeys(found)]


def _within_text(letter: str) -> bool:
    """Return whether a letter is of a script without small and capital ones, some of which set no spaces."""
    return unicodedata.category(letter) == "Lo"


def _edge(letter: str, boundary: str) -> list[str]:
    return [] if _within_text(letter) else [boundary]


def copied_vectors(released: ReleasedNumbers, curator: Curator, alpha: float) -> tuple[int, list[Finding]]:
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


def _of_length(released: ReleasedNumbers, curator: Curator) -> dict[int, _Held]:
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


def copied_records(released: ReleasedNumbers, curator: Curator, alpha: float) -> tuple[int, list[Finding]]:
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
