"""Releases to ask."""

from functools import cache

import numpy as np
import pandas as pd
import torch

from tests.registered import KnownPropensityEffect, RLearner
from torchdpcate import Domain, PrivacyBudget, TableSchema
from torchdpcate.privacy.noise import FixedNoise
from torchdpcate.release.rule import _example

SCHEMA = TableSchema.from_dict(
    {
        "treatment": "drug",
        "outcome": {"name": "days", "low": 0, "high": 10, "better": "lower"},
        "covariates": {"age": {"low": 20, "high": 80}, "site": {"categories": ["a", "b", "c"]}},
        "propensity": 0.5,
    }
)


@cache
def composed():
    """An effect with intervals: 2 more days at site b, of records of mean age 60, mostly of that site."""
    n = 4000
    i = torch.arange(n)
    frame = pd.DataFrame({"age": 50 + (i // 2) % 21, "site": ["b" if j % 10 < 8 else "a" for j in (i // 2)]})
    a = i % 2
    y = 3 + 2.0 * a * torch.tensor((frame["site"] == "b").to_numpy()) + 0.5 * ((i // 7) % 2)
    learner = RLearner(SCHEMA, PrivacyBudget(50.0, 1e-5), noise=FixedNoise(1))
    return learner.fit(frame, a.numpy(), y.numpy()).release_function()


@cache
def cohort():
    """An effect without intervals of persons: that of x1, where x0 confounds."""
    rng = np.random.default_rng(0)
    x = rng.uniform(-1, 1, (4_000, 2))
    a = (rng.uniform(size=4_000) < 1 / (1 + np.exp(-x[:, 0]))).astype(float)
    y = np.clip(x[:, 0] + a * x[:, 1] + rng.normal(size=4_000), -6, 6)
    domain = Domain([-1.0] * 2, [1.0] * 2, -6.0, 6.0, overlap=0.2, better="higher")
    return RLearner(domain, PrivacyBudget(2.0, 1e-5)).fit(x, a, y).release_function()


def rule():
    """A rule on one covariate in [0, 1]."""
    return _example()


@cache
def average():
    """One number."""
    x, a = torch.zeros(200, 1), torch.arange(200) % 2
    domain = Domain([0.0], [1.0], 0.0, 1.0, propensity=0.5)
    return KnownPropensityEffect(domain, PrivacyBudget(1.0, 0.0)).fit(x, a, a.double()).release()
