"""What rules have in common whose settings are chosen on the private records."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from sklearn.base import BaseEstimator, clone
from torch import LongTensor

from torchdpcate.data.checked import checked_records
from torchdpcate.data.records import CausalData
from torchdpcate.data.schema import TableSchema
from torchdpcate.errors import InputError
from torchdpcate.estimators.base import forget
from torchdpcate.estimators.rules.learner import RuleLearner
from torchdpcate.privacy.charge import Charge
from torchdpcate.privacy.events import ApproximateEvent, Event, PureEvent
from torchdpcate.privacy.guarantee import Guarantee, Level
from torchdpcate.privacy.ledger import Ledger
from torchdpcate.privacy.noise import NoiseSource
from torchdpcate.privacy.session import FitSession
from torchdpcate.release.rule import RuleRelease
from torchdpcate.release.statement import make_statement


class TunedRule(BaseEstimator, ABC):
    """A rule learner whose settings are chosen on the private records.

    Args:
        learner: The rule with its budget, seed, noise and ledger path; not changed.
        ridges: Candidate ridges, public.

    Attributes:
        learner_: The learner with the settings that were chosen, fitted. The curator's, never to be published; it has
            nothing left to release with.
        ledger_: What has been spent.
        blocks_: Positions of the records of each block, public; in an order that nobody knows.
    """

    learner: RuleLearner
    learner_: RuleLearner
    ridges: Sequence[float]

    def fit(self, X: Any, A: Any, Y: Any) -> "TunedRule":
        """Choose the settings and train the rule, which spends the whole budget.

        Args:
            X: Covariates within the domain; see ``RuleLearner.fit``.
            A: Treatment [n] in {0, 1}.
            Y: Outcome [n] within the domain; larger is better.

        Raises:
            InputError: See ``RuleLearner.fit``; too few records for the blocks; a candidate that could not be released.
        """
        forget(self)
        learner, schema = self.learner, TableSchema.of(self.learner.domain).two_arms()
        self._noise = learner.noise or NoiseSource.system()
        records = checked_records(schema, X, A, Y, self._noise)
        self.check(records.n)
        self.blocks_ = self._blocks(records.n)
        assert learner.budget is not None
        self._session = FitSession.open(self.sizes_, learner.budget, self._noise, learner.ledger_path)
        self._release = self._fit({name: records.subset(index) for name, index in self.blocks_.items()})
        self._session.close()
        return self

    def check(self, n: int) -> None:
        """Refuse, before anything is spent, what could not be released.

        Args:
            n: Number of records.

        Raises:
            InputError: No candidates, no budget, too few records, or a candidate that could not be released.
        """
        if not self.ridges:
            raise InputError("ridges is empty: give candidates")
        if self.learner.budget is None:
            raise InputError("budget = None: a learner without privacy releases nothing; give it a budget")

    def release(self) -> RuleRelease:
        """Return the chosen rule; ``fit`` has paid for it.

        Raises:
            InputError: Not fitted.
        """
        if not hasattr(self, "_release"):
            raise InputError("release: the learner is not fitted; call fit(X, A, Y) first")
        return self._release

    @property
    def ledger_(self) -> Ledger:
        """What has been spent."""
        assert self._session.ledger is not None
        return self._session.ledger

    @property
    def sizes_(self) -> dict[str, int]:
        """Records per block, public."""
        return {name: len(index) for name, index in self.blocks_.items()}

    @abstractmethod
    def _blocks(self, n: int) -> dict[str, LongTensor]:
        """Return the positions of the records of each block."""

    @abstractmethod
    def _fit(self, blocks: Mapping[str, CausalData]) -> RuleRelease:
        """Choose, train and return the release."""

    def _trained(self, records: CausalData, **settings: Any) -> RuleLearner:
        """Return the learner with these settings, fitted; it keeps a ledger of its own, for `_pay` paid for it all."""
        own = clone(self.learner).set_params(noise=self._noise, ledger_path=None, **settings)
        return own._fit(records)  # in the order that the blocks go by

    def _pay(self, block: str, charge: Charge, level: Level) -> set[int]:
        """Charge a block's whole budget, before anything is drawn for it; return the ledger's entries."""
        budget, scope = self._session.budget, self._session.scope([block], charge)
        assert budget is not None
        event: Event = ApproximateEvent(budget.epsilon, budget.delta) if budget.delta else PureEvent(budget.epsilon)
        scope.pay(event, level)
        return scope.entries

    def _stated(
        self, release: RuleRelease, guarantee: Guarantee, own: set[int], public: Mapping[str, Any], tuning: Mapping
    ) -> RuleRelease:
        """Return the release with the statement of the whole instead of its own."""
        told = release.privacy
        statement = make_statement(
            self._session,
            guarantee,
            own=own,
            mechanism=told.mechanism,
            formula=told.formula,
            public=public,
            bounds_origin=told.bounds_origin,
            tuning=tuning,
        )
        return replace(release, privacy=statement)
