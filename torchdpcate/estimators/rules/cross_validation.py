"""Choice of a rule's ridge by cross-validation on the private records, which nothing pays for: for research alone."""

from collections.abc import Mapping, Sequence

import torch
from sklearn.base import clone
from torch import LongTensor

from torchdpcate._renamed import renamed
from torchdpcate.data.records import CausalData
from torchdpcate.data.split import public_permutation
from torchdpcate.errors import InputError
from torchdpcate.estimators.rules.learner import RECORDS, RuleLearner
from torchdpcate.estimators.rules.public_tuning import RidgeChoice, choose_ridge
from torchdpcate.estimators.rules.tuned_rule import TunedRule
from torchdpcate.privacy.budget import integer
from torchdpcate.privacy.charge import CROSS_VALIDATION
from torchdpcate.privacy.guarantee import Guarantee, Level
from torchdpcate.release.rule import RuleRelease


@renamed(gammas="ridges")
class CrossValidatedRule(TunedRule):
    """Chooses ridge by cross-validation on the private records, which nothing pays for: for research alone.

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
        >>> from torchdpcate.estimators.rules.owl import OutcomeWeightedLearner
        >>> from torchdpcate.privacy import PrivacyBudget
        >>> X, A = torch.rand(600, 2, dtype=torch.float64), torch.arange(600) % 2
        >>> Y = (2 * A - 1) * (X[:, 0] - X[:, 1])
        >>> learner = OutcomeWeightedLearner(Domain([0, 0], [1, 1], -1, 1), PrivacyBudget(4.0, 0.0))
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
        own = self._pay(RECORDS, CROSS_VALIDATION, Level.HEURISTIC)
        self.choice_ = self._chosen(records)
        self.learner_ = self._trained(records, ridge=self.choice_.ridge)
        release = self.learner_.release()
        why = "the ridge was chosen by cross-validation on the same records, which nothing paid for"
        tuning = {"runs": len(self.ridges), "text": why}
        # settings alone: from a noise scale an epsilon could be read that nothing stands for
        return self._stated(release, Guarantee(Level.HEURISTIC, None, source=why), own, self.learner_.settings_, tuning)

    def _chosen(self, records: CausalData) -> RidgeChoice:
        order = public_permutation(records.n, self.learner.seed, "cross-validation")
        size = records.n // self.folds  # as many records in each fold; what is left over is always trained on
        held = [order[k * size : (k + 1) * size] for k in range(self.folds)]
        drawn = [torch.cat([order[: k * size], order[(k + 1) * size :]]) for k in range(self.folds)]
        return choose_ridge(self.learner, records, drawn, held, self.ridges, self.learner.seed)
