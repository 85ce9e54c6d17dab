"""Random laws of trials and cohorts, with the effects that are true of them; outcomes within public bounds."""

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Self

import numpy as np
import pandas as pd
import torch

from experiments.defaults.hospital_laws import FAMILIES, hospital_law
from experiments.designs.hospital_law import LEVELS
from torchdpcate.data.assignment import Cluster
from torchdpcate.data.domain import Domain
from torchdpcate.data.schema import TableSchema

Array = np.ndarray
COVARIATES = 6
STRONG = (0.6, 1.2)
"""Least and largest deviation of effects that are hard to find by features of one covariate or two."""
CLUSTER = 20
"""Records of a cluster."""


@dataclass(frozen=True)
class Draw:
    """Records of a law, and what is true of them.

    Attributes:
        x: Covariates [n, q] in [-2, 2].
        a: Arm of each record, [n]: 0 is the reference.
        y: Outcome [n], within ``bounds``.
        effect: True effect of each record, [n]; of K > 2 arms of each against the reference, [n, K - 1].
        propensity: True propensity, [n]; of K > 2 arms of each, [n, K].
        bounds: Of the outcome, public.
        overlap: Public bound of the propensity.
        known: The propensity, where the design knows it; of K > 2 arms one each.
        kind: Of outcome: ``continuous``, ``count`` or ``binary``.
        treated: Share of the treated, where it is public though the propensity is not.
        clusters: What is stated of them.
        table: Public facts of a table that has its own; None takes those above.
        cut: Of the first covariate: below it and from it on are two public cells.
    """

    x: Array
    a: Array
    y: Array
    effect: Array
    propensity: Array
    bounds: tuple[float, float]
    overlap: float
    known: float | list[float] | None
    kind: str = "continuous"
    treated: float | None = None
    clusters: Cluster | None = None
    table: TableSchema | None = None
    cut: float = 0.0

    def rows(self, which: slice) -> Self:
        """Return some of the records."""
        arrays = {one.name: getattr(self, one.name) for one in fields(self)}
        return replace(self, **{name: a[which] for name, a in arrays.items() if isinstance(a, np.ndarray)})

    @property
    def schema(self) -> TableSchema:
        """Public facts."""
        if self.table is not None:
            return self.table
        low, high = np.full(self.x.shape[1], -2.0), np.full(self.x.shape[1], 2.0)
        low[-2:], high[-2:] = 0.0, 1.0
        known = {"treated": self.treated} if self.known is None else {"propensity": self.known}
        levels = [False] * (len(low) - 2) + [True] * 2
        given = {"overlap": self.overlap, "outcome_kind": self.kind, "two_levels": levels, **known}
        domain = Domain(low, high, *self.bounds, **given)
        arms = () if self.arms == 2 else tuple(map(str, range(self.arms)))
        return TableSchema("a", "y", domain.columns, domain, arms=arms, assignment=self.clusters)

    @property
    def arms(self) -> int:
        """How many there are."""
        return 2 if self.effect.ndim == 1 else self.propensity.shape[1]

    @property
    def codes(self) -> Array:
        """Arms as learners take them: two from 0, more from 1, [n]."""
        return self.a + (self.arms > 2)


def covariates(rng: np.random.Generator, n: int, count: int = COVARIATES) -> Array:
    """Return correlated covariates of n people, the last two of two levels, [n, count]."""
    common = rng.normal(size=(n, 1))
    x = np.clip(0.4 * common + 0.9 * rng.normal(size=(n, count)), -2, 2)
    x[:, -2:] = x[:, -2:] > rng.uniform(-0.6, 0.6, 2)
    return x


def linear(rng: np.random.Generator, x: Array, size: float) -> Array:
    """Return a random linear function of covariates, centred, whose deviation is ``size``, [n]."""
    weights = rng.normal(size=x.shape[1])
    return _sized(x @ weights, size)


def _sized(found: Array, size: float) -> Array:
    """Return numbers [n] centred, with a deviation of ``size``."""
    return size * (found - found.mean()) / found.std()


def _two_of(rng: np.random.Generator, x: Array) -> tuple[Array, Array]:
    """Return two of the covariates that have more than two levels, [n] each."""
    first, second = rng.permutation(x.shape[1] - 2)[:2]
    return x[:, first], x[:, second]


def interaction(rng: np.random.Generator, x: Array, size: float) -> Array:
    """Return the product of two random covariates, centred, whose deviation is ``size``, [n]."""
    first, second = _two_of(rng, x)
    return _sized(first * second, size)


def hump_times_line(rng: np.random.Generator, x: Array, size: float) -> Array:
    """Return a hump of a covariate times a line of another, centred, whose deviation is ``size``, [n]."""
    first, second = _two_of(rng, x)
    hump = np.exp(-(((first - rng.uniform(-0.8, 0.8)) / rng.uniform(0.5, 1.0)) ** 2))
    return _sized(hump * (second + rng.uniform(0.3, 1.0)), size)


def wave(rng: np.random.Generator, x: Array, size: float) -> Array:
    """Return a sine of the first covariate, centred, whose deviation is ``size``, [n]."""
    return _sized(np.sin(rng.uniform(1.5, 3.0) * x[:, 0] + rng.uniform(0, 2 * np.pi)), size)


def kinks(rng: np.random.Generator, x: Array, size: float) -> Array:
    """Return a line, a kink and a wave of random covariates, centred, whose deviation is ``size``, [n]."""
    (a, b, c), (i, j, k) = rng.normal(size=3), rng.permutation(x.shape[1] - 2)[:3]
    return _sized(a * x[:, i] + b * np.maximum(x[:, j], 0.0) + c * np.sin(2 * x[:, k]), size)


def product_of_three(rng: np.random.Generator, x: Array, size: float) -> Array:
    """Return the product of three random covariates, or nearly that of their signs; see ``interaction``."""
    three = x[:, rng.permutation(x.shape[1] - 2)[:3]]
    return _sized((np.tanh(4 * three) if rng.uniform() < 0.5 else three).prod(1), size)


def directions(rng: np.random.Generator, x: Array, size: float) -> Array:
    """Return two steps, waves or bumps along random directions, centred, whose deviation is ``size``, [n]."""
    kinds = (lambda u: np.tanh(2.5 * u), lambda u: np.sin(2 * u), lambda u: 2 * np.exp(-2 * u**2))
    found = np.zeros(len(x))
    for _ in range(2):
        direction = rng.normal(size=x.shape[1])
        found += rng.uniform(0.5, 1.5) * kinds[rng.integers(3)](x @ direction / np.linalg.norm(direction))
    return _sized(found, size)


def tree(rng: np.random.Generator, x: Array, size: float) -> Array:
    """Return a full tree of depth three of random covariates, cuts and values; see ``directions``."""
    columns, cuts = rng.integers(x.shape[1] - 2, size=8), rng.normal(size=8) / 2
    at = np.ones(len(x), dtype=int)
    for _ in range(3):
        at = 2 * at + (x[np.arange(len(x)), columns[at]] > cuts[at])
    return _sized(rng.normal(size=8)[at - 8], size)


def _propensity(logit: Array, overlap: float) -> Array:
    return np.clip(1 / (1 + np.exp(-logit)), overlap, 1 - overlap)


Noise = Callable[[np.random.Generator, int], Array]
Shape = Callable[[np.random.Generator, Array, float], Array]


def _normal(rng: np.random.Generator, n: int) -> Array:
    return rng.normal(size=n)


def _student(rng: np.random.Generator, n: int) -> Array:
    return rng.standard_t(2.5, n) / 2


def _skewed(rng: np.random.Generator, n: int) -> Array:
    return rng.lognormal(0, 1, n) - np.exp(0.5)


def _continuous(
    treated: float | None = None,
    logit: float = 0.0,
    shift: float = 0.0,
    shape: str = "linear",
    noise: Noise = _normal,
    treated_noise: Noise | None = None,
    bounds: tuple[float, float] = (-20.0, 20.0),
    overlap: float = 0.05,
    count: int = COVARIATES,
    public: float | None = None,
    effect_of: Shape = linear,
    base_of: Shape | None = None,
    sizes: tuple[float, float] = (0.2, 0.6),
) -> Callable[[np.random.Generator, int], Draw]:
    """Return a law of a continuous outcome.

    Args:
        treated: Share of the treated of a trial; None: a cohort.
        logit: Size of the confounding of a cohort.
        shift: Mean logit of a cohort.
        shape: Of outcome and propensity: ``linear``, ``hump`` or ``product``.
        noise: Of outcomes.
        treated_noise: Of treated ones, where it is another; the more the larger the first covariate is.
        bounds: Of the outcome.
        overlap: Of a cohort.
        count: Number of covariates.
        public: Its share of the treated, where it is public.
        effect_of: Shape of the effect.
        base_of: Of what the outcome of the untreated has beside its line; None: nothing.
        sizes: Least and largest deviation of the effect.
    """

    def draw(rng: np.random.Generator, n: int) -> Draw:
        x = covariates(rng, n, count)
        base, drift = linear(rng, x, 1.0), linear(rng, x, logit) if logit else np.zeros(n)
        if shape == "hump":
            base, drift = base + x[:, 0] ** 2, logit * (x[:, 0] ** 2 - 1)
        if shape == "product":
            base, drift = base + x[:, 0] * x[:, 1], logit * x[:, 0] * x[:, 1]
        if base_of is not None:
            base = base + base_of(rng, x, 1.0)
        both = rng.uniform(0.3, 0.8)
        base = base + both * drift / max(logit, 1e-9)
        effect = rng.normal(0, 0.5) + effect_of(rng, x, rng.uniform(*sizes))
        e = np.full(n, treated) if treated is not None else _propensity(shift + drift, overlap)
        a = (rng.uniform(size=n) < e).astype(float)
        error = noise(rng, n)
        if treated_noise is not None:
            error = np.where(a > 0, np.exp(0.3 * x[:, 0]) * treated_noise(rng, n), error)
        y = np.clip(base + a * effect + error, *bounds)
        return Draw(x, a, y, effect, e, bounds, overlap, treated, treated=public)

    return draw


def _deaths(rate: float, treated: float | None) -> Callable[[np.random.Generator, int], Draw]:
    def draw(rng: np.random.Generator, n: int) -> Draw:
        x = covariates(rng, n)
        risk, drift = linear(rng, x, 0.7), np.log(rate / (1 - rate))
        off = rng.uniform(-0.6, 0.3) + linear(rng, x, 0.2)
        p0, p1 = (1 / (1 + np.exp(-(drift + risk + part))) for part in (0.0, off))
        e = np.full(n, treated) if treated is not None else _propensity(0.5 * risk + linear(rng, x, 0.4), 0.05)
        a = (rng.uniform(size=n) < e).astype(float)
        y = (rng.uniform(size=n) < np.where(a > 0, p1, p0)).astype(float)
        return Draw(x, a, y, p1 - p0, e, (0.0, 1.0), 0.05, treated, "binary")

    return draw


def _counts(
    zeros: float, cohort: bool, most: float, costs: bool = False, treated: float = 0.5
) -> Callable[[np.random.Generator, int], Draw]:
    def draw(rng: np.random.Generator, n: int) -> Draw:
        x = covariates(rng, n)
        level = linear(rng, x, 0.4)
        change = rng.uniform(-0.4, 0.4) + linear(rng, x, 0.1)
        e = _propensity(0.8 * level + linear(rng, x, 0.4), 0.05) if cohort else np.full(n, treated)
        a = (rng.uniform(size=n) < e).astype(float)
        scale = 800.0 if costs else 4.0
        frailty = rng.gamma(1.0, 1.0, n) if not costs else rng.lognormal(-0.5, 1.0, n)
        there = rng.uniform(size=n) > zeros
        mean = scale * np.exp(level + a * change) * frailty * there
        y = np.minimum(mean if costs else rng.poisson(mean), most)
        # the true effect counts the bound: the mean of min(y, most), by the frailty's law on a grid of its quantiles
        quantiles = (np.arange(400) + 0.5) / 400
        from scipy import stats

        grid = stats.lognorm(1.0, scale=np.exp(-0.5)).ppf(quantiles) if costs else stats.gamma(1.0).ppf(quantiles)
        arms = [np.minimum(scale * np.exp(level + part)[:, None] * grid, most).mean(1) for part in (0.0, change)]
        effect = (1 - zeros) * (arms[1] - arms[0])
        known = None if cohort else treated
        return Draw(x, a, y, effect, e, (0.0, most), 0.05, known, "continuous" if costs else "count")

    return draw


def _near_violation(rng: np.random.Generator, n: int) -> Draw:
    """One covariate forbids the treatment, all but: its records have a propensity of .02 where .1 is stated."""
    x, bounds = covariates(rng, n), (-20.0, 20.0)
    forbids = rng.uniform(size=n) < rng.uniform(0.2, 0.35)
    x[:, -1] = forbids
    base, drift = linear(rng, x, 1.0), linear(rng, x, 0.8)
    base = base + rng.uniform(0.3, 0.8) * drift / 0.8
    effect = rng.normal(0, 0.5) + linear(rng, x, rng.uniform(0.2, 0.6)) + rng.normal(0, 1.0) * forbids
    e = np.where(forbids, 0.02, _propensity(drift, 0.1))
    a = (rng.uniform(size=n) < e).astype(float)
    return Draw(x, a, np.clip(base + a * effect + _normal(rng, n), *bounds), effect, e, bounds, 0.1, None)


def _collider(rng: np.random.Generator, n: int) -> Draw:
    """The first covariate is caused by two that nobody sees: one decides on treatment, the other on the outcome.

    Whoever adjusts for it opens a path between these; without it nothing confounds.
    """
    x, bounds, unseen = covariates(rng, n), (-20.0, 20.0), rng.normal(size=(n, 2))
    x[:, 0] = np.clip((unseen.sum(1) + 0.3 * rng.normal(size=n)) / np.sqrt(2.09), -2, 2)
    base = linear(rng, x[:, 1:], 1.0) + rng.uniform(0.8, 1.5) * unseen[:, 1]
    effect = rng.normal(0, 0.5) + linear(rng, x[:, 1:], rng.uniform(0.2, 0.6))
    e = _propensity(rng.uniform(0.8, 1.5) * unseen[:, 0], 0.05)
    a = (rng.uniform(size=n) < e).astype(float)
    return Draw(x, a, np.clip(base + a * effect + _normal(rng, n), *bounds), effect, e, bounds, 0.05, None)


def _table(covariates: dict[str, dict[str, object]]) -> TableSchema:
    """Return the public facts of a cohort whose covariates have these entries of a domain file."""
    outcome = {"name": "y", "low": -20.0, "high": 20.0}
    return TableSchema.from_dict({"treatment": "a", "outcome": outcome, "covariates": covariates, "overlap": 0.05})


def _numbers(count: int) -> dict[str, dict[str, object]]:
    """Return the entries of so many covariates, of which the last two have two levels."""
    plain = {f"x{k}": {"low": -2.0, "high": 2.0} for k in range(count - 2)}
    return plain | {f"x{k}": {"categories": [0, 1]} for k in range(count - 2, count)}


def _missing(rng: np.random.Generator, n: int) -> Draw:
    """Two covariates are missing the more often the larger they are.

    The outcome depends on what they are, treatment and effect on what is seen of them.
    """
    x, entries = covariates(rng, n), _numbers(COVARIATES)
    base, frame = linear(rng, x, 1.0), pd.DataFrame(x, columns=list(entries))
    for name in ("x1", "x2"):
        entries[name]["missing"] = "indicator"
        logit = rng.uniform(-1.5, -0.5) + rng.uniform(0.5, 1.5) * frame[name]
        frame.loc[rng.uniform(size=n) < 1 / (1 + np.exp(-logit)), name] = np.nan
    table = _table(entries)
    return _seen(rng, table, table.encode(frame).numpy(), base)


def _words(rng: np.random.Generator, n: int) -> Draw:
    """One covariate is a word of twelve levels, of which three have an effect of their own."""
    x, levels = covariates(rng, n), [f"L{k + 1}" for k in range(LEVELS)]
    word = rng.choice(LEVELS, n, p=0.02 + (1 - 0.02 * LEVELS) * rng.dirichlet(np.full(LEVELS, 2.0)))
    table = _table(_numbers(COVARIATES) | {"word": {"categories": levels}})
    x = np.column_stack([x, np.eye(LEVELS)[word]])
    own = np.isin(word, rng.permutation(LEVELS)[:3]) * rng.choice([-1.0, 1.0]) * rng.uniform(0.6, 1.5)
    return _seen(rng, table, x, linear(rng, x, 1.0), own)


def _seen(rng: np.random.Generator, table: TableSchema, x: Array, base: Array, own: Array | None = None) -> Draw:
    """Return a cohort whose propensity is linear in encoded covariates.

    Args:
        rng: Of the law.
        table: Public facts.
        x: Encoded covariates, [n, q].
        base: Mean outcome of the untreated but for what confounds, [n].
        own: Effect but for its mean, [n]; None: one that is linear.
    """
    bounds, drift, n = (-20.0, 20.0), linear(rng, x, 0.6), len(x)
    effect = rng.normal(0, 0.5) + (linear(rng, x, rng.uniform(0.2, 0.6)) if own is None else own)
    e = _propensity(drift, 0.05)
    a = (rng.uniform(size=n) < e).astype(float)
    y = base + rng.uniform(0.3, 0.8) * drift / 0.6 + a * effect + _normal(rng, n)
    return Draw(x, a, np.clip(y, *bounds), effect, e, bounds, 0.05, None, table=table)


def _three_arms(shares: tuple[float, ...], logit: float = 0.0) -> Callable[[np.random.Generator, int], Draw]:
    """Return a law of three arms: log-odds, mean and effects linear.

    Args:
        shares: Of the arms where covariates say nothing.
        logit: Size of the confounding of each arm's log-odds; 0: a trial.
    """

    def draw(rng: np.random.Generator, n: int) -> Draw:
        x = covariates(rng, n)
        drifts = [np.zeros(n)] + [linear(rng, x, logit) if logit else np.zeros(n) for _ in shares[1:]]
        e = np.array(shares) * np.exp(np.column_stack(drifts))
        e /= e.sum(1, keepdims=True)
        e = 0.05 + (1 - 0.05 * len(shares)) * e if logit else e
        a = (rng.uniform(size=(n, 1)) > e.cumsum(1)[:, :-1]).sum(1).astype(float)
        base = linear(rng, x, 1.0) + sum(rng.uniform(0.2, 0.5) * drift / max(logit, 1e-9) for drift in drifts)
        effect = np.column_stack([rng.normal(0, 0.5) + linear(rng, x, rng.uniform(0.2, 0.6)) for _ in shares[1:]])
        own = np.column_stack([np.zeros(n), effect])[np.arange(n), a.astype(int)]
        y = np.clip(base + own + rng.normal(size=n), -20, 20)
        return Draw(x, a, y, effect, e, (-20.0, 20.0), 0.05, None if logit else list(shares))

    return draw


def _clusters(stated: bool) -> Callable[[np.random.Generator, int], Draw]:
    """Return a law of a trial that assigns whole clusters, whose records share a part of their residuals."""

    def draw(rng: np.random.Generator, n: int) -> Draw:
        x, bounds, cluster = covariates(rng, n), (-20.0, 20.0), np.arange(n) // CLUSTER
        shared, arm = rng.normal(0, 0.35, n), (rng.uniform(size=n) < 0.5).astype(float)
        effect = rng.normal(0, 0.5) + linear(rng, x, rng.uniform(0.2, 0.6))
        y = linear(rng, x, 1.0) + arm[cluster] * effect + shared[cluster] + _normal(rng, n)
        clusters = Cluster("ward", CLUSTER, 0.1) if stated else None
        e = np.full(n, 0.5)
        return Draw(x, arm[cluster], np.clip(y, *bounds), effect, e, bounds, 0.05, 0.5, clusters=clusters)

    return draw


def _hospital(family: str) -> Callable[[np.random.Generator, int], Draw]:
    """Return the laws of a family like a hospital's tables (``experiments/designs/hospital.py``)."""

    def draw(rng: np.random.Generator, n: int) -> Draw:
        law = hospital_law(family, int(rng.integers(2**31)))
        records = law.draw(n, torch.Generator().manual_seed(int(rng.integers(2**31))))
        found = (records.x, records.a, records.y, law.effect(records.x), law.propensity(records.x))
        schema = law.schema()
        domain = schema.domain
        bounds = (domain.outcome_low, domain.outcome_high)
        known = law.treated if law.trial else None
        facts = (bounds, domain.overlap, known, domain.outcome_kind)
        return Draw(*(one.numpy() for one in found), *facts, table=schema, cut=60.0)

    return draw


LAWS: dict[str, Callable[[np.random.Generator, int], Draw]] = {
    "trial": _continuous(0.5),
    "trial, 30 % treated": _continuous(0.3),
    "trial, skewed treated": _continuous(0.5, treated_noise=_skewed),
    "trial, t(2.5)": _continuous(0.5, noise=_student),
    "trial, deaths": _deaths(0.05, 0.5),
    "trial, days": _counts(0.0, False, 120.0),
    "trial, costs": _counts(0.3, False, 20_000.0, costs=True),
    "trial, days, 10 % treated": _counts(0.0, False, 120.0, treated=0.1),
    "trial, clusters": _clusters(stated=False),
    "trial, clusters stated": _clusters(stated=True),
    "linear": _continuous(logit=0.8),
    "strong linear": _continuous(logit=1.4),
    "heavy linear": _continuous(logit=2.0, noise=_student, overlap=0.02),
    "40 covariates": _continuous(logit=0.8, count=40),
    "hump": _continuous(logit=0.5, shape="hump"),
    "product": _continuous(logit=0.7, shape="product"),
    "skewed treated": _continuous(logit=0.8, treated_noise=_skewed),
    "t(2.5)": _continuous(logit=0.8, noise=_student),
    "10 % treated": _continuous(logit=0.6, shift=-2.4, overlap=0.02, public=0.1),
    "3 % treated": _continuous(logit=0.5, shift=-3.5, overlap=0.005, public=0.03),
    "near violation": _near_violation,
    "deaths": _deaths(0.1, None),
    "days": _counts(0.0, True, 120.0),
    "costs": _counts(0.3, True, 20_000.0, costs=True),
    "collider": _collider,
    "waves": _continuous(logit=0.5, base_of=wave, effect_of=wave),
    "kinks": _continuous(logit=0.5, count=10, base_of=directions, effect_of=kinks, sizes=STRONG),
    "product of three": _continuous(logit=0.5, count=10, base_of=kinks, effect_of=product_of_three, sizes=STRONG),
    "directions": _continuous(logit=0.5, count=8, base_of=directions, effect_of=directions, sizes=STRONG),
    "tree": _continuous(logit=0.5, count=10, base_of=tree, effect_of=tree, sizes=STRONG),
    "hump times line": _continuous(logit=0.5, effect_of=hump_times_line),
    "60 covariates, interaction": _continuous(logit=0.5, count=60, effect_of=interaction),
    "missing": _missing,
    "words": _words,
    "trial, 2 % deaths": _deaths(0.02, 0.5),
    "trial, three arms": _three_arms((0.4, 0.3, 0.3)),
    "three arms": _three_arms((0.4, 0.3, 0.3), 0.6),
} | {f"hospital, {family.replace('_', ' ')}": _hospital(family) for family in FAMILIES}
"""Families of laws; each draw has constants of its own."""
