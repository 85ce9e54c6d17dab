"""Outcomes by a horizon that follow-up may end before: what is public of them, and what a record is of it."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from torchdpcate.data._arrays import (
    MEND_CODES,
    as_frame,
    category_codes,
    is_frame,
    missing_columns,
    plural,
    to_float64,
)
from torchdpcate.data.covariates import Categorical
from torchdpcate.data.facts import check_entries, check_name, check_shown, to_number
from torchdpcate.errors import InputError

if TYPE_CHECKING:
    import pandas as pd

RESTRICTED_MEAN, EVENT_BY_HORIZON = "restricted_mean", "event_by_horizon"
"""What an outcome by a horizon may be: the time without the event up to it, or whether the event came by then."""
KINDS = (RESTRICTED_MEAN, EVENT_BY_HORIZON)
_SETTINGS: Mapping[str, Any] = {"floor": 0.2, "bins": 10, "by_arm": True}
_MOST_BINS = 1000
_EVENT = (
    "give a column of 0 and 1, or its codes as {name: status, success: 1, censored: 0}; all others are then competing "
    "events, or those alone that categories: [0, 1, 2] lists"
)
_MOST_HAZARD = 0.9  # of one part of the horizon: what noise says of few records
_DRAWS = 200


@dataclass(frozen=True)
class Censoring:
    r"""An outcome by a horizon tau, of records that were followed to a time t at which the event came (d = 1) or not.

    .. math:: Y = \min(T, \tau) \text{ or } 1\{T \le \tau\}, \qquad O = 1\{d = 1 \text{ or } t \ge \tau\}, \qquad
        v = \frac{g\, O}{\max(G(t-), g)}

    Y is known where O = 1; such a record counts for those like it whose follow-up ended before: v times, with the
    survival G of censoring, which is released from noisy counts, and a public floor g, so that v is in [0, 1].

    Where a competing event came, d = 2: then Y = 0, for the event never comes, or with a restricted mean Y = t, the
    time without either. Both are known, and d > 0 takes the place of d = 1 in O.

    Attributes:
        time: Column of t, from 0 on.
        event: Column of d.
        horizon: tau.
        kind: One of ``KINDS``.
        floor: g, in (0, 1]: about the least share whose follow-up is long enough; the least released G takes its place
            where that is larger. Noise grows as 1/g; where G falls below it, records near the horizon count too little.
        bins: How many equal parts of [0, tau] the counts have.
        by_arm: Whether each arm has a curve of its own; false where the design says that follow-up ends alike.
        levels: What the column of d may hold; where it is empty, all but ``censored`` and ``success`` are competing
            events.
        success: Which of it say that the event came.
        censored: Which of it says that follow-up ended without any event.
        label: What readers see in the place of the event's column; empty if nothing is said. Never compared.

    Raises:
        InputError: A value out of its range.

    Example:
        >>> month = Censoring.of({"time": "t", "event": "d", "horizon": 12.0, "kind": "event_by_horizon"})
        >>> follow_up = torch.tensor([[3.0, 1.0], [5.0, 0.0], [40.0, 1.0]])
        >>> month.outcome(month.within(follow_up)).tolist(), month.observed(month.within(follow_up)).tolist()
        ([1.0, 0.0, 0.0], [True, False, True])
    """

    time: str
    event: str
    horizon: float
    kind: str = RESTRICTED_MEAN
    floor: float = 0.2
    bins: int = 10
    by_arm: bool = True
    levels: tuple[str | int | float, ...] = (0, 1)
    success: tuple[str | int | float, ...] = (1,)
    censored: str | int | float = 0
    label: str = field(default="", compare=False)

    def __post_init__(self) -> None:
        for name in (self.time, self.event):
            check_name("a column", name)
        if self.time == self.event:
            raise InputError(f"time and event of the outcome are both {self.time!r}; give each a column of its own")
        known = (self.censored, *self.success)
        for levels in (known, self.levels or known):
            Categorical(self.event, levels)  # may refuse
        if self.levels and not {*known} <= {*self.levels}:
            raise InputError(f"event {self.event!r} has categories {list(self.levels)} without {known}; {_EVENT}")
        if not self.horizon > 0:
            raise InputError(f"horizon of the outcome is {self.horizon:g}; give a public time above 0")
        if self.kind not in KINDS:
            raise InputError(f"kind of outcome is {self.kind!r}; with time and event choose {' or '.join(KINDS)}")
        if not 0 < self.floor <= 1:
            raise InputError(f"censoring.floor is {self.floor:g}; give a public number above 0 and at most 1")
        if not isinstance(self.bins, int) or isinstance(self.bins, bool) or not 1 <= self.bins <= _MOST_BINS:
            raise InputError(f"censoring.bins is {self.bins!r}; give a number from 1 to {_MOST_BINS}")
        if not isinstance(self.by_arm, bool):
            raise InputError(f"censoring.by_arm is {self.by_arm!r}; give true or false")

    @classmethod
    def of(cls, entry: "Censoring | Mapping[str, Any] | None") -> "Censoring | None":
        """Return the outcome that an entry of a domain file says; None for one that is always known.

        Args:
            entry: ``time``, ``event``, ``horizon``, ``kind`` and ``censoring`` with ``floor``, ``bins``, ``by_arm``; an
                event that is not 0 and 1 has a ``name``, with two ``categories``, of which the second says that it
                came, or ``success`` (one or several) and ``censored``, and then any ``categories`` or none.

        Raises:
            InputError: No such entry.
        """
        if entry is None or isinstance(entry, Censoring):
            return entry
        check_entries(entry, "outcome by a horizon", {"time", "event", "horizon"}, {"kind", "censoring", "label"})
        settings = check_entries(entry.get("censoring", {}), "censoring", set(), set(_SETTINGS))
        found, event = {**_SETTINGS, **settings}, entry["event"]
        named = event if isinstance(event, Mapping) else {"name": event, "categories": [0, 1]}
        levels = named.get("categories", ())
        listed = isinstance(levels, list | tuple)
        if listed and len(levels) == 2:
            named = {"success": levels[1], "censored": levels[0], **named}
        if not listed or named.keys() - {"categories"} != {"name", "success", "censored"}:
            raise InputError(f"event of the outcome is {event!r}: a competing event is no censoring; {_EVENT}")
        success = named["success"]
        return cls(
            str(entry["time"]),
            str(named["name"]),
            to_number("horizon of the outcome", entry["horizon"]),
            entry.get("kind", RESTRICTED_MEAN),
            to_number("censoring.floor", found["floor"]),
            found["bins"],
            found["by_arm"],
            tuple(levels),
            tuple(success) if isinstance(success, list | tuple) else (success,),
            named["censored"],
            check_shown("label", "outcome", entry.get("label", "")),
        )

    @property
    def name(self) -> str:
        """The column that the outcome is called by."""
        return self.time if self.kind == RESTRICTED_MEAN else self.event

    @property
    def expected_weight(self) -> float:
        """Mean of v that plans expect: a floor between the public one and 1, as O / G has the mean one."""
        return math.sqrt(self.floor)

    @property
    def columns(self) -> tuple[str, str]:
        """Columns of time and event."""
        return self.time, self.event

    @property
    def facts(self) -> dict[str, Any]:
        """Bounds and kind of the outcome, by the names of a domain file."""
        if self.kind == EVENT_BY_HORIZON:
            return {"low": 0.0, "high": 1.0, "kind": "binary"}
        return {"low": 0.0, "high": self.horizon, "kind": "continuous"}

    def entry(self) -> dict[str, Any]:
        """Return plain types, fit for JSON, from which ``of`` makes the same."""
        settings = {"floor": self.floor, "bins": self.bins, "by_arm": self.by_arm}
        event = {"name": self.event, "success": list(self.success), "censored": self.censored}
        event |= {"categories": list(self.levels)} if self.levels else {}
        usual = (self.levels, self.success, self.censored) == ((0, 1), (1,), 0)
        own = {"time": self.time, "event": self.event if usual else event, "horizon": self.horizon, "kind": self.kind}
        return {**own, "censoring": settings, **({"label": self.label} if self.label else {})}

    @property
    def words(self) -> str:
        """What becomes of records whose follow-up ends before the horizon, and when that is right, in words."""
        event, followed = self.event_words, "follow-up" if self.label else f"follow-up ({self.time})"
        never = ", before any that competes," if self.competes else ""
        what = f"time without {event} up to" if self.kind == RESTRICTED_MEAN else f"whether {event} came{never} by"
        each, given = (" of each arm", ", given the arm,") if self.by_arm else ("", ", in both arms alike,")
        return (
            f"the outcome is {what} {self.horizon:g}; records whose {followed} ended before without it "
            f"count nothing, and others for those like them, by a released curve of {self.bins} parts{each}; it rests "
            f"on it that the end of follow-up{given} tells nothing of the event, and that at least {self.floor:g} of "
            "them are followed to the horizon"
        )

    @property
    def event_words(self) -> str:
        """The event by its label, or by its column and which of its codes say that it came, where it has others."""
        codes = "" if self.levels == (0, 1) else f" = {' or '.join(map(str, self.success))}"
        either = ", or one that competes" if self.levels and self.competes and self.kind == RESTRICTED_MEAN else ""
        return f"{self.label}{either}" if self.label else f"the event ({self.event}{codes}{either})"

    @property
    def competes(self) -> bool:
        """Whether there may be events that compete with this one."""
        return not self.levels or len(self.levels) > 1 + len(self.success)

    @property
    def known_ends(self) -> int:
        """How many kinds of events end a follow-up of which Y is another: those that compete by a horizon are one."""
        return 2 if self.competes and self.kind == EVENT_BY_HORIZON else 1

    def columns_of(self, Y: Any) -> "Tensor | pd.DataFrame":
        """Return time and d, float64 [n, 2], of a tensor that has them; of anything else a frame with their columns.

        Args:
            Y: A frame that has the columns, or two columns in this order.

        Raises:
            InputError: Neither.
        """
        import pandas as pd

        Y = as_frame(Y)
        if is_frame(Y):
            missing = missing_columns(self.columns, list(Y.columns))
            if missing:
                raise InputError(f"Y: {missing}")
            return Y  # type: ignore[no-any-return]
        given = Y if isinstance(Y, Tensor | np.ndarray) else np.asarray(Y, dtype=object)
        if given.ndim != 2 or given.shape[1] != 2:
            raise InputError(f"Y has shape {tuple(given.shape)}; give two columns, {self.time} and {self.event}")
        return to_float64(given, "Y") if isinstance(given, Tensor) else pd.DataFrame(given, columns=list(self.columns))

    def events(self, column: "pd.Series", missing: bool) -> np.ndarray:
        """Return d, float64 [n]: 1 where the event came, 2 where one that competes did, else 0; NaN where missing.

        Args:
            column: What the file says of events.
            missing: Whether values may be missing.

        Raises:
            InputError: Missing, non-numeric or unknown values; says how many.
        """
        known = self.levels or (self.censored, *self.success)
        remedy = f"a competing event is no censoring: {_EVENT}; or {MEND_CODES}"
        places = category_codes(column, self.event, known, remedy, missing=missing, others=not self.levels)
        meanings = [0.0 if code == self.censored else 1.0 if code in self.success else 2.0 for code in known]
        return np.array([*meanings, np.nan, 2.0])[places]  # the last is that of others, at -1

    def within(self, follow_up: Tensor) -> Tensor:
        """Return time and event up to the horizon, [n, 2]: a public map of each record, which twice is once.

        Args:
            follow_up: Time and event, [n, 2].
        """
        time = follow_up[:, 0].clamp(0, self.horizon)
        return torch.stack([time, torch.where(follow_up[:, 0] <= self.horizon, follow_up[:, 1], 0.0)], 1)

    def check(self, follow_up: Tensor, clip: bool) -> None:
        """Refuse times below 0, and d that is neither 0 nor 1, nor 2 where there may be competing events.

        Args:
            follow_up: Time and event, [n, 2].
            clip: Whether times below 0 are moved to it.

        Raises:
            InputError: Says how many.
        """
        codes = torch.arange(3 if self.competes else 2, dtype=follow_up.dtype, device=follow_up.device)
        below, other = int((follow_up[:, 0] < 0).sum()), int((~torch.isin(follow_up[:, 1], codes)).sum())
        if below and not clip:
            raise InputError(f"time {self.time!r} has {plural(below, 'value')} below 0; correct them")
        if other:
            raise InputError(f"event {self.event!r} has {plural(other, 'value')} other than 0 and 1; {_EVENT}")

    def outcome(self, follow_up: Tensor) -> Tensor:
        """Return Y [n] of what ``within`` returned; of what is not known, that of the end of follow-up."""
        return follow_up[:, 0] if self.kind == RESTRICTED_MEAN else (follow_up[:, 1] == 1).to(follow_up)

    def observed(self, follow_up: Tensor) -> Tensor:
        """Return O, bool [n], of what ``within`` returned."""
        return (follow_up[:, 1] > 0.5) | (follow_up[:, 0] >= self.horizon)


def columns_or_outcome(censoring: Censoring | None, outcome: str) -> Sequence[str]:
    """Return the columns of the outcome: time and event, or the one of this name."""
    return (outcome,) if censoring is None else censoring.columns


def censoring_curve(counts: Tensor, bins: int, kinds: int = 1) -> Tensor:
    r"""Return the survival of censoring at the ends of all parts, [curves, bins + 1]: Kaplan-Meier of counts.

    .. math:: h_k = \mathrm{clip}\Big(\frac{c_k}{r_k - e_k / 2},\; 0, .9\Big), \qquad G_k = \prod_{j < k} (1 - h_j)

    with c those whose follow-up ended in part k without an event, e those with one, which count half, and r all that
    were followed into it.

    Args:
        counts: Of the ends of follow-up, as of ``FollowUpCells``, with noise or without.
        bins: Parts of the horizon.
        kinds: Of events.

    Example:
        >>> counts = torch.tensor([0.0, 10.0, 20.0, 0.0, 70.0]).double()
        >>> censoring_curve(counts, 2).tolist()
        [[1.0, 0.8, 0.8]]
    """
    events, censored, beyond = counts.reshape(-1, (kinds + 1) * bins + 1).split([kinds * bins, bins, 1], 1)
    events = events.unflatten(1, (kinds, bins)).sum(1)
    at_risk = (events + censored).flip(1).cumsum(1).flip(1) + beyond
    hazard = (censored / (at_risk - events / 2).clamp_min(1)).clamp(0, _MOST_HAZARD)
    return torch.cat([torch.ones_like(beyond), (1 - hazard).cumprod(1)], 1)


def curve_errors(
    counts: Tensor,
    outcome: Censoring,
    noise: float,
    arms: int = 2,
    models: tuple[Tensor, Tensor] | None = None,
) -> Tensor:
    r"""Return what noise and the floor do to the difference of each arm and the first, [arms - 1]; post-processing.

    It is the root mean square, over draws of fixed seed, of the change of

    .. math:: \hat\mu_a = \frac{\sum_k n_{ak}\, y_k / G_a(t_k)}{\sum_k n_{ak} / G_a(t_k)}

    where the curves are made of counts with as much noise again, and the n, of events in the middle of their parts and
    of those followed to the horizon, stay. One curve of all arms moves each of their means as much as that of all.

    A doubly robust score divides an arm's residuals by its share s_a of all people, and not by the sum of its own
    weights N_a, which the noise of its curve moves too. So with an outcome's model of the mean m_a there

    .. math:: \hat\mu_a = m_a + \frac{N_a}{s_a \sum_b N_b} (\bar y_a - m_a), \qquad
        N_a = \sum_k \frac{n_{ak}}{G_a(t_k)}

    Args:
        counts: Of the ends of follow-up, as of ``FollowUpCells``, released.
        outcome: What is public of it.
        noise: Standard deviation of a count's noise.
        arms: Number of arms.
        models: m and s, [arms] each; None of differences in means.

    Example:
        >>> counts = torch.tensor([10.0, 10.0, 20.0, 0.0, 60.0] * 2).double()
        >>> outcome = Censoring("t", "d", 2.0, "event_by_horizon", bins=2)
        >>> curve_errors(counts, outcome, 0.0).tolist()
        [0.0]
    """
    bins, kinds, random = outcome.bins, outcome.known_ends, torch.Generator().manual_seed(0)
    draws = noise * torch.randn(_DRAWS, len(counts), generator=random, dtype=torch.float64)
    curves = censoring_curve(torch.cat([counts[None], counts[None] + draws]), bins, kinds).view(
        _DRAWS + 1, -1, bins + 1
    )
    below = curves[0].amin(1, keepdim=True) < outcome.floor
    curves = torch.where(below, curves, curves.clamp_min(outcome.floor))
    curves[0] = curves[0].clamp_min(outcome.floor)
    counts = counts.clamp_min(0).reshape(-1, (kinds + 1) * bins + 1)
    events, _, beyond = counts.split([kinds * bins, bins, 1], 1)
    known = torch.cat([events, beyond], 1)
    middles = (torch.arange(bins, dtype=torch.float64) + 0.5) * outcome.horizon / bins
    ends = torch.cat([middles.repeat(kinds), middles.new_tensor([outcome.horizon])])
    kind = torch.cat([torch.arange(1.0, kinds + 1).repeat_interleave(bins), torch.zeros(1)])
    y = outcome.outcome(torch.stack([ends, kind.double()], 1))
    at = torch.cat([(curves[..., :-1] + curves[..., 1:]).repeat(1, 1, kinds) / 2, curves[..., -1:]], 2)
    mass = (known / at).sum(2).clamp_min(1)
    means = (known / at @ y) / mass
    if models is not None and outcome.by_arm:
        means = (means - models[0]) * mass / mass.sum(1, keepdim=True) / models[1]
    change = means[1:] - means[0]
    each = change.square().mean(0)
    if not outcome.by_arm:
        return each.expand(arms - 1).sqrt()
    # shares of the weights move against each other, and what a floor does to each arm may not cancel in a cell
    return torch.maximum((change[:, 1:] - change[:, :1]).square().mean(0), each[1:] + each[0]).sqrt()


def planned_curve_error(outcome: Censoring, sizes: Tensor, noise: float, scored: bool = False) -> float:
    """Return the largest of ``curve_errors`` to expect, where half, or the floor, are followed to the horizon.

    Args:
        outcome: What is public of it.
        sizes: Records of each arm, [arms].
        noise: As of ``curve_errors``.
        scored: Whether it is of scores, with models that are the middle of the outcome's bounds.
    """
    ends, facts, share = (outcome.known_ends + 1) * outcome.bins, outcome.facts, max(0.5, outcome.floor)
    cells = torch.tensor([(1 - share) / ends] * ends + [share], dtype=torch.float64)
    counts = (sizes[:, None] * cells if outcome.by_arm else sizes.sum() * cells).flatten()
    models = torch.full_like(sizes, (facts["low"] + facts["high"]) / 2), sizes / sizes.sum()
    return float(curve_errors(counts, outcome, noise, len(sizes), models if scored else None).max())
