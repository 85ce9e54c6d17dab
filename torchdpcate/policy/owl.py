"""Outcome weighted learning: the better the outcome, the more its treatment counts."""

from pathlib import Path

from torchdpcate.data import Domain, TableSchema
from torchdpcate.erm import Loss
from torchdpcate.policy.known import KnownWeights
from torchdpcate.policy.outcome import Outcome
from torchdpcate.policy.rule import RuleLearner
from torchdpcate.policy.weight_scheme import WeightScheme
from torchdpcate.privacy import NoiseSource, PrivacyBudget
from torchdpcate.second_stage import FeatureMap


class OutcomeWeightedLearner(RuleLearner):
    r"""Outcome weighted learning (Zhao et al. 2012) by a private weighted ERM (Giddens et al. 2023).

    .. math:: \min_\theta \sum_i \frac{m_i}{2\pi(a_i | x_i)}\, \ell(\psi_i^\top\theta, t_i) + \tfrac\gamma2\|\theta\|^2

    With ``outcome="shifted"`` m is the outcome above a public lower bound and t the treatment; with
    ``signed_residual`` m is the distance from a public centre and t changes its sign below it, which needs half the
    noise for the same rule. The default, ``bought_residual``, buys centre and clip with a tenth of the budget.

    Args:
        domain: Public bounds.
        budget: See ``RuleLearner``; other arguments too.
        propensity: P(A = 1) of a trial, the name of the covariate that holds P(A = 1 | x) (which the rule does not
            see), or a ``WeightScheme`` that estimates it, such as ``PrivateWeights()``.
        outcome: See ``RuleLearner``.
        features: See ``RuleLearner``.
        loss: See ``RuleLearner``.
        gamma: See ``RuleLearner``.
        mechanism: See ``RuleLearner``; ``output`` with ``perturbation="gamma"`` is the paper's Algorithm 1.
        perturbation: See ``RuleLearner``.
        radius: See ``RuleLearner``.
        gamma_bound: See ``RuleLearner``.
        seed: See ``RuleLearner``.
        noise: See ``RuleLearner``.
        ledger_path: See ``RuleLearner``.

    Example:
        >>> import torch
        >>> X, A = torch.rand(2000, 2), torch.arange(2000) % 2
        >>> Y = (2 * A - 1) * (X[:, 0] - X[:, 1])
        >>> learner = OutcomeWeightedLearner(Domain([0, 0], [1, 1], -1, 1), PrivacyBudget(4.0, 0.0))
        >>> rule = learner.fit(X, A, Y).release()
        >>> rule.decide([[0.9, 0.1], [0.1, 0.9]]).tolist(), rule.privacy.level
        ([1, 0], 'certified')
    """

    def __init__(
        self,
        domain: Domain | TableSchema,
        budget: PrivacyBudget | None,
        propensity: float | str | WeightScheme = 0.5,
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
        self.propensity = propensity

    def scheme(self) -> WeightScheme:
        """Return the weights of this propensity."""
        return self.propensity if isinstance(self.propensity, WeightScheme) else KnownWeights(self.propensity)
