"""Noise for a table of two arms by two outcomes, shaped like the differences that one record can make."""

import torch
from torch import Tensor

from torchdpcate.errors import InputError
from torchdpcate.privacy.budget import PrivacyBudget, positive
from torchdpcate.privacy.calibration import laplace_scale
from torchdpcate.privacy.events import PureEvent
from torchdpcate.privacy.guarantee import Guarantee, Level
from torchdpcate.privacy.mechanisms import AdditiveMechanism
from torchdpcate.privacy.noise import NoiseSource, float_loss
from torchdpcate.privacy.polytope import CELLS, root_norm
from torchdpcate.privacy.worst_case import Game, worst_case


class RootPolytopeMechanism(AdditiveMechanism):
    r"""K-norm noise of the root polytope on sums of four cells, to which a record adds no negative number.

    .. math:: p(z) \propto e^{-\|z\|_K / s}, \quad \|z\|_K = \max\Big\{\sum_j z_j^+, \sum_j z_j^-\Big\},
        \quad s = W / \epsilon

    A record adds :math:`t \ge 0` with :math:`\sum_j t_j \le W`; the difference t - t' of two such has positive parts
    that sum to at most W, and negative parts likewise. The covariance is :math:`W^2 / \epsilon^2` times 4.8 on the
    diagonal and -1.2 off it; Laplace noise for the same table has 8 and 0.

    Guarantee:
        Certified epsilon, pure, float64 counted, if every record adds t as above. Source: Hardt & Talwar (2010) and
        Awan & Slavković (2021) for K-norms; docs/guarantees/root_polytope.md.

    Args:
        epsilon: What one release costs.
        bound: W, the most that a record adds to the four cells together.

    Raises:
        InputError: If an argument is not positive.

    Example:
        >>> mechanism = RootPolytopeMechanism(0.5, bound=10.0)
        >>> mechanism.scale, mechanism.release(torch.zeros(4), NoiseSource.system()).shape
        (20.0, torch.Size([4]))
    """

    norm = 1  # rounding moves the table by at most half a step a cell, and |z|_K is at most the l1 norm

    def __init__(self, epsilon: float, bound: float) -> None:
        self.epsilon = positive("epsilon", epsilon)
        self.sensitivity = positive("bound", bound)
        self.scale = laplace_scale(self.epsilon, self.sensitivity)

    @property
    def event(self) -> PureEvent:
        """``PureEvent`` of this epsilon."""
        return PureEvent(self.epsilon)

    def size(self, moved: Tensor) -> Tensor:
        """See ``AdditiveMechanism``: the norm of the root polytope."""
        return root_norm(moved)

    def _float_loss(self, size: int) -> float:
        return float_loss(size, self.norm)

    def _noise(self, like: Tensor, scale: float, noise: NoiseSource) -> Tensor:
        if like.shape[1] != CELLS:
            raise InputError(
                f"value of {like.shape[1]} numbers: root-polytope noise is for the {CELLS} cells of a table"
            )
        return noise.root_polytope(like.shape[0], scale)


@worst_case(
    "root_polytope",
    RootPolytopeMechanism,
    pair="tables of a treated record of full weight with a high outcome, and of a control in its place",
)
def _root_polytope(budget: PrivacyBudget) -> Game:
    mechanism = RootPolytopeMechanism(budget.epsilon, 1.0)
    tables = torch.tensor([[1.0, 0.0, 0.0, 0.0], [0.0, 0.0, 1.0, 0.0]], dtype=torch.float64)

    def evidence(outputs: Tensor) -> Tensor:
        near, far = (root_norm(outputs - table) for table in (tables[1], tables[0]))
        return (far - near) / mechanism.scale

    return Game(
        draw=lambda world, runs, noise: mechanism.add_noise(tables[world].expand(runs, -1), noise),
        event=mechanism.event,
        guarantee=Guarantee(Level.CERTIFIED, PrivacyBudget(budget.epsilon, 0.0)),
        evidence=evidence,
    )
