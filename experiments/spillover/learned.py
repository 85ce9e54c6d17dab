"""Nuisances by any learner of scikit-learn's manners: no guarantee, for audits of spillover alone."""

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from torchdpcate.causal.score import project_to_floor
from torchdpcate.data.records import CausalData
from torchdpcate.errors import InputError
from torchdpcate.fit.arms.base import FittedNuisances, GuaranteedNuisances, ScoreNuisances, SelectionFacts
from torchdpcate.privacy.budget import PrivacyBudget
from torchdpcate.privacy.guarantee import Level
from torchdpcate.privacy.session import FitSession


@dataclass(frozen=True)
class LearnedNuisances(ScoreNuisances):
    """Learners without a guarantee: there is no bound on what one training record does to the scores of all others.

    An audit of spillover measures it; a selector refuses them.

    Guarantee:
        None.

    Args:
        outcome: A regressor, cloned for each arm and fitted to its records; an arm without records gets the middle of
            the bounds.
        propensity: A classifier with ``predict_proba``, cloned and fitted to the positions of the actions.

    Example:
        >>> from sklearn.neighbors import KNeighborsClassifier, KNeighborsRegressor
        >>> LearnedNuisances(KNeighborsRegressor(1), KNeighborsClassifier(1)).guarantee
        'none'
    """

    guarantee: ClassVar[str] = "none"
    trains: ClassVar[bool] = True
    moves_all_scores: ClassVar[bool] = True
    level: ClassVar[Level] = Level.HEURISTIC

    outcome: Any
    propensity: Any

    def check(self, facts: SelectionFacts, budget: PrivacyBudget | None) -> None:
        """See ``ScoreNuisances.check``; also refuses what is no such learner."""
        super().check(facts, budget)
        for name, method in (("outcome", "predict"), ("propensity", "predict_proba")):
            learner = getattr(self, name)
            if not (hasattr(learner, "fit") and hasattr(learner, method)):
                raise InputError(f"{name} is of type {type(learner).__name__}; give a learner with fit and {method}")

    def fit(
        self, records: CausalData | None, facts: SelectionFacts, *, session: FitSession | None = None
    ) -> GuaranteedNuisances:
        """See ``ScoreNuisances.fit``; the spread is infinite."""
        from sklearn.base import clone

        assert records is not None
        x, arm, y = records.x.numpy(), records.a.long().numpy(), records.y.numpy()
        regressors = [
            clone(self.outcome).fit(x[arm == a], y[arm == a]) if bool((arm == a).any()) else None
            for a in range(facts.arms)
        ]
        functions = LearnedFunctions(facts, regressors, clone(self.propensity).fit(x, arm))
        return GuaranteedNuisances(functions, math.inf, public={})


@dataclass(frozen=True, eq=False)
class LearnedFunctions(FittedNuisances):
    """Fitted `LearnedNuisances`.

    Attributes:
        facts: Public facts.
        regressors: One an arm; None for an arm without records.
        classifier: Of the positions.
    """

    facts: SelectionFacts
    regressors: list[Any]
    classifier: Any

    def propensity(self, x: Tensor) -> Tensor:
        """See ``FittedNuisances.propensity``; an arm that the training block lacks has the floor."""
        found = np.zeros((len(x), self.facts.arms))
        found[:, self.classifier.classes_.astype(int)] = self.classifier.predict_proba(x.numpy())
        return project_to_floor(torch.from_numpy(found), self.facts.overlap)

    def outcome(self, x: Tensor) -> Tensor:
        """See ``FittedNuisances.outcome``."""
        domain = self.facts.domain
        middle = np.full(len(x), (domain.outcome_low + domain.outcome_high) / 2)
        means = [middle if model is None else np.ravel(model.predict(x.numpy())) for model in self.regressors]
        return domain.clip_outcome(torch.from_numpy(np.stack(means, 1).astype(np.float64)))
