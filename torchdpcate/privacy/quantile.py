"""A private quantile of one column, by selection from a public grid."""

import torch
from torch import Tensor

from torchdpcate.errors import InputError
from torchdpcate.privacy.budget import PrivacyBudget, number
from torchdpcate.privacy.events import PureEvent
from torchdpcate.privacy.guarantee import Guarantee, Level
from torchdpcate.privacy.noise import NoiseSource
from torchdpcate.privacy.worst_case import Game, worst_case


def private_quantile(values: Tensor, grid: Tensor, quantile: float, epsilon: float, noise: NoiseSource) -> float:
    r"""A quantile of the values, chosen from public candidates; certified, pure epsilon.

    Selection (``NoiseSource.select``) with the score :math:`-|\#\{v \le t\} - q n|` of candidate t, which
    replacing one record moves by at most 1 (Smith 2011). Charge ``PureEvent(epsilon)`` first.

    Args:
        values: One number per record, shape [n]; n is public.
        grid: Public candidates, shape [k], any order.
        quantile: q in [0, 1].
        epsilon: Privacy cost.
        noise: Where the noise comes from.

    Returns:
        The chosen candidate.

    Raises:
        InputError: If the values or the grid are empty, not vectors or not finite, or a number is outside its
            range.

    Example:
        >>> values = torch.arange(1000.0)
        >>> private_quantile(values, torch.arange(0.0, 1000.0, 250.0), 0.5, 1.0, NoiseSource.system())
        500.0
    """
    return noise.released(chosen_quantile(values, grid, quantile, epsilon, noise))


def chosen_quantile(values: Tensor, grid: Tensor, quantile: float, epsilon: float, noise: NoiseSource) -> float:
    """Return ``private_quantile`` as one number of an answer that is handed out with others, for one charge.

    Args:
        values: See ``private_quantile``, as all others.
        grid: Public candidates.
        quantile: q in [0, 1].
        epsilon: Privacy cost.
        noise: Where the noise comes from.

    Raises:
        InputError: As ``private_quantile``.
    """
    for name, vector in (("values", values), ("grid", grid)):
        if vector.ndim != 1 or vector.numel() == 0 or not bool(torch.isfinite(vector).all()):
            raise InputError(f"{name} of shape {tuple(vector.shape)}: give a vector of finite numbers")
    quantile = number("quantile", quantile)
    if not 0 <= quantile <= 1:
        raise InputError(f"quantile = {quantile:g}: give a number in [0, 1]")
    candidates = grid.detach().cpu().double()
    # OpenDP's make_quantile_score_candidates scores in units of 2^-53, which float64 does not hold exactly
    ordered = values.detach().cpu().double().sort().values
    below = torch.searchsorted(ordered, candidates, right=True).double()
    # a multiple of 2^-20 makes the scores exact, so that rounding cannot stretch their sensitivity
    target = round(quantile * len(ordered) * 2**20) / 2**20
    return float(candidates[noise.select(-(below - target).abs(), epsilon)])


@worst_case(
    "quantile", private_quantile, pair="two candidates, equally good; one of four records moves from below to above"
)
def _quantile(budget: PrivacyBudget) -> Game:
    # counts (1, 3) become (0, 2), where 2 is wanted: one score falls by its sensitivity, the other rises by it
    grid = torch.tensor([0.0, 1.0], dtype=torch.float64)
    worlds = torch.tensor([[-1.0, 0.5, 0.5, 2.0], [3.0, 0.5, 0.5, 2.0]], dtype=torch.float64)

    def draw(world: int, runs: int, noise: NoiseSource) -> Tensor:
        chosen = [private_quantile(worlds[world], grid, 0.5, budget.epsilon, noise) for _ in range(runs)]
        return torch.tensor(chosen, dtype=torch.float64)

    pure = Guarantee(Level.CERTIFIED, PrivacyBudget(budget.epsilon, 0.0))
    return Game(draw, PureEvent(budget.epsilon), pure, evidence=lambda chosen: chosen[:, 0].sign(), most_runs=40_000)
