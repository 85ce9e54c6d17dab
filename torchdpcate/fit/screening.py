"""Private screening: the covariates that the outcome depends on, chosen on the nuisance block."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from torchdpcate.data.domain import Domain
from torchdpcate.data.records import CausalData
from torchdpcate.errors import InputError
from torchdpcate.privacy.budget import PrivacyBudget
from torchdpcate.privacy.charge import SCREENING
from torchdpcate.privacy.events import PureEvent
from torchdpcate.privacy.exact_sums import exact_sum
from torchdpcate.privacy.guarantee import Guarantee, Level
from torchdpcate.privacy.noise import NoiseSource
from torchdpcate.privacy.selection import chosen_quantile, top_k
from torchdpcate.privacy.worst_case import Game, worst_case
from torchdpcate.registry import refuse_strings

_SCORE_SENSITIVITY = 2.0  # a record adds a number in [-1, 1] to each sum
_BATCH = 2**24  # numbers of covariates worked on at once
_MEDIAN_SHARE = 0.07  # of the budget of a screening
_SIGN_SCALE = 0.02  # of the outcome range: residuals beyond it count alike
_POINTS = 201  # of the public grid of the median
_RUNS = 10_000  # a dataset, of the audit


def outcome_median(records: CausalData, domain: Domain, epsilon: float, noise: NoiseSource) -> float:
    """Median outcome, by `chosen_quantile` from a public grid of the outcome range; charge ``PureEvent(epsilon)``.

    Args:
        records: a block.
        domain: public bounds.
        epsilon: privacy cost.
        noise: where the noise comes from.

    Example:
        >>> domain = Domain([0.0], [1.0], outcome_low=-1.0, outcome_high=1.0)
        >>> y = torch.linspace(0, 1, 1000, dtype=torch.float64)
        >>> round(outcome_median(CausalData(y[:, None], y.round(), y), domain, 10.0, NoiseSource.system()), 1)
        0.5
    """
    return noise.released(_median(records, domain, epsilon, noise))


def _median(records: CausalData, domain: Domain, epsilon: float, noise: NoiseSource) -> float:
    return chosen_quantile(records.y, _median_grid(domain), 0.5, epsilon, noise)


def _median_grid(domain: Domain) -> Tensor:
    return torch.linspace(domain.outcome_low, domain.outcome_high, _POINTS, dtype=torch.float64)


def relevance(records: CausalData, domain: Domain, median: float) -> Tensor:
    r"""How far the outcome depends on each covariate, [q]: scores that one record moves by at most 2.

    With u the covariate scaled to [-1, 1] and r the residual from the median, over one fiftieth of the outcome range
    and clipped to [-1, 1],

    .. math:: \max_b \Big|\sum_i b(u_{ij})\, r_i\Big|, \quad b \in \{\sin(\pi u / 2), \cos(\pi u)\}:

    a slope or a hump. Most residuals count by their sign, so that no tail of the outcome sets the scale. Both arms
    count together: there are more of them, and an effect that a covariate modifies shows in the outcome, as does
    what the treatment and the outcome share.

    Args:
        records: a block.
        domain: public bounds.
        median: of the outcome, paid for.
    """
    u = domain.scale(records.x)
    r = ((records.y - median) / (_SIGN_SCALE * domain.outcome_range)).clamp(-1, 1)
    return torch.cat([_strengths(part, r) for part in u.split(max(1, _BATCH // len(r)), 1)])


def _strengths(u: Tensor, r: Tensor) -> Tensor:
    """Scores of some scaled columns u [n, k] against residuals r [n], [k]."""
    # -1 and 1 lie on the grid of exact sums: rounding keeps terms between them and cannot stretch the sensitivity
    sums = [
        exact_sum(r[:, None] * wave, len(r), 1.0, dim=0)
        for wave in (torch.sin(math.pi / 2 * u), torch.cos(math.pi * u))
    ]
    return torch.stack(sums).abs().amax(0)


@dataclass(frozen=True)
class Screening:
    r"""Chooses a few covariates by `top_k` of `relevance`; public settings, all of them.

    The chosen columns are paid for, hence public from then on: whatever comes later may use them alone. A weak
    confounder that is dropped is not adjusted for.

    How many are chosen follows from public facts. Noise raises the best of q scores by about
    :math:`(4 k / \epsilon) \ln q` where k are chosen with epsilon, so k is the largest number for which that is at
    most the score :math:`r n` of a covariate worth finding, between 1 and `most`.

    Guarantee:
        Certified, pure epsilon: 7 % pays `outcome_median`, the rest `top_k` with sensitivity 2.

    Args:
        share: share of the block's epsilon that pays for it, in (0, 1).
        most: covariates kept at most.
        power: r, mean score of a covariate worth finding, in (0, 1).

    Raises:
        InputError: a value out of its range.

    Example:
        >>> Screening().count(30, 1350, 0.3), Screening().count(30, 13_500, 0.3)
        (2, 8)
        >>> x = torch.rand(4000, 30, dtype=torch.float64)
        >>> records = CausalData(x, torch.arange(4000) % 2 * 1.0, 2 * x[:, 7] - 1)
        >>> domain = Domain([0.0] * 30, [1.0] * 30, outcome_low=-1.0, outcome_high=1.0)
        >>> 7 in Screening().choose(records, domain, 1.0, NoiseSource.system())
        True
    """

    share: float = 0.3
    most: int = 8
    power: float = 0.1

    def __post_init__(self) -> None:
        refuse_strings(type(self), vars(self))
        for name in ("share", "power"):
            value = getattr(self, name)
            if not 0 < value < 1:
                raise InputError(f"screen.{name}={value!r} must lie strictly between 0 and 1")
        if not (isinstance(self.most, int) and self.most >= 1):
            raise InputError(f"screen.most={self.most!r} must be a whole number, at least 1")

    def count(self, dimension: int, n: int, epsilon: float) -> int:
        """How many of `dimension` covariates are chosen on a block of `n` records for `epsilon`; public."""
        noise = 2 * _SCORE_SENSITIVITY * math.log(max(dimension, 2)) / (epsilon * (1 - _MEDIAN_SHARE))
        return min(max(int(self.power * n / noise), 1), self.most, dimension)

    def event(self, dimension: int, budget: PrivacyBudget) -> PureEvent | None:
        """What the ledger is charged before `choose`; None where all covariates are kept, for nothing."""
        return None if dimension <= self.most else PureEvent(self.share * budget.epsilon)

    def choose(self, records: CausalData, domain: Domain, epsilon: float, noise: NoiseSource) -> tuple[int, ...]:
        """Chosen columns in ascending order; charge ``PureEvent(epsilon)`` first.

        Args:
            records: the nuisance block.
            domain: public bounds.
            epsilon: privacy cost.
            noise: where the noise comes from.
        """
        median = _median(records, domain, _MEDIAN_SHARE * epsilon, noise)  # part of one answer, handed out at its end
        return self._choose(relevance(records, domain, median), records.n, epsilon, noise)

    def _choose(self, scores: Tensor, n: int, epsilon: float, noise: NoiseSource) -> tuple[int, ...]:
        """Columns by their scores, where epsilon pays for the median too."""
        count = self.count(len(scores), n, epsilon)
        return tuple(sorted(top_k(scores, count, (1 - _MEDIAN_SHARE) * epsilon, noise, _SCORE_SENSITIVITY)))

    def choose_openly(self, records: CausalData, domain: Domain) -> tuple[int, ...]:
        """The `most` best columns without noise: for a learner that is trained without privacy."""
        scores = relevance(records, domain, records.y.median().item())
        return tuple(sorted(scores.topk(min(self.most, domain.dimension)).indices.tolist()))


@worst_case(
    "screening",
    Screening,
    attacks=[SCREENING],
    pair="an outcome crosses the median, its residual turns: two medians, then two columns, do not stay equally good",
)
def _screening(budget: PrivacyBudget) -> Game:
    domain = Domain([-1.0] * 3, [1.0] * 3, outcome_low=-1.0, outcome_high=1.0)
    datasets, screening = [_records(domain, y) for y in (-1.0, 1.0)], Screening(most=1)

    def draw(dataset: int, runs: int, noise: NoiseSource) -> Tensor:
        records, scores, chosen = datasets[dataset], dict[float, Tensor](), []
        for _ in range(runs):
            median = _median(records, domain, _MEDIAN_SHARE * budget.epsilon, noise)
            if median not in scores:
                scores[median] = relevance(records, domain, median)
            chosen.append(screening._choose(scores[median], records.n, budget.epsilon, noise))
        return torch.tensor(chosen, dtype=torch.float64)

    pure = Guarantee(Level.CERTIFIED, PrivacyBudget(budget.epsilon, 0.0))
    return Game(draw, PureEvent(budget.epsilon), pure, evidence=lambda chosen: chosen[:, 0].sign(), most_runs=_RUNS)


def _records(domain: Domain, y: float) -> CausalData:
    """Return 600 records of three covariates, the last one's outcome being y, -1 or 1.

    Two medians are level for y = -1; y = 1 makes the score of the lower one fall by one and that of the higher one rise
    by one. At the lower one the first two columns are level for y = -1, and y = 1 does the same to them, by two; at the
    higher one the third column is far above both.
    """
    lower, higher, above = _median_grid(domain)[_POINTS // 2 :][:3].tolist()
    outcomes = [lower] * 298 + [higher] * 2 + [above] * 299 + [y]
    u = torch.tensor([0.5, -0.5], dtype=torch.float64).repeat(300)[:, None].repeat(1, 3)  # a column's sums vanish
    u[:298, 2] = 0.5  # outcomes that equal the lower median have no residual there
    for column, rows in ((0, 160), (1, 168)):  # residuals are a half there: sums of -40 and -42
        u[300 : 300 + rows, column] = torch.tensor([-1.0, 0.0]).double().repeat(rows // 2)
    u[-1] = torch.tensor([1.0, -1.0, 0.5])
    return CausalData(u, torch.ones(600, dtype=torch.float64), torch.tensor(outcomes, dtype=torch.float64))
