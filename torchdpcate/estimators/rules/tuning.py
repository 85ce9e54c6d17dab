"""Rules whose settings are chosen on the private records: privately, or by cross-validation for research alone."""

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import torch
from torch import LongTensor

from torchdpcate.data.domain import Domain
from torchdpcate.data.records import CausalData
from torchdpcate.data.schema import TableSchema
from torchdpcate.data.split import public_permutation, public_split
from torchdpcate.errors import InputError
from torchdpcate.estimators.answers import AnswersDecisions, clone
from torchdpcate.estimators.base import PrivateEstimator
from torchdpcate.estimators.planned_noise import PlannedNoise
from torchdpcate.estimators.rules.learner import RuleLearner
from torchdpcate.estimators.rules.noise_report import NoiseReport
from torchdpcate.estimators.rules.plan import SELECTION, Candidates, in_words, whole
from torchdpcate.estimators.rules.public_tuning import RidgeChoice, choose_ridge
from torchdpcate.estimators.rules.weighted_erm import WeightedERM, agreement, choose
from torchdpcate.fit.feature_maps import FeatureMap
from torchdpcate.fit.losses import HuberHinge
from torchdpcate.fit.private_fit import WeightBounds
from torchdpcate.plan import RECORDS, Query
from torchdpcate.privacy.budget import PrivacyBudget, integer
from torchdpcate.privacy.charge import CHOICE, CROSS_VALIDATION, Purpose
from torchdpcate.privacy.guarantee import Condition, Guarantee, Level, user_code
from torchdpcate.privacy.noise import NoiseSource
from torchdpcate.privacy.worst_case import Game, choice_game, worst_case
from torchdpcate.registry import refuse_strings
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
        return super()._own_learner() + user_code("learner", self.learner)

    def _trained(self, records: CausalData, **settings: Any) -> RuleLearner:
        """Return the learner with these settings, fitted; it keeps a ledger of its own, for `_pay` paid for it all."""
        own = clone(self.learner).set_params(noise=self._noise, ledger_path=None, **settings)
        own._start()
        return own._fit(records)  # in the order that the blocks go by

    def _pay(self, query: Query) -> set[int]:
        """Charge what a part costs, before anything is drawn for it; return the ledger's entries."""
        scope = self._session.charging(query.blocks, query.charge)
        scope.pay(query.law.event, query.level)
        return scope.entries


_CANDIDATES = 30  # of the audit: the more there are, the nearer the worst pair comes to epsilon


class PrivatelyTunedRule(TunedRule):
    r"""Tries candidates on disjoint parts of the records and chooses one privately on another part.

    Candidate k is trained with the full budget on part k; permute-and-flip chooses by `agreement` on the selection
    part. A record lies in one part, so by parallel composition the total is the budget. The cost is records: k
    candidates share what the selection block leaves.

    Guarantee:
        Certified (epsilon, delta), if the learner's own release is. Source: Chaudhuri, Monteleoni & Sarwate (2011),
        Algorithm 3, with permute-and-flip (McKenna & Sheldon 2020).

    Args:
        learner: The rule with its budget, seed, noise and ledger path; not changed.
        ridges: Candidate ridges, public.
        features: Candidate feature maps, public; all combinations are tried. None keeps the learner's.
        selection_fraction: Fraction of the records on which candidates are compared.

    Attributes:
        chosen_: Settings of the chosen candidate, paid for.

    Example:
        >>> from torchdpcate.data import Domain
        >>> from torchdpcate.estimators.rules.learner import OutcomeWeightedLearner
        >>> X, A = torch.rand(4000, 2, dtype=torch.float64), torch.arange(4000) % 2
        >>> Y = (2 * A - 1) * (X[:, 0] - X[:, 1])
        >>> learner = OutcomeWeightedLearner(Domain([0, 0], [1, 1], -1, 1, better="higher"), PrivacyBudget(4.0, 0.0))
        >>> rule = PrivatelyTunedRule(learner, ridges=[3.0, 300.0]).fit(X, A, Y).release()
        >>> rule.decide([[0.9, 0.1], [0.1, 0.9]]).tolist(), rule.privacy.epsilon, rule.privacy.level
        ([1, 0], 4.0, 'certified')
    """

    def __init__(
        self,
        learner: RuleLearner,
        ridges: Sequence[float],
        *,
        features: Sequence[FeatureMap] | None = None,
        selection_fraction: float = 0.3,
    ) -> None:
        self.learner = learner
        self.ridges = ridges
        self.features = features
        self.selection_fraction = selection_fraction
        refuse_strings(type(self), vars(self))

    def check(self, n: int) -> None:
        """See ``TunedRule.check``."""
        super().check(n)
        blocks = self._blocks(n)
        names = [name for name in blocks if name != SELECTION]
        for name, settings in zip(names, self._settings(), strict=True):
            clone(self.learner).set_params(ledger_path=None, **settings).check(len(blocks[name]))
        clone(self.learner).set_params(ledger_path=None, ridge=None).check(len(blocks[SELECTION]))

    def _planned_rules(self, n: int) -> list[tuple[RuleLearner, int]]:
        settings = self._settings()
        each = (n - round(self.selection_fraction * n)) // len(settings)
        return [(clone(self.learner).set_params(ledger_path=None, **chosen), each) for chosen in settings]

    def _settings(self) -> list[dict[str, Any]]:
        if self.features is None:
            return [{"ridge": ridge} for ridge in self.ridges]
        if not self.features:
            raise InputError("features is empty: give candidates, or None for the learner's own")
        return [{"ridge": ridge, "features": features} for features, ridge in product(self.features, self.ridges)]

    def _blocks(self, n: int) -> dict[str, LongTensor]:
        selection, rest = public_split(n, self.selection_fraction, self.learner.seed, "rule tuning")
        count = len(self._settings())
        if len(rest) < 2 * count:
            raise InputError(f"n = {n}: too few records for {count} candidates; give fewer, or bring more records")
        parts = {f"{Purpose.CANDIDATE} {k + 1}": part for k, part in enumerate(rest.tensor_split(count))}
        return {**parts, SELECTION: selection}  # type: ignore[dict-item]

    def _chosen_release(self, blocks: Mapping[str, CausalData]) -> RuleRelease:
        names, settings = list(blocks)[:-1], self._settings()
        candidates = [clone(self.learner).set_params(**chosen) for chosen in settings]
        conditions = tuple(dict.fromkeys(c for candidate in candidates for c in candidate.conditions))
        level = Level.CONDITIONAL if conditions else self.learner.scheme().level
        budget = self._session.budget
        assert budget is not None
        own, trained, rules = set(), [], []
        among = Candidates(tuple(in_words(**chosen) for chosen in settings), self.selection_fraction)
        queries = among.queries(budget, level)
        for name, chosen in zip(names, settings, strict=True):
            own |= self._pay(queries[name])
            trained.append(self._trained(blocks[name], **chosen))
            rules.append(trained[-1].release())
        own |= self._pay(queries[SELECTION])
        judge = self._trained(blocks[SELECTION], ridge=None)
        best = self._best(judge, blocks[SELECTION].subset(judge.blocks_[RECORDS]), rules)
        self.chosen_, self.learner_ = settings[best], trained[best]
        source = "policy_learning section 3; Chaudhuri et al. 2011"
        guarantee = Guarantee(level, budget, conditions, source)
        text = (
            f"{len(rules)} candidates were trained on disjoint parts of the records and one was chosen privately on "
            "another part; all of it is in this ledger"
        )
        plan = replace(trained[best].plan_, n=sum(self.sizes_.values()), among=replace(among, chosen=best + 1))
        tuning = {"runs": len(rules), "text": text}
        statement = self._statement_of(plan, guarantee, plan.public(), own, tuning=tuning)
        return plan.conclude({"rule": rules[best].theta}, statement)

    def _best(self, judge: RuleLearner, records: CausalData, rules: Sequence[RuleRelease]) -> int:
        """Return the privately chosen candidate's index."""
        assert judge.budget is not None
        problems = [_with_features(judge, rule.features).problem(records) for rule in rules]
        scores = [agreement(problem, rule.theta[None]) for problem, rule in zip(problems, rules, strict=True)]
        # the weights' first stage may have spent a part of the block's epsilon
        epsilon = judge._rule_budget(judge.budget).epsilon
        return choose(torch.cat(scores), problems[0].bounds.first / 2, epsilon, self._noise)


class CrossValidatedRule(TunedRule):
    """Chooses ridge by cross-validation on the private records, without a charge: for research alone.

    The level is **heuristic** and no epsilon is stated, however much noise the rule itself gets: the choice looked at
    the records. Use `tune_on_public` or `PrivatelyTunedRule` for a guarantee.

    Args:
        learner: The rule with its budget, seed, noise and ledger path; not changed.
        ridges: Candidate ridges.
        folds: Number of folds.

    Attributes:
        choice_: The chosen ridge and the values of all. The curator's, never to be published.

    Example:
        >>> from torchdpcate.data import Domain
        >>> from torchdpcate.estimators.rules.learner import OutcomeWeightedLearner
        >>> from torchdpcate.privacy import PrivacyBudget
        >>> X, A = torch.rand(600, 2, dtype=torch.float64), torch.arange(600) % 2
        >>> Y = (2 * A - 1) * (X[:, 0] - X[:, 1])
        >>> learner = OutcomeWeightedLearner(Domain([0, 0], [1, 1], -1, 1, better="higher"), PrivacyBudget(4.0, 0.0))
        >>> rule = CrossValidatedRule(learner, ridges=[3.0, 300.0]).fit(X, A, Y).release()
        >>> rule.privacy.level, rule.privacy.epsilon
        ('heuristic', None)
    """

    def __init__(self, learner: RuleLearner, ridges: Sequence[float], *, folds: int = 5) -> None:
        self.learner = learner
        self.ridges = ridges
        self.folds = folds

    def check(self, n: int) -> None:
        """See ``TunedRule.check``."""
        super().check(n)
        if n < 2 * integer("folds", self.folds, least=2):
            raise InputError(f"folds = {self.folds}: n = {n} records are too few for as many folds")
        clone(self.learner).set_params(ledger_path=None, ridge=None).check(n - -(-n // self.folds))

    def _blocks(self, n: int) -> dict[str, LongTensor]:
        return {RECORDS: torch.arange(n)}  # type: ignore[dict-item]

    def _chosen_release(self, blocks: Mapping[str, CausalData]) -> RuleRelease:
        records = blocks[RECORDS]
        assert self.budget is not None
        own = self._pay(Query(CROSS_VALIDATION, whole(self.budget), Level.HEURISTIC))
        self.choice_ = self._chosen(records)
        self.learner_ = self._trained(records, ridge=self.choice_.ridge)
        release = self.learner_.release()
        why = "the ridge was chosen by cross-validation on the same records, which nothing paid for"
        tuning = {"runs": len(self.ridges), "text": why}
        # settings alone: from a noise scale an epsilon could be read that nothing stands for
        guarantee, settings = Guarantee(Level.HEURISTIC, None, source=why), self.learner_.settings_
        statement = self._statement_of(self.learner_.plan_, guarantee, settings, own, tuning=tuning)
        return replace(release, privacy=statement)

    def _chosen(self, records: CausalData) -> RidgeChoice:
        order = public_permutation(records.n, self.learner.seed, "cross-validation")
        size = records.n // self.folds  # as many records in each fold; what is left over is always trained on
        held = [order[k * size : (k + 1) * size] for k in range(self.folds)]
        drawn = [torch.cat([order[: k * size], order[(k + 1) * size :]]) for k in range(self.folds)]
        return choose_ridge(self.learner, records, drawn, held, self.ridges, self.learner.seed)


def _with_features(judge: RuleLearner, features: FeatureMap) -> RuleLearner:
    """The fitted judge, whose weighted ERM is to see these features."""
    return copy(judge).set_params(features=features)


@worst_case(
    "rule_tuning",
    PrivatelyTunedRule,
    attacks=[CHOICE],
    pair="one record of the largest weight, right by the first of 30 candidates before and by all others after",
)
def _rule_tuning(budget: PrivacyBudget) -> Game:
    bounds = WeightBounds.per_record(1.0)
    psi, one = torch.ones(1, 1, dtype=torch.float64), torch.ones(1, dtype=torch.float64)
    problems = [WeightedERM(psi, label * one, one, HuberHinge(), 1.0, bounds) for label in (1.0, -1.0)]
    rules = torch.full((_CANDIDATES, 1), -1.0, dtype=torch.float64)
    rules[0] = 1.0
    utilities = [agreement(problem, rules) for problem in problems]
    return choice_game(
        lambda dataset, noise: choose(utilities[dataset], bounds.first / 2, budget.epsilon, noise), budget
    )
