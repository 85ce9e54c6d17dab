"""Pages of six releases of generated records, and pictures of them.

``python -m experiments.pages --out docs/figures/pages`` writes a picture of each page, 1,280 and 390 pixels wide. It
needs Playwright and Chromium. Noise is from the system: each call draws other numbers.
"""

import argparse
import io
import shutil
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from torchdpcate import PrivacyBudget, RLearner, combine
from torchdpcate.data.schema import TableSchema
from torchdpcate.estimators.rules.effect_rule import EffectRule
from torchdpcate.pages.reader import write_page
from torchdpcate.release.file import Release

WIDTHS = (1280, 390)
_HIGH = {1280: 1500, 390: 1600}
_COLOURS = 16  # of a picture, which makes it small
AGE = {"low": 18, "high": 90, "unit": "years", "label": "age"}
SEX = {"categories": [1, 2], "label": "sex", "labels": {1: "men", 2: "women"}}
SCORE = {"low": 0, "high": 10, "label": "pain at entry", "unit": "points"}
DRUG = {"name": "arm", "categories": ["placebo", "drug"]}
FACTS: dict[str, Any] = {
    "treatment": DRUG,
    "outcome": {"name": "vas12", "label": "pain after 12 weeks", "low": 0, "high": 20, "unit": "points"},
    "covariates": {"alter": AGE, "sx": SEX, "vas0": SCORE},
    "propensity": 0.5,
}
FACTS["outcome"]["better"] = "lower"


def people(n: int, seed: int) -> tuple[pd.DataFrame, np.random.Generator]:
    """Return covariates of n people, and the generator that drew them."""
    draws = np.random.default_rng(seed)
    age, score = draws.normal(60, 12, n).clip(18, 90), draws.normal(6, 1.5, n).clip(0, 10)
    return pd.DataFrame({"alter": age, "sx": draws.integers(1, 3, n), "vas0": score}), draws


def _pain(x: pd.DataFrame, arm: np.ndarray, draws: np.random.Generator, effect: float = -2.0) -> pd.Series:
    """Return pain that a drug lowers, more where there was more at entry."""
    mean = 4 + x["vas0"] + 0.02 * (x["alter"] - 60) + arm * (effect - 1.2 * (x["vas0"] - 6))
    return (mean + draws.normal(0, 2, len(x))).clip(0, 20)


def _words(arm: np.ndarray) -> np.ndarray:
    return np.array(["placebo", "drug"])[arm]


def trial(n: int = 20_000, seed: int = 1, effect: float = -2.0, epsilon: float = 2.0) -> Release:
    """Return an effect with averages, groups, and intervals of persons."""
    x, draws = people(n, seed)
    arm = draws.integers(0, 2, n)
    learner = RLearner(TableSchema.from_dict(FACTS), PrivacyBudget(epsilon, 1e-6))
    return learner.fit(x, _words(arm), _pain(x, arm, draws, effect)).release_function()


def cohort() -> Release:
    """Return an effect that is the same for everybody, where age confounds."""
    x, draws = people(20_000, 2)
    arm = (draws.uniform(size=len(x)) < 1 / (1 + np.exp(-(x["alter"] - 60) / 15))).to_numpy().astype(int)
    cost = 9_000 + 80 * (x["alter"] - 60) - 1_500 * arm + draws.normal(0, 3_000, len(x))
    outcome = {"name": "eur", "label": "costs in a year", "low": 0, "high": 40_000, "unit": "EUR", "better": "lower"}
    facts = FACTS | {"outcome": outcome, "propensity": None, "overlap": 0.1}
    learner = RLearner(TableSchema.from_dict(facts), PrivacyBudget(4.0, 1e-6))
    return learner.fit(x, _words(arm), cost.clip(0, 40_000)).release_function()


def survival() -> Release:
    """Return the effect on the mean time without relapse within five years, of a trial with lost follow-up."""
    x, draws = people(20_000, 3)
    arm = draws.integers(0, 2, len(x))
    event = draws.exponential(1_500 * np.exp(0.4 * arm - 0.02 * (x["alter"] - 60)))
    end = draws.exponential(5_000, len(x))
    y = pd.DataFrame({"days": np.minimum(event, end), "relapse": (event <= end).astype(int)})
    outcome = {"time": "days", "event": "relapse", "horizon": 1825, "kind": "restricted_mean", "unit": "days"}
    facts = FACTS | {"outcome": outcome | {"label": "relapse", "better": "higher"}}
    learner = RLearner(TableSchema.from_dict(facts), PrivacyBudget(4.0, 1e-6))
    return learner.fit(x, _words(arm), y).release_function()


def three_arms() -> Release:
    """Return the effects of two doses against placebo."""
    x, draws = people(20_000, 4)
    arm = draws.integers(0, 3, len(x))
    y = _pain(x, (arm > 0).astype(int), draws) - 0.8 * (arm == 2)
    arms = {"name": "arm", "categories": ["placebo", "10 mg", "20 mg"]}
    facts = FACTS | {"treatment": arms, "propensity": [1 / 3] * 3}
    learner = RLearner(TableSchema.from_dict(facts), PrivacyBudget(2.0, 1e-6))
    return learner.fit(x, np.array(arms["categories"])[arm], y.clip(0, 20)).release_function()


def rule() -> Release:
    """Return whom to treat at a cost of a point and a half, with what the rule gains."""
    x, draws = people(20_000, 5)
    arm = draws.integers(0, 2, len(x))
    learner = EffectRule(TableSchema.from_dict(FACTS), PrivacyBudget(2.0, 1e-6), cost=1.5)
    return learner.fit(x, _words(arm), _pain(x, arm, draws)).release()


def sites() -> Release:
    """Return the combination of three trials."""
    each = [trial(n, 6 + k, -2.0 - 0.3 * k) for k, n in enumerate((3_000, 6_000, 12_000))]
    return combine(each, ["Basel", "Lyon", "Utrecht"])


RELEASES: dict[str, Callable[[], Release]] = {
    "trial": cache(trial),
    "cohort": cache(cohort),
    "survival": cache(survival),
    "three_arms": cache(three_arms),
    "rule": cache(rule),
    "sites": cache(sites),
}


def main() -> None:
    """Write a picture of each page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--only", choices=RELEASES, nargs="*", default=list(RELEASES))
    given = parser.parse_args()
    from PIL import Image
    from playwright.sync_api import sync_playwright

    given.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        for name in given.only:
            path = write_page(RELEASES[name]().save(Path(folder) / f"{name}.safetensors"), folder=Path(folder) / name)
            for width in WIDTHS:
                page = browser.new_page(viewport={"width": width, "height": _HIGH[width]})
                page.goto(path.as_uri())
                picture = Image.open(io.BytesIO(page.screenshot(full_page=True))).convert("RGB")
                few = picture.quantize(_COLOURS, Image.Quantize.FASTOCTREE).convert("RGB")
                few.save(given.out / f"{name}_{width}.webp", lossless=True, quality=100, method=6)
                page.close()
        browser.close()


if __name__ == "__main__":
    main()
