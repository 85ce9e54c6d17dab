"""The manners of scikit-learn and EconML: arguments by name; answers after a fit, all from the fit's one release."""

import math
from collections.abc import Callable
from inspect import Parameter, signature
from typing import TYPE_CHECKING, Any, NoReturn, Self, TypeVar

import numpy as np

from torchdpcate._templates import html_table_of
from torchdpcate.errors import InputError, MissingError
from torchdpcate.release.file import check_loads
from torchdpcate.release.lines import NO_INTERVAL, Lines
from torchdpcate.typing import Covariates

_Any = TypeVar("_Any")


class Parameters:
    """A class whose constructor stores its arguments, which are read and set by name, as scikit-learn has it.

    ``sklearn.base.clone``, ``check_is_fitted`` and other estimators' ``get_params`` take such an object for one of
    theirs; it is no instance of ``BaseEstimator``, for whose module scikit-learn imports SciPy's statistics and pandas.

    Example:
        >>> class Ridge(Parameters):
        ...     def __init__(self, strength=1.0, inner=None):
        ...         self.strength, self.inner = strength, inner
        >>> outer = Ridge(inner=Ridge(2.0)).set_params(strength=3.0, inner__strength=4.0)
        >>> outer, outer.get_params()["inner__strength"]
        (Ridge(strength=3.0, inner=Ridge(strength=4.0)), 4.0)
    """

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Return the constructor's arguments by name.

        Args:
            deep: Whether also those of arguments that have some themselves, as ``argument__name``.
        """
        found: dict[str, Any] = {}
        for name in _arguments(type(self)):
            value = found[name] = getattr(self, name)
            if deep and hasattr(value, "get_params") and not isinstance(value, type):
                found |= {f"{name}__{key}": inner for key, inner in value.get_params().items()}
        return found

    def set_params(self, **params: Any) -> Self:
        """Set arguments by name, those of an argument as ``argument__name``, and return the object.

        Raises:
            InputError: No such argument.
        """
        known, inner = _arguments(type(self)), dict[str, dict[str, Any]]()
        for key, value in params.items():
            name, _, rest = key.partition("__")
            if name not in known:
                raise InputError(f"{key}: {type(self).__name__} has no such parameter; it has {', '.join(known)}")
            if rest:
                inner.setdefault(name, {})[rest] = value
            else:
                setattr(self, name, value)
        for name, own in inner.items():
            getattr(self, name).set_params(**own)
        return self

    def __repr__(self) -> str:
        """Return the arguments that are not at their defaults."""
        shown = []
        for name, argument in _arguments(type(self)).items():
            value = repr(getattr(self, name))
            if argument.default is Parameter.empty or value != repr(argument.default):
                shown.append(f"{name}={value}")
        return f"{type(self).__name__}({', '.join(shown)})"

    def _repr_html_(self) -> str:
        rows = [(name, getattr(self, name)) for name in _arguments(type(self))]
        return html_table_of(type(self).__name__, [(name, value) for name, value in rows if value is not None])

    def __sklearn_tags__(self) -> Any:
        from sklearn.base import BaseEstimator

        return BaseEstimator.__sklearn_tags__(self)


def clone(estimator: _Any) -> _Any:
    """Return another one with the same parameters, not fitted: ``sklearn.base.clone``, imported when it is needed."""
    from sklearn import base

    copied: _Any = base.clone(estimator)
    return copied


def _arguments(kind: type) -> dict[str, Parameter]:
    """Return the named arguments of a class's constructor."""
    own = signature(kind).parameters.values()
    return {argument.name: argument for argument in own if argument.kind is not Parameter.VAR_KEYWORD}


class Answering:
    """A learner that keeps its release, and answers from it.

    The first question makes the release and pays for it with all that is left of the budget, unless one was made
    before; every further one is post-processing, and costs nothing.

    Attributes:
        release_: The last release that was made; none before the first.
    """

    if TYPE_CHECKING:  # every learner has them

        def release(self) -> Any:
            """Pay for a release and return it."""

        def __sklearn_is_fitted__(self) -> bool: ...

    def _require_fitted(self, what: str) -> None:
        if not self.__sklearn_is_fitted__():
            raise InputError(f"{what}: {type(self).__name__} is not fitted; call fit(X, A, Y) first")

    def _keep(self, release: Any) -> Any:
        """Keep a release for the questions that follow, and return it.

        Raises:
            VerificationError: It could not be read back from its file; see ``release.file.check_loads``.
        """
        check_loads(release)
        self.release_ = release
        return release

    def _once(self, make: Callable[[], Any]) -> Any:
        """Return the release that all that is left is spent on: made and paid for once, the same one each time."""
        if "_whole" not in vars(self):
            self._whole = self._keep(make())
        return self._whole

    @property
    def score(self) -> NoReturn:
        """Refuse: what a learner answers is seen in no record, and a number worked out of records would be unpaid.

        Searches and cross-validation of scikit-learn find no ``score``, and refuse before the first fit spends.

        Raises:
            MissingError: Says what there is instead.
        """
        raise MissingError(
            f"score: no y is what {type(self).__name__} answers, and nobody would have paid for the number; "
            "expected_noise(n) says what to expect, and searches on public data take scoring=FUNCTION"
        )

    def _requested(self, what: str) -> Any:
        """Return the release that answers ``what``."""
        self._require_fitted(what)
        if "release_" not in vars(self):
            self._keep(self.release())
        return self.release_


class AnswersEffects(Answering):
    """Effects as functions of covariates.

    Example:
        >>> from torchdpcate import Dataset1, PrivacyBudget, RLearner
        >>> study = Dataset1(n=600).load()
        >>> learner = RLearner(study.domain, PrivacyBudget(4.0, 1e-5))
        >>> effects = learner.fit(study.records.x, study.records.a, study.records.y).effect(study.records.x[:3])
        >>> effects.shape, round(learner.ledger_.spent()["total"]["epsilon"], 6)
        ((3,), 4.0)
    """

    def effect(self, X: Covariates) -> np.ndarray:
        """Return released effects at X, [m], in outcome units; of K > 2 arms [m, K - 1], each against the reference.

        Args:
            X: Covariates [m, q]: a table with the schema's columns (pandas, polars, Arrow, or a dict of columns or of
                one row), or an array or tensor of encoded columns.

        Raises:
            InputError: Not fitted; wrong columns, or a point outside the domain, unless the schema clips.
        """
        return self._requested("effect").effect(X)

    def predict(self, X: Covariates) -> np.ndarray:
        """Return ``effect(X)``, [m]: the name that scikit-learn has for it."""
        return self.effect(X)

    def effect_interval(self, X: Covariates, alpha: float = 0.05) -> tuple[np.ndarray, np.ndarray]:
        """Return lower and upper ends, [m] each, of the effects' confidence intervals of level 1 - alpha.

        Args:
            X: Covariates, as for ``effect``.
            alpha: One minus the level, in (0, 1).

        Raises:
            InputError: The release has no confidence intervals, or alpha is outside (0, 1).
        """
        return self._requested("effect_interval").effect_interval(X, alpha)

    def ate(self, X: Covariates) -> float:
        """Return the mean of the released effects at X, in outcome units: a number about these rows.

        Args:
            X: Covariates, as for ``effect``.
        """
        return self._requested("ate").ate(X)

    def ate_interval(self, X: Covariates, alpha: float = 0.05) -> tuple[float, float]:
        """Return lower and upper end of the confidence interval of that mean.

        Args:
            X: Covariates, as for ``effect``; public rows.
            alpha: One minus the level, in (0, 1).

        Raises:
            InputError: The release has no confidence intervals, or alpha is outside (0, 1).
        """
        return self._requested("ate_interval").ate_interval(X, alpha)


class AnswersDecisions(Answering):
    """Actions as functions of covariates."""

    def decide(self, X: Covariates) -> np.ndarray:
        """Return the released rule's or policy's actions at X, int64 [m].

        Args:
            X: Covariates [m, q]: a table with the schema's columns (pandas, polars, Arrow, or a dict of columns or of
                one row), or an array or tensor of encoded columns.

        Raises:
            InputError: Not fitted; wrong columns, or a point outside the domain, unless the schema clips.
        """
        return self._requested("decide").decide(X)

    def predict(self, X: Covariates) -> np.ndarray:
        """Return ``decide(X)``, [m]: the name that scikit-learn has for it."""
        return self.decide(X)


class AnswersAverage(Answering):
    """One average effect, whoever is requested."""

    @property
    def line(self) -> str | None:
        """Name of its line; None of the only one."""
        return None

    def ate(self, X: Covariates | None = None) -> float:
        """Return the released average effect of the learner's estimand, in outcome units.

        Args:
            X: Not used: the average is over the records of the fit. It is there because EconML's has it.
        """
        lines, place = self._line("ate")
        return float(lines.estimates[place])

    def ate_interval(self, X: Covariates | None = None, alpha: float = 0.05) -> tuple[float, float]:
        """Return lower and upper end of the interval of level 1 - alpha.

        Args:
            X: Not used, as of ``ate``.
            alpha: One minus the level, in (0, 1).

        Raises:
            InputError: No interval is known for this estimate, or alpha is outside (0, 1).
        """
        lines, place = self._line("ate_interval")
        low, high = lines.interval(1 - alpha)[place].tolist()
        if math.isnan(low):
            raise InputError(f"ate_interval: {NO_INTERVAL}")
        return low, high

    def _line(self, what: str) -> tuple[Lines, int]:
        lines = self._requested(what).required_lines
        return lines, lines.place(self.line or lines.names[0])


class AnswersCells(Answering):
    """Effects in subgroups."""

    def lines(self, level: float = 0.95, simultaneous: bool = False) -> Any:
        """Return one row a subgroup with its effect and interval; see ``Release.lines``."""
        return self._requested("lines").lines(level, simultaneous)
