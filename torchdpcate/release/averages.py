"""Averages of one composition: of effects with intervals, and what they were made of."""

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, NamedTuple, Self

import numpy as np
import torch
from torch import Tensor

from torchdpcate.errors import MissingError
from torchdpcate.release.estimate import quantile

AVERAGE, ARM = "average", "arm "
"""The line of everybody, and how those of more than two arms begin: each against the reference."""
TILTS = {"ATT": (1.0, 0.0), "ATC": (0.0, 1.0), "ATO": (1.0, 1.0)}
"""Averages of people weighted by e^a (1 - e)^b that have a name: a and b; others are called ``beta:a:b``."""
GROUPS, RULE, SLOPE, POLICIES = "groups", "rule", "slope", "policies"
REQUESTS = (GROUPS, *TILTS, SLOPE, RULE, POLICIES)
"""Lines that may be requested beside the average."""
OVER = {" over none": "nobody", " over all": "everybody"}
"""How names of values end, and whom a treatment is compared with."""
VALUES = tuple(f"rule{over}" for over in OVER)
"""Values of treating by the released effect, over treating nobody and everybody."""
PARTS = ("sampling", "noise", "clip", "nuisances")
"""What the variance of a line is made of."""
NO_LINES = "this release has no lines: {}"
_BETA = re.compile(r"beta:([0-9]*\.?[0-9]+):([0-9]*\.?[0-9]+)")


def powers(name: str) -> tuple[float, float] | None:
    """Return a and b of an average of people weighted by e^a (1 - e)^b, both in [0, 1]; None of other lines.

    Example:
        >>> powers("ATO"), powers("beta:.5:1"), powers("slope"), powers("beta:2:0")
        ((1.0, 1.0), (0.5, 1.0), None, None)
    """
    found = _BETA.fullmatch(name)
    a, b = TILTS.get(name, (-1.0, -1.0)) if found is None else (float(found[1]), float(found[2]))
    return (a, b) if 0 <= a <= 1 and 0 <= b <= 1 else None


def tilts_of(names: Iterable[str]) -> list[str]:
    """Return those of some lines that are averages of weighted people."""
    return [name for name in names if powers(name) is not None]


ABOUT = {
    "average": "everybody",
    "ATE": "everybody",
    "ATT": "those who were treated",
    "ATC": "those who were not treated",
    "ATO": "those who might have got either",
    "rule over none": "the rule over treating nobody",
    "rule over all": "the rule over treating everybody",
}
"""Whom an average is about, by the name of its line or estimand."""


def whom(name: str) -> str:
    """Return whom a line or an estimand is about, in words.

    Example:
        >>> whom("beta:0.5:0.5")
        'people weighted by e^0.5 (1 - e)^0.5, e their chance of treatment'
    """
    of = powers(name)
    if name in ABOUT or of is None:
        return ABOUT.get(name, f"those of the estimand {name}")
    return f"people weighted by e^{of[0]:g} (1 - e)^{of[1]:g}, e their chance of treatment"


def group_title(k: int, count: int) -> str:
    """Return who the k-th group of so many by effect is, in words, from 1 for the least effects.

    Example:
        >>> [group_title(k, 3) for k in (1, 2, 3)][::2]
        ['those with the lowest predicted effects', 'those with the highest predicted effects']
        >>> group_title(2, 3), group_title(2, 4)
        ('those with the middle predicted effects', 'group 2 of 4 by predicted effect')
    """
    if k not in (1, count):
        return "those with the middle predicted effects" if count == 3 else f"group {k} of {count} by predicted effect"
    return f"those with the {'lowest' if k == 1 else 'highest'} predicted effects"


class Ruled(NamedTuple):
    """What a rule decides by whose values are requested, in outcome units.

    Attributes:
        at: Effect, as the regression has it, at which the decision changes.
        cost: Of a treatment, which values count.
    """

    at: float
    cost: float


@dataclass(frozen=True, eq=False)
class LineFacts:
    """Released numbers that the sums of scores were planned by: the effect and the nuisances over public people.

    Attributes:
        centre: Mean effect, about which scores are clipped, outcome units.
        deviation: Of scores, planned by the residual scale and the propensities, outcome units.
        inverse: Mean of 1 / (e (1 - e)), e the propensity.
        residual: Deviation of residuals, outcome units.
        largest: The .9 quantile of 1 / min(e, 1 - e) times the outcome's range, outcome units.
        outcome: Mean outcome, outcome units.
        treated: Mean propensity.
        outcome_deviation: Of outcomes, outcome units.
        effect_deviation: Of effects, outcome units.
        left_over: Variance of what a second look at the nuisances leaves of the average, squared outcome units.
        hidden: Variance of scores over that of clipped ones, of normal residuals.
        tilts: Of requested averages of people weighted by h mean h^2 / (e (1 - e)), and largest weight, [T, 2].
        cuts: Effects that separate the groups, ascending, outcome units, [K - 1]; empty where effects hardly vary.
        rule: What a rule decides by; None: its values are not requested.
    """

    centre: float
    deviation: float
    inverse: float
    residual: float
    largest: float
    outcome: float
    treated: float
    outcome_deviation: float
    effect_deviation: float
    left_over: float
    hidden: float
    tilts: Tensor
    cuts: Tensor
    rule: Ruled | None = None

    def tensors(self) -> dict[str, Tensor]:
        """Return them by name: all single numbers as one."""
        single = [getattr(self, name) for name in self._single()]
        found = {"single": torch.tensor(single, dtype=torch.float64), "tilts": self.tilts, "cuts": self.cuts}
        return found | ({} if self.rule is None else {"rule": torch.tensor(self.rule, dtype=torch.float64)})

    @classmethod
    def _single(cls) -> list[str]:
        return [f.name for f in fields(cls) if f.type is float]

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, Tensor]) -> Self:
        """Inverse of ``tensors``.

        Raises:
            ValueError: Other shapes.
        """
        names, rule = cls._single(), tensors.get("rule")
        shapes = tensors["single"].shape, tensors["tilts"].shape, tensors["cuts"].ndim
        if shapes != ((len(names),), (len(tensors["tilts"]), 2), 1) or (rule is not None and rule.shape != (2,)):
            raise ValueError("lines: facts of other shapes")
        single = dict(zip(names, tensors["single"].tolist(), strict=True))
        own = None if rule is None else Ruled(*rule.tolist())
        return cls(**single, tilts=tensors["tilts"], cuts=tensors["cuts"], rule=own)


@dataclass(frozen=True, eq=False)
class LineNumbers:
    """What the records were requested for their lines.

    Attributes:
        facts: What the sums were planned by.
        square: Mean square of scores about the centre, clipped far out, in squared far clips.
        sums: Sums of scores, counts and squares, each over what one record moves it, [m].
        others: The same of further arms against the reference, where there are more than two.
    """

    facts: LineFacts
    square: float
    sums: Tensor
    others: "tuple[LineNumbers, ...]" = ()

    def tensors(self) -> dict[str, Tensor]:
        """Return them by name."""
        square = torch.tensor([self.square], dtype=torch.float64)
        found = {"square": square, "sums": self.sums} | {f"facts.{k}": t for k, t in self.facts.tensors().items()}
        for place, other in enumerate(self.others):
            found |= {f"{place}.{name}": value for name, value in other.tensors().items()}
        return found

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, Tensor]) -> Self:
        """Inverse of ``tensors``.

        Raises:
            ValueError: Other shapes.
        """
        facts = {name.removeprefix("facts."): t for name, t in tensors.items() if name.startswith("facts.")}
        if tensors["square"].shape != (1,) or tensors["sums"].ndim != 1:
            raise ValueError("lines: numbers of other shapes")
        count = len({name.split(".")[0] for name in tensors if name[0].isdigit()})
        others = (
            {name.removeprefix(f"{k}."): t for name, t in tensors.items() if name.startswith(f"{k}.")}
            for k in range(count)
        )
        own = LineFacts.from_tensors(facts), tensors["square"].item(), tensors["sums"]
        return cls(*own, tuple(cls.from_tensors(other) for other in others))


@dataclass(frozen=True, eq=False)
class Averages:
    r"""Averages of effects with intervals: of everybody, of groups, of weighted people; the calibration of the effect.

    .. math:: \hat\theta \pm z \Big(\tfrac{\hat v}{n} + \sigma^2 + v_b + v_\eta\Big)^{1/2}

    with variances of sampling, of noise, of what the clip of scores may hide, and of what the nuisances may have lost,
    a curve of censoring among them.

    Attributes:
        names: Of the lines: ``average``, ``group 1`` (least effects) to ``group K``, ``ATT``, ``ATC``, ``ATO``,
            ``slope``, ``rule over none``, ``rule over all``, and those of a cell with the same ends.
        estimates: [L], outcome units a person; the slope without a unit.
        variances: Of each of ``PARTS``, [L, 4].
        records: Released share of the records that a line is about, [L].
        clipped: Released share of scores beyond the clip.
        lacking: Share of either arm's weight that the stated overlap makes up for, at least: what is so much less
            likely than stated by the released propensity; nought where that is known.
        level: What the effect is moved by before a rule decides by it, outcome units; None where it has no values.
    """

    names: tuple[str, ...]
    estimates: Tensor
    variances: Tensor
    records: Tensor
    clipped: float
    lacking: float
    level: float | None = None

    def __contains__(self, name: object) -> bool:
        return name in self.names

    def place(self, name: str) -> int:
        """Return the position of a line.

        Raises:
            MissingError: There is none of that name.
        """
        if name not in self.names:
            raise MissingError(f"lines: none is called {name!r}; there are {', '.join(self.names)}")
        return self.names.index(name)

    def estimate(self, name: str = AVERAGE) -> float:
        """Return the estimate of a line."""
        return float(self.estimates[self.place(name)])

    def error(self, name: str = AVERAGE) -> float:
        """Return the standard error of a line."""
        return float(self.variances[self.place(name)].sum().sqrt())

    @property
    def own_variance(self) -> float:
        """Variance of the average by noise and by what the clip may hide, without sampling."""
        return float(self.variances[0, [PARTS.index("noise"), PARTS.index("clip")]].sum())

    def interval(self, name: str = AVERAGE, level: float = 0.95) -> tuple[float, float]:
        """Return the ends of a line's interval.

        Args:
            name: Of the line.
            level: Probability in (0, 1).

        Raises:
            InputError: A level outside (0, 1).
            MissingError: No line of that name.
        """
        half = float(quantile(level)) * self.error(name)
        return self.estimate(name) - half, self.estimate(name) + half

    def noise(self, names: Sequence[str]) -> np.ndarray:
        """Return the standard deviation of the noise in some lines, float64 [lines]."""
        rows = self.variances[[self.place(name) for name in names]]
        found: np.ndarray = rows[:, PARTS.index("noise")].sqrt().numpy()
        return found

    @property
    def groups(self) -> tuple[str, ...]:
        """Names of the lines of groups by effect, least effects first."""
        return tuple(name for name in self.names if name.startswith("group "))

    @property
    def cells(self) -> tuple[str, ...]:
        """Names of the lines of public cells."""
        others = (AVERAGE, *tilts_of(self.names), SLOPE, *VALUES, *self.groups, *self.policies)
        return tuple(name for name in self.names if name not in others)

    @property
    def policies(self) -> dict[str, str]:
        """Names of the lines of values of treating exactly one public cell, with what they are about in words."""
        found = {
            f"{cell}{over}": f"treating {cell} over treating {of}" for cell in self.names for over, of in OVER.items()
        }
        return {name: found[name] for name in self.names if name in found}

    @property
    def values(self) -> tuple[str, ...]:
        """Names of the lines of a rule's values: of one that treats everybody or nobody there is one."""
        return tuple(name for name in VALUES if name in self.names)

    def titles(self) -> list[str]:
        """Return whom each line is about, in words."""
        groups = self.groups
        words = {name: group_title(k + 1, len(groups)) for k, name in enumerate(groups)}
        words |= {name: whom(name) for name in (*ABOUT, *tilts_of(self.names))} | self.policies
        return [words.get(name, name) for name in self.names]

    def tensors(self) -> dict[str, Tensor]:
        """Return them by name."""
        clipped, lacking = (torch.tensor([share], dtype=torch.float64) for share in (self.clipped, self.lacking))
        return {
            "estimates": self.estimates,
            "variances": self.variances,
            "records": self.records,
            "clipped": clipped,
            "lacking": lacking,
        } | ({} if self.level is None else {"level": torch.tensor([self.level], dtype=torch.float64)})

    @classmethod
    def from_tensors(cls, names: Any, tensors: Mapping[str, Tensor]) -> Self:
        """Inverse of ``tensors``, with the names of the lines.

        Raises:
            ValueError: Other shapes.
        """
        found, count = tuple(map(str, names)), len(names)
        shapes = {"estimates": (count,), "variances": (count, len(PARTS)), "records": (count,)}
        shapes |= {"clipped": (1,), "lacking": (1,)}
        level = tensors.get("level")
        if (
            {name: tuple(t.shape) for name, t in tensors.items()} != shapes | ({} if level is None else {"level": (1,)})
            or not count
            or found[0] not in (AVERAGE, f"{ARM}1")
        ):
            raise ValueError("lines: other shapes or names")
        if bool((tensors["variances"] < 0).any()):
            raise ValueError("lines: a negative variance")
        shares = tensors["clipped"].item(), tensors["lacking"].item()
        parts = tensors["estimates"], tensors["variances"], tensors["records"], *shares
        return cls(found, *parts, None if level is None else level.item())


def level_of(apart: float, variance: float) -> float:
    r"""Return what an effect is moved by towards a line: :math:`d\,(1 - \mathrm{var} / d^2)_+`.

    Where their difference may be noise the level of the effect stays.

    Args:
        apart: d, the line less the effect's mean, outcome units.
        variance: Of the line, without sampling.

    Example:
        >>> level_of(0.5, 0.01), level_of(0.1, 0.02)
        (0.48, 0.0)
    """
    return apart * max(0.0, 1.0 - variance / apart**2) if apart else 0.0


def robustness(effect: float, deviation: float) -> float:
    r"""Return how strong an unmeasured confounder must be to bring an effect to zero: of both what is left.

    .. math:: \mathrm{RV} = \tfrac12\big((q^4 + 4 q^2)^{1/2} - q^2\big), \quad q = |\theta| / \sigma_\varphi

    It is the share of what is left of the outcome, and of the treatment's weights, that the confounder explains; with a
    bias of at most :math:`\sigma_\varphi (\eta_Y \eta_A / (1 - \eta_A))^{1/2}`. Source: Chernozhukov, Cinelli, Newey,
    Sharma & Syrgkanis (2022), Long story short, section 3; Cinelli & Hazlett (2020), equation 18.

    Args:
        effect: theta, outcome units.
        deviation: Of scores, outcome units.

    Example:
        >>> round(robustness(0.3, 1.0), 4)
        0.2584
    """
    q = abs(effect) / deviation
    return (math.sqrt(q**4 + 4 * q**2) - q**2) / 2
