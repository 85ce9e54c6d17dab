"""What the curator is to see beside a released average effect: estimates that are not released, and errors."""

from __future__ import annotations

import csv
import warnings
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torchdpcate._files import PRIVATE, atomic_path
from torchdpcate._text import spreadsheet_cell
from torchdpcate.cli.run import say_warning
from torchdpcate.data.study import StreamedStudy, Study, record_average
from torchdpcate.errors import NumericalError
from torchdpcate.privacy.budget import PrivacyBudget
from torchdpcate.privacy.noise import NoiseSource
from torchdpcate.release.average_effect import AverageEffectRelease
from torchdpcate.release.estimate import Estimate
from torchdpcate.release.released_weights import BalanceTable

if TYPE_CHECKING:
    from torchdpcate.estimators.average.automatic import AverageEffect
    from torchdpcate.estimators.average.learner import AverageEffectLearner

    Learner = AverageEffectLearner | AverageEffect

BALANCE_FILE = "balance.csv"
"""Balance without noise, in the curator's folder."""
NONPRIVATE, PRIVATE_MEANS, MEANS = (
    "non-private",
    "difference in means, private at the whole budget",
    "difference in means, non-private",
)
"""Estimates that the curator sees beside the release, and that are not released."""
_UNRELEASED = {
    "estimate_nonprivate": NONPRIVATE,
    "difference_in_means": PRIVATE_MEANS,
    "difference_in_means_nonprivate": MEANS,
}
_ERRORS = {
    "estimate": "error",
    "estimate_nonprivate": "error_nonprivate",
    "difference_in_means": "error_difference_in_means",
    "difference_in_means_nonprivate": "error_difference_in_means_nonprivate",
}


def fit_study(learner: Learner, study: Study | StreamedStudy) -> Learner:
    """Fit a learner on the records of a study, whole or batch by batch, and return it."""
    if isinstance(study, StreamedStudy):
        return learner.fit_stream(study.records)
    records = study.records
    return learner.fit(records.x, records.a, records.y, study.own_propensity)


def unreleased(
    study: Study | StreamedStudy, learner: Learner, budget: PrivacyBudget, noise: NoiseSource
) -> dict[str, Estimate]:
    """Return the estimates that the release is held against; none of them is released.

    The private difference in means has the whole budget to itself. Where that is the release, there is no other.

    Args:
        study: The data.
        learner: The fitted learner.
        budget: Privacy budget of the run.
        noise: Privacy noise of the run.
    """
    from torchdpcate.estimators.average.outcome_table import DifferenceInMeansEffect

    means = DifferenceInMeansEffect(study.schema, budget, noise=noise)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # its planned error is not that of the release
        fit_study(means, study)
    found = {MEANS: means.nonprivate_estimate()}
    if isinstance(getattr(learner, "chosen_", learner), DifferenceInMeansEffect):
        return found
    try:
        found[NONPRIVATE] = learner.nonprivate_estimate()
    except NumericalError:  # without a private fit's ridge, records of little overlap may have no weights that balance
        say_warning("the estimate without privacy could not be computed: treated and controls overlap too little")
    found[PRIVATE_MEANS] = means.release().main
    return found


def measures(
    study: Study | StreamedStudy, release: AverageEffectRelease, others: Mapping[str, Estimate]
) -> dict[str, float | int | None]:
    """Return the estimate with its interval, what it is held against, and errors where the truth is known.

    Args:
        study: The data.
        release: What was released.
        others: Estimates that were not, from `unreleased`.
    """
    truth, interval = true_average(study, release.estimand), release.summary()["interval"]
    values = {"estimate": release.estimate} | {
        name: others[key].value if key in others else None for name, key in _UNRELEASED.items()
    }
    errors = {
        _ERRORS[name]: None if truth is None or value is None else abs(value - truth) for name, value in values.items()
    }
    ends: dict[str, float | int | None] = dict.fromkeys(("low", "high", "width", "covered"))
    if interval is not None:
        low, high = interval
        ends = {"low": low, "high": high, "width": high - low}
        ends["covered"] = None if truth is None else int(low <= truth <= high)
    return {**values, **ends, "truth": truth, **errors}


def true_average(study: Study | StreamedStudy, estimand: str) -> float | None:
    """Return the true effect of an estimand: the law's, or the mean over the records; None where it is not known.

    Args:
        study: The data.
        estimand: ``ATE``, ``ATT``, ``ATC`` or ``ATO``.
    """
    if not isinstance(study, Study):
        return None
    known = None if study.average is None else study.average(estimand)
    if known is not None or study.truth is None:
        return known
    effect = study.truth(study.records.x)
    return None if effect is None else record_average(effect, study.records.a, estimand)


def write_tables(
    others: Mapping[str, Estimate], balance: BalanceTable | None, bound: float, per_person: int, folder: Path
) -> None:
    """Write ``estimates.csv`` and, where it is known, ``balance.csv``.

    Args:
        others: Estimates that were not released, by name.
        balance: Imbalance before and after weighting, without noise.
        bound: Largest effect there can be.
        per_person: Records of each person.
        folder: The curator's folder.
    """
    none = (None, None)
    rows = [
        (name, estimate.value, *(none if estimate.law is None else estimate.range(0.95, bound, per_person)))
        for name, estimate in others.items()
    ]
    _write_rows(("estimate", "value", "low", "high"), rows, folder / "estimates.csv")
    if balance is not None:
        write_balance(balance, folder)


def write_balance(balance: BalanceTable, folder: Path) -> None:
    """Write ``balance.csv`` into the curator's folder."""
    columns = balance.columns()
    _write_rows(("feature", *columns), zip(balance.names, *columns.values(), strict=True), folder / BALANCE_FILE)


def _write_rows(header: Sequence[str], rows: Iterable[Sequence[Any]], path: Path) -> None:
    with atomic_path(path, PRIVATE) as temporary, temporary.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(header)
        writer.writerows([spreadsheet_cell(name), *numbers] for name, *numbers in rows)
