"""A private choice of the covariates that a composition keeps."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from torchdpcate.composition.priors import STEPS
from torchdpcate.composition.steps import SCREENING, NoisySteps, summed
from torchdpcate.features.weighted_basis import Feature, all_features, step
from torchdpcate.privacy.events import PureEvent
from torchdpcate.privacy.selection import gumbel_top_k, top_k

CENTRE = 0.1
"""Share of a centred choice's step that pays for the mean of what covariates are compared with."""
_REACH = 2.0  # standard deviations of a covariate at which a slope ends
_PAIR_REACH, _STEP_REACH = 1.5, 1.52  # the same of a product's slope; bound of its step


def screening_residual(y: Tensor, clip: float, binary: bool) -> Tensor:
    """Return outcomes over their clip, within [-1, 1], [n].

    Args:
        y: Outcomes about their centre, [n].
        clip: Released; of a binary outcome its range, of which either value is one half away from the middle.
        binary: Whether it has two values.

    Example:
        >>> screening_residual(torch.tensor([-0.5, 0.5]), 1.0, binary=True).tolist()
        [-1.0, 1.0]
    """
    return (y / (clip / 2 if binary else clip)).clamp(-1, 1)


def modifier_residual(residual: Tensor, treatment: Tensor, pi: Tensor, scale: float) -> Tensor:
    r"""Return what effect modifiers are chosen by, within [-1, 1], [n].

    .. math:: \frac{a - \pi}{\max(\pi, 1 - \pi)}\, \mathrm{clip}\Big(\frac{y - m}{S}\Big)

    Args:
        residual: y - m, [n].
        treatment: a - pi, [n].
        pi: Propensities [n].
        scale: S, released.
    """
    return treatment / torch.maximum(pi, 1 - pi) * (residual / scale).clamp(-1, 1)


def screening_sums(u: Tensor, residual: Tensor) -> Tensor:
    r"""Return the sums over records by which covariates are compared, [2, q].

    .. math:: \sum_i b(u_{ij})\, r_i, \quad b \in \{\sin(\pi u / 2), \cos(\pi u)\}

    Args:
        u: Covariates scaled to [-1, 1], [n, q].
        residual: r within [-1, 1], [n]; see ``screening_residual``.
    """
    return summed(_wave_sums, u, residual).cpu()


def screening_by_sums(
    sums: Tensor, n: int, kept: int, steps: NoisySteps, step: str = SCREENING, part: float = 1.0
) -> tuple[int, ...]:
    """Return the positions of the covariates whose slope or hump against a residual is largest, in ascending order.

    A record moves the larger of both sums by at most 2. They are chosen one by one, each at an equal share of the step,
    by ``gumbel_top_k``: its noise grows with the number that is kept, that of released scores with all q. By pure
    events they are chosen by ``top_k``.

    Args:
        sums: ``screening_sums`` of the records.
        n: Their number.
        kept: How many are chosen.
        steps: Pays, and draws noise.
        step: That pays.
        part: Share of it that the choices have.
    """
    scores = sums.abs().amax(0)
    if not steps.private:
        return tuple(sorted(scores.topk(kept).indices.tolist()))
    event, noise, sensitivity = steps.pay(step, part, kept), steps.session.noise, 2 + steps.rounding(n, 1.0)
    if isinstance(event, PureEvent):
        return tuple(sorted(top_k(scores, kept, kept * event.epsilon, noise, sensitivity)))
    return tuple(sorted(gumbel_top_k(scores, kept, event, noise, sensitivity)))


@dataclass(frozen=True)
class CentredChoice:
    r"""A choice of covariates by what their standardised values have to do with a number r of each record.

    .. math:: \max_b \Big|\sum_i b(z_{ij} / 2)\, \mathrm{clip}(r_i - \bar r)\Big|

    with the waves b of ``screening_sums``, :math:`z/2` and the rest clipped to [-1, 1], and a released mean of r,
    which a tenth of the step pays for: what r is for everybody would count for each covariate otherwise.

    Attributes:
        step: That pays.
        count: How many are chosen.
        n: Number of records.
        steps: Pays, and draws noise.
    """

    step: str
    count: int
    n: int
    steps: NoisySteps

    def centre(self, total: Tensor) -> float:
        """Return the released mean of r, of its sum over all records."""
        steps = self.steps
        if not steps.private:
            return float(total) / self.n
        event, sensitivity = steps.pay(self.step, CENTRE), 2 + steps.rounding(self.n, 1.0)
        return min(max(steps.noisy(total[None], sensitivity, event).item() / self.n, -1.0), 1.0)

    def sums(self, z: Tensor, r: Tensor, centre: float) -> Tensor:
        """Return the sums over records z [n, q], r [n] in [-1, 1] about the released mean, [2, q]."""
        return screening_sums((z / _REACH).clamp(-1, 1), (r - centre).clamp(-1, 1))

    def by_sums(self, sums: Tensor) -> tuple[int, ...]:
        """Return the positions that are chosen, in ascending order, by the records' sums [2, q]."""
        return screening_by_sums(sums, self.n, self.count, self.steps, self.step, 1 - CENTRE)

    def chosen(self, z: Tensor, r: Tensor) -> tuple[int, ...]:
        """Return the positions that are chosen of covariates z [n, q] of records in memory, by r [n]."""
        return self.by_sums(self.sums(z, r, self.centre(summed(lambda rows: rows.sum(0), r).cpu())))


@dataclass(frozen=True)
class PairChoice(CentredChoice):
    r"""A choice of products of a covariate with a step of another, by what they have to do with r.

    .. math:: \Big|\sum_i \mathrm{clip}(z_{ij} / 1.5)\, \frac{h(z_{ik})}{1.52}\, \mathrm{clip}(r_i - \bar r)\Big|

    with the step h of ``weighted_basis.step``, whose size is below 1.52: a record moves a sum by at most 2, as those of
    ``CentredChoice``.

    Attributes:
        two_levels: Whether each covariate has two levels; those do not step.
    """

    two_levels: tuple[bool, ...]

    @property
    def candidates(self) -> tuple[Feature, ...]:
        """The products among which it chooses."""
        return all_features(self.two_levels, STEPS)

    def sums(self, z: Tensor, r: Tensor, centre: float) -> Tensor:
        """Return the sums, [1, products]; zeros follow them where there are fewer than are chosen."""
        k = len(self.two_levels)
        at = [feature.i * k + feature.j for feature in self.candidates]

        def each(rows: Tensor, rest: Tensor) -> Tensor:
            return (rows / _PAIR_REACH).clamp(-1, 1).T @ (step(rows) / _STEP_REACH * rest[:, None])

        found = summed(each, z, (r - centre).clamp(-1, 1)).flatten()[at].cpu()
        return torch.nn.functional.pad(found, (0, max(self.count - len(at), 0)))[None]

    def features(self, chosen: Sequence[int]) -> tuple[Feature, ...]:
        """Return the products at positions that were chosen; of those where none is there is none."""
        candidates = self.candidates
        return tuple(candidates[place] for place in chosen if place < len(candidates))


def _wave_sums(u: Tensor, r: Tensor) -> Tensor:
    """Return the sums over some records, [2, q]."""
    return torch.stack([wave.T @ r for wave in (torch.sin(math.pi / 2 * u), torch.cos(math.pi * u))])
