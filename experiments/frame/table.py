"""Published numbers with ours beside them."""

import math
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from statistics import fmean, stdev

from experiments.frame.study import CERTIFIED, FREE, NO_PRIVACY, OTHER, PRINTED, Found, Place, Published


@dataclass(frozen=True)
class Summary:
    """Mean of a method at a place over all repeats that are done; ``error`` is nan for one repeat."""

    place: Place
    role: str
    method: str
    level: str
    repeats: int
    mean: float
    error: float


@dataclass(frozen=True)
class Row:
    """A place with what is known of it; None where there is nothing.

    Attributes:
        place: Where.
        published: The printed cell.
        printed: Ours, by the paper's mechanism as printed; without privacy where the place is.
        certified: Ours, certified.
        free: Ours, without privacy.
        comparable: Whether ours are on data like the paper's.
    """

    place: Place
    published: Published | None
    printed: Summary | None
    certified: Summary | None
    free: Summary | None
    comparable: bool = True

    @property
    def reproduced(self) -> float:
        """Ours as printed minus published, in standard errors of the difference; nan where one is not a mean."""
        return difference(self.published, self.printed) if self.comparable else math.nan

    @property
    def gained(self) -> float:
        """Ours certified minus published, likewise."""
        return difference(self.published, self.certified) if self.comparable else math.nan


def difference(published: Published | None, ours: Summary | None) -> float:
    """Return ours minus published in standard errors; where the paper prints no spread, ours stands for it."""
    if published is None or ours is None or published.qualifier != "=":
        return math.nan
    theirs = published.error
    if math.isnan(theirs):
        theirs = ours.error * math.sqrt(ours.repeats / published.repeats) if published.repeats else 0.0
    scale = math.hypot(ours.error, theirs)
    return (ours.mean - published.value) / scale if scale > 0 else math.nan


def summarise(found: Iterable[Found]) -> list[Summary]:
    """Return a mean for each method and place, values of all cells together."""
    pooled: dict[tuple[Place, str, str, str], list[float]] = {}
    for one in found:
        pooled.setdefault((one.place, one.role, one.method, one.level), []).extend(one.values)
    return [
        Summary(*key, len(values), fmean(values), stdev(values) / math.sqrt(len(values)) if values[1:] else math.nan)
        for key, values in pooled.items()
    ]


def join(published: Sequence[Published], found: Sequence[Summary], stand_ins: Collection[str] = ()) -> list[Row]:
    """Return a row for each published cell, and for each other place that a printed or certified method has.

    Args:
        published: Published cells.
        found: All that was found.
        stand_ins: Tables whose data are not the paper's.

    Raises:
        ValueError: Two methods have the same role at the same place.
    """
    by_place: dict[tuple[str, Place], Summary] = {}
    for one in found:
        if one.role != OTHER and by_place.setdefault((one.role, one.place), one) is not one:
            raise ValueError(
                f"two {one.role} methods at {one.place}: {by_place[one.role, one.place].method}, {one.method}"
            )
    rows = [_row(one.place, one, by_place) for one in published]
    taken = {row.place for row in rows}
    used = {id(one) for row in rows for one in (row.printed, row.certified, row.free)}
    for role in (PRINTED, CERTIFIED, FREE):
        for place in (place for other, place in by_place if other == role):
            if place not in taken and id(by_place[role, place]) not in used:
                rows.append(_row(place, None, by_place))
                taken.add(place)
                used |= {id(rows[-1].printed), id(rows[-1].certified), id(rows[-1].free)}
    return [replace(row, comparable=row.place.table not in stand_ins) for row in rows]


def _row(place: Place, published: Published | None, by_place: dict[tuple[str, Place], Summary]) -> Row:
    def at(role: str, where: Place) -> Summary | None:
        return by_place.get((role, where)) or by_place.get((role, replace(where, variant="")))

    free = at(FREE, replace(place, epsilon=NO_PRIVACY))
    if place.epsilon == NO_PRIVACY:
        return Row(place, published, free, None, free)
    return Row(place, published, at(PRINTED, place), at(CERTIFIED, place), free)
