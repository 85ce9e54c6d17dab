"""What rules have in common whose settings are chosen on the private records."""

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import LongTensor

from torchdpcate.data.domain import Domain
from torchdpcate.data.records import CausalData
from torchdpcate.data.schema import TableSchema
from torchdpcate.errors import InputError
from torchdpcate.estimators.answers import AnswersDecisions, clone
from torchdpcate.estimators.base import PrivateEstimator
from torchdpcate.estimators.planned_noise import PlannedNoise
from torchdpcate.estimators.rules.learner import RuleLearner
from torchdpcate.estimators.rules.noise_report import NoiseReport
from torchdpcate.plan import Query
from torchdpcate.privacy.budget import PrivacyBudget
from torchdpcate.privacy.guarantee import Condition, own_code
from torchdpcate.privacy.noise import NoiseSource
from torchdpcate.release.rule import RuleRelease


class TunedRule(AnswersDecisions, PrivateEstimator):
    """A rule learner whose settings are chosen on the private records.

    Args:
        learner: The rule with its budget, seed, noise and ledger path; not changed.
        ridges: Candidate ridges, public.

    Attributes:
        learner_: The learner with the settings that were chosen, fitted. The curator's, never to be published; it has
            nothing left to release with.
        ledger_: What has been spent.
        blocks_: Positions of the records of each block, public; in a secret order.
    """

    learner: RuleLearner
    learner_: RuleLearner
    ridges: Sequence[float]

    @property
    def domain(self) -> Domain | TableSchema:  # type: ignore[override]
        """Public bounds, those of the learner."""
        return self.learner.domain

    @property
    def budget(self) -> PrivacyBudget | None:  # type: ignore[override]
        """Privacy budget, that of the learner."""
        return self.learner.budget

    @property
    def noise(self) -> NoiseSource | None:  # type: ignore[override]
        """Privacy noise, that of the learner."""
        return self.learner.noise

    @property
    def ledger_path(self) -> str | Path | None:  # type: ignore[override]
        """File of the ledger, that of the learner."""
        return self.learner.ledger_path

    def _prepare(self, records: CausalData) -> None:
        self.check(records.n)
        self.blocks_ = self._blocks(records.n)

    def _learn(self, records: CausalData) -> None:
        """Choose the settings and train the rule, which spends the full budget."""
        self._release = self._chosen_release({name: records.subset(index) for name, index in self.blocks_.items()})

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
        self._ready()
        return self._keep(self._release)  # type: ignore[no-any-return]

    def plan(self, n: int | None = None) -> NoiseReport:
        """Return what public facts say of the noise of the chosen rule, or before a fit of the noisiest candidate.

        Args:
            n: Number of records, before any fit; None takes those of the fit.

        Raises:
            InputError: No number of records and no fit.
        """
        if n is None:
            self._require_fitted("plan")
            return self.learner_.plan()
        return max((each.plan(many) for each, many in self._planned_rules(n)), key=lambda report: report.noise)

    def expected_noise(self, n: int) -> PlannedNoise:
        """See ``PrivateEstimator``: that of the noisiest candidate."""
        self._planned(n)
        rules = [each.expected_noise(many) for each, many in self._planned_rules(n)]
        worst = max(rules, key=lambda noise: noise.value)
        chosen = f"the noisiest of {len(rules)} candidates is chosen"
        return replace(worst, n=n, assumes=(*worst.assumes, chosen) if len(rules) > 1 else worst.assumes)

    def _planned_rules(self, n: int) -> list[tuple[RuleLearner, int]]:
        """Return each candidate with the number of records that it is trained on."""
        return [(clone(self.learner).set_params(ledger_path=None, ridge=ridge), n) for ridge in self.ridges]

    @abstractmethod
    def _blocks(self, n: int) -> dict[str, LongTensor]:
        """Return the positions of the records of each block."""

    @abstractmethod
    def _chosen_release(self, blocks: Mapping[str, CausalData]) -> RuleRelease:
        """Choose, train and return the release."""

    def _own_learner(self) -> tuple[Condition, ...]:
        return super()._own_learner() + own_code("learner", self.learner)

    def _trained(self, records: CausalData, **settings: Any) -> RuleLearner:
        """Return the learner with these settings, fitted; it keeps a ledger of its own, for `_pay` paid for it all."""
        own = clone(self.learner).set_params(noise=self._noise, ledger_path=None, **settings)
        own._start()
        return own._fit(records)  # in the order that the blocks go by

    def _pay(self, query: Query) -> set[int]:
        """Charge what a part costs, before anything is drawn for it; return the ledger's entries."""
        scope = self._session.scope(query.blocks, query.charge)
        scope.pay(query.law.event, query.level)
        return scope.entries
