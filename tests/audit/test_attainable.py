"""What an attack that knows one Gaussian loss exactly can show of claims that pay for more points than one."""

from collections.abc import Sequence

import numpy as np
import pytest
from scipy.stats import beta, norm

from torchdpcate.audit.attack import Rates, curve_bound
from torchdpcate.fit.gaussian_scale import CONVEX_LOSS, PARALLELOGRAM, TRIANGLE, Corners, gaussian_scale
from torchdpcate.fit.private_fit import SOLVER_SHARE

EPSILON, DELTA = 1.0, 1e-5


def shown(corners: Sequence[Corners], length: float, runs: int) -> float:
    """The best bound over thresholds, at the expected counts of so many runs of either kind.

    The output is N(0, 1) or N(length xi / sigma, 1), and sigma is what the corners request.
    """
    kept = 1 - SOLVER_SHARE
    sigma = gaussian_scale(kept * EPSILON, kept * DELTA, 1.0, 0.0, 4, corners)

    def curve(factor: float, epsilons: np.ndarray) -> np.ndarray:
        solver = SOLVER_SHARE * EPSILON, SOLVER_SHARE * DELTA
        proven = [one.delta(factor / sigma, epsilons - solver[0]) for one in corners]
        return np.minimum(np.min(proven, axis=0) + solver[1], 1.0)

    found = []
    for threshold in np.linspace(0.5, 4.0, 36):
        false, true = (round(runs * norm.sf(threshold - moved)) for moved in (0.0, length / sigma))
        if true > 0:
            ends = beta.ppf(0.975, false + 1, runs - false), beta.ppf(0.025, true, runs - true + 1)
            found.append(curve_bound(curve, DELTA, Rates(*ends)))
    return max(found)


@pytest.mark.first(2)
@pytest.mark.parametrize(
    ("corners", "length", "runs", "most"),
    [
        ([PARALLELOGRAM], 1.0, 1_000_000, 0.84),
        ([PARALLELOGRAM, CONVEX_LOSS], 1.0, 1_000_000, 0.89),
        ([TRIANGLE], 1.0, 1_000_000, 0.95),
    ],
)
def test_an_exact_attack_on_one_point_shows_so_much(corners, length, runs, most):
    assert shown(corners, length, runs) == pytest.approx(most, abs=0.01)
