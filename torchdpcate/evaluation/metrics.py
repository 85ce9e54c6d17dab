"""How good effects and rules are, as torchmetrics."""

import torch
from torch import Tensor
from torchmetrics import MeanMetric, MeanSquaredError, Metric


class PEHE(MeanSquaredError):
    r"""Root mean squared error of effects, sqrt(mean (tau_hat - tau)^2), in outcome units.

    Precision in estimation of heterogeneous effects, of Hill (2011), as a root.

    Example:
        >>> pehe = PEHE()
        >>> pehe.update(torch.tensor([1.0, 2.0]), torch.tensor([1.0, 4.0]))
        >>> round(pehe.compute().item(), 4)
        1.4142
    """

    def __init__(self) -> None:
        super().__init__(squared=False)
        self.set_dtype(torch.float64)


class DecisionAccuracy(MeanMetric):
    r"""Share of decisions that are those of the best rule, :math:`\frac1m \sum_i 1\{d_i = 1\{\tau_i > 0\}\}`.

    Example:
        >>> accuracy = DecisionAccuracy()
        >>> accuracy.update(torch.tensor([1, 0, 1]), torch.tensor([2.0, 0.5, -1.0]))
        >>> round(accuracy.compute().item(), 4)
        0.3333
    """

    def __init__(self) -> None:
        super().__init__()
        self.set_dtype(torch.float64)

    def update(self, decision: Tensor, effect: Tensor) -> None:  # type: ignore[override]
        """Add decisions [m] in {0, 1} and true effects [m]."""
        super().update(((decision > 0) == (effect > 0)).to(torch.float64))


class PolicyValue(Metric):
    r"""Mean outcome if everybody were treated by the rule: the self-normalised inverse-propensity estimate.

    .. math:: \hat V(d) = \frac{\sum_i 1\{d(x_i) = a_i\}\, y_i / \pi(a_i | x_i)}
                               {\sum_i 1\{d(x_i) = a_i\} / \pi(a_i | x_i)}

    in outcome units (Hajek's ratio; Swaminathan and Joachims 2015). It is not a number where no record was treated as
    the rule says. The estimate is of the records: the curator's, never to be published.

    Example:
        >>> value = PolicyValue()
        >>> a, y, half = torch.tensor([1.0, 0.0]), torch.tensor([3.0, 7.0]), torch.tensor([0.5, 0.5])
        >>> value.update(torch.tensor([1, 1]), a, y, half)
        >>> value.compute().item()
        3.0
    """

    is_differentiable, higher_is_better, full_state_update = False, True, False
    total: Tensor
    weight: Tensor

    def __init__(self) -> None:
        super().__init__()
        for name in ("total", "weight"):
            self.add_state(name, torch.zeros((), dtype=torch.float64), dist_reduce_fx="sum")
        self.set_dtype(torch.float64)

    def update(self, decision: Tensor, a: Tensor, y: Tensor, propensity: Tensor, own: Tensor | None = None) -> None:
        """Add records.

        Args:
            decision: Decisions of the rule [m], 0 or 1.
            a: Treatment [m], 0 or 1.
            y: Outcome [m].
            propensity: P(A = 1 | x) [m], strictly between 0 and 1.
            own: Weights of the records [m]; None where all count alike.
        """
        followed = ((decision > 0) == (a > 0)).to(torch.float64)
        if own is not None:
            followed = followed * own
        weight = followed / torch.where(a > 0, propensity, 1 - propensity)
        self.total += (weight * y).sum()
        self.weight += weight.sum()

    def compute(self) -> Tensor:
        """Return the value."""
        return self.total / self.weight


def policy_value(decision: Tensor, a: Tensor, y: Tensor, propensity: Tensor, own: Tensor | None = None) -> float:
    """Return the value of decisions [m] on records; arguments as in ``PolicyValue.update``."""
    metric = PolicyValue()
    metric.update(decision, a, y, propensity, own)
    return metric.compute().item()


def decision_accuracy(decision: Tensor, effect: Tensor) -> float:
    """Return the share of decisions [m] that are 1 where the true effect [m] is positive and 0 elsewhere."""
    metric = DecisionAccuracy()
    metric.update(decision, effect)
    return metric.compute().item()
