"""Tables as a newcomer brings them, with the effects that made them.

Each is written by a public seed, with the faults that such files have: words in cells, dates, identifiers, missing
values and their codes, separators and decimals of another country, zeros and outliers. The truth is the mean difference
of the outcomes that each record would have had.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

Draw = np.random.Generator


@dataclass(frozen=True)
class Made:
    """A table with what its domain file says, and the truth.

    Attributes:
        path: The table.
        domain: Entries of its domain file.
        effects: Average effect over its records in outcome units, of each arm against the first.
        settings: Words for the command line that say how the file is written.
    """

    path: Path
    domain: dict[str, Any]
    effects: tuple[float, ...]
    settings: tuple[str, ...] = ()


def trial(folder: Path, n: int = 1_800) -> Made:
    """Write a trial of a drug against pain (0 to 100), with missing values, words, dates and identifiers.

    The drug takes some 12 points of women and 4 of men.
    """
    draw = np.random.default_rng(1)
    female = draw.random(n) < 0.5
    age, crp = draw.normal(58, 12, n).clip(18, 95), draw.lognormal(1.2, 1.0, n).clip(0, 400)
    without = 55 + 0.2 * (age - 58) + 4 * np.log1p(crp) + draw.normal(0, 12, n)
    outcomes = np.stack([without, without - np.where(female, 12, 4)]).clip(0, 100).round()
    arm = (draw.random(n) < 0.5).astype(int)
    frame = pd.DataFrame(
        {
            "patient_id": [f"P{i:05d}" for i in range(n)],
            "randomised": pd.Timestamp("2019-03-01") + pd.to_timedelta(draw.integers(0, 700, n), "D"),
            "age": _lost(draw, age.round().astype(int), 0.08, ""),
            "sex": np.where(female, "female", "male"),
            "site": _lost(draw, draw.choice(["north", "south", "west"], n, p=[0.5, 0.3, 0.2]), 0.06, "unknown"),
            "crp": _lost(draw, crp.round(1), 0.1, -99),
            "arm": np.where(arm, "drug", "placebo"),
            "pain": _lost(draw, _own(outcomes, arm).astype(int), 0.05, ""),
        }
    )
    domain = {
        "codes": [-99, "unknown"],
        "treatment": {"name": "arm", "categories": ["placebo", "drug"]},
        "outcome": {"name": "pain", "low": 0, "high": 100, "better": "lower", "missing": "drop"},
        "covariates": {
            "age": {"low": 18, "high": 95, "missing": "indicator"},
            "sex": {"categories": ["male", "female"]},
            "site": {"categories": ["north", "south", "west"], "missing": "indicator"},
            "crp": {"low": 0, "high": 400, "scale": "log", "missing": "indicator"},
            "randomised": {"kind": "date", "low": "2019-03-01", "high": "2021-03-01"},
        },
        "propensity": 0.5,
        "origin": "protocol of the trial",
    }
    return Made(_written(frame, folder / "trial.csv"), domain, _effects(outcomes))


def extract(folder: Path, n: int = 12_000) -> Made:
    """Write a hospital's extract of costs, with zeros and outliers, as a spreadsheet in German has it.

    Whoever is older or has more diagnoses is more often in the programme, and costs more.
    """
    draw = np.random.default_rng(2)
    age = draw.normal(66, 13, n).clip(18, 110)
    diagnoses = draw.poisson(2 + (age - 66).clip(0) / 12).clip(0, 20)
    wards = ["Innere", "Chirurgie", "Geriatrie", "Neurologie", "Übrige"]
    share = 1 / (1 + np.exp(0.6 - 0.03 * (age - 66) - 0.25 * (diagnoses - 2)))
    arm = (draw.random(n) < share.clip(0.05, 0.95)).astype(int)
    cost = (draw.lognormal(6.4, 0.9, n) + 400 + 180 * diagnoses + 12 * (age - 66)) * (draw.random(n) < 0.85)
    outcomes = np.stack([cost, cost - 600]).clip(0, 50_000)
    frame = pd.DataFrame(
        {
            "Fall": np.arange(1, n + 1),
            "Alter": age.round(1),
            "Diagnosen": diagnoses,
            "Station": draw.choice(wards, n, p=[0.4, 0.25, 0.15, 0.15, 0.05]),
            "Kreatinin": draw.lognormal(0.0, 0.35, n).clip(0.2, 15).round(2),
            "Programm": np.where(arm, "ja", "nein"),
            "Kosten": _own(outcomes, arm).round(2),
        }
    )
    domain = {
        "treatment": {"name": "Programm", "categories": ["nein", "ja"]},
        "outcome": {"name": "Kosten", "low": 0, "high": 50_000, "better": "lower", "unit": "Euro"},
        "covariates": {
            "Alter": {"low": 18, "high": 110, "unit": "Jahre"},
            "Diagnosen": {"low": 0, "high": 20},
            "Station": {"categories": wards},
            "Kreatinin": {"low": 0, "high": 20, "typical": [0.4, 3]},
        },
        "overlap": 0.05,
        "origin": "coding manual of the hospital",
    }
    path = folder / "extract.csv"
    frame.to_csv(path, index=False, sep=";", decimal=",", encoding="latin-1")
    words = "data.separator=semicolon", "data.decimal=comma", "data.encoding=latin-1"
    return Made(path, domain, _effects(outcomes), words)


def survival(folder: Path, n: int = 20_000, horizon: float = 24.0) -> Made:
    """Write a trial of three arms with months until death or the end of follow-up; the effects are of months lived."""
    draw = np.random.default_rng(4)
    stage = draw.choice(["I", "II", "III"], n, p=[0.5, 0.3, 0.2])
    rate = np.where(stage == "I", 0.02, np.where(stage == "II", 0.04, 0.08))
    luck = draw.exponential(1.0, n)
    times = np.stack([luck / rate, luck / (0.75 * rate), luck / (0.5 * rate)])
    arm, followed = draw.integers(0, 3, n), draw.uniform(6, 60, n)
    died = _own(times, arm) <= followed
    frame = pd.DataFrame(
        {
            "stage": stage,
            "arm": np.array(["placebo", "low", "high"])[arm],
            "months": np.minimum(_own(times, arm), followed).round(2),
            "died": np.where(died, "yes", "no"),
        }
    )
    domain = {
        "treatment": {"name": "arm", "categories": ["placebo", "low", "high"], "reference": "placebo"},
        "outcome": {
            "time": "months",
            "event": {"name": "died", "categories": ["no", "yes"]},
            "horizon": horizon,
            "kind": "restricted_mean",
            "better": "higher",
        },
        "covariates": {"stage": {"categories": ["I", "II", "III"]}},
        "propensity": [1 / 3, 1 / 3, 1 / 3],
        "origin": "protocol of the trial",
    }
    return Made(_written(frame, folder / "survival.csv"), domain, _effects(times.clip(max=horizon)))


def _own(outcomes: np.ndarray, arm: np.ndarray) -> np.ndarray:
    """Return what each record has of the outcomes [arms, n] that it would have had."""
    return outcomes[arm, np.arange(len(arm))]


def _effects(outcomes: np.ndarray) -> tuple[float, ...]:
    means = outcomes.mean(1)
    return tuple(float(mean - means[0]) for mean in means[1:])


def _lost(draw: Draw, values: np.ndarray, share: float, code: Any) -> np.ndarray:
    """Return the values with a share of them missing, written as ``code``."""
    return np.where(draw.random(len(values)) < share, np.array(code, dtype=object), values.astype(object))


def _written(frame: pd.DataFrame, path: Path) -> Path:
    frame.to_csv(path, index=False)
    return path
