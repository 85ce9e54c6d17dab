"""The paper's selection of covariates: weighted logistic regression with a LASSO penalty, on public data sets."""

from collections.abc import Iterator

import numpy as np
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss
from sklearn.model_selection import StratifiedKFold
from torch import Tensor

from experiments.dp_werm.trial import MOST, Trials, shifted
from experiments.frame.study import OTHER, Cell, Found, Place, Settings, batches, seed_of

TABLE, SETTING, METHOD, LEVEL = "selection", "simulated_trial", "LASSO, 10-fold cross-validation", "not private"
PUBLIC, COVARIATES, RELEVANT = 1_000, 10, 4
FOLDS, PENALTIES, REACH = 10, 40, 1e3  # the largest penalty that leaves something is REACH times the smallest
LEAST, ONE_ERROR = "least loss", "one standard error"
REPEATS, BATCH = 200, 20


def public_data(index: int) -> Trials:
    """Return a public data set of 1,000 records and ten covariates; the first is that of Algorithm 2."""
    generator = torch.Generator().manual_seed(seed_of("public data set", index))
    return Trials.draw(1, PUBLIC, generator, COVARIATES)


def cells(settings: Settings) -> Iterator[Cell]:
    """Yield batches of public data sets."""
    for first, count in batches(10 if settings.quick else REPEATS, BATCH):
        yield {"part": "selection", "first": first, "repeats": count}


def compute(cell: Cell) -> Iterator[Found]:
    """Yield what is kept of each public data set, and of the one that the study tunes on."""
    first = int(cell["first"])
    for index in range(first, first + int(cell["repeats"])):
        for rule, kept in selected(public_data(index)).items():
            yield from _found(rule, kept)
            if index == 0:
                yield from _found(f"{rule}, the set of Algorithm 2", kept)


def selected(public: Trials) -> dict[str, Tensor]:
    """Return which covariates [p] are kept, by the penalty of least loss and by the largest within a standard error.

    Treatments are regressed on standardised covariates with weights B / P(A), the outcomes shifted and clipped as the
    paper's; losses of folds are weighted alike.
    """
    z, label = public.x[0], public.a[0].numpy()
    z = ((z - z.mean(0)) / z.std(0)).numpy()
    weight = 2 * shifted(public.y)[0].clamp(max=MOST).numpy()
    # at and below this one nothing is kept but the intercept
    weakest = 1 / np.abs((weight * (label - np.average(label, weights=weight))) @ z).max()
    strengths = weakest * np.geomspace(1.0, REACH, PENALTIES)
    folds = list(StratifiedKFold(FOLDS, shuffle=True, random_state=0).split(z, label))
    losses = np.array([[_loss(z, label, weight, fold, strength) for fold in folds] for strength in strengths])
    means, errors = losses.mean(1), losses.std(1, ddof=1) / FOLDS**0.5
    least = int(means.argmin())
    chosen = {LEAST: least, ONE_ERROR: int(np.flatnonzero(means <= means[least] + errors[least])[0])}
    return {rule: torch.from_numpy(_fit(z, label, weight, strengths[k]).coef_[0] != 0) for rule, k in chosen.items()}


def _loss(z: np.ndarray, label: np.ndarray, weight: np.ndarray, fold: tuple, strength: float) -> float:
    train, held = fold
    shares = _fit(z[train], label[train], weight[train], strength).predict_proba(z[held])
    return float(log_loss(label[held], shares, sample_weight=weight[held]))


def _fit(z: np.ndarray, label: np.ndarray, weight: np.ndarray, strength: float) -> LogisticRegression:
    # an intercept that is large is penalised little
    model = LogisticRegression(
        l1_ratio=1.0, C=strength, solver="liblinear", intercept_scaling=100.0, tol=1e-6, random_state=0
    )
    return model.fit(z, label, sample_weight=weight)


def _found(variant: str, kept: Tensor) -> Iterator[Found]:
    needed, rest = kept[:RELEVANT], kept[RELEVANT:]
    found = {
        "keeps_exactly_x1_to_x4": float(needed.all() and not rest.any()),
        "keeps_x1_to_x4": float(needed.all()),
        "other_covariates_kept": float(rest.sum()),
    }
    for metric, value in found.items():
        yield Found(Place(TABLE, SETTING, str(PUBLIC), "inf", variant, metric), OTHER, METHOD, LEVEL, [value])
