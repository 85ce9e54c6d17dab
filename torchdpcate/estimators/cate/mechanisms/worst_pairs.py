"""Neighbouring second-stage blocks on which the mechanisms of effects are attacked."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from torchdpcate.causal.score import RScore
from torchdpcate.data.domain import Domain
from torchdpcate.estimators.cate.mechanisms.base import Prepared
from torchdpcate.fit.feature_maps import Identity
from torchdpcate.fit.nuisances import NuisanceValues
from torchdpcate.heads.linear import LinearProblem
from torchdpcate.heads.stage import LinearStage, SecondStageBlock
from torchdpcate.privacy.noise import NoiseSource
from torchdpcate.privacy.worst_case import Curve, Evidence, Game, gaussian_evidence

DOMAIN = Domain([0.0], [1.0], -0.5, 0.5, overlap=0.1, better="higher")
"""One covariate; its two ends have orthonormal features under ``Identity``, so records at one end do not move
the other."""

NEAR, FAR = 1.0, 0.0
"""Covariate of the record that is replaced, and of all the others."""

_SCALE_RUNS = 4_000  # that show an adversary, who knows both data sets, how large a secret scale is


def regression(x: Tensor, a: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Return (s, w) of the R-learner at pi = overlap, mu = 0: s = y, and w is at its bound for the treated."""
    one = torch.ones_like(y)
    return RScore().regression(a, y, NuisanceValues(DOMAIN.overlap * one, 0 * one, 0 * one))


def treated_block(x: Tensor, y: Tensor) -> SecondStageBlock:
    """Return the block of treated records with covariates x [n, 1] and outcomes y [n]."""
    s, w = regression(x, torch.ones_like(y), y)
    return SecondStageBlock(x, s, w, regression, DOMAIN, RScore().bounds(DOMAIN))


def linear_stage(first: tuple[float, float], n: int, ridge: float, threshold: float) -> LinearStage:
    """Return the stage of n records, the first (x, y) as given, the others far away with an outcome of zero."""
    x, y = torch.full((n, 1), FAR, dtype=torch.float64), torch.zeros(n, dtype=torch.float64)
    x[0], y[0] = first
    return LinearStage(treated_block(x, y), Identity().setup(DOMAIN), ridge, threshold)


def stages_apart(ridge: float) -> list[LinearStage]:
    """Return the stages of 100 records, a treated one apart from all others, its outcome at either end."""
    return [linear_stage((NEAR, y), n=100, ridge=ridge, threshold=0.01) for y in (-0.5, 0.5)]


@dataclass(frozen=True, eq=False)
class GivenStage(LinearStage):
    """A linear stage whose regression is given as it is, whatever records it may have come from.

    Attributes:
        problem: The regression.
    """

    problem: LinearProblem  # type: ignore[assignment, misc]


def given_stage(problem: LinearProblem) -> GivenStage:
    """Return the stage of this regression on two features."""
    none = torch.zeros(0, dtype=torch.float64)
    block, features = treated_block(none[:, None], none), Identity().setup(DOMAIN)
    return GivenStage(block, features, problem.ridge, problem.threshold, problem=problem)


def function_game(
    stages: Sequence[LinearStage], prepare: Callable[[LinearStage], Prepared], direction: Tensor | None = None
) -> Game:
    """Return the game on released numbers; the evidence is how far they lie along the way from D to D'.

    Args:
        stages: Fitted to D and to D'.
        prepare: The mechanism.
        direction: That way, [p]; None takes that of the coefficients.
    """
    direction = (stages[1].theta - stages[0].theta).cpu() if direction is None else direction
    return prepared_game([prepare(stage) for stage in stages], lambda theta: theta @ direction)


def query_game(
    datasets: tuple[Prepared, Prepared],
    means: tuple[Tensor, Tensor],
    most_runs: int = 100_000,
    curve: Curve | None = None,
) -> Game:
    """Return the game on Gaussian answers with the given means [d]; scales are measured, for they are secret.

    Args:
        datasets: The mechanism on D and on D'.
        means: Of its answers there.
        most_runs: See ``Game``.
        curve: See ``Game``.
    """
    noise = NoiseSource.system()
    draws = [ready.draw(noise, _SCALE_RUNS) - mean for ready, mean in zip(datasets, means, strict=True)]
    scales = [d.square().mean().sqrt().item() for d in draws]
    return prepared_game(datasets, gaussian_evidence(means, (scales[0], scales[1])), most_runs, curve)


def prepared_game(
    datasets: Sequence[Prepared], evidence: Evidence, most_runs: int = 1_000_000, curve: Curve | None = None
) -> Game:
    """Return the game on what a mechanism draws that is ready on D and on D'; other arguments are those of ``Game``."""
    first = datasets[0]
    assert first.event is not None
    return Game(
        draw=lambda dataset, runs, noise: datasets[dataset].draw(noise, runs),
        event=first.event,
        guarantee=first.guarantee,
        evidence=evidence,
        most_runs=most_runs,
        curve=curve,
    )


def queries(count: int) -> Tensor:
    """Return the replaced record's place, requested ``count`` times, [count, 1]."""
    return torch.full((count, 1), NEAR, dtype=torch.float64)
