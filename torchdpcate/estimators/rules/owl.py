"""Outcome weighted learning: the better the outcome, the more its treatment counts."""

from dataclasses import dataclass

from torchdpcate.data.domain import Domain
from torchdpcate.estimators.rules.learner import RuleLearner
from torchdpcate.nuisance.weights.known import KnownWeights
from torchdpcate.nuisance.weights.scheme import WeightScheme


@dataclass(eq=False, repr=False, kw_only=True)
class OutcomeWeightedLearner(RuleLearner):
    r"""Outcome weighted learning (Zhao et al. 2012) by a private weighted ERM (Giddens et al. 2023).

    .. math:: \min_\theta \sum_i \frac{m_i}{2\pi(a_i | x_i)}\, \ell(\psi_i^\top\theta, t_i) + \tfrac\gamma2\|\theta\|^2

    With ``outcome="shifted"`` m is the outcome above a public lower bound and t the treatment; with
    ``signed_residual`` m is the distance from a public centre and t changes its sign below it, which needs half the
    noise for the same rule. The default, ``private_residual``, takes private quantiles as centre and clip, for a tenth
    of the budget.

    Args:
        domain: Public bounds.
        budget: See ``RuleLearner``, and for all other arguments. Its ``mechanism="output"`` with
            ``perturbation="gamma"`` is the paper's Algorithm 1.
        propensity: None takes the propensity that the domain knows; a table's schema that knows none is refused, and a
            ``Domain`` in code that says nothing stands for a trial of equal arms, 0.5. Else P(A = 1) of a trial, the
            name of the covariate that holds P(A = 1 | x) (which the rule does not see), or a ``WeightScheme`` that
            estimates it, such as ``PrivateWeights()``.

    Example:
        >>> import torch
        >>> from torchdpcate import Domain, PrivacyBudget
        >>> X, A = torch.rand(2000, 2), torch.arange(2000) % 2
        >>> Y = (2 * A - 1) * (X[:, 0] - X[:, 1])
        >>> learner = OutcomeWeightedLearner(Domain([0, 0], [1, 1], -1, 1), PrivacyBudget(4.0, 0.0))
        >>> rule = learner.fit(X, A, Y).release()
        >>> rule.decide([[0.9, 0.1], [0.1, 0.9]]).tolist(), rule.privacy.level
        ([1, 0], 'certified')
    """

    propensity: float | str | WeightScheme | None = None

    def scheme(self) -> WeightScheme:
        """Return the weights of this propensity."""
        given, domain = self.propensity, self.domain
        if isinstance(given, WeightScheme):
            return self._free(given)
        if given is None and isinstance(domain, Domain) and domain.known_propensity is None:
            given = 0.5
        return KnownWeights(given)
