"""Lines of one composition on random laws: coverage, and widths over those without privacy.

``python -m experiments.one_fit.study --out lines.csv [--records 5000] [--epsilon 1] [--seeds 0:10] [--law NAME]``

Seeds 0 to 199 are for tuning, 1,000 to 1,199 for reporting. Every row is one line of one release; rows that the
file has are not made again.
"""

import argparse
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch

from experiments.one_fit.laws import LAWS, Draw
from torchdpcate import Domain, PrivacyBudget, RLearner
from torchdpcate.composition.settings import AdaptiveSecondStage
from torchdpcate.data.schema import TableSchema
from torchdpcate.release.lines import ARM, powers, tilts_of

DELTA = 1e-5


def domain_of(draw: Draw) -> TableSchema:
    """Return the public bounds of a draw, and its arms where there are more than two."""
    low, high = draw.x.min(0).round(6) * 0 - 2.0, draw.x.max(0) * 0 + 2.0
    low[-2:], high[-2:] = 0.0, 1.0
    known = {"treated": draw.treated} if draw.known is None else {"propensity": draw.known}
    domain = Domain(low, high, *draw.bounds, overlap=draw.overlap, outcome_kind=draw.kind, **known)
    arms = () if draw.arms == 2 else tuple(map(str, range(draw.arms)))
    return TableSchema("a", "y", domain.columns, domain, arms=arms)


def non_private(draw: Draw, arm: int = 1) -> tuple[float, float]:
    """Return an arm's average effect by linear AIPW without privacy, and its standard error."""
    from sklearn.linear_model import LinearRegression, LogisticRegression

    x, a, y = draw.x, draw.a, draw.y
    if draw.known is None:
        e = LogisticRegression(C=1e6, max_iter=500).fit(x, a).predict_proba(x)
        e = np.clip(e, draw.overlap, 1 - draw.overlap)
    else:
        e = np.broadcast_to(draw.known if draw.arms > 2 else [1 - draw.known, draw.known], (len(a), draw.arms))
    m = [LinearRegression().fit(x[a == k], y[a == k]).predict(x) for k in (0, arm)]
    scores = m[1] - m[0] + (a == arm) * (y - m[1]) / e[:, arm] - (a == 0) * (y - m[0]) / e[:, 0]
    return float(scores.mean()), float(scores.std() / np.sqrt(len(y)))


def truths(draw: Draw, release: Any) -> dict[str, float]:
    """Return what each line is about, by the effects of the law at the records."""
    if draw.arms > 2:
        return {f"{ARM}{k}": float(mean) for k, mean in enumerate(draw.effect.mean(0), start=1)}
    tau, e, effect = draw.effect, draw.propensity, np.asarray(release.effect(draw.x))
    found = {"average": tau.mean()}
    for name in tilts_of(release.lines.names):
        a, b = powers(name) or (0.0, 0.0)
        found[name] = np.average(tau, weights=e**a * (1 - e) ** b)
    numbers = release.line_numbers.facts
    cell = np.digitize(effect - release.shift, numbers.cuts.numpy())
    for k in range(len(numbers.cuts) + 1):
        found[f"group {k + 1}"] = tau[cell == k].mean() if (cell == k).any() else np.nan
    own = effect - release.shift - numbers.centre
    g = np.clip(own / numbers.effect_deviation, -2, 2) if numbers.effect_deviation else own * 0
    found["slope"] = (
        (g * (tau - numbers.centre)).sum() / (g * g).sum() / max(numbers.effect_deviation, 1e-12) if g.any() else np.nan
    )
    treated = effect > 0
    found |= {"rule over none": np.mean(treated * tau), "rule over all": -np.mean(~treated * tau)}
    return {name: float(value) for name, value in found.items()}


def rows_of(law: str, seed: int, n: int, epsilon: float | None, requests: tuple[str, ...]) -> Iterator[dict[str, Any]]:
    """Yield a row for each line of one release."""
    rng = np.random.default_rng([seed, *law.encode()])
    draw = LAWS[law](rng, n)
    budget = None if epsilon is None else PrivacyBudget(epsilon, DELTA)
    lines = requests if draw.arms == 2 else "auto"
    learner = RLearner(domain_of(draw), budget, second_stage=AdaptiveSecondStage(lines=lines))
    base = {"law": law, "seed": seed, "n": n, "epsilon": epsilon}
    try:
        first = 0 if draw.arms == 2 else 1  # code of the first arm
        release = learner.fit(draw.x, draw.a + first, draw.y).release_function()
    except Exception as problem:
        yield base | {"line": "average", "refused": str(problem)[:120]}
        return
    table, true = release.lines.table(), truths(draw, release)
    parts = pd.DataFrame(release.lines.variances.sqrt().numpy(), columns=["sampling", "noise", "clip", "nuisances"])
    spread = float(draw.effect.std())
    for row, own in zip(table.itertuples(), parts.itertuples(index=False), strict=True):
        arm = int(row.line.removeprefix(ARM)) if draw.arms > 2 else 1
        estimate, error = non_private(draw, arm)
        beside = {"np": estimate, "np_error": error, "truth": true.get(row.line, np.nan), "spread": spread}
        yield base | row._asdict() | own._asdict() | beside


def _main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--records", type=int, default=5000)
    parser.add_argument("--epsilon", type=float, default=1.0)
    parser.add_argument("--seeds", default="0:10")
    parser.add_argument("--law", action="append")
    parser.add_argument("--lines", nargs="*", default=["groups"])
    words = parser.parse_args()
    first, last = map(int, words.seeds.split(":"))
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    found = pd.read_csv(words.out) if words.out.exists() else pd.DataFrame(columns=["law", "seed", "n", "epsilon"])
    for seed in range(first, last):
        for law in words.law or LAWS:
            key = (law, seed, words.records, words.epsilon)
            if (
                (found["law"] == law)
                & (found["seed"] == seed)
                & (found["n"] == words.records)
                & (found["epsilon"] == words.epsilon)
            ).any():
                continue
            new = pd.DataFrame(rows_of(*key[:4], tuple(words.lines)))
            found = pd.concat([found, new], ignore_index=True)
            found.to_csv(words.out, index=False, float_format="%.6g")
    print(summary(found).to_string())


def summary(found: pd.DataFrame) -> pd.DataFrame:
    """Return coverage and median widths over the non-private ones, by law and line."""
    half, np_half = (found["high"] - found["low"]) / 2, 1.96 * found["np_error"]
    rows = found.assign(
        held=((found["low"] <= found["truth"]) & (found["truth"] <= found["high"])).where(half.notna()).astype(float),
        width=half / np_half,
        off=(found["estimate"] - found["truth"]) / found["np_error"],
        np_held=(abs(found["np"] - found["truth"]) <= np_half).astype(float),
        bare=1.96 * np.hypot(found["sampling"], found["noise"]) / np_half,
    )
    own = rows.groupby(["line", "law"], sort=False)
    return own.agg(
        runs=("held", "size"),
        held=("held", "mean"),
        width=("width", "median"),
        bare=("bare", "median"),
        off=("off", "mean"),
        rms=("off", lambda off: float(np.sqrt((off**2).mean()))),
        np_held=("np_held", "mean"),
    ).round(2)


if __name__ == "__main__":
    _main()
