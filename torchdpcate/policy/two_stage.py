"""Two-stage ERM: weights that balance the arms first, then the rule."""

from pathlib import Path

from torchdpcate.data import Domain, TableSchema
from torchdpcate.erm import Loss
from torchdpcate.policy.outcome import Outcome
from torchdpcate.policy.rule import RuleLearner
from torchdpcate.policy.weight_scheme import WeightScheme
from torchdpcate.policy.weights import make_weights
from torchdpcate.privacy import NoiseSource, PrivacyBudget
from torchdpcate.second_stage import FeatureMap


class TwoStageRule(RuleLearner):
    r"""Two-stage ERM (Lee & Chen 2026): balancing weights, then a private weighted ERM.

    The default buys a private propensity first and weighs each record by it: then one record moves its own weight
    alone (theory note ``policy_learning``, section 4.3). Weights fitted without privacy (``ipw``, ``entropy``,
    ``mmd``) let a record move all others; the noise covers a certified bound of that *spill*, which is large. For
    small samples ``constant`` weights need the least noise.

    Args:
        domain: Public bounds.
        budget: See ``RuleLearner``; other arguments too.
        weights: ``private``, ``known``, ``constant``, ``ipw``, ``entropy``, ``mmd``, or a ``WeightScheme``.
        outcome: See ``RuleLearner``.
        features: See ``RuleLearner``.
        loss: See ``RuleLearner``.
        gamma: See ``RuleLearner``.
        mechanism: See ``RuleLearner``.
        perturbation: See ``RuleLearner``.
        radius: See ``RuleLearner``.
        gamma_bound: See ``RuleLearner``.
        seed: See ``RuleLearner``.
        noise: See ``RuleLearner``.
        ledger_path: See ``RuleLearner``.

    Example:
        >>> import torch
        >>> X = torch.rand(4000, 2)
        >>> A = (torch.rand(4000) < 0.3 + 0.4 * X[:, 0]).long()
        >>> Y = (2 * A - 1) * (X[:, 0] - X[:, 1])
        >>> learner = TwoStageRule(Domain([0, 0], [1, 1], -1, 1, overlap=0.25), PrivacyBudget(6.0, 0.0))
        >>> rule = learner.fit(X, A, Y).release()
        >>> rule.decide([[0.9, 0.1], [0.1, 0.9]]).tolist(), round(rule.privacy.epsilon, 6)
        ([1, 0], 6.0)
    """

    def __init__(
        self,
        domain: Domain | TableSchema,
        budget: PrivacyBudget | None,
        weights: str | WeightScheme = "private",
        outcome: str | Outcome = "bought_residual",
        features: FeatureMap | None = None,
        loss: str | Loss = "huber_hinge",
        gamma: float | None = None,
        mechanism: str = "objective",
        perturbation: str | None = None,
        radius: float | None = None,
        gamma_bound: float | None = None,
        seed: int = 0,
        noise: NoiseSource | None = None,
        ledger_path: str | Path | None = None,
    ) -> None:
        super().__init__(
            domain,
            budget,
            outcome,
            features,
            loss,
            gamma,
            mechanism,
            perturbation,
            radius,
            gamma_bound,
            seed,
            noise,
            ledger_path,
        )
        self.weights = weights

    def scheme(self) -> WeightScheme:
        """Return the weights of this name."""
        return make_weights(self.weights)
