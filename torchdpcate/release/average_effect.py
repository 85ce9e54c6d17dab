"""A released average effect: one number, its interval, and the released weights behind it."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from torchdpcate.causal.estimand import Estimand, make_estimand
from torchdpcate.data.domain import Domain
from torchdpcate.data.schema import TableSchema
from torchdpcate.errors import InputError
from torchdpcate.fit.feature_maps import FeatureMap, to_config
from torchdpcate.release.averages import whom
from torchdpcate.release.estimate import Estimate, IntervalLaw, checked_level
from torchdpcate.release.file import Release, draw
from torchdpcate.release.lines import EVERYBODY, LEVEL, NO_INTERVAL, WEIGHTED, Lines
from torchdpcate.release.parts import load_features, named_tensors
from torchdpcate.release.release import require_tensor
from torchdpcate.release.statement import STATED_AS, UNSTATED, PrivacyStatement, and_counting

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure


@dataclass(frozen=True, eq=False)
class ReleasedWeights:
    r"""Weights as functions of the covariates: e(x) = sigmoid(psi(x)'theta), clipped to [eta, 1 - eta].

    Attributes:
        theta: Coefficients that a mechanism released, float64 [p].
        features: Public feature map.
        estimand: Estimand and clip.

    Example:
        >>> from torchdpcate.causal.estimand import ATE
        >>> from torchdpcate.data.domain import Domain
        >>> from torchdpcate.fit.feature_maps import Identity
        >>> theta = torch.tensor([0.0, 4.0], dtype=torch.float64)
        >>> features = Identity().setup(Domain([0.0], [1.0], 0.0, 1.0))
        >>> released, x = ReleasedWeights(theta, features, ATE(0.1)), torch.tensor([[0.5], [1.0]])
        >>> released.propensity(x.double()).round(decimals=3).tolist()
        [0.5, 0.9]
    """

    theta: Tensor
    features: FeatureMap
    estimand: Estimand

    def propensity(self, x: Tensor) -> Tensor:
        """Return the clipped propensity at encoded covariates x [m, q], [m]."""
        return self.estimand.propensity(self._predictor(x))

    def weights(self, x: Tensor, z: Tensor) -> Tensor:
        """Return the weights of records with encoded covariates x [m, q] and treatments z [m] in {0, 1}, [m]."""
        return self.estimand.weights(self._predictor(x), z)

    def tensors(self) -> dict[str, Tensor]:
        """Return the coefficients and the feature map's buffers."""
        return {"theta": self.theta, **named_tensors("features", self.features)}

    def facts(self) -> dict[str, Any]:
        """Return estimand, clip and feature map, as plain types."""
        return {
            "estimand": self.estimand.name,
            "eta": self.estimand.overlap,
            "features": to_config(self.features),
        }

    @classmethod
    def build(cls, tensors: dict[str, Tensor], facts: dict[str, Any], domain: Domain) -> "ReleasedWeights":
        """Rebuild weights from ``tensors`` and ``facts``."""
        features = load_features(tensors, facts["features"], domain)
        require_tensor(tensors["theta"], (features.dimension,), "theta")
        return cls(tensors["theta"], features, make_estimand(facts["estimand"], facts["eta"]))

    def _predictor(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            return self.features.product(self.theta, x)


COLUMNS = ("before", "after", "expected", "expected_sd")
"""Columns of numbers."""


@dataclass(frozen=True)
class BalanceTable:
    """Differences of the arms' means of every feature, in units of half the feature's range.

    Attributes:
        names: What the features are called.
        before: Treated minus controls as they are; None where it was not requested.
        after: Treated minus controls, weighted.
        expected: What the fit's shrinkage leaves after weighting, by public facts and released numbers.
        expected_sd: Deviation of what the fit's noise leaves.

    Raises:
        InputError: A column of another length than ``names``, or a number that is not finite.

    Example:
        >>> BalanceTable(["age"], before=[0.4], after=[0.02]).frame()
             before  after
        age     0.4   0.02
    """

    unit: ClassVar[str] = "half ranges"
    """Of all numbers."""

    names: Sequence[str]
    before: Sequence[float] | None = None
    after: Sequence[float] | None = None
    expected: Sequence[float] | None = None
    expected_sd: Sequence[float] | None = None

    def __post_init__(self) -> None:
        """Refuse columns that do not fit together."""
        for name, column in self.columns().items():
            if len(column) != len(self.names) or not all(map(math.isfinite, column)):
                raise InputError(f"{name}: give {len(self.names)} finite numbers, one a feature, or None")

    def columns(self) -> dict[str, Sequence[float]]:
        """Return the columns that are there, by name."""
        return {name: column for name in COLUMNS if (column := getattr(self, name)) is not None}

    def frame(self) -> "pd.DataFrame":
        """Return the columns that are there, with a row a feature."""
        import pandas as pd

        return pd.DataFrame(self.columns(), index=list(self.names), dtype=float)


class StandardisedBalance(BalanceTable):
    """The same in units of the feature's standard deviation over the records, which is the curator's."""

    unit: ClassVar[str] = "standard deviations"


class LinesRelease(Release):
    """Averages of effects as lines, with intervals that count sampling and all noise."""

    kind = "lines"
    column = "effect"
    of: ClassVar[str]
    """The fact that files of the class have alone."""

    @property
    def estimate(self) -> np.ndarray:
        """The estimates, float64 [lines], in outcome units."""
        return self.required_lines.estimates.numpy()

    def interval(self, level: float = LEVEL, simultaneous: bool = False) -> np.ndarray:
        r"""Return the confidence interval of each line, float64 [lines, 2], in outcome units.

        Each holds its effect with about this probability over sampling and noise, where records are many, arms overlap,
        nothing confounds but the covariates, and what ``assumptions`` says is so: for balancing weights the log-odds of
        treatment or the mean outcome must be linear in the basis. Where both are wrong it may never hold the effect,
        and nothing in the release shows that. Simultaneous ones hold all effects at once, see ``SubgroupRelease``.
        Where noise dominates a denominator the interval is the full range of effects.

        Args:
            level: Probability in (0, 1).
            simultaneous: Whether the level is that of all lines together.

        Raises:
            InputError: No interval is known for these estimates, or a level outside (0, 1).
        """
        found = self.required_lines.interval(checked_level(level), simultaneous)
        if bool(found.isnan().any()):
            raise InputError(f"interval: {NO_INTERVAL}")
        return found.numpy()

    @property
    def assumptions(self) -> str:
        """What estimates and intervals rest on, in words; all of it where that is not stated."""
        return and_counting(str(self.privacy.public.get(STATED_AS, UNSTATED)), self.domain)

    def plot(self, *, level: float = LEVEL) -> "Figure":  # type: ignore[override]
        """Return the forest plot: estimates with their intervals, one below the other.

        Args:
            level: Probability of the intervals, in (0, 1).

        Raises:
            InputError: A level outside (0, 1).

        Example:
            >>> from torchdpcate.release.subgroups import _example
            >>> [label.get_text() for label in _example().plot().axes[0].get_yticklabels()]
            ['x0 < 0.5', 'x0 >= 0.5']
        """
        return draw("plot_lines", self, level=level)

    def summary(self) -> dict[str, Any]:
        """Return the lines with estimates and intervals, and what they rest on.

        Example:
            >>> from torchdpcate.release.subgroups import _example
            >>> found = _example().summary()
            >>> [row["line"] for row in found["lines"]], found["noise_dominated"]
            (['x0 < 0.5', 'x0 >= 0.5'], 0)
        """
        lines, reference = self.required_lines, {"reference": self.schema.arm_labels[0]} if self.arms else {}
        dominated = {"interval_level": LEVEL, "noise_dominated": sum(lines.dominated)}
        return {"lines": lines.rows(), **dominated, **reference, STATED_AS: self.assumptions}

    @classmethod
    def build(
        cls, tensors: dict[str, Tensor], facts: dict[str, Any], schema: TableSchema, privacy: PrivacyStatement
    ) -> "LinesRelease":
        """Rebuild a release from ``tensors`` and ``facts``, and refuse whatever else they hold."""
        own: Any = next(kind for kind in cls.__subclasses__() if kind.of in facts)
        return own(**own.read(tensors, facts, schema), schema=schema, privacy=privacy)


@dataclass(frozen=True, eq=False, repr=False)
class AverageEffectRelease(LinesRelease):
    r"""A weighted average effect of records: one line.

    Attributes:
        estimand: ``ATE``, ``ATT``, ``ATC`` or ``ATO``: the average over everybody, the treated, the controls, or those
            who might be either.
        main: The estimate.
        numbers: Released sums, by name, for outcomes scaled to [0, 1]; the estimate follows from them.
        schema: Columns and public bounds.
        privacy: The privacy statement.
        weights: Released propensity; None where the estimate uses none, or none that is released.
        outcome_theta: Coefficients of the released outcome model, in the features of ``weights``, [p]; None without.
        balance: How far the arms differ before and after weighting; None where nothing is known of it.

    Raises:
        InputError: An estimand that there is not, or an outcome model without features.

    Example:
        >>> from torchdpcate.release.average_effect import _example
        >>> release = _example()
        >>> release.estimate.tolist(), release.interval(0.95).round(3).tolist()
        ([0.25], [[0.152, 0.348]])
    """

    subject = "Estimated average effect of {contrast} on {outcome}"
    of = "main"

    estimand: str
    main: Estimate
    numbers: dict[str, float]
    schema: TableSchema
    privacy: PrivacyStatement
    weights: ReleasedWeights | None = field(default=None)
    outcome_theta: Tensor | None = None
    balance: BalanceTable | None = None

    def __post_init__(self) -> None:
        """Refuse what no reader could use."""
        make_estimand(self.estimand, 0.5)
        if self.outcome_theta is not None and self.weights is None:
            raise InputError("outcome_theta: give weights too, whose features the outcome model shares")

    @property
    def named(self) -> Lines:
        """The estimate as a line."""
        bound, records = self.domain.outcome_range, self.privacy.protected.records
        value, variance = self.main.moments(records)
        known = self.main.law is not None or self.main.noise_dominated
        error, of = math.sqrt(variance) if known else math.nan, EVERYBODY if self.estimand == "ATE" else WEIGHTED
        y, errors, noise, n = torch.tensor([[value], [error], [math.nan], [self.privacy.n]], dtype=torch.float64)

        def ends(level: float) -> Tensor:
            found = self.main.interval(level, bound, records) if known else (math.nan, math.nan)
            return torch.tensor([found], dtype=torch.float64)

        names, titles, own = (self.estimand,), (whom(self.estimand),), (self.estimand,) if known else ()
        said, law = self.assumptions, self.main.law
        parts = torch.tensor([() if law is None else law.laplace], dtype=torch.float64)
        return Lines(names, titles, (of,), y, errors, noise, n, ends, said, laplace=parts, comparable=own)

    def propensity(self, X: Any) -> np.ndarray:
        """Return the released propensity, clipped to [eta, 1 - eta], at X, float64 [m].

        Args:
            X: Covariates [m, q]: a pandas frame with the schema's columns, or an array or tensor of encoded columns
                in the order of ``schema.domain.names``.

        Raises:
            InputError: Wrong columns, a point outside the domain, or a release without weights.
        """
        if self.weights is None:
            raise InputError(f"propensity: mechanism = {self.privacy.mechanism} releases none")
        return self.weights.propensity(self._covariates(X)).numpy()

    def answer(self, x: Tensor) -> Tensor:
        """Refuse: there is nothing to say row by row.

        Raises:
            InputError: Always.
        """
        raise InputError("release of lines: it is one number and gives no column; see it with torchdpcate verify")

    def plot(  # type: ignore[override]
        self, *, level: float = LEVEL, balance: bool = False
    ) -> "Figure":
        """Return the forest plot of the estimate, or how far the arms differ before and after weighting.

        Args:
            level: Probability of the interval, in (0, 1).
            balance: Draws the balance (a love plot).

        Raises:
            InputError: A balance that was not released, or a level outside (0, 1).
        """
        if not balance:
            return super().plot(level=level)
        if self.balance is None:
            raise InputError(
                "balance = True: this release says nothing of the arms' balance; it does where it was fitted with "
                "loss=balancing"
            )
        return draw("plot_balance", self)

    def summary(self) -> dict[str, Any]:
        """Return the estimand, and what ``LinesRelease`` does."""
        return {"estimand": self.estimand, **super().summary()}

    def tensors(self) -> dict[str, Tensor]:
        """Return the estimates' numbers, the sums, all coefficients and the balance table."""
        found = {"main": self.main.tensor(), "numbers": _vector(self.numbers.values())}
        if self.weights is not None:
            found |= self.weights.tensors()
        if self.outcome_theta is not None:
            found["outcome_theta"] = self.outcome_theta
        if self.balance is not None:
            found |= {f"balance.{name}": _vector(column) for name, column in self.balance.columns().items()}
        return found

    def facts(self) -> dict[str, Any]:
        """Return estimand, clip, feature map, and names and parts of the numbers."""
        facts: dict[str, Any] = {"estimand": self.estimand, "main": self.main.facts(), "numbers": list(self.numbers)}
        facts["balance"] = None if self.balance is None else list(self.balance.names)
        facts["weights"] = None if self.weights is None else self.weights.facts()
        return facts

    @staticmethod
    def read(tensors: dict[str, Tensor], facts: dict[str, Any], schema: TableSchema) -> dict[str, Any]:
        """Return its own fields by ``tensors`` and ``facts``."""
        names, weights = facts["numbers"], facts["weights"]
        _require_names(names)
        require_tensor(tensors["numbers"], (len(names),), "numbers")
        outcome = tensors.get("outcome_theta")
        if outcome is not None:
            require_tensor(outcome, tuple(tensors["theta"].shape), "outcome_theta")
        return {
            "estimand": facts["estimand"],
            "main": Estimate.build(tensors["main"], facts["main"]),
            "numbers": dict(zip(names, tensors["numbers"].tolist(), strict=True)),
            "weights": None if weights is None else ReleasedWeights.build(tensors, weights, schema.domain),
            "outcome_theta": outcome,
            "balance": None if facts["balance"] is None else _load_balance(tensors, facts["balance"]),
        }


def _vector(values: Any) -> Tensor:
    return torch.tensor(list(values), dtype=torch.float64)


def _require_names(names: Any) -> None:
    """Refuse, in a file, names that are no printable words, or that stand twice."""
    if not all(isinstance(name, str) and name.isprintable() for name in names) or len(set(names)) < len(names):
        raise ValueError("names that are none")


def _load_balance(tensors: dict[str, Tensor], names: list[str]) -> BalanceTable:
    _require_names(names)
    found = {column: tensors[f"balance.{column}"] for column in COLUMNS if f"balance.{column}" in tensors}
    for column, values in found.items():
        require_tensor(values, (len(names),), column)
    return BalanceTable(names, **{column: values.tolist() for column, values in found.items()})


def _example(effect: float = 0.25) -> AverageEffectRelease:
    """An effect on outcomes in [-1, 1], for examples."""
    from torchdpcate.release.rule import _example as rule

    schema, privacy = rule().schema, rule().privacy
    return AverageEffectRelease("ATE", Estimate(effect, IntervalLaw(0.05)), {}, schema, privacy)
