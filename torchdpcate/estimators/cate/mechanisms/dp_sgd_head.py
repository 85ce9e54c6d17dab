"""A competitor: the linear head itself trained by DP-SGD on the regression pairs."""

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from torchdpcate.data.records import CausalData
from torchdpcate.errors import InputError
from torchdpcate.estimators.cate.head import Head, PlannedHead
from torchdpcate.estimators.cate.mechanisms.base import FunctionMechanism
from torchdpcate.estimators.cate.mechanisms.worst_pairs import given_stage
from torchdpcate.fit.dp_sgd_plan import DPSGDPlan, batch_problems
from torchdpcate.fit.trainer import GPU_ROUNDING
from torchdpcate.heads.linear import LinearProblem
from torchdpcate.heads.recipes import SecondStage
from torchdpcate.heads.stage import FittedStage
from torchdpcate.laws import DPSGDRun
from torchdpcate.privacy.accounting import dp_sgd_noise_multiplier
from torchdpcate.privacy.budget import PrivacyBudget, as_number
from torchdpcate.privacy.guarantee import Guarantee
from torchdpcate.privacy.noise import NoiseSource
from torchdpcate.privacy.worst_case import Game, worst_case


class DPSGDHead(FunctionMechanism):
    r"""theta by DP-SGD on mean H_tau(s - v'theta) + lambda ||theta||^2; the averaged weights are the release.

    Guarantee:
        Certified (epsilon, delta) for every fixed value of the nuisances, as of the nuisances' own DP-SGD: Poisson
        sampling, per-record clipping, replace-one privacy loss distributions. No minimum need be reached. The error
        that the noise makes has no public bound, so there is no noise band.

    Args:
        batch_size: Expected batch size; at most the records of the block.
        epochs: Times each record is expected to be seen.
        learning_rate: Step size of plain SGD, in units in which the threshold is one.
        max_grad_norm: Clip norm in those units; None takes B, at which residuals beyond half a threshold are clipped.
        average: Share of the last steps whose weights are averaged.

    Example:
        >>> DPSGDHead().name
        'dp_sgd_head'
    """

    name = "dp_sgd_head"
    formula = (
        "each step adds N(0, (sigma C)^2) to the clipped sum of gradients; sigma from replace-one privacy loss "
        "distributions; dp_cate section 3.1"
    )
    source = "dp_cate section 3.1"

    def __init__(
        self,
        batch_size: int = 1024,
        epochs: int = 20,
        learning_rate: float = 0.5,
        max_grad_norm: float | None = None,
        average: float = 0.5,
    ) -> None:
        for name, value in (("batch_size", batch_size), ("epochs", epochs)):
            if not (isinstance(value, int) and value >= 1):
                raise InputError(f"mechanism.{name} = {value}: give a whole number of at least 1")
        for name, number in (("learning_rate", learning_rate), ("max_grad_norm", max_grad_norm)):
            if number is not None and not (number > 0 and math.isfinite(number)):
                raise InputError(f"mechanism.{name} = {number}: give a positive number")
        if not 0 <= average <= 1:
            raise InputError(f"mechanism.average = {average}: give a share in [0, 1]")
        self.batch_size, self.epochs, self.learning_rate = batch_size, epochs, learning_rate
        self.max_grad_norm, self.average = max_grad_norm, average

    def plan(self, n: int, weight_bound: float, budget: PrivacyBudget) -> DPSGDPlan:
        """Return the run on n records with weighted features of at most this norm."""
        rate = min(1.0, self.batch_size / n)
        steps = max(1, round(self.epochs / rate))
        noise = dp_sgd_noise_multiplier(budget.epsilon, budget.delta, rate, steps)
        return DPSGDPlan(noise, self.max_grad_norm or weight_bound, rate, steps)

    def check(self, recipe: SecondStage, weight_bound: float, n: int, budget: PrivacyBudget) -> None:
        """Refuse a budget that no noise can meet; arguments and errors are the base class's."""
        super().check(recipe, weight_bound, n, budget)
        self.plan(n, weight_bound, budget)

    def law(self, head: Head, budget: PrivacyBudget) -> DPSGDRun:
        """See ``Mechanism``."""
        return DPSGDRun(self.plan(head.n, head.weight_bound, budget))

    @classmethod
    def stated_law(cls, public: Mapping[str, Any], head: Head, budget: PrivacyBudget) -> DPSGDRun:
        """See ``Mechanism``: the run that is stated, of a batch of the records."""
        noise, norm, rate = (as_number(public[name]) for name in ("noise_multiplier", "max_grad_norm", "sampling_rate"))
        plan = DPSGDPlan(noise, norm, rate, public["steps"])
        for problem in batch_problems("its DP-SGD", plan.sampling_rate, head.n):
            raise InputError(problem)
        return DPSGDRun(plan)

    def exact(self, stage: FittedStage, law: DPSGDRun) -> tuple[Callable[[NoiseSource], Tensor]]:
        """See ``FunctionMechanism``: the run on the stage's records."""
        problem = self.require_linear(stage).problem
        return (lambda noise: self._train(problem, law.plan, noise),)

    def public(self, head: Head, law: DPSGDRun) -> dict[str, Any]:
        """See ``Mechanism``."""
        return {**law.constants(), "threshold": head.target_bound if math.isinf(head.threshold) else head.threshold}

    def guarantee(self, stage: FittedStage, budget: PrivacyBudget, queries: int) -> Guarantee:
        """See ``Mechanism``; on a GPU it rests on the rounding of its products."""
        on_cpu = self.require_linear(stage).problem.psi[:1].device.type == "cpu"
        return super().guarantee(stage, budget, queries).resting_on(() if on_cpu else (GPU_ROUNDING,))

    def _train(self, problem: LinearProblem, plan: DPSGDPlan, noise: NoiseSource) -> Tensor:
        """Return the weights of one run, float64 [p] on the CPU, in outcome units."""
        from torchdpcate.fit.trainer import trainer_on
        from torchdpcate.fit.training import train  # Lightning, which verification does without
        from torchdpcate.heads.dp_sgd import HeadModule

        psi, unit = problem.psi[:], _unit(problem)
        head = train(
            HeadModule(psi.shape[1], problem.ridge, self.learning_rate),
            CausalData(psi, problem.w, problem.s / unit),
            trainer_on(psi.device),
            batch_size=min(self.batch_size, problem.n),
            epochs=self.epochs,
            average=self.average,
            seed=0,  # the weights start at zero and the batches are private: nothing is drawn from it
            plan=plan,
            noise=noise,
        )
        return unit * head.linear.weight.detach()[0].double().cpu()

    def planned(self, head: PlannedHead, budget: PrivacyBudget) -> float:
        r"""See ``Mechanism``: the noise of all steps as the averaged weights hold it, by the planned curvature.

        A step of size l adds noise l sigma C / (q n) along an eigenvector of the Hessian h, which later steps multiply
        by 1 - l h each; the mean over the last k weights holds

        .. math:: \frac{1}{k} \sum_{t \le T} \Big(\sum_{s = \max(t, T - k + 1)}^{T} (1 - l h)^{s - t}\Big)^2

        times its square.
        """
        if head.spectrum is None:
            return math.nan
        plan = self.plan(head.n, head.weight_bound, budget)
        unit = head.target_bound if math.isinf(head.threshold) else head.threshold
        step = self.learning_rate * plan.noise_multiplier * plan.max_grad_norm / (plan.sampling_rate * head.n)
        kept = (1 - 2 * self.learning_rate * (head.ridge + head.spectrum[0])).clamp(-0.999999, 0.999999)
        last = max(1, round(self.average * plan.steps))
        return unit * step * head.spread(averaged_noise(kept, plan.steps, last).sqrt())

    @worst_case(
        "dp_sgd_head",
        pair="every record has a feature of its own and a target far beyond the threshold, of either sign",
    )
    @staticmethod
    def worst_neighbours(budget: PrivacyBudget) -> Game:
        """Return the attack on them."""
        # the coordinates do not touch each other, so one fit is as many replace-one games as there are records
        mechanism = DPSGDHead(batch_size=_CANARIES // 4, epochs=3, learning_rate=0.01, average=0.0)
        psi, one = torch.eye(_CANARIES, dtype=torch.float64), torch.ones(_CANARIES, dtype=torch.float64)
        stages = [
            given_stage(LinearProblem(psi, sign * one, one, 0.01, 1.0, 1.0, threshold=0.01)) for sign in (-1.0, 1.0)
        ]
        datasets = [mechanism.prepare(stage, budget) for stage in stages]

        def draw(dataset: int, runs: int, noise: NoiseSource) -> Tensor:
            fits = -(-runs // _CANARIES)
            return datasets[dataset].draw(noise, fits).reshape(-1, 1)[:runs]

        assert datasets[0].event is not None
        return Game(
            draw=draw,
            event=datasets[0].event,
            count=datasets[0].count,
            guarantee=datasets[0].guarantee,
            evidence=lambda theta: theta[:, 0],
            most_runs=40_000,
        )


def averaged_noise(kept: Tensor, steps: int, last: int) -> Tensor:
    """Return the variance of the mean of the last weights of w_t = kept w_(t-1) + N(0, 1), from zero, [p].

    Args:
        kept: Factors in (-1, 1), [p].
        steps: T.
        last: How many weights are averaged.

    Example:
        >>> averaged_noise(torch.tensor([0.0, 0.5]).double(), steps=3, last=1).tolist()
        [1.0, 1.3125]
    """
    t = torch.arange(1, steps + 1, dtype=torch.float64)
    first = torch.maximum(t, torch.tensor(steps - last + 1.0).double())
    a = kept[:, None]
    sums = (a ** (first - t) - a ** (steps - t + 1)) / (1 - a)
    return sums.square().sum(1) / last**2


def _unit(problem: LinearProblem) -> float:
    """Return the threshold, in whose units the head is trained; the bound of |s| under the squared loss."""
    return problem.target_bound if problem.squared else problem.threshold


_CANARIES = 256  # of one fit
