"""How treatment was given: records drawn one by one, clusters of them, or one record of each pair."""

import math
import warnings
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from torchdpcate.data._arrays import plural
from torchdpcate.data.facts import check_entries, check_name, to_number
from torchdpcate.data.persons import person_names
from torchdpcate.data.records import DIFFERENCES, CausalData
from torchdpcate.errors import InputError, MissingError
from torchdpcate.privacy.unit import PrivacyUnit

if TYPE_CHECKING:
    import pandas as pd

_LARGE_SHARE = 0.05  # of differences that are moved, from which on a curator is warned
NEEDED = (
    "an interval must count clusters, whose own sums nobody paid for; in their place give public upper bounds of their "
    "records and of the correlation within them, as assignment: {clusters: {name: school, size: 40, correlation: 0.05}}"
)
"""What clusters without numbers lack."""
NO_INTERVALS = (
    "records come in clusters (assignment: in the domain), which intervals of this estimate do not count; "
    "task=subgroups and task=average_effect (SubgroupEffects) have intervals that do"
)
"""Why other releases have no intervals."""


@dataclass(frozen=True)
class Cluster:
    r"""What is public of the clusters that a trial assigned as a whole, such as schools.

    Where two records of one arm in a cluster have outcomes of a correlation of at most :math:`\rho` in size, and no
    cluster has more than m records, a sum of what records add has at most

    .. math:: \mathrm{var} \sum_i t_i \le \sum_i \mathrm{var}\, t_i + \rho \sum_c \sum_{i \ne j \in c}
        \sqrt{\mathrm{var}\, t_i\, \mathrm{var}\, t_j} \le (1 + (m - 1) \rho) \sum_i \mathrm{var}\, t_i

    which is the design effect (Donner & Klar 2000), by which intervals multiply the sampling variance. Privacy is by
    record, or by person, all the same.

    Attributes:
        name: The table's column that tells whose cluster a record is in; it is read to check that none is larger than
            ``size`` and that all records of one have the same arm, and for nothing else.
        size: m, a public upper bound of the records of a cluster; None where it is not known.
        correlation: rho, a public upper bound; None where it is not known.

    Raises:
        InputError: A size that is no positive integer, a correlation outside [0, 1], or one of them without the other.

    Example:
        >>> round(Cluster("school", 40, 0.05).design_effect, 6)
        2.95
    """

    name: str
    size: int | None = None
    correlation: float | None = None

    def __post_init__(self) -> None:
        check_name("cluster", self.name)
        if (self.size is None) != (self.correlation is None):
            raise InputError(f"cluster {self.name!r}: give size and correlation, or neither: {NEEDED}")
        if self.size is None or self.correlation is None:
            return
        if isinstance(self.size, bool) or not isinstance(self.size, int) or self.size < 1:
            raise InputError(f"size of cluster {self.name!r} is {self.size!r}; give a positive integer")
        rho = to_number(f"correlation of cluster {self.name!r}", self.correlation)
        if not 0 <= rho <= 1:
            raise InputError(f"correlation of cluster {self.name!r} is {rho:g}; give a number from 0 to 1")
        object.__setattr__(self, "correlation", rho)

    @classmethod
    def of(cls, entry: Any) -> "Cluster":
        """Return the clusters that a domain file states: a column's name, or its ``name``, ``size``, ``correlation``.

        Raises:
            InputError: Other entries, or see the class.
        """
        if not isinstance(entry, Mapping):
            return cls(str(entry))
        check_entries(entry, "cluster", {"name"}, {"size", "correlation"})
        return cls(str(entry["name"]), entry.get("size"), entry.get("correlation"))

    def entry(self) -> Any:
        """Return what a domain file has for it."""
        known = {"name": self.name, "size": self.size, "correlation": self.correlation}
        return {"clusters": self.name if self.size is None else known}

    @property
    def _known(self) -> tuple[int, float]:
        """Size and correlation."""
        if self.size is None or self.correlation is None:
            raise MissingError(f"cluster {self.name!r}: {NEEDED}")
        return self.size, self.correlation

    @property
    def design_effect(self) -> float:
        """By what intervals multiply the sampling variance.

        Raises:
            MissingError: Size and correlation are not known.
        """
        size, correlation = self._known
        return 1 + (size - 1) * correlation

    @property
    def assumption(self) -> str:
        """What intervals rest on, in words.

        Raises:
            MissingError: Size and correlation are not known.
        """
        size, correlation = self._known
        return (
            f"clusters ({self.name}) were randomised as a whole, are many and independent, and have at most "
            f"{size} records each, whose outcomes, times their weights, are correlated by at most "
            f"{correlation:g} in size"
        )

    @property
    def columns(self) -> tuple[str, ...]:
        """The table's columns that are read for it."""
        return (self.name,)

    def sizes(self, column: "pd.Series", a: Tensor) -> dict[tuple[str, float], int]:
        """Return how many records of each arm each named cluster has; a missing name is in none of them.

        Args:
            column: Whose cluster each record is in.
            a: Treatment [n].
        """
        names = column.where(column.isna(), column.astype(str).str.strip())
        there = names.notna().to_numpy()
        return Counter(zip(names[there], a.numpy()[there].tolist(), strict=True))

    def check(self, sizes: Mapping[tuple[str, float], int]) -> None:
        """Refuse a table in which a cluster has records of several arms, or is larger than stated.

        Args:
            sizes: Of the clusters of all records, as ``sizes`` returns them.

        Raises:
            InputError: There is one; how large it is is not said, for a bound is no record's to tell.
        """
        if len({name for name, _ in sizes}) < len(sizes):
            raise InputError(
                f"column {self.name!r} has clusters with records of several arms, and clusters are assigned whole; "
                f"where one of two records is treated say assignment: {{pairs: {self.name}}}, else leave it out"
            )
        if self.size is not None and max(sizes.values(), default=0) > self.size:
            raise InputError(
                f"column {self.name!r} has a cluster of more than size = {self.size} records; give a bound that is "
                "public and holds for all, such as the most that a protocol allows; take none from the table"
            )


@dataclass(frozen=True)
class Pairs:
    r"""Pairs of records of which one is treated: matched people, two eyes, or two periods of one person.

    A pair is one record of a fit: its outcome is the difference within it,

    .. math:: d = y_{treated} - y_{control} \in [-R, R]

    for outcomes in a range of R; a covariate is the mean of both records', and a category by which subgroups are
    divided must be the same in both. Who replaces a record, or both, of a pair replaces one d: the pair is protected as
    a whole.

    Attributes:
        name: The table's column that tells which pair a record is in.
        period: That of the two periods of a crossover, where a pair is a person; None of other pairs.
        most: Public bound of a difference where R is much larger: those beyond are refused, or clipped.

    Raises:
        InputError: A bound that is not positive.
    """

    name: str
    period: str | None = None
    most: float | None = None

    def __post_init__(self) -> None:
        for name in self.columns:
            check_name("pairs", name)
        if self.most is not None and not to_number("most", self.most) > 0:
            raise InputError(f"most of pairs {self.name!r} is {self.most}; give a public bound above 0")

    @property
    def unit(self) -> PrivacyUnit:
        """Who is protected: a pair, of a crossover a person."""
        return PrivacyUnit.person(self.name) if self.period is not None else PrivacyUnit.person(self.name).paired()

    def entry(self) -> Any:
        """Return what a domain file has for it."""
        said = {"pairs" if self.period is None else "crossover": self.name, "period": self.period, "most": self.most}
        return {key: fact for key, fact in said.items() if fact is not None}

    @property
    def columns(self) -> tuple[str, ...]:
        """The table's columns that are read for it."""
        return (self.name,) if self.period is None else (self.name, self.period)

    def assumption(self, drawn: bool) -> str:
        """Return what estimates and intervals rest on, in words.

        Args:
            drawn: Whether it was drawn who of a pair is treated.
        """
        other = ", who was treated depends on nothing else that drives the outcome"
        why = f"in each pair{' it was drawn with probability 1/2 who is treated' if drawn else other}"
        if self.period is not None:
            why = (
                "which arm came first was drawn with probability 1/2, so that differences between periods cancel on "
                "average, and nothing is carried over from one period to the next"
            )
        return f"{why}; pairs ({self.name}) are many and independent"

    def fold(self, records: CausalData, frame: Any, greatest: float = math.inf) -> CausalData:
        """Return the pairs of records, each as one; ``follow_up`` has the outcomes of control and treated, [pairs, 2].

        Args:
            records: Within their bounds.
            frame: Their ``columns``.
            greatest: The largest difference: larger ones, which ``within`` moves, are counted.

        Raises:
            InputError: A column that is missing, a pair that is not one record of each arm, or a crossover that is not
                one record of each of two periods.

        Example:
            >>> import pandas as pd
            >>> y = torch.tensor([3.0, 1.0, 2.0, 7.0], dtype=torch.float64)
            >>> rows = CausalData(y[:, None], torch.tensor([1.0, 0.0, 0.0, 1.0]), y)
            >>> frame = pd.DataFrame({"pair": ["a", "b", "a", "b"]})
            >>> Pairs("pair").fold(rows, frame).y.tolist()
            [1.0, 6.0]
        """
        import numpy as np
        import pandas as pd

        lacking = [name for name in self.columns if name not in frame]
        if lacking:
            raise InputError(f"X lacks the column {lacking[0]!r} of assignment:; add it")
        codes = pd.factorize(person_names(frame[self.name]))[0]
        sizes, treated = np.bincount(codes), np.bincount(codes, records.a.numpy())
        if wrong := int(((sizes != 2) | (treated != 1)).sum()):
            raise InputError(
                f"column {self.name!r} has {plural(wrong, 'name')} without one treated and one untreated record; bring "
                "both of each pair that the protocol lists, and where an outcome is missing keep its row and say "
                "missing: drop"
            )
        order = np.lexsort((records.a.numpy(), codes))
        if self.period is not None:
            periods, levels = pd.factorize(frame[self.period].astype(str).str.strip())
            if len(levels) != 2 or (periods[order].reshape(-1, 2).sum(1) != 1).any():
                raise InputError(
                    f"column {self.period!r} has not two periods, of which each {self.name} has one record each; of "
                    f"more periods take two by the protocol, and of pairs without any say {{pairs: {self.name}}}"
                )
        control, second = (records.subset(torch.from_numpy(rows)) for rows in order.reshape(-1, 2).T)
        both = torch.stack([control.y, second.y], 1)
        weight = None
        if control.weight is not None and second.weight is not None:
            weight = control.weight * second.weight
            both = torch.where(weight[:, None] > 0, both, both[:, :1])  # no difference of what is missing
        x, ones = (control.x + second.x) / 2, torch.ones_like(control.y)
        d = both[:, 1] - both[:, 0]
        beyond = int((d.abs() > greatest).sum())
        found = {**records.clipped.moved, **({DIFFERENCES: beyond} if beyond else {})}
        clipped = replace(records.clipped, rows=records.n, moved=found) if beyond else records.clipped
        return CausalData(x, ones, d, clipped=clipped, weight=weight, follow_up=both)

    def within(self, d: Tensor, greatest: float, clip: bool) -> Tensor:
        """Return differences [pairs] within a public bound, moved to it where they are to be clipped.

        Warns where many are moved, for the effect is then that of moved differences.

        Raises:
            InputError: There are others; says how many.
        """
        beyond = int((d.abs() > greatest).sum())
        if beyond and not clip:
            raise InputError(
                f"column {self.name!r} has {plural(beyond, 'pair')} whose outcomes differ by more than most = "
                f"{greatest:g}; give a bound that is public, or clip with data.out_of_bounds=clip"
            )
        if beyond > _LARGE_SHARE * len(d):
            warnings.warn(
                f"column {self.name!r}: {plural(beyond, 'pair')} differ by more than most = {greatest:g} and were "
                "moved to it, and so is the effect; give a larger public bound, and publish this number nowhere",
                stacklevel=3,
            )
        return d.clamp(-greatest, greatest)


_ONE = "{clusters: {name: school, size: 40, correlation: 0.05}}, {pairs: COLUMN} or {crossover: PERSON, period: COLUMN}"
REFUSED = {
    "rule": (
        "nobody with the same covariates got the other arm, so that records tell of no average, subgroup or effect; "
        "what they tell, the effect at the threshold, needs a regression discontinuity, which is not here"
    ),
    "stepped_wedge": (
        "a cluster is in both arms, in periods that differ, and no interval here counts that; put the records of a "
        "period in which some clusters are treated and some not into a file of their own, with assignment: {clusters: "
        "...} and propensity: the share of clusters treated by then"
    ),
}


def assignment_of(entry: Any, propensity: Any) -> Cluster | Pairs | None:
    """Return how a domain file says that treatment was given; None of records that got it one by one.

    Args:
        entry: A word, ``randomised`` or ``cohort``, or a mapping.
        propensity: What the file has of it.

    Raises:
        InputError: No such design, one that no release here could answer, or a propensity that is not its own.
    """
    if entry in ("randomised", "cohort"):
        if (entry == "cohort") == (propensity is None):
            return None
        more = "state propensity:, the share that it treats" if propensity is None else "leave propensity: out"
        raise InputError(f"assignment is {entry}; {more}")
    given = dict(entry) if isinstance(entry, Mapping) else dict.fromkeys(REFUSED.keys() & {str(entry)})
    kind = next(iter(given.keys() & {"clusters", "pairs", "crossover", *REFUSED}), "")
    if kind in REFUSED:
        raise InputError(f"assignment by {kind}: {REFUSED[kind]}")
    if given.get(kind) is None:
        raise InputError(f"assignment is {entry!r}; give randomised, cohort, {_ONE}")
    if kind == "clusters":
        return Cluster.of(check_entries(given, "assignment", {kind}, set())[kind])
    check_entries(given, "assignment", {kind, "period"} if kind == "crossover" else {kind}, {"most"})
    if propensity != 0.5 and (kind == "crossover" or propensity is not None):
        if kind == "pairs":
            raise InputError("assignment by pairs: one of each pair is treated: give propensity: 0.5, or leave it out")
        raise InputError(
            f"assignment by crossover: propensity is {propensity or 'not stated'}, and must be 0.5: where one "
            "arm came first more often, a difference between periods does not cancel in the mean of differences, "
            "and nothing here counts it; of such a trial take the first period alone, with assignment: randomised"
        )
    period = str(given["period"]) if kind == "crossover" else None
    return Pairs(str(given[kind]), period, given.get("most"))
