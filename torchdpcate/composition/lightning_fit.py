"""Linear fits of a composition as networks of one layer, trained by Opacus DP-SGD in Lightning at rate 1."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from torchdpcate.composition.linear_fit import FitPlan, LinearFit, Solution, Solver
from torchdpcate.composition.newton_points import NewtonPoints
from torchdpcate.composition.noisy_newton import exact_solution
from torchdpcate.composition.steps import NoisySteps
from torchdpcate.nuisance.plan import check_limit
from torchdpcate.nuisance.trainer import default_trainer

if TYPE_CHECKING:
    from lightning.pytorch import Trainer


@dataclass(frozen=True)
class LightningFit(Solver):
    r"""DP-SGD of one linear layer at sampling rate 1, by Opacus inside ``Trainer.fit``.

    Every step is on all records, in float64. Losses are divided by their slope, so that a record's gradient has norm
    at most 1 by its weight, and that is the clip norm: it binds by rounding alone, and what is learnt is what
    ``NoisyNewton`` learns of the same draws, from the same charges.

    Guarantee:
        Certified: the step's mu, as one composition of Gaussian events on all records. A replaced record moves the sum
        of gradients by two clip norms at most, which are one sensitivity; docs/guarantees/dp_sgd.md at q = 1.

    Args:
        trainer: Makes a Trainer from keyword arguments.
        mode: How gradients are clipped, see ``DPSGD``.
        max_physical_batch: Most records that pass at once, see ``DPSGD``.

    Example:
        >>> import torch
        >>> from torchdpcate.composition.linear_fit import HuberFit
        >>> from torchdpcate.composition.shares import Shares
        >>> from torchdpcate.privacy.noise import NoiseSource
        >>> from torchdpcate.privacy.session import FitSession
        >>> one = torch.ones(500, dtype=torch.float64)
        >>> fit = HuberFit(one[:, None], one, 0.3 * one, 1.0)
        >>> plan = FitPlan("outcome", one[:1] * 500, one[:1] * 0, steps=40, warm=8, warm_share=0.2, size=0.25)
        >>> steps = NoisySteps(FitSession(NoiseSource.system()), Shares(1e6, {"outcome": 1.0}))
        >>> round(LightningFit().solve(fit, plan, steps).item(), 3)
        0.3
    """

    trainer: "Callable[..., Trainer]" = default_trainer
    mode: str = "auto"
    max_physical_batch: int | None = None

    def __post_init__(self) -> None:
        check_limit(self.max_physical_batch, self.mode)

    def solution(self, fit: LinearFit, plan: FitPlan, steps: NoisySteps) -> Solution:
        """See ``Solver``.

        Raises:
            InputError: Settings of the Trainer that break the analysis.
        """
        if not steps.private:
            return exact_solution(fit, plan.ridge)
        from torchdpcate.composition.lightning_steps import LinearLayer, at_once, full_batches, train

        points = NewtonPoints(plan)
        module = LinearLayer(fit, points)
        most = at_once(self.mode, self.max_physical_batch)
        n, p = fit.predictors.shape
        plans = [full_batches(event, count, n, p, most) for event, count in plan.pay(steps)]
        records, noise = (fit.predictors, fit.weights, fit.targets), steps.session.noise
        train(module, records, plans, noise, self.trainer, self.mode, most)
        return points.solution
