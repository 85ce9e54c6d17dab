"""The ridge of a rule: how much a budget needs, the default, and when it leaves noise alone."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from torchdpcate.erm.bounds import WeightBounds
from torchdpcate.erm.perturbation import ridge_ratio
from torchdpcate.errors import InputError
from torchdpcate.privacy.budget import PrivacyBudget, positive, probability

if TYPE_CHECKING:
    from torchdpcate.estimators.rules.noise_report import NoiseReport

_JACOBIAN_FRACTION = 0.1  # of epsilon, for the change of curvature; within 1 % of the best of a grid nearly everywhere
LEAST_RIDGE = 1e-3  # of n w_max, for conditioning and against overfitting


def needed_ridge(epsilon: float, bounds: WeightBounds, curvature: float, fraction: float = 0.5) -> float:
    r"""Return the ridge at which the determinants' cost J is a ``fraction`` of epsilon.

    .. math:: \gamma = \frac{\lambda w_{max}}{e^{s\varepsilon} - 1} \text{ if a record moves its own term alone, else }
              \gamma = \frac{\lambda W_2}{s\varepsilon}

    Args:
        epsilon: What the rule may spend.
        bounds: Of the weights.
        curvature: lambda, of the loss.
        fraction: s in (0, 1).

    Example:
        >>> round(needed_ridge(1.0, WeightBounds.per_record(4.0), 1.0, fraction=0.25) / 400, 8)
        0.03520812
    """
    spent = positive("epsilon", epsilon) * probability("fraction", fraction, above_zero=True)
    return curvature * bounds.most * ridge_ratio(spent) if bounds.own else curvature * bounds.second / spent


def default_ridge(n: int, epsilon: float, bounds: WeightBounds, curvature: float) -> float:
    r"""Return the ridge of the total sum where the user has no wish: a public function of n and the budget.

    The larger of :math:`10^{-3} n w_{max}` and the ridge at which the change of curvature costs a tenth of epsilon
    (``needed_ridge``).

    Args:
        n: Number of records.
        epsilon: What the release may spend.
        bounds: Public bounds of the weights.
        curvature: lambda, of the loss.

    Example:
        >>> round(default_ridge(1000, 1.0, WeightBounds.per_record(1.0), 1.0), 6)
        9.508332
    """
    return max(needed_ridge(epsilon, bounds, curvature, _JACOBIAN_FRACTION), LEAST_RIDGE * n * bounds.most)


def check_ridge(needed: float, largest: float, budget: PrivacyBudget, report: "Callable[[], NoiseReport]") -> None:
    """Refuse a budget whose ridge would leave a release dominated by noise.

    Args:
        needed: Ridge that the budget asks for, see `needed_ridge`.
        largest: Public bound, for instance the curvature of all records at their largest weight.
        budget: In all.
        report: Returns the report of the release that would be made; called where the ridge is refused.

    Raises:
        InputError: The needed ridge is above the bound; says what accuracy to expect.
    """
    if needed <= largest:
        return
    try:
        found = report()
        accuracy, records = f"{found.accuracy:.2f}", f"about {found.records_needed}"
    except InputError:  # so small a budget that not even the solver's stop could be hidden
        accuracy, records = "0.50", "more"
    raise InputError(
        f"epsilon = {budget.epsilon:g}: needs ridge = {needed:.3g}, above the bound ridge_bound = {largest:.3g}; "
        f"expect an accuracy of {accuracy} where a coin has 0.50; give more epsilon, {records} records, or a larger "
        "ridge_bound to release it all the same"
    )
