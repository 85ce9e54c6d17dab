"""The average effect by the estimator of least planned error among those that are valid for what is known."""

from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY, dataclass, fields, replace
from pathlib import Path
from typing import Any, Self

from numpy.typing import ArrayLike

from torchdpcate.data._arrays import as_frame, in_this_order, treatment_and_outcome
from torchdpcate.data.domain import Domain
from torchdpcate.data.schema import TableSchema
from torchdpcate.data.streams import RecordStream
from torchdpcate.errors import InputError
from torchdpcate.estimators.answers import AnswersAverage, Parameters
from torchdpcate.estimators.average.effect_plan import AUTO, CHOSEN_BY, PLANNED_ERROR, ErrorPrior, PlannedError
from torchdpcate.estimators.average.learner import AverageEffectLearner
from torchdpcate.estimators.base import Protecting
from torchdpcate.estimators.planned_noise import PlannedNoise
from torchdpcate.fit.feature_maps import FeatureMap, Identity
from torchdpcate.privacy.budget import PrivacyBudget
from torchdpcate.privacy.noise import NoiseSource
from torchdpcate.release.average_effect import AverageEffectRelease
from torchdpcate.release.estimate import Estimate
from torchdpcate.typing import Covariates, Outcome, Treatment


@dataclass(frozen=True, eq=False)
class ChosenEstimator:
    """The estimator that is chosen, and what all that are valid are planned to be off by.

    Attributes:
        learner: The estimator, not fitted.
        planned: Planned errors of all valid estimators that have an interval, the chosen one first, then by size.
        reason: Why, in a sentence.
        refused: What each estimator that was left out says of these settings, by name.
    """

    learner: AverageEffectLearner
    planned: tuple[PlannedError, ...]
    reason: str
    refused: Mapping[str, str]

    @property
    def effect(self) -> str:
        """Name of the estimator, as ``effect=`` has it."""
        return self.planned[0].effect

    @property
    def error(self) -> PlannedError:
        """Its planned error."""
        return self.planned[0]


@dataclass(eq=False, repr=False)
class AverageEffect(AnswersAverage, Protecting, Parameters):
    r"""Average effect by the estimator of least planned error that is valid for what is known: the default.

    .. math:: \tau_h = \frac{E[h(x) (\mu_1(x) - \mu_0(x))]}{E[h(x)]}, \quad
        h = 1,\; \pi,\; 1 - \pi,\; \pi (1 - \pi) \text{ for ATE, ATT, ATC, ATO}

    Valid are, where the domain states the propensity of a design, ``KnownPropensityEffect``; else
    ``CovariateBalancingEffect`` and, of the ATE with a delta, ``ComposedAverageEffect``, which estimate the propensity.
    The choice is by ``planned_error``: n, budget, bounds, overlap and estimand, all of it public. No
    record is read, and nothing is spent on it.

    Guarantee:
        That of the chosen estimator, certified with the library's parts; its release states what was chosen
        (``chosen_by``, ``planned_error``) beside what it rests on (``assumptions``).

    Args:
        domain: Public bounds (``Domain``), or a ``TableSchema`` to keep a table's columns in releases.
        budget: Privacy budget of fit and release; None fits without privacy.
        estimand: ``ATE``, ``ATT``, ``ATC``, ``ATO`` or another of ``ESTIMANDS``.
        basis: Public feature map of the balancing weights; None takes intercept and scaled covariates. With another
            one ``ComposedAverageEffect``, whose features follow from its plan, is not considered.
        noise: Privacy noise; None takes the operating system's entropy.
        ledger_path: File of the ledger, which must not exist; None keeps the ledger in memory.

    Attributes:
        choice_: What was chosen, and why.
        chosen_: The fitted estimator; its attributes that end in an underscore are this object's too.

    Example:
        >>> import torch
        >>> X, A = torch.rand(4000, 2), torch.arange(4000) % 2
        >>> Y = (0.3 + 0.4 * A) * torch.ones(4000)
        >>> trial = Domain([0, 0], [1, 1], 0.0, 1.0, propensity=0.5)
        >>> learner = AverageEffect(trial, PrivacyBudget(1.0, 0.0)).fit(X, A, Y)
        >>> release = learner.release()
        >>> learner.choice_.effect, abs(release.estimate - 0.4) < 0.05
        ('known_propensity', True)
        >>> AverageEffect(Domain([0, 0], [1, 1], 0.0, 1.0), PrivacyBudget(1.0, 0.0)).choose(4000).effect
        'covariate_balancing'
    """

    domain: Domain | TableSchema
    budget: PrivacyBudget | None
    _: KW_ONLY
    estimand: str = "ATE"
    basis: FeatureMap | None = None
    noise: NoiseSource | None = None
    ledger_path: str | Path | None = None

    needs_all_records = None
    """See ``PrivateEstimator``: over a stream it chooses among estimators that can."""

    def choose(self, n: int, stream: bool = False) -> ChosenEstimator:
        """Return the valid estimator of least planned error; public facts alone, nothing is spent.

        Args:
            n: Number of records.
            stream: Whether records come batch by batch.

        Raises:
            InputError: No valid estimator takes these settings.
        """
        found: list[tuple[PlannedError, AverageEffectLearner]] = []
        refused: dict[str, str] = {}
        problem: InputError | None = None
        for name, kind in self._valid().items():
            try:
                learner = self._make(name, kind)
                found.append((self._planned(learner, n, stream), learner))
            except InputError as refusal:
                refused[name], problem = str(refusal), problem or refusal
        if not found:
            assert problem is not None
            raise problem
        found.sort(key=lambda pair: pair[0].total)
        errors = tuple(error for error, _ in found)
        return ChosenEstimator(found[0][1], errors, self._reason(errors), refused)

    def plan(self, n: int) -> ChosenEstimator:
        """Return the choice for n records, as ``choose`` makes it; nothing is spent."""
        return self.choose(n)

    def planned_error(self, n: int, prior: ErrorPrior | None = None) -> PlannedError:
        """See ``AverageEffectLearner``: of what is chosen for n records."""
        choice = self.choose(n)
        return choice.error if prior is None else choice.learner.planned_error(n, prior)

    def expected_noise(self, n: int) -> PlannedNoise:
        """See ``AverageEffectLearner``: of what is chosen for n records."""
        choice = self.choose(n)
        found = choice.learner.expected_noise(n)
        return replace(found, remarks=(*found.remarks, f"effect={choice.effect}: {choice.reason}"))

    def check(self, n: int) -> None:
        """Refuse, before anything is learnt or spent, what could not be released."""
        self.choose(n)

    def warning(self, n: int) -> str | None:
        """See ``AverageEffectLearner``: of what is chosen for n records."""
        return self.choose(n).learner.warning(n)

    @in_this_order
    def fit(
        self,
        X: Covariates,
        A: Treatment | Outcome,
        Y: Outcome | None = None,
        propensity: ArrayLike | None = None,
        *,
        treatment: Treatment | None = None,
        weight: ArrayLike | None = None,
    ) -> Self:
        """See ``AverageEffectLearner``: of what is chosen for as many records."""
        X, (A, Y) = as_frame(X), treatment_and_outcome(A, Y, treatment)
        try:
            n = len(Y)  # type: ignore[arg-type]
        except TypeError:
            raise InputError(f"Y of type {type(Y).__name__}: give one outcome a record") from None
        return self._fit(self.choose(n), lambda learner: learner.fit(X, A, Y, propensity, weight=weight))

    def check_stream(self) -> None:
        """Refuse nothing before it is known how many records there are."""

    def fit_stream(self, stream: RecordStream) -> Self:
        """See ``AverageEffectLearner``: of what is chosen for as many records."""
        return self._fit(self.choose(stream.n, stream=True), lambda learner: learner.fit_stream(stream))

    def release(self) -> AverageEffectRelease:
        """Pay for the estimate with all that is left and return it, the same one each time.

        Raises:
            InputError: Not fitted, or fitted without privacy.
        """
        return self._fitted("release").release()

    def nonprivate_estimate(self) -> Estimate:
        """Return the estimate without noise in its last step. The curator's, never to be published."""
        return self._fitted("nonprivate_estimate").nonprivate_estimate()

    def __getattr__(self, name: str) -> Any:
        """Return what the chosen estimator learnt, and its balance where it has one."""
        learnt = name == "nonprivate_balance" or (name.endswith("_") and not name.startswith("_"))
        if learnt and "chosen_" in vars(self):
            return getattr(self.chosen_, name)
        return object.__getattribute__(self, name)  # which says why it is not there

    def __sklearn_is_fitted__(self) -> bool:
        return "chosen_" in vars(self)

    def _fit(self, choice: ChosenEstimator, fit: Callable[[AverageEffectLearner], Any]) -> Self:
        fitted: AverageEffectLearner | None = self.__dict__.get("chosen_")
        if fitted is not None:
            fitted._refuse_again(type(self).__name__)
            del self.__dict__["chosen_"]
        fit(choice.learner.protect(self.protected))
        choice.learner.settings_ |= {CHOSEN_BY: AUTO, PLANNED_ERROR: choice.error.total}
        self.choice_, self.chosen_ = choice, choice.learner
        return self

    def _requested(self, what: str) -> AverageEffectRelease:
        return self._fitted(what)._requested(what)

    def _fitted(self, what: str) -> AverageEffectLearner:
        if "chosen_" not in vars(self):
            raise InputError(f"{what}: AverageEffect is not fitted; call fit(X, A, Y) first")
        return self.chosen_

    def _planned(self, learner: AverageEffectLearner, n: int, stream: bool) -> PlannedError:
        """Return the planned error of a valid estimator.

        Raises:
            InputError: It does not take these settings.
        """
        target = learner.target
        if not learner.supports(type(target)):
            raise InputError(f"estimand = {target.name!r}: {type(learner).__name__} does not estimate it")
        learner.check_weights()
        if stream:
            learner.check_stream()
        learner.check(n)
        return learner.planned_error(n)

    def _valid(self) -> dict[str, type[AverageEffectLearner]]:
        """Return what is valid for what is known and has an interval, by the names of ``effect=``."""
        from torchdpcate.estimators.average.composed import ComposedAverageEffect
        from torchdpcate.estimators.average.covariate_balancing import CovariateBalancingEffect
        from torchdpcate.estimators.average.known_propensity import KnownPropensityEffect

        domain = TableSchema.of(self.domain).domain
        known = domain.known_propensity
        if domain.censoring is not None:
            return {"composed": ComposedAverageEffect}
        if known is None:
            return {"covariate_balancing": CovariateBalancingEffect, "composed": ComposedAverageEffect}
        return {"known_propensity": KnownPropensityEffect}

    def _make(self, name: str, kind: type[AverageEffectLearner]) -> AverageEffectLearner:
        """Return the estimator of this name with those settings of this object that it has.

        Raises:
            InputError: What was requested needs balancing weights, or no privacy, and it has neither.
        """
        needed = {"budget": self.budget is None, "basis": not isinstance(self.basis, Identity | None)}
        for setting in needed if name == "composed" else ():
            if needed[setting]:
                raise InputError(f"{setting} = {getattr(self, setting)!r}: {kind.__name__} has no use for it")
        own = {field.name for field in fields(kind)} & {field.name for field in fields(self)} - {"domain", "budget"}
        return kind(self.domain, self.budget, **{field: getattr(self, field) for field in own})

    def _reason(self, planned: tuple[PlannedError, ...]) -> str:
        known = TableSchema.of(self.domain).domain.known_propensity
        given = "the propensity is estimated" if known is None else "the domain states the propensity"
        beside = "".join(f", {other.effect} {other.total:.3g}" for other in planned[1:])
        return f"{given}; planned standard error of {planned[0].effect} {planned[0].total:.3g}{beside}"
