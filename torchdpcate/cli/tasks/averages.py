"""The task ``average_effect``: from records to a released average effect with its interval."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from hydra.utils import instantiate
from torch import Tensor

from torchdpcate._files import PRIVATE, atomic_path
from torchdpcate._text import spreadsheet_cell
from torchdpcate.cli.run import say_warning, warnings_said
from torchdpcate.cli.task import Measure, NoiseCheck, TaskSpec
from torchdpcate.data.study import StreamedStudy, Study, record_average
from torchdpcate.errors import NumericalError
from torchdpcate.privacy.budget import PrivacyBudget
from torchdpcate.release.average_effect import AverageEffectRelease, BalanceTable
from torchdpcate.release.estimate import Estimate

if TYPE_CHECKING:
    from torchdpcate.estimators.average.automatic import AverageEffect
    from torchdpcate.estimators.average.learner import AverageEffectLearner

    Learner = AverageEffectLearner | AverageEffect
    import pandas as pd
    from matplotlib.figure import Figure

    from torchdpcate.data.records import RecordStream
    from torchdpcate.estimators.average.automatic import AverageEffect, ChosenEstimator


BALANCE_FILE = "balance.csv"
"""Balance without noise, in the curator's folder."""
NONPRIVATE, MEANS = "non-private", "difference in means, non-private"
"""Estimates that the curator sees beside the release, and that are not released."""
_UNRELEASED = {
    "estimate_nonprivate": NONPRIVATE,
    "difference_in_means": MEANS,
}
_ERRORS = {
    "estimate": "error",
    "estimate_nonprivate": "error_nonprivate",
    "difference_in_means": "error_difference_in_means",
}


def unreleased(study: Study | StreamedStudy, learner: Learner) -> dict[str, Estimate]:
    """Return the estimates that the release is held against; none of them is released.

    Args:
        study: The data.
        learner: The fitted learner.
    """
    found = {MEANS: Estimate(_difference_in_means(study), None)}
    try:
        found[NONPRIVATE] = learner.nonprivate_estimate()
    except NumericalError:  # without a private fit's ridge, records of little overlap may have no weights that balance
        say_warning("the estimate without privacy could not be computed: treated and controls overlap too little")
    return found


def _difference_in_means(study: Study | StreamedStudy) -> float:
    """Return the difference of the arms' mean outcomes, which adjusts for nothing and is not private."""
    sums = torch.zeros(2, 2, dtype=torch.float64)  # of the treated and of the controls: outcomes, and their weights
    for records in [study.records] if isinstance(study, Study) else study.records:
        weight = torch.ones_like(records.y) if records.weight is None else records.weight
        arms = weight * torch.stack([records.a, 1 - records.a]).double()
        sums += torch.stack([arms @ records.y.double(), arms.sum(1)], 1)
    treated, controls = (sums[:, 0] / sums[:, 1]).tolist()
    return float(treated - controls)


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


def write_estimates(others: Mapping[str, Estimate], bound: float, per_person: int, folder: Path) -> None:
    """Write ``estimates.csv``.

    Args:
        others: Estimates that were not released, by name.
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


def write_balance(balance: BalanceTable, folder: Path) -> None:
    """Write ``balance.csv`` into the curator's folder."""
    columns = balance.columns()
    _write_rows(("feature", *columns), zip(balance.names, *columns.values(), strict=True), folder / BALANCE_FILE)


def _write_rows(header: Sequence[str], rows: Iterable[Sequence[Any]], path: Path) -> None:
    with atomic_path(path, PRIVATE) as temporary, temporary.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(header)
        writer.writerows([spreadsheet_cell(name), *numbers] for name, *numbers in rows)


class Averages(TaskSpec):
    """Average effects, compared by their error and their interval."""

    heading = "Average effects side by side"
    note = "Means over runs; without a known truth error and coverage are dashes."
    settings = ("effect", "estimand", "features", "nuisance")
    summarised = ("effect.estimand",)
    measures = (
        Measure(
            key="estimate",
            title="estimate",
            heading="Average effects against budget",
            note="Mean ± standard error over runs. The difference in means is not private, and adjusts for nothing.",
            figure="estimate_against_budget.png",
            references={"estimate_nonprivate": "non-private", "difference_in_means": "difference in means"},
        ),
        Measure(
            key="error",
            title="error",
            heading="Error of average effects against budget",
            note="Absolute error: mean ± standard error over runs.",
            figure="average_error_against_budget.png",
            references={"error_nonprivate": "non-private", "error_difference_in_means": "difference in means"},
        ),
        Measure(
            key="width",
            title="interval width",
            heading="Width of intervals against budget",
            note="Of the 95 % interval: mean ± standard error over runs.",
            figure="width_against_budget.png",
        ),
        Measure(
            key="covered",
            title="coverage",
            heading="Coverage of intervals against budget",
            note="Share of runs whose 95 % interval holds the truth.",
            figure=None,
        ),
    )
    numbers = ("low", "high", "truth", "planned_error")
    noise_checks = (
        NoiseCheck("planned_error", "width", "standard error of the estimate", "Sampling and noise: planned for an "
                   "assumed outcome law, realised as the 95 % interval's width divided by twice 1.96.", 1 / 3.92),
    )  # fmt: skip
    shown: ClassVar = {
        "estimate": "estimate",
        "low": "95 % interval from",
        "high": "95 % interval to",
        "planned_error": "planned standard error",
        "truth": "unreleased: truth",
        "estimate_nonprivate": "unreleased: estimate without noise",
        "difference_in_means": "unreleased: difference in means without noise",
    }

    learner: AverageEffectLearner | AverageEffect
    release: AverageEffectRelease

    def suited(self) -> TaskSpec:
        """See ``TaskSpec``: of more than two arms, and of clusters, ``ArmAverages``."""
        schema = self.study.schema
        if len(schema.actions) < 3 and schema.cluster is None:
            return self
        from torchdpcate.cli.tasks.subgroups import ArmAverages

        return ArmAverages.of(self)

    def make(self, budget: PrivacyBudget | None, **rest: Any) -> AverageEffectLearner | AverageEffect:
        """Return the learner of an average effect; see the class above."""
        # A partial: as keywords of instantiate, our dataclasses would be taken for configuration.
        return instantiate(self.config.effect)(domain=self.study.schema, budget=budget, **rest)

    def fit(self) -> None:
        """Fit the learner on the records, all at once or batch by batch; its warnings are shown."""
        with warnings_said():
            super().fit()

    def _fit_stream(self, stream: RecordStream) -> None:
        """See ``TaskSpec``; with all that requests sums over it."""
        super()._fit_stream(stream)
        table = self.study
        self.study = replace(table, records=stream)
        try:
            _ = self.learner.release(), self._others, self._balance
        finally:
            self.study = table

    def released(self) -> AverageEffectRelease:
        """Release the estimate; warnings are shown."""
        with warnings_said():
            return self.learner.release()

    @property
    def mechanism_name(self) -> str:
        """See ``TaskSpec``."""
        return str(getattr(getattr(self.learner, "mechanism", None), "name", "auto"))

    def choices(self) -> dict[str, str | None]:
        """Return the choices of groups, and the estimand; of a choice that was made here, what it came to."""
        found = super().choices() | {"estimand": str(self.config.effect.get("estimand", "ATE"))}
        if self._choice is None:
            return found
        return found | {
            "effect": self._choice.effect,
            "learner": type(self._choice.learner).__name__,
            "chosen_by": found["effect"],
            "chosen_because": self._choice.reason,
        }

    def results(self) -> dict[str, Any]:
        """Return the estimate with its interval, what it is held against, and errors where the truth is known."""
        found: dict[str, Any] = measures(self.study, self.release, self._others)
        planned = self.learner.planned_error(self.study.records.n)
        found["planned_error"] = None if planned is None else planned.total
        return found

    def facts(self) -> dict[str, Any]:
        """Return the public settings of the fit."""
        return {"public": dict(self.learner.settings_)}

    def secrets(self) -> dict[str, Tensor]:
        """Return the estimates that are not released, and the balance."""
        numbers: dict[str, Any] = {f"unreleased.{name}": estimate.value for name, estimate in self._others.items()}
        columns = {} if self._balance is None else self._balance.columns()
        numbers |= {f"balance.{name}": column for name, column in columns.items()}
        return {name: torch.tensor(value, dtype=torch.float64) for name, value in numbers.items()}

    def write(self, summary: Mapping[str, Any]) -> None:
        """Write the curator's tables and figures."""
        from torchdpcate.cli.tasks.average_figures import draw_balance, draw_intervals

        others, balance, folder = self._others, self._balance, self.folder / "curator"
        with self.attempt("curator/estimates.csv"):
            write_estimates(others, self.study.domain.outcome_range, self.study.unit.records, folder)
        if balance is not None:
            with self.attempt(f"curator/{BALANCE_FILE}"):
                write_balance(balance, folder)
            with self.attempt("curator/balance.png"):
                draw_balance(self.release, balance, folder)
        with self.attempt("curator/interval.png"):
            draw_intervals(self.release, others, summary.get("truth"), folder)

    def closing(self, summary: Mapping[str, Any]) -> list[str]:
        """Return which estimator was chosen and why; warn where the interval says nothing."""
        if self.release.main.noise_dominated:
            say_warning(
                "the denominator of the estimate is dominated by privacy noise, so that any effect is possible; the "
                "interval is the whole range. More records, a larger privacy.epsilon or a larger overlap would help"
            )
        return [] if self._choice is None else [f"effect={self._choice.effect}: {self._choice.reason}"]

    @classmethod
    def public_figures(cls, runs: pd.DataFrame) -> dict[str, Figure]:
        """Return the figures of intervals and balances; see the class above."""
        from torchdpcate.cli.tasks.average_figures import report_figures

        return report_figures(runs)

    @classmethod
    def curator_figures(cls, runs: pd.DataFrame) -> dict[str, Figure]:
        """Return the balance of each run with what was not released of it; see the class above."""
        from torchdpcate.cli.tasks.average_figures import curator_balances

        return curator_balances(runs)

    @property
    def _choice(self) -> ChosenEstimator | None:
        """The choice of the estimator by its planned error; None where the user named one."""
        return getattr(self.learner, "choice_", None)

    @cached_property
    def _others(self) -> dict[str, Estimate]:
        """Estimates that the release is held against, and that are not released."""
        return unreleased(self.study, self.learner)

    @cached_property
    def _balance(self) -> BalanceTable | None:
        """Imbalance before and after weighting, without noise."""
        return self.learner.nonprivate_balance() if hasattr(self.learner, "nonprivate_balance") else None
