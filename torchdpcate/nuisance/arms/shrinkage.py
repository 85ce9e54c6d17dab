"""What stable nuisances are shrunk towards: public numbers, or noisy shares and means of the arms."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from torchdpcate.causal.score import project_to_floor
from torchdpcate.data.records import CausalData
from torchdpcate.nuisance.arms.base import SelectionFacts
from torchdpcate.nuisance.arms.fixed import Numbers, constant_outcome, constant_propensity
from torchdpcate.privacy.charge import ARMS
from torchdpcate.privacy.exact_sums import exact_sum
from torchdpcate.privacy.mechanisms import AdditiveMechanism, LaplaceMechanism, RootPolytopeMechanism
from torchdpcate.privacy.noise import NoiseSource
from torchdpcate.privacy.session import FitSession

PRIVATE = "private"
"""Says that a target is to be taken from the training block, with noise."""

_NEVER_ZERO = 1e-9  # noise that is none
_REACH = 0.5  # of an outcome from the middle of its bounds, over their range
_OF_TABLE, _OF_LAPLACE = (6.0, 3.0), (8.0, 2.0)  # variances of a count and a sum, in squared scales


@dataclass(frozen=True)
class ShrinkageTarget:
    """Public numbers that nuisances deviate from; how good they are decides about accuracy, never about privacy.

    Args:
        propensity: P(A = second action) of two arms, or one number an arm; None takes 1 / K for each.
        outcome: Mean outcomes: one number for all arms, or one an arm; None takes the middle of the bounds.

    Example:
        >>> from torchdpcate.data import Domain
        >>> facts = SelectionFacts(Domain([0.0], [1.0], 0.0, 1.0), (0, 1), overlap=0.1, training=5, scoring=5)
        >>> [numbers.tolist() for numbers in ShrinkageTarget(0.25, [0.5, 0.75]).numbers(facts)]
        [[0.75, 0.25], [0.5, 0.75]]
    """

    propensity: Numbers = None
    outcome: Numbers = None

    def __post_init__(self) -> None:
        for name in ("propensity", "outcome"):
            value = getattr(self, name)
            if isinstance(value, Sequence) and not isinstance(value, str):
                object.__setattr__(self, name, tuple(value))  # hashable, whatever a configuration gave

    def numbers(self, facts: SelectionFacts) -> tuple[Tensor, Tensor]:
        """Return propensities and outcomes of the arms, [K] each.

        Raises:
            InputError: Not as many as arms, shares below the overlap or not adding up to one, outcomes out of bounds.
        """
        return constant_propensity(self.propensity, facts), constant_outcome(self.outcome, facts)


def private_target(
    train: CausalData, facts: SelectionFacts, epsilon: float | None, session: FitSession | None = None
) -> ShrinkageTarget:
    r"""Return the shares of the arms and their mean outcomes in a training block, with noise.

    A record's part is :math:`z = (y - \text{middle}) / R \in [-1/2, 1/2]` in its own arm. Of two arms it adds
    :math:`(1/2 + z, 1/2 - z)` to two cells of its arm, which are never negative and add up to one, and the four cells
    have root-polytope noise of W = 1 (scale b = 1 / epsilon): a sum of z is half the difference of an arm's cells, of
    variance :math:`3 b^2`, and as m is public, a count is half of m and of the arms' difference, of variance
    :math:`6 b^2`. Of more arms released are halves of counts and K sums with Laplace noise: a replaced record moves two
    counts by one, or none, and sums by at most one in all, which is 2 in l1; the variances are :math:`2 b^2` of a sum
    and :math:`8 b^2` of a count, b = 2 / epsilon. Sums are exact (``exact_sum``), and a half lies on their grid:
    rounding adds nothing. What follows is post-processing, linear Bayes for shares and a common mean that are uniform
    over their ranges (variance 1/12) and arms that differ from it by a tenth of the range, so that noise which
    dominates the records pulls to equal shares, alike arms and the middle:

    .. math::
        \hat e_a = \frac{m \hat n_a + k_n^2 / K}{m^2 + k_n^2}, \quad
        \bar z = \frac{m \sum_a \hat s_a}{m^2 + K k_s^2}, \quad
        \hat z_a = \frac{m \hat e_a \hat s_a + l^2 \bar z}{(m \hat e_a)^2 + l^2}, \qquad
        k_n^2 = 12 v_n, \quad k_s^2 = 12 v_s, \quad l^2 = 100 v_s

    with :math:`v_n, v_s` the variances of a count and a sum and the shares projected to the simplex; at last they are
    projected to the overlap, and the means clipped to the bounds.

    Guarantee:
        Certified, pure epsilon for the training block, charged before the noise is drawn. Source: docs/guarantees/
        root_polytope.md, laplace.md and stable_nuisances.md.

    Args:
        train: The training block, actions as positions.
        facts: Public facts.
        epsilon: What it costs; None takes the exact numbers, without privacy.
        session: Pays, and draws the noise.

    Raises:
        BudgetError: The block cannot pay.

    Example:
        >>> from torchdpcate.data import Domain
        >>> facts = SelectionFacts(Domain([0.0], [1.0], 0.0, 1.0), (0, 1), overlap=0.1, training=4, scoring=4)
        >>> x, a, y = torch.zeros(4, 1), torch.tensor([0, 0, 0, 1]), torch.tensor([0.0, 0.25, 0.5, 0.75])
        >>> target = private_target(CausalData(x.double(), a.double(), y.double()), facts, None)
        >>> [[round(number, 6) for number in numbers] for numbers in (target.propensity, target.outcome)]
        [[0.75, 0.25], [0.25, 0.75]]
    """
    domain, K, m = facts.domain, facts.arms, facts.training
    middle = (domain.outcome_low + domain.outcome_high) / 2
    own = torch.nn.functional.one_hot(train.a.long(), K).double()
    sums = exact_sum(((train.y - middle) / domain.outcome_range)[:, None] * own, m, _REACH, dim=0)
    value, scale = _table(own.sum(0), sums), _NEVER_ZERO
    if epsilon is not None:
        mechanism, scale = target_mechanism(epsilon, facts)
        session = session or FitSession(NoiseSource.system())
        session.pay(mechanism.event, charge=ARMS)
        value = mechanism.release(value, session.noise)
    counts, sums = _counts_and_sums(value, m)
    of_count, of_sum = _OF_TABLE if K == 2 else _OF_LAPLACE
    shares = (m * counts + 12 * of_count * scale**2 / K) / (m * m + 12 * of_count * scale**2)
    shares = project_to_floor(shares, 0.0)
    overall, counts = m * sums.sum() / (m * m + 12 * K * of_sum * scale**2), m * shares
    l2 = 100 * of_sum * scale**2
    z = ((counts * sums + l2 * overall) / (counts**2 + l2)).clamp(-0.5, 0.5)
    means = domain.clip_outcome(middle + domain.outcome_range * z)
    return ShrinkageTarget(project_to_floor(shares, facts.overlap).tolist(), means.tolist())


def target_mechanism(epsilon: float, facts: SelectionFacts) -> tuple[AdditiveMechanism, float]:
    """Return the mechanism of a private target, and the scale of its noise.

    Raises:
        InputError: So little epsilon that rounding would matter.
    """
    two = facts.arms == 2
    mechanism = RootPolytopeMechanism(epsilon, bound=1.0) if two else LaplaceMechanism(epsilon, 2.0)
    return mechanism, mechanism.released_scale(2 * facts.arms)


def _table(counts: Tensor, sums: Tensor) -> Tensor:
    """Return what gets noise: of two arms (high, low) cells of each, of more the halves of counts and the sums."""
    if len(counts) == 2:
        return torch.stack([counts / 2 + sums, counts / 2 - sums], 1).flatten()
    return torch.cat([counts / 2, sums])


def _counts_and_sums(value: Tensor, m: int) -> tuple[Tensor, Tensor]:
    """Return counts and sums of the arms, with the noise of the table."""
    if len(value) == 4:
        high, low = value.unflatten(0, (2, 2)).unbind(1)
        counts = high + low
        return (m + counts - counts.flip(0)) / 2, (high - low) / 2
    counts, sums = value.chunk(2)
    return 2 * counts, sums
