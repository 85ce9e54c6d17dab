"""The composed plan's linear fits as networks of one layer, trained by Opacus DP-SGD in Lightning at rate 1."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch import Tensor

from torchdpcate.composition.linear_fit import Aimed, NewtonPoints
from torchdpcate.nuisance.trainer import default_trainer
from torchdpcate.privacy.events import GaussianEvent
from torchdpcate.privacy.session import FitSession

if TYPE_CHECKING:
    from lightning.pytorch import Trainer


@dataclass(frozen=True)
class LightningFit:
    r"""DP-SGD at rate 1 of one linear layer: ``LinearFit`` by Opacus inside ``Trainer.fit``.

    Every step is on all records. Losses are divided by their slope, so that a record's gradient has norm at most 1 by
    its weight, and the clip norm is 1: clipping binds by rounding alone, and what is learnt is what noisy descent
    learns. Each of T steps is a Gaussian event of mu / sqrt(T): the sum of gradients moves by at most two clip norms,
    and has noise of :math:`2\sqrt{T}/\mu` of them.

    Guarantee:
        Certified: mu-GDP under replace-one adjacency, by exact composition of T Gaussian mechanisms on all records,
        whatever the features and weights are, for gradients are clipped; docs/guarantees/dp_sgd.md at q = 1.

    Args:
        trainer: Makes a Trainer from keyword arguments, as ``default_trainer``.
        mode: How gradients are clipped, see ``DPSGD``.

    Example:
        >>> from torchdpcate.erm.losses import Huber
        >>> from torchdpcate.privacy.noise import NoiseSource
        >>> psi = torch.ones(500, 1, dtype=torch.float64)
        >>> y, w = torch.full((500,), 0.3, dtype=torch.float64), torch.ones(500, dtype=torch.float64)
        >>> ridge, scaling = torch.zeros(1).double(), torch.full((1,), 1000.0).double()
        >>> session = FitSession(NoiseSource.system())  # charges nothing
        >>> fit = LightningFit().fit(psi, Aimed(Huber(1.0), y), w, ridge, scaling, 40, session, mu=1e6)
        >>> round(fit.item(), 3)
        0.3
    """

    trainer: Callable[..., Trainer] = default_trainer
    mode: str = "auto"

    def fit(
        self,
        psi: Tensor,
        loss: Aimed,
        weights: Tensor,
        ridge: Tensor,
        scaling: Tensor,
        steps: int,
        session: FitSession,
        mu: float,
    ) -> Tensor:
        """Return the mean of the Newton points, [p]; see ``LinearFit``.

        Raises:
            InputError: Settings of the Trainer that break the analysis.
            BudgetError: The budget of a block does not cover the steps.
        """
        from torchdpcate.composition.lightning_steps import LinearLayer, train_steps

        session.pay(GaussianEvent(math.sqrt(steps) / mu), count=steps)
        points = NewtonPoints(ridge, scaling, steps)
        module = LinearLayer(loss, points, psi.shape)
        train_steps(module, (psi, loss.target, weights), steps, mu, session.noise, self.trainer, self.mode)
        return points.mean
