"""Two-stage ERM: weights that balance the arms first, then the rule."""

from dataclasses import dataclass

from torchdpcate.estimators.rules.learner import RuleLearner
from torchdpcate.nuisance.weights.scheme import WEIGHTS, WeightScheme


@dataclass(eq=False, repr=False, kw_only=True)
class TwoStageRule(RuleLearner):
    r"""Two-stage ERM (Lee & Chen 2026): balancing weights, then a private weighted ERM.

    The default fits a private propensity first and weighs each record by it: then one record moves its own weight
    alone (theory note ``policy_learning``, section 4.3). Weights fitted without privacy (``ipw``, ``entropy``,
    ``mmd``) let a record move all others; the noise covers a certified bound of that *indirect sensitivity*, which is
    large. For small samples ``constant`` weights need the least noise.

    Args:
        domain: Public bounds.
        budget: See ``RuleLearner``, and for all other arguments.
        weights: ``private`` (``known`` where the domain knows the propensity), ``known``, ``constant``, ``ipw``,
            ``entropy``, ``mmd``, or a ``WeightScheme``.

    Example:
        >>> import torch
        >>> from torchdpcate import Domain, PrivacyBudget
        >>> X = torch.rand(4000, 2)
        >>> A = (torch.rand(4000) < 0.3 + 0.4 * X[:, 0]).long()
        >>> Y = (2 * A - 1) * (X[:, 0] - X[:, 1])
        >>> learner = TwoStageRule(Domain([0, 0], [1, 1], -1, 1, overlap=0.25), PrivacyBudget(6.0, 0.0))
        >>> rule = learner.fit(X, A, Y).release()
        >>> rule.decide([[0.9, 0.1], [0.1, 0.9]]).tolist(), round(rule.privacy.epsilon, 6)
        ([1, 0], 6.0)
    """

    weights: str | WeightScheme = "private"

    def scheme(self) -> WeightScheme:
        """Return the weights of this name."""
        return self._free(WEIGHTS.make(self.weights, WeightScheme))
