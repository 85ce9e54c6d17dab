"""Averages by a horizon that follow-up may end before, earlier in one arm: coverage and widths on random laws.

``python -m experiments.hospital.survival --out survival.csv [--records 5000] [--epsilon 1] [--seeds 0:20]``

``python -m experiments.hospital.survival --trial ACTG175.csv`` releases the average of a public trial twenty times.

Seeds 0 to 199 are for tuning, 1,000 to 1,199 for reporting. Every row is one release; rows that the file has are not
made again.
"""

import argparse
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch

from experiments.hospital.cases import DELTA
from experiments.hospital.laws import Array, covariates, linear
from torchdpcate import Domain, PrivacyBudget, RLearner
from torchdpcate.data.censoring import EVENT_BY_HORIZON, RESTRICTED_MEAN, Censoring
from torchdpcate.data.schema import TableSchema
from torchdpcate.release.averages import PARTS

HORIZON = 12.0
OVERLAP = 0.05


@dataclass(frozen=True)
class Followed:
    """Records of a law with the end of their follow-up, and what is true of them.

    Attributes:
        x: Covariates [n, q] in [-2, 2].
        a: Treatment [n].
        time: When follow-up ended, [n].
        event: Whether by the event, [n].
        effect: True effect of each record on the outcome by the horizon, [n].
        known: The propensity, where the design knows it.
    """

    x: Array
    a: Array
    time: Array
    event: Array
    effect: Array
    known: float | None


def drawn(rng: np.random.Generator, n: int, kind: str, cohort: bool) -> Followed:
    """Return records whose hazards depend on covariates and arm; of one arm, either one, up to half are censored.

    Args:
        rng: Of the constants and the records.
        n: How many records.
        kind: Of outcome.
        cohort: Whether treatment follows covariates, hazards too; else half are treated at random.
    """
    x = covariates(rng, n)
    risk, off = linear(rng, x, 0.6), rng.uniform(-0.8, 0.2) + linear(rng, x, 0.2)
    base = rng.uniform(0.15, 0.5) / HORIZON
    rates = [base * np.exp(risk + part) for part in (0.0, off)]
    logit = 0.5 * risk / 0.6 + linear(rng, x, 0.4) if cohort else 0 * risk
    a = (rng.uniform(size=n) < np.clip(1 / (1 + np.exp(-logit)), OVERLAP, 1 - OVERLAP)).astype(float)
    left = rng.permutation([rng.uniform(0.85, 0.97), rng.uniform(0.45, 0.7)])  # of each arm, uncensored at the horizon
    end = rng.exponential(-HORIZON / np.log(left[a.astype(int)]))
    came = rng.exponential(1 / np.where(a > 0, rates[1], rates[0]))
    by_then = [1 - np.exp(-HORIZON * rate) for rate in rates]
    means = by_then if kind == EVENT_BY_HORIZON else [share / rate for share, rate in zip(by_then, rates, strict=True)]
    known = None if cohort else 0.5
    return Followed(x, a, np.minimum(came, end), (came <= end).astype(float), means[1] - means[0], known)


LAWS: Mapping[str, tuple[str, bool]] = {
    "trial, deaths": (EVENT_BY_HORIZON, False),
    "trial, months": (RESTRICTED_MEAN, False),
    "cohort, deaths": (EVENT_BY_HORIZON, True),
    "cohort, months": (RESTRICTED_MEAN, True),
}
"""Kind of outcome, and whether there is confounding."""


def non_private(draw: Followed, kind: str) -> tuple[float, float]:
    """Return the average effect without privacy, and its standard error: AIPW of records weighted by Kaplan-Meier."""
    from sklearn.linear_model import LinearRegression, LogisticRegression

    x, a = draw.x, draw.a
    known = (draw.event > 0) | (draw.time >= HORIZON)
    time, event = np.minimum(draw.time, HORIZON), (draw.event > 0) & (draw.time <= HORIZON)
    y = event.astype(float) if kind == EVENT_BY_HORIZON else time
    weight = np.zeros(len(a))
    for arm in (0, 1):
        weight[a == arm] = (known / uncensored(time, ~known, a == arm))[a == arm]
    e = np.full(len(a), draw.known)
    if draw.known is None:
        e = np.clip(LogisticRegression(C=1e6, max_iter=500).fit(x, a).predict_proba(x)[:, 1], OVERLAP, 1 - OVERLAP)
    fits = [LinearRegression().fit(x[own], y[own], weight[own]) for own in (a == arm for arm in (0, 1))]
    m = [fit.predict(x) for fit in fits]
    scores = m[1] - m[0] + weight * np.where(a > 0, (y - m[1]) / e, (m[0] - y) / (1 - e))
    return float(scores.mean()), float(scores.std() / np.sqrt(len(y)))


def uncensored(time: Array, ended: Array, own: Array) -> Array:
    """Return the share of some records that has not ended before each of all times, by Kaplan and Meier, [n]."""
    at = np.sort(time[own & ended])
    risk = own.sum() - np.searchsorted(np.sort(time[own]), at, side="left")
    share = np.concatenate([[1.0], np.cumprod(1 - 1 / risk)])
    return share[np.searchsorted(at, time, side="left")]


def row_of(law: str, seed: int, n: int, epsilon: float, by_arm: bool = True) -> dict[str, Any]:
    """Return one release's average beside the truth and the estimate without privacy."""
    kind, cohort = LAWS[law]
    draw = drawn(np.random.default_rng([seed, *law.encode()]), n, kind, cohort)
    outcome = Censoring("t", "d", HORIZON, kind, by_arm=by_arm)
    facts = {"overlap": OVERLAP} if cohort else {"propensity": draw.known}
    low, high = np.full(draw.x.shape[1], -2.0), np.full(draw.x.shape[1], 2.0)
    low[-2:], high[-2:] = 0.0, 1.0
    own = outcome.facts
    domain = Domain(low, high, own["low"], own["high"], outcome_kind=own["kind"], censoring=outcome, **facts)
    estimate, error = non_private(draw, kind)
    found = {"law": law, "seed": seed, "n": n, "epsilon": epsilon, "by_arm": by_arm, "truth": draw.effect.mean()}
    found |= {"np": estimate, "np_error": error}
    both = np.stack([draw.time, draw.event], 1)
    release = RLearner(domain, PrivacyBudget(epsilon, DELTA)).fit(draw.x, draw.a, both).release_function()
    if release.averages is None:
        return found | {"refused": release.no_lines}
    (low_end, high_end), parts = release.averages.interval(), release.averages.variances[0].sqrt().tolist()
    found |= {"estimate": release.averages.estimate(), "low": low_end, "high": high_end}
    return found | dict(zip(PARTS, parts, strict=True)) | {"treated": release.line_numbers.facts.treated}


TRIAL: Mapping[str, Any] = {
    "treatment": "treat",
    "outcome": {"time": "days", "event": "cens", "horizon": 900, "kind": EVENT_BY_HORIZON, "unit": "days"},
    "covariates": {
        "age": {"low": 12, "high": 80},
        "wtkg": {"low": 30, "high": 160},
        "karnof": {"low": 70, "high": 100},
        "cd40": {"low": 0, "high": 1500},
        "cd80": {"low": 0, "high": 5500},
        **{name: {"categories": [0, 1]} for name in ("race", "gender", "symptom", "str2")},
    },
    "propensity": 0.75,
}
"""ACTG 175 (Hammer et al. 1996), as R's speff2trial and lifelines have it: zidovudine alone, or other drugs."""


def of_trial(path: Path, epsilon: float, releases: int = 20) -> dict[str, float]:
    """Return Kaplan and Meier's difference of the public trial, and what releases make of it."""
    frame, schema = pd.read_csv(path), TableSchema.from_dict(dict(TRIAL))
    x, both = frame[[covariate.name for covariate in schema.covariates]], frame[["days", "cens"]]
    horizon, risks = schema.domain.censoring.horizon, []
    for arm in (0, 1):
        time, event = both[frame["treat"] == arm].to_numpy().T
        came, everybody = (event > 0) & (time <= horizon), np.ones(len(time), dtype=bool)
        risks.append(1 - uncensored(np.minimum(time, horizon + 1), came, everybody).min())
    made = []
    for _ in range(releases):
        learner = RLearner(schema, PrivacyBudget(epsilon, DELTA)).fit(x, frame["treat"], both)
        lines = learner.release_function().averages
        made.append((lines.estimate(), *lines.interval()))
    (estimate, low, high), true = np.array(made).T, risks[1] - risks[0]
    held = (low <= true) & (true <= high)
    return {
        "kaplan_meier": true,
        "mean": estimate.mean(),
        "deviation": estimate.std(),
        "half_width": np.median(high - low) / 2,
        "held": held.mean(),
    }


def summary(found: pd.DataFrame) -> pd.DataFrame:
    """Return coverage, and median width over the one without privacy, by law."""
    half, np_half = (found["high"] - found["low"]) / 2, 1.96 * found["np_error"]
    rows = found.assign(
        held=((found["low"] <= found["truth"]) & (found["truth"] <= found["high"])).where(half.notna()).astype(float),
        width=half / np_half,
        off=(found["estimate"] - found["truth"]) / found["np_error"],
        np_held=(abs(found["np"] - found["truth"]) <= np_half).astype(float),
    )
    own = rows.groupby(["law", "by_arm"], sort=False)
    columns = {name: (name, "mean") for name in ("held", "off", "np_held")}
    return own.agg(runs=("seed", "size"), shown=("held", "count"), width=("width", "median"), **columns).round(2)


def _main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("survival.csv"))
    parser.add_argument("--records", type=int, default=5000)
    parser.add_argument("--epsilon", type=float, default=1.0)
    parser.add_argument("--seeds", default="0:20")
    parser.add_argument("--law", action="append", choices=list(LAWS))
    parser.add_argument("--alike", action="store_true", help="one curve of censoring for both arms")
    parser.add_argument("--trial", type=Path, help="csv file of ACTG 175: nothing else is done")
    words = parser.parse_args()
    first, last = map(int, words.seeds.split(":"))
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    if words.trial is not None:
        print(pd.Series(of_trial(words.trial, words.epsilon)).round(3).to_string())
        return
    found = pd.read_csv(words.out) if words.out.exists() else pd.DataFrame()
    for seed in range(first, last):
        for law in words.law or LAWS:
            key = {"law": law, "seed": seed, "n": words.records, "epsilon": words.epsilon, "by_arm": not words.alike}
            if len(found) and (found[list(key)] == pd.Series(key)).all(axis=1).any():
                continue
            found = pd.concat([found, pd.DataFrame([row_of(*key.values())])], ignore_index=True)
            found.to_csv(words.out, index=False, float_format="%.6g")
    print(summary(found).to_string())


if __name__ == "__main__":
    _main()
