"""What every estimator does: it checks records, opens the session of a fit, and guards its releases."""

import math
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import ArrayLike

from torchdpcate.data._arrays import as_frame, check_aligned, in_this_order, treatment_and_outcome
from torchdpcate.data.checked import checked_records, fingerprint, keyed_digest, used_again
from torchdpcate.data.domain import Domain
from torchdpcate.data.records import CausalData
from torchdpcate.data.schema import TableSchema
from torchdpcate.data.streams import RecordStream
from torchdpcate.errors import InputError, PrivacyWarning
from torchdpcate.estimators.answers import Answering, Parameters
from torchdpcate.estimators.planned_noise import PlannedNoise
from torchdpcate.plan import RECORDS
from torchdpcate.privacy.budget import PrivacyBudget, integer
from torchdpcate.privacy.guarantee import Condition, Guarantee, Level, user_code
from torchdpcate.privacy.noise import NoiseSource
from torchdpcate.privacy.session import FitSession
from torchdpcate.privacy.shared_ledger import RunLedger
from torchdpcate.privacy.unit import RECORD, PrivacyUnit
from torchdpcate.registry import refuse_strings
from torchdpcate.release.statement import PrivacyStatement, bounds_of, make_statement
from torchdpcate.typing import Covariates, Outcome, Treatment

_BEFORE = {"protected", "_parent_callback_ctx"}  # set before a fit, by the user and by scikit-learn's pipelines
_MOST_DELTA = 0.01
MakeStatement = Callable[[Any, Guarantee, Mapping[str, Any], set[int]], PrivacyStatement]
"""Makes a privacy statement of a mechanism or a plan, its guarantee, public facts and its own entries in the ledger."""
WEIGHED = "records may have weights in task=cate, rule, average_effect and subgroups with their default learners"
"""What takes records that do not all count alike."""
CENSORED = "task=cate and rule do, and subgroups and average_effect (effect=auto), of a cohort with delta > 0"
"""What takes outcomes that may be censored."""
RATES = "trials have them by task=subgroups (SubgroupEffects) and, by default, task=average_effect"
"""What takes outcomes with an exposure."""
_FITS = 5  # frames from a warning of a fit to the line that called it


class Protecting:
    """What has a privacy budget, and can be told who is protected.

    Attributes:
        protected: A record, or a person with k records.
    """

    protected: PrivacyUnit = RECORD
    budget: PrivacyBudget | None

    def __post_init__(self) -> None:
        self._check_budget()

    def _check_budget(self) -> None:
        """Refuse strings where objects are taken, what is no budget, and a delta that no table could have.

        Raises:
            InputError: Says what to give.
        """
        refuse_strings(type(self), {**vars(self), "domain": None})  # which may be named by its file
        if self.budget is not None and not isinstance(self.budget, PrivacyBudget):
            raise InputError(
                f"budget = {self.budget!r}: give a PrivacyBudget, such as PrivacyBudget(epsilon=1.0, delta=1e-05), or "
                "None to fit without privacy"
            )
        if self.budget is not None and self.budget.delta > _MOST_DELTA:
            raise InputError(
                f"budget: delta = {self.budget.delta:g}: whole records may be published with about this chance each; "
                "give less than 1/n, such as 1e-05 (PrivacyBudget(epsilon, delta))"
            )

    def protect(self, unit: PrivacyUnit) -> Self:
        """Say who is protected; ledger and statements name it, and state what a person with several records loses.

        Budgets are by record all the same: give the learner ``unit.record_budget(budget)``, and records of which each
        person has exactly ``unit.records`` (``torchdpcate.data.person_rows``).

        Args:
            unit: A record, or a person with k records.

        Returns:
            The estimator itself.
        """
        self.protected = unit
        return self


class PrivateEstimator(Answering, Protecting, Parameters, ABC):
    """An estimator of scikit-learn's manners whose fit pays from a session, and whose ``release`` is all that leaves.

    A subclass says in ``_prepare`` what it refuses before anything is spent, and in ``_learn`` what it learns; its
    ``release`` begins with ``_ready``.

    Attributes:
        domain: Public bounds, or a schema.
        budget: Privacy budget of each block of records; None fits without privacy.
        noise: Privacy noise; None takes the operating system's entropy.
        ledger_path: File of the ledger; None keeps it in memory. ``SharedLedger.run`` counts the fit in a ledger over
            all runs on the same records too.
        schema_: Columns and public bounds.
        sizes_: Records per block, public.
        ledger_: What has been spent; None without privacy.
        n_features_in_: Number of covariates, public.
        feature_names_in_: Their names, public.
        clipped_: How many values of each column were moved to their bounds. The curator's, never to be published.
    """

    domain: Domain | TableSchema
    budget: PrivacyBudget | None
    noise: NoiseSource | None
    ledger_path: str | Path | RunLedger | None
    blocks_: Mapping[str, Any]

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
        """Check the records and learn from them, paying for what leaves the learner's hands.

        Call it as ``fit(X, A, Y)``, or as ``fit(X, Y, treatment=A)``, by which pipelines and searches of scikit-learn
        hand on the outcome second. A fit with privacy is made once: another one would spend again, and takes another
        learner, such as ``sklearn.base.clone`` of this one. Where that is fitted to the same records, it warns once.

        Args:
            X: Covariates within the domain: a table with the schema's columns (pandas, polars, Arrow, a dict of
                columns), or encoded columns [n, q] as NumPy or torch.
            A: Treatment or action [n], in numbers or by the names of the schema's categories; the outcome, where
                ``treatment`` is given.
            Y: Outcome [n] within the domain, or time and event [n, 2] of one by a horizon; left out where ``treatment``
                is given.
            propensity: Each record's known propensity [n], where the domain names a column of it that X lacks.
            treatment: Treatment or action [n], where the outcome comes second.
            weight: Each record's weight [n], where the domain names a column of them that X lacks.

        Returns:
            The estimator itself.

        Raises:
            InputError: Values outside the domain, an arm without records, settings that leave nothing to release, or a
                shared ledger of other records; treatment and outcome that are there twice, or not at all; a learner
                that is fitted with privacy already.
        """
        self._start()
        X, (A, Y) = as_frame(X), treatment_and_outcome(A, Y, treatment)
        check_aligned(X=X, A=A, Y=Y)
        A, Y = self.schema_.labels(A), self.schema_.outcomes(Y)
        noise = None if self.budget is None else self._noise
        records = checked_records(self.schema_, X, A, Y, noise, self._arms(), propensity, weight)
        self.clipped_ = records.clipped
        return self._fit(
            self._of(records),
            lambda: fingerprint(X, A, self.schema_.one_column(Y), self.schema_),
            self._digest(records),
        )

    def fit_stream(self, stream: RecordStream) -> Self:
        """Learn from records that are read batch by batch, in constant memory: the charges and the result of ``fit``.

        The order of the records is that of the stream, which must not depend on them. They are read up to some two
        hundred times: give a ``CachedStream`` of what is slow to read.

        Args:
            stream: Records with the domain's columns, for instance a ``TableStream``.

        Returns:
            The estimator itself.

        Raises:
            InputError: As ``fit``; or, before anything is read, what needs all records at once.
        """
        self._start()
        self.check_stream()
        stream.check_schema(self.schema_, isinstance(self.domain, TableSchema))
        self.clipped_ = stream.clipped
        return self._fit(self._of(stream), digest=self._digest(stream))

    def check_stream(self) -> None:
        """Refuse, before anything is read or spent, what a stream of records does not allow.

        Raises:
            InputError: Says why, and what to use instead.
        """
        why = self.needs_all_records
        if why is not None:
            raise InputError(f"stream: all records are needed at once: {why}, or fit(X, A, Y) (data.stream=false)")

    @property
    def needs_all_records(self) -> str | None:
        """Why it cannot be fitted to a stream, with what to use instead, in words; None where it can."""
        return f"{type(self).__name__} requests more than sums over records; use task=rule, or another learner"

    @property
    def needs_equal_records(self) -> str | None:
        """Why all records must count alike, with what to use instead, in words; None where they may have weights."""
        return f"{type(self).__name__} takes none"

    takes_pairs = False
    """Whether records may be pairs of which one is treated, see ``Pairs``."""

    @property
    def takes_censored(self) -> bool:
        """Whether outcomes may be censored: whether it has a step that releases a curve of that."""
        return False

    takes_rates: ClassVar[bool] = False
    """Whether outcomes may be divided by an exposure."""

    def check_weights(self) -> None:
        """Refuse, before a record is read, weights of records, pairs and censored outcomes where they have no place.

        Raises:
            InputError: Says why, and what takes them.
        """
        why, schema = self.needs_equal_records, TableSchema.of(self.domain)
        domain = schema.domain
        if schema.pairs is not None and not self.takes_pairs:
            raise InputError(
                f"assignment: pairs ({schema.pairs.name}) have differences, and {type(self).__name__} needs records; "
                "task=average_effect and task=subgroups (SubgroupEffects) take them"
            )
        if domain.censoring is not None and not self.takes_censored:
            raise InputError(f"censoring: {type(self).__name__} takes no outcome by a horizon; {CENSORED}")
        if domain.is_rate and not self.takes_rates:
            raise InputError(f"exposure: {type(self).__name__} has no rates; {RATES}")
        if why is not None and domain.expected_weight is not None:
            raise InputError(f"weights: {why}; {WEIGHED}")

    @abstractmethod
    def release(self, *args: Any, **settings: Any) -> Any:
        """Pay for a release and return it."""

    def expected_noise(self, n: int) -> PlannedNoise:
        """Return the noise to expect in a release from n records, in outcome units, by public facts alone.

        No record is needed and no fit: all estimators can be compared by it before anything is spent. One that does not
        say returns noise that is not known.

        Args:
            n: Number of records.

        Raises:
            InputError: No budget, or settings that could not be released.
        """
        budget, domain = self._planned(n), TableSchema.of(self.domain).domain
        level = Level.CONDITIONAL if self._own_learner() else Level.CERTIFIED
        return PlannedNoise(math.nan, "the release", domain.outcome_range, n, budget, {}, level)

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "n_features_in_")

    def _start(self) -> None:
        """Forget what an earlier fit without privacy left: a fit that is refused leaves nothing of it.

        Raises:
            InputError: An earlier fit has paid, and its answers stay; or no budget.
        """
        self._check_budget()
        self._refuse_again(type(self).__name__)
        for name in vars(self).keys() - self.get_params(deep=False).keys() - _BEFORE:
            delattr(self, name)
        self.schema_ = self._schema()
        self.schema_.check_written()
        self.check_weights()
        self._noise = self.noise or NoiseSource.system()

    def _refuse_again(self, name: str) -> None:
        """Refuse another fit where one has paid; of one with noise of a fixed seed nothing is claimed.

        Args:
            name: What the user calls the learner.

        Raises:
            InputError: It has.
        """
        ledger = vars(self).get("ledger_")
        if ledger is None or not ledger.private:
            return
        remedy = "another fit would spend its budget again: fit a new one, such as sklearn.base.clone(learner)"
        if self.__sklearn_is_fitted__():
            raise InputError(f"fit: this {name} is fitted, and answers from what was paid for; {remedy}")
        if any(entry.reserved for entry in ledger.entries):
            raise InputError(f"fit: this {name} has paid for a fit that did not end; {remedy}")

    def _digest(self, records: CausalData | RecordStream) -> int | None:
        """Return by what these records are known again; None of a fit that protects nobody."""
        return keyed_digest(records) if self.budget is not None and self._noise.private else None

    def _warn(self, n: int, digest: int | None) -> None:
        """Say before anything is spent what a user should think about."""
        if self.budget is None or digest is None:
            return
        delta = self.protected.cost(self.budget.epsilon, self.budget.delta)[1]
        if delta * n > self.protected.records:
            warnings.warn(large_delta(delta, n // self.protected.records), PrivacyWarning, stacklevel=_FITS)
        if used_again(digest, told=not isinstance(self.ledger_path, RunLedger)):
            warnings.warn(
                "fit: these records were fitted before in this process: what you publish of all fits adds up, and no "
                "ledger counts it; give each ledger_path=SharedLedger(...).run() (on the command line "
                "budget.shared=LEDGER) to keep one total",
                PrivacyWarning,
                stacklevel=_FITS,
            )

    def _fit(self, records: Any, given: Callable[[], str] | None = None, digest: int | None = None) -> Self:
        """Learn from records within the domain, in an order that does not depend on them; after ``_start``.

        Args:
            records: The records, or a stream of them.
            given: Returns the fingerprint of the arrays that they came as; None of a stream.
            digest: Of ``_digest``; None for records that were noted already, or need not be.
        """
        self._prepare(records)
        self._refuse_own(given)
        self.sizes_ = self._sizes(records.n)
        self._refuse_broken_units(records.n)
        if isinstance(self.ledger_path, RunLedger) and self.budget is not None:
            self.ledger_path.shared.check_records(given)
        self._warn(records.n, digest)
        session = FitSession.open(
            self.sizes_, self.budget, self._noise, self.ledger_path, self._filter(), self.protected
        )
        self._session = replace(session, conditional=self._conditional())
        self.ledger_ = session.ledger
        with session.kept_if_used():
            self._learn(records)
        session.close()
        self.feature_names_in_ = np.array([covariate.name for covariate in self.schema_.covariates], dtype=object)
        self.n_features_in_ = len(self.feature_names_in_)
        return self

    def _refuse_own(self, given: Callable[[], str] | None) -> None:
        """Refuse what was made from these very records, where the learner takes anything that may be.

        Args:
            given: As of ``_fit``.

        Raises:
            InputError: Says what was.
        """

    def _refuse_broken_units(self, n: int) -> None:
        """Refuse records that are no multiple of what each person has.

        Raises:
            InputError: Says so.
        """
        if n % self.protected.records:
            raise InputError(
                f"n = {n}: no multiple of the {self.protected.records} records that each person has; make them with "
                "torchdpcate.data.person_rows"
            )

    def _schema(self) -> TableSchema:
        """Return columns and public bounds."""
        return TableSchema.of(self.domain).two_arms(type(self).__name__)

    def _arms(self) -> Sequence[int]:
        """Return the labels of the arms."""
        return 0, 1

    def _of(self, records: CausalData | RecordStream) -> Any:
        """Return the records, in memory or of a stream, as ``_learn`` takes them."""
        return records

    @abstractmethod
    def _prepare(self, records: Any) -> None:
        """Refuse, before anything is spent, what could not be released, and set ``blocks_`` where there are some."""

    @abstractmethod
    def _learn(self, records: Any) -> None:
        """Learn from the records, paying by ``_session``."""

    def _sizes(self, n: int) -> dict[str, int]:
        """Return the records per block."""
        blocks = vars(self).get("blocks_")
        return {RECORDS: n} if blocks is None else {name: len(index) for name, index in blocks.items()}

    def _filter(self) -> str:
        """Return how the ledger counts what is paid after the fit, see ``Ledger``."""
        return "sums"

    def _own_learner(self) -> tuple[Condition, ...]:
        """Return the condition of a learner that is no class of the library."""
        return user_code("learner", self)

    def _conditional(self) -> bool:
        """Return whether nothing that is paid for is certified."""
        return bool(self._own_learner())

    def _statement_of(
        self, mechanism: Any, guarantee: Guarantee, public: Mapping[str, Any], own: set[int], **more: Any
    ) -> PrivacyStatement:
        """Return the privacy statement of a release.

        Args:
            mechanism: What made it, with ``name``, ``formula``, and whether it is ``free``.
            guarantee: Its level and conditions.
            public: Public settings and constants.
            own: Its entries in the ledger.
            more: Further arguments of ``make_statement``.

        Raises:
            InputError: Something is claimed of what was charged to no block, and is not free.
        """
        if guarantee.holds_claim and not own and not mechanism.free:
            raise InputError(
                f"mechanism = {mechanism.name}: nothing was charged for this release, so that it may claim nothing; a "
                "plan's queries say what it asks of the records"
            )
        return make_statement(
            self._session,
            guarantee.resting_on(self._own_learner()),
            own=own,
            mechanism=mechanism.name,
            formula=mechanism.formula,
            public=public,
            bounds_origin=self.schema_.domain.origin,
            bounds=bounds_of(self.schema_.domain),
            **more,
        )

    def _planned(self, n: int) -> PrivacyBudget:
        """Return the budget that a plan for n records is made of.

        Raises:
            InputError: No budget, or n is not a positive integer.
        """
        integer("n", n, least=1)
        self._check_budget()
        self.check_weights()
        if self.budget is None:
            raise InputError("budget = None: without privacy there is no noise to plan; give a budget")
        return self.budget

    def _ready(self) -> FitSession:
        """Return the session that pays for a release.

        Raises:
            InputError: Not fitted, or fitted without privacy.
        """
        self._require_fitted("release")
        if self._session.budget is None:
            raise InputError("budget = None: this learner was fitted without privacy and releases nothing")
        return self._session


def large_delta(delta: float, n: int, who: str = "a whole record") -> str:
    """Return what to say of a delta above 1/n."""
    return f"delta = {delta:g} is above 1/n = {1 / n:.2g}: it would allow publishing {who}"
