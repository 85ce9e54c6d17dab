"""Search for the one record that moves a fitted second stage farthest, and the attack on learners by its worst."""

import copy
import dataclasses
import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from experiments.audit.refit import Replacements, ReplaceOne
from tests.device import trainer_on
from torchdpcate.audit.learners import replaced
from torchdpcate.errors import InputError, NumericalError
from torchdpcate.heads.influence import InfluenceFunction
from torchdpcate.heads.linear import sensitivity
from torchdpcate.heads.neural import fit_neural_head
from torchdpcate.heads.stage import FittedStage, LinearStage, NeuralStage, ParametricStage, SecondStageBlock
from torchdpcate.heads.supremum import maximise_over_box

_POOL = 512  # records that the climb may remove: those with the largest influence of their own
_REMOVALS = 64  # removals tried exactly with each newcomer at the end
_HANDFUL = 4  # neighbours to which a neural head is refitted
_RETRAINED = 2  # of these, from scratch

Retrain = Callable[[SecondStageBlock], ParametricStage]
"""A block in outcome units -> the stage that the same recipe and seed fit to it."""


@dataclass(frozen=True, eq=False)
class Neighbour:
    """The worst replacement found. The curator's: which record it removes, and how far, depends on the records."""

    index: int
    x: Tensor
    a: int
    y: float
    change: float
    ratio: float
    starts: int
    retrained: float = math.nan

    def block(self, block: SecondStageBlock) -> SecondStageBlock:
        """Return the neighbouring data set: the block with this replacement."""
        return replaced(block, self.index, self.x, self.a, self.y)


def refitted(stage: FittedStage, block: SecondStageBlock) -> ParametricStage:
    """Return the stage fitted to another block in its unit: a neural head by going on from its fitted parameters."""
    if isinstance(stage, LinearStage):
        return dataclasses.replace(stage, block=block)
    assert isinstance(stage, NeuralStage)
    head = copy.deepcopy(stage.head)
    with torch.no_grad():
        head.theta.copy_(stage.theta)
    fit = fit_neural_head(head, block.x, block.s, block.w, trainer_on(stage.theta.device.type), epochs=0)
    return dataclasses.replace(stage, block=block, head=head, fit=fit)


def worst_neighbour(
    stage: FittedStage,
    queries: Tensor | None = None,
    *,
    starts: int = 512,
    climbs: int = 64,
    seed: int = 0,
    retrain: Retrain | None = None,
) -> Neighbour:
    r"""Maximise the change ||f_{D'}(queries) - f_D(queries)|| over replace-one neighbours D' of the block.

    x climbs over the covariate box from many starts at once (``maximise_over_box``), with the better treatment and end
    of the outcome interval everywhere; the record that leaves is the one whose own pull, to first order, lies
    farthest from the newcomer's. Linear heads climb the exact change itself: a batch of refits, differentiated by
    the implicit function theorem. Neural heads climb the change to first order, by influence functions. The last
    word is always an exact refit: for a linear head the 64 most promising removals for each treatment and outcome,
    for a neural one a handful of neighbours, polished on from the fitted parameters. The polish stays on the fitted
    branch; ``retrain`` shows whether one record switches the minimum.

    Guarantee: none. The change is attained, so it is a lower bound of the local sensitivity at this block.
    """
    search: _Search
    if isinstance(stage, LinearStage):
        search = _LinearSearch(stage, queries)
    elif isinstance(stage, NeuralStage) and queries is not None:
        search = _NeuralSearch(stage, queries, retrain)
    else:
        raise InputError("queries = None: the parameters of a neural head have no meaning; give queries")
    domain = stage.block.domain
    low, high = domain.covariate_low.to(stage.theta), domain.covariate_high.to(stage.theta)
    place = None if domain.linear else domain.from_unit
    _, x = maximise_over_box(search.worst_arm, low, high, starts=starts, climbs=climbs, seed=seed, place=place)
    return dataclasses.replace(search.decide(x), starts=starts)


class _Search(ABC):
    """Search for the worst neighbour of one kind of head.

    ``pulls`` [n, k]: to first order, n times what each record adds to the answers, in coordinates that keep norms.
    """

    def __init__(self, stage: FittedStage) -> None:
        self.block, self.n = stage.block, len(stage.block.s)
        with torch.no_grad():
            self.pulls = self.pull(self.block.x, self.block.s, self.block.w)
        low, high = self.block.domain.outcome_low, self.block.domain.outcome_high
        self.arms = self.pulls.new_tensor([0, 0, 1, 1]), self.pulls.new_tensor([low, high, low, high])
        self.pool = self.pulls.norm(dim=1).topk(min(_POOL, self.n)).indices

    @abstractmethod
    def pull(self, x: Tensor, s: Tensor, w: Tensor) -> Tensor:
        """Pulls of any records, [B, k]."""

    @abstractmethod
    def climbed(self, x: Tensor, s: Tensor, w: Tensor) -> Tensor:
        """What the search climbs, [B]: the change by newcomers; differentiable in x."""

    @abstractmethod
    def decide(self, x: Tensor) -> Neighbour:
        """Refit exactly to the promising neighbours whose newcomer is at x [q], and return the worst."""

    def worst_arm(self, x: Tensor) -> Tensor:
        """The largest climb over treatments and ends of the outcome interval, [B, q] -> [B]."""
        a, y = (t.repeat_interleave(len(x)) for t in self.arms)
        x = x.repeat(len(self.arms[0]), 1)
        return self.climbed(x, *self.block.regression(x, a, y)).view(len(self.arms[0]), -1).amax(0)

    @torch.no_grad()
    def newcomers(self, x: Tensor, removals: int) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        """The most promising neighbours with each arm at x: arm, index, first-order distance, s and w, each [K]."""
        a, y = self.arms
        at = x.expand(len(a), -1)
        s, w = self.block.regression(at, a, y)
        distance = torch.cdist(self.pull(at, s, w), self.pulls)
        distance, index = distance.topk(min(removals, self.n))
        arm = torch.arange(len(a), device=x.device)[:, None].expand_as(index)
        return arm.flatten(), index.flatten(), distance.flatten(), s[arm].flatten(), w[arm].flatten()

    def neighbour(self, x: Tensor, arm: Tensor, index: Tensor) -> Neighbour:
        """The neighbour, its change still to be found."""
        a, y = self.arms
        return Neighbour(int(index), x, int(a[arm]), float(y[arm]), change=math.nan, ratio=math.nan, starts=0)

    def farthest(self, pull: Tensor) -> Tensor:
        """The record of the pool whose pull lies farthest from each newcomer's, [B, k] -> [B]."""
        pool = self.pulls[self.pool]
        return self.pool[((pool * pool).sum(1) - 2 * pull.detach() @ pool.T).argmax(1)]


class _LinearSearch(_Search):
    """Exact changes of a linear head, many at once, with their gradients."""

    def __init__(self, stage: LinearStage, queries: Tensor | None) -> None:
        self.features, self.refits = stage.features, ReplaceOne(stage.problem)
        p = stage.problem.psi.shape[1]
        J = torch.eye(p).to(stage.theta) if queries is None else self.features(queries.to(stage.theta))
        self.rows = torch.linalg.qr(J).R if len(J) > p else J
        self.proved = float(torch.linalg.matrix_norm(J, 2)) * sensitivity(stage.problem)
        self.response = self.refits.solve_base(self.rows).T
        super().__init__(stage)

    def pull(self, x: Tensor, s: Tensor, w: Tensor) -> Tensor:
        psi = self.features(x)
        return self._slope(psi, s, w, self.refits.theta)[:, None] * (psi @ self.response)

    def climbed(self, x: Tensor, s: Tensor, w: Tensor) -> Tensor:
        psi = self.features(x)
        slope = self._slope(psi, s, w, self.refits.theta)
        with torch.no_grad():
            index = self.farthest(slope[:, None] * (psi @ self.response))
            candidates = Replacements(index, psi, s, w)
            theta, move, change = self._refit(candidates)
            toward = move @ self.rows / change.clamp(min=1e-300)[:, None]
            adjoint = self.refits.solve_curvature(candidates, theta, toward) / self.n
        if not torch.is_grad_enabled():
            return change
        # The value is the exact change; its gradient is the adjoint times how the newcomer's pull moves.
        pulled = ((self._slope(psi, s, w, theta)[:, None] * psi) * adjoint).sum(1)
        return change + pulled - pulled.detach()

    def decide(self, x: Tensor) -> Neighbour:
        arm, index, _, s, w = self.newcomers(x, _REMOVALS)
        with torch.no_grad():
            psi = self.features(x[None]).expand(len(index), -1)
            change = self._refit(Replacements(index, psi, s, w))[2]
        k = int(change.argmax())
        worst = float(change[k])
        return dataclasses.replace(self.neighbour(x, arm[k], index[k]), change=worst, ratio=worst / self.proved)

    def _refit(self, candidates: Replacements) -> tuple[Tensor, Tensor, Tensor]:
        """Minimisers, the moves of the answers in coordinates that keep norms, and their norms."""
        theta = self.refits.refit(candidates)
        move = (theta - self.refits.theta) @ self.rows.T
        return theta, move, move.norm(dim=1)

    def _slope(self, psi: Tensor, s: Tensor, w: Tensor, theta: Tensor) -> Tensor:
        """Half the negative derivative of the loss in psi'theta: w times the residual, clipped at tau."""
        tau = self.refits.problem.threshold
        return w * (s - w * (psi * theta).sum(1)).clamp(-tau, tau)


class _NeuralSearch(_Search):
    """Changes of a neural head to first order, and a handful of exact ones."""

    def __init__(self, stage: NeuralStage, queries: Tensor, retrain: Retrain | None) -> None:
        self.stage, self.retrain, self.queries = stage, retrain, queries.to(stage.theta)
        block = stage.block
        self.influence = InfluenceFunction(
            stage.model, stage.theta, block.x, block.s, block.w, stage.ridge, self.queries
        )
        self.before = stage.correction(self.queries)
        super().__init__(stage)

    def pull(self, x: Tensor, s: Tensor, w: Tensor) -> Tensor:
        return self.stage.unit * self.influence.at(x, s, w)

    def climbed(self, x: Tensor, s: Tensor, w: Tensor) -> Tensor:
        pull = self.pull(x, s, w)
        return (pull - self.pulls[self.farthest(pull)]).norm(dim=1) / self.n

    def decide(self, x: Tensor) -> Neighbour:
        arm, index, distance, _, _ = self.newcomers(x, _HANDFUL)
        found = []
        for k in distance.topk(_HANDFUL).indices.tolist():
            promising = self.neighbour(x, arm[k], index[k])
            try:
                after = refitted(self.stage, promising.block(self.block))
            except NumericalError:
                continue  # the branch ends here: only a fit from scratch could decide
            change = float((after.correction(self.queries) - self.before).norm())
            found.append(dataclasses.replace(promising, change=change))
        if not found:
            raise NumericalError("no neighbour's neural head could be polished: raise second_stage.ridge")
        found.sort(key=lambda neighbour: -neighbour.change)
        if self.retrain is None:
            return found[0]
        changes = [self._retrained(neighbour) for neighbour in found[:_RETRAINED]]
        return dataclasses.replace(found[0], retrained=max(changes))

    def _retrained(self, neighbour: Neighbour) -> float:
        assert self.retrain is not None
        after = self.retrain(neighbour.block(self.block).in_units_of(1 / self.stage.unit))
        return float((after.correction(self.queries) - self.before).norm())
