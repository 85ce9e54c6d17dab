"""Search for the neighbour that moves the noise scale gamma of a linear head most."""

import torch
from torch import Tensor

from experiments.audit.neighbours import replaced
from experiments.audit.refit import Replacements, ReplaceOne
from torchdpcate.heads.stage import LinearStage, SecondStageBlock
from torchdpcate.heads.supremum import Supremum, maximise_over_box

_REMOVALS = 16  # removals tried with each newcomer


class ScaleSearch:
    r"""The neighbour of a squared linear head whose influence at gamma's own point is largest, or smallest.

    With z = (psi, s, w) the point where gamma is attained on D, the influence on D' is J out',
    out' = A'^{-1} (w (s - w psi'theta') psi - ridge theta'). If it grows, so does gamma: gamma(D') >= ||J out'||.
    The newcomer v moves A' by d(v v') / n and theta' by A'^{-1} d((s - v'theta') v) / n, which gives the gradient.

    Args:
        stage: The head, squared loss.
        queries: Covariates of the queries, [d, q].
        gamma: The supremum of the influence on D.
        sign: 1 to let the influence grow, -1 to let it shrink.
    """

    def __init__(self, stage: LinearStage, queries: Tensor, gamma: Supremum, sign: float) -> None:
        self.block, self.features, self.sign, self.refits = stage.block, stage.features, sign, ReplaceOne(stage.problem)
        J = stage.features(queries.to(stage.theta))
        self.rows = torch.linalg.qr(J).R if len(J) > J.shape[1] else J
        domain = self.block.domain
        low, high = domain.outcome_low, domain.outcome_high
        self.arms = J.new_tensor([0, 0, 1, 1]), J.new_tensor([low, high, low, high])
        with torch.no_grad():
            point = gamma.x[None].to(J)
            s, w = self.block.regression(point, J.new_tensor([gamma.a]), J.new_tensor([gamma.y]))
            self.psi, self.s, self.w = self.features(point)[0], s, w
            problem = stage.problem
            identity = Replacements(self.rows.new_zeros(1).long(), problem.psi[:1], problem.s[:1], problem.w[:1])
            _, out, along, beside = self._sides(identity, self.refits.theta[None])
            self.scores = self._effect(problem.v, problem.s, self.refits.theta, out, along, beside)

    def worst_block(self, starts: int, seed: int) -> SecondStageBlock:
        """Return the neighbouring block."""
        low, high = (b.to(self.rows) for b in (self.block.domain.covariate_low, self.block.domain.covariate_high))
        _, x = maximise_over_box(self._climbed, low, high, starts=starts, climbs=64, seed=seed)
        removals = (-self.sign * self.scores).topk(min(_REMOVALS, len(self.scores))).indices
        a, y = (arm.repeat_interleave(len(removals)) for arm in self.arms)
        index = removals.repeat(len(self.arms[0]))
        with torch.no_grad():
            best = int(self._value(x.expand(len(index), -1), a, y, index).argmax())
        return replaced(self.block, int(index[best]), x, int(a[best]), float(y[best]))

    def _climbed(self, x: Tensor) -> Tensor:
        """The best arm's value, [B, q] -> [B]; the record leaves whose removal helps most, to first order."""
        a, y = (arm.repeat_interleave(len(x)) for arm in self.arms)
        index = (-self.sign * self.scores).argmax().expand(len(a))
        return self._value(x.repeat(len(self.arms[0]), 1), a, y, index).view(len(self.arms[0]), -1).amax(0)

    def _value(self, x: Tensor, a: Tensor, y: Tensor, index: Tensor) -> Tensor:
        """Signed ||J out'|| of the neighbours, [B]; differentiable in x."""
        s, w = self.block.regression(x, a, y)
        psi = self.features(x)
        with torch.no_grad():
            candidates = Replacements(index, psi, s, w)
            theta = self.refits.refit(candidates)
            value, out, along, beside = self._sides(candidates, theta)
        if not torch.is_grad_enabled():
            return self.sign * value
        effect = self._effect(w[:, None] * psi, s, theta, out, along, beside)
        return self.sign * (value + effect - effect.detach())

    def _sides(self, candidates: Replacements, theta: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """||J out||, out, and the adjoints of the curvature and of the fit, all at D' [K, ...]."""
        ridge = self.refits.problem.ridge
        product = self.w * (self.s - self.w * theta @ self.psi)
        out = self.refits.solve_curvature(candidates, theta, product[:, None] * self.psi - ridge * theta)
        moved = out @ self.rows.T
        value = moved.norm(dim=1)
        along = self.refits.solve_curvature(candidates, theta, moved @ self.rows / value[:, None])
        back = (self.w**2 * (along @ self.psi))[:, None] * self.psi + ridge * along
        return value, out, along, self.refits.solve_curvature(candidates, theta, back)

    def _effect(self, v: Tensor, s: Tensor, theta: Tensor, out: Tensor, along: Tensor, beside: Tensor) -> Tensor:
        """What a record's v adds to ||J out|| to first order, through the curvature and through the fit, [B]."""
        pull = s - (v * theta).sum(1)
        return -((v * along).sum(1) * (v * out).sum(1) + pull * (v * beside).sum(1)) / self.refits.problem.n
