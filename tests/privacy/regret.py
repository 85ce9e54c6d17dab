"""What a choice is expected to lose."""

from torch import Tensor


def expected_regret(utilities: Tensor, probabilities: Tensor) -> Tensor:
    r"""Return how far the choice is expected to fall short of the best: max U - E U_I.

    Args:
        utilities: [..., M].
        probabilities: Law of the choice, [..., M].

    Returns:
        float64 [...], in the utilities' units; the curator's.

    """
    exact = utilities.double()
    return ((exact.amax(-1, keepdim=True) - exact) * probabilities).sum(-1)
