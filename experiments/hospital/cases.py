"""Records of a law, what is true of its people, and linear AIPW without privacy, by which answers are judged."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from experiments.hospital.laws import LAWS, Array, Draw
from torchdpcate.data.schema import TableSchema
from torchdpcate.release.averages import ARM, AVERAGE, PARTS, SLOPE, VALUES
from torchdpcate.release.composed import ComposedRelease

PEOPLE = 20_000
"""People of the law, none of them among the records, of whom truths are means and whose effects are requested."""
DELTA, LEVEL = 1e-5, 0.95
Z = 1.959964

Row = dict[str, Any]


@dataclass(frozen=True)
class Estimate:
    """An average effect with its interval of 95 %."""

    value: float
    low: float
    high: float


@dataclass(frozen=True, eq=False)
class Case:
    """One draw of a law.

    Attributes:
        records: What is learnt from.
        people: By whom answers are judged.
    """

    records: Draw
    people: Draw

    @classmethod
    def of(cls, law: str, seed: int, n: int) -> "Case":
        """Return n records and ``PEOPLE`` of a law whose constants are those of the seed."""
        drawn = LAWS[law](np.random.default_rng([seed, *law.encode()]), n + PEOPLE)
        return cls(drawn.rows(slice(n)), drawn.rows(slice(n, None)))

    @cached_property
    def schema(self) -> TableSchema:
        """Public facts."""
        return self.records.schema

    @cached_property
    def nuisances(self) -> tuple[Array, Array]:
        """Propensities and mean outcomes of all arms by logistic and linear regression, [n, K] each."""
        from sklearn.linear_model import LogisticRegression, Ridge
        from sklearn.pipeline import make_pipeline
        from sklearn.preprocessing import StandardScaler

        of, x, a, y = self.records, self.records.x, self.records.a, self.records.y
        if of.known is None:
            logistic = make_pipeline(StandardScaler(), LogisticRegression(max_iter=500)).fit(x, a)
            e = np.clip(logistic.predict_proba(x), of.overlap, 1 - of.overlap)
        else:
            e = np.broadcast_to(of.known if of.arms > 2 else [1 - of.known, of.known], (len(a), of.arms))
        linear = make_pipeline(StandardScaler(), Ridge(1.0))
        means = [linear.fit(x[a == arm], y[a == arm]).predict(x) for arm in range(of.arms)]
        return e, np.stack(means, 1)

    def scores(self, arm: int = 1) -> Array:
        """Return doubly robust scores of an arm against the reference by these nuisances, [n]."""
        (e, m), a, y = self.nuisances, self.records.a, self.records.y
        treated, control = ((a == k) * (y - m[:, k]) / e[:, k] for k in (arm, 0))
        return m[:, arm] - m[:, 0] + treated - control

    def line(self, name: str, estimate: float, low: float, high: float, own: Array, of: Array) -> Row:
        """Return the row of a mean effect of some people.

        Args:
            name: Of the line; that of an arm is about this arm.
            estimate: Of the mean effect.
            low: Lower end of its interval.
            high: Upper end.
            own: Weight of each record, [n] ...
            of: ... and of each of the people, [PEOPLE].
        """
        arm = int(name.removeprefix(ARM)) if name.startswith(ARM) else 1
        effect = self.people.effect.reshape(len(of), -1)[:, arm - 1]
        truth = float((of * effect).sum() / of.sum()) if of.any() else np.nan
        return _row(name, estimate, low, high, truth, *ratio(own * self.scores(arm), own))

    def average(self, found: Estimate) -> Row:
        """Return the row of the average effect."""
        one, all_of = np.ones(len(self.records.a)), np.ones(PEOPLE)
        return self.line(AVERAGE, found.value, found.low, found.high, one, all_of)

    def cells(self, of: Draw) -> tuple[Array, Array]:
        """Return who is in each of the two public cells, [n] each."""
        below = (of.x[:, 0] < of.cut).astype(float)
        return below, 1 - below

    def lines(self, release: ComposedRelease) -> Iterator[Row]:
        """Yield a row for each line of a release, with the parts of its standard error."""
        averages, parts = release.averages, release.averages.variances.sqrt().numpy()
        own, of = self._weights(release, self.records), self._weights(release, self.people)
        cells = release.averages.cells if self.records.arms == 2 else ()
        for line, errors in zip(averages.names, parts, strict=True):
            ends = (averages.estimate(line), *averages.interval(line, LEVEL))
            if line in own:
                name = f"cell {cells.index(line) + 1}" if line in cells else line
                found = self.line(name, *ends, own[line], of[line])
            else:
                found = self._weighted(release, line, *ends)
            yield found | dict(zip(PARTS, errors.tolist(), strict=True))

    def _weights(self, release: ComposedRelease, of: Draw) -> dict[str, Array]:
        """Return who each line that is a mean is about, [n]."""
        everybody = np.ones(len(of.a))
        if of.arms > 2:
            return {f"{ARM}{k}": everybody for k in range(1, of.arms)}
        facts, effect = release.line_numbers.facts, np.asarray(release.effect(of.x)) - release.shift
        group = np.digitize(effect, facts.cuts.numpy())
        found = {f"group {k + 1}": (group == k).astype(float) for k in range(len(facts.cuts) + 1)}
        public = dict(zip(release.averages.cells, self.cells(of), strict=False))
        return {AVERAGE: everybody} | found | public

    def _weighted(self, release: ComposedRelease, name: str, estimate: float, low: float, high: float) -> Row:
        """Return the row of a line that is no mean over some of the people: a rule's value, weighted, calibration."""
        facts, (e, m), a = release.line_numbers.facts, self.nuisances, self.records.a
        tau, pi, scores, e = self.people.effect, self.people.propensity, self.scores(), e[:, 1]
        effects = [np.asarray(release.effect(of.x)) for of in (self.records, self.people)]
        if name in VALUES:
            own, of = ((effect > 0 if name == VALUES[0] else -(effect <= 0).astype(float)) for effect in effects)
            truth = float(np.mean(of * tau))
            return _row(name, estimate, low, high, truth, *ratio(own * scores, np.ones(len(a))))
        if name == SLOPE:
            size = facts.effect_deviation
            own, of = (np.clip((effect - release.shift - facts.centre) / size, -2, 2) for effect in effects)
            truth = float((of * (tau - facts.centre)).sum() / (size * of * of).sum())
            return _row(name, estimate, low, high, truth, *ratio(own * (scores - facts.centre), size * own * own))
        one, other = {"ATT": (1, 0), "ATC": (0, 1), "ATO": (1, 1)}[name]
        h, of = (share**one * (1 - share) ** other for share in (e, pi))
        slope = (one / e - other / (1 - e)) * h
        weights = h + slope * (a - e)
        numerator = h * scores + slope * (a - e) * (m[:, 1] - m[:, 0])
        return _row(name, estimate, low, high, np.average(tau, weights=of), *ratio(numerator, weights))

    def persons(self, effect: Array, low: Array | None = None, high: Array | None = None) -> Row:
        """Return the row of all people's effects: share that intervals hold, half width and error over the deviation.

        Args:
            effect: Of the people, [PEOPLE].
            low: Lower ends; None where there are no intervals.
            high: Upper ends.
        """
        tau = self.people.effect
        size, wrong = tau.std(), (effect > 0) != (tau > 0)
        found = {
            "line": "persons",
            "error": float(np.sqrt(np.mean((effect - tau) ** 2)) / size),
            "regret": float(2 * np.mean(abs(tau) * wrong) / np.mean(abs(tau))),
        }
        if low is not None and high is not None:
            found |= {"held": np.mean((low <= tau) & (tau <= high)), "width": float(np.mean(high - low) / 2 / size)}
        return found


def ratio(numerator: Array, denominator: Array) -> tuple[float, float]:
    """Return the ratio of two means over records, [n] each, and its standard error."""
    if not numerator.any() or not denominator.any():  # of nobody
        return np.nan, np.nan
    found = numerator.mean() / denominator.mean()
    error = (numerator - found * denominator).std() / abs(denominator.mean()) / np.sqrt(len(numerator))
    return float(found), float(error)


def _row(name: str, estimate: float, low: float, high: float, truth: float, free: float, error: float) -> Row:
    found = {"line": name, "estimate": estimate, "low": low, "high": high, "truth": truth}
    found |= {"np": free, "np_error": error}
    held = float(low <= truth <= high) if np.isfinite(low) and np.isfinite(truth) else np.nan
    return found | {"held": held, "width": (high - low) / 2 / (Z * error)}
