"""Tables 5 and 6: LaLonde's trial, and its treated beside the controls of PSID-1, by draws of the noise.

The printed mechanism is not run: with eight covariates and these budgets its rejection sampler did not end within ten
minutes on the 445 records of the trial.
"""

from collections.abc import Iterator
from pathlib import Path

import pandas as pd
import torch
from torch import Tensor

from experiments.average_effects.lalonde import COVARIATES, arrays, samples
from experiments.average_effects.literal import BalancingSum, hajek
from experiments.average_effects.methods import found
from experiments.covariate_balancing.laws import LEAST_OVERLAP
from experiments.covariate_balancing.methods import EPSILONS
from experiments.frame.study import CERTIFIED, FREE, NO_PRIVACY, OTHER, Found, Place, seed_of
from torchdpcate import Domain, PrivacyBudget
from torchdpcate.causal.estimand import ATE
from torchdpcate.estimators.average.covariate_balancing import make_plan
from torchdpcate.fit.feature_maps import on_domain
from torchdpcate.fit.minimise import linear_predictor
from torchdpcate.fit.stacked_records import Batch, StackedRecords
from torchdpcate.privacy.noise import NoiseSource
from torchdpcate.privacy.session import FitSession

SETTINGS = {"NSW": "NSW", "NSW treated and PSID": "NSW treated and PSID controls"}
"""Samples, and what the published tables call them."""
PUBLISHED_NAMES = (*("age", "education", "black", "hispanic", "married", "no_degree", "income_1974", "income_1975"),)
HIGH = (60.0, 20.0, 1.0, 1.0, 1.0, 1.0, 60_000.0, 60_000.0)
"""Public bounds of the covariates, from 0 (age: from 16), for the certified mechanism; larger earnings are clipped."""
EFFECT, BALANCE = "average_treatment_effect", "first_moment_imbalance"


def effects(folder: Path, sample: str, draws: int) -> Iterator[Found]:
    """Yield the estimates of one sample: without privacy, as printed, and certified."""
    frame = samples(folder)[sample]
    x, z, y = arrays(frame)
    n, setting = str(len(frame)), SETTINGS[sample]

    def place(epsilon: str, variant: str, metric: str = EFFECT) -> Place:
        return Place("table5_lalonde", setting, n, epsilon, variant, metric)

    estimate, half = hajek(x[None], z[None], y[None])
    free = "balancing weights without intercept, no privacy"
    yield Found(place(NO_PRIVACY, "non-private CBSR"), FREE, free, "not private", estimate.tolist())
    wide = place(NO_PRIVACY, free, "interval_length")
    yield Found(wide, OTHER, free, "not private", (2 * half).tolist())
    records, domain = as_records(frame)
    for epsilon in EPSILONS:
        words = f"{epsilon:g}"
        plan = make_plan(len(frame), on_domain(None, domain), ATE(LEAST_OVERLAP), PrivacyBudget(epsilon, 0.0))
        own = found(plan.run(records, NoiseSource.fixed(seed_of(sample, epsilon)), draws))
        values, halves = own.estimate, own.half
        yield Found(place(words, "private CBSR"), CERTIFIED, "certified", "certified", values.tolist())
        length = place(words, "certified, one draw of the noise", "interval_length")
        yield Found(length, OTHER, "certified", "certified", (2 * halves).tolist())


def balance(folder: Path, draws: int) -> Iterator[Found]:
    """Yield first moments of the treated less those of PSID's controls, in units of each covariate's largest value."""
    frame = samples(folder)["NSW treated and PSID"]
    x, z, _ = arrays(frame)
    n, setting = str(len(frame)), SETTINGS["NSW treated and PSID"]

    def rows(epsilon: str, variant: str, role: str, method: str, level: str, moved: Tensor) -> Iterator[Found]:
        for name, values in zip(PUBLISHED_NAMES, moved.T, strict=True):
            place = Place("table6_balance_psid", setting, n, epsilon, f"{variant}, {name}", BALANCE)
            yield Found(place, role, method, level, values.tolist())

    half = torch.full_like(z, 0.5)[None]
    yield from rows(NO_PRIVACY, "unadjusted", FREE, "unadjusted", "not private", imbalance(x, z, half))
    fitted = torch.sigmoid(linear_predictor(x, BalancingSum(x[None], z[None]).minimiser()))
    free = "balancing weights without intercept, no privacy"
    yield from rows(NO_PRIVACY, "non-private CBSR", FREE, free, "not private", imbalance(x, z, fitted))
    records, domain = as_records(frame)
    for epsilon in EPSILONS:
        words = f"{epsilon:g}"
        plan = make_plan(len(frame), on_domain(None, domain), ATE(LEAST_OVERLAP), PrivacyBudget(epsilon, 0.0))
        session = FitSession(NoiseSource.fixed(seed_of("balance", epsilon)))
        own = plan.estimand.propensity(
            linear_predictor(records.batch.psi, plan.learn(records, session, draws)["weights"])
        )
        yield from rows(words, "private CBSR", CERTIFIED, "certified", "certified", imbalance(x, z, own))


def imbalance(x: Tensor, z: Tensor, e: Tensor) -> Tensor:
    """Return the difference of both arms' weighted means of x [n, k], weights 1/e and 1/(1 - e), [runs, k]."""
    treated, control = z / e, (1 - z) / (1 - e)
    return treated @ x / treated.sum(1, keepdim=True) - control @ x / control.sum(1, keepdim=True)


def as_records(frame: pd.DataFrame) -> tuple[StackedRecords, Domain]:
    """Return a sample as the library sees it, and its public bounds."""
    low = [16.0, *[0.0] * 7]
    domain = Domain(low, list(HIGH), 0.0, 1.0, LEAST_OVERLAP)
    x = domain.clip_covariates(torch.tensor(frame[COVARIATES].to_numpy(float)))
    _, z, y = arrays(frame)
    return StackedRecords(Batch(x, on_domain(None, domain)(x), z, y)), domain
