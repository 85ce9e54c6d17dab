"""The regressions of a composition with doubly robust scores: both arms, the scores' scale, and the effect."""

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from torchdpcate.causal.score import DRScore
from torchdpcate.composition.linear_fit import HuberFit
from torchdpcate.composition.regressions import FittedEffect, Regressions
from torchdpcate.composition.residual_scale import OutcomeScale
from torchdpcate.composition.summaries import LEAST_SCALE, private_quantile
from torchdpcate.data.domain import Domain
from torchdpcate.features.weighted_basis import lengths
from torchdpcate.nuisance.model import NuisanceValues


class ScoreScales(NamedTuple):
    """Public interval in which a score's clip is sought, in outcome units, evenly in its logarithm.

    Example:
        >>> scales = ScoreScales.of(Domain([0.0], [1.0], 0.0, 10.0, overlap=0.1))
        >>> scales.low, scales.high, scales.on_grid(scales.at(3 / 2**11), levels=10)
        (0.05, 100.0, True)
    """

    low: float
    high: float

    @classmethod
    def of(cls, domain: Domain) -> "ScoreScales":
        """Return that of a domain: up to its range over the least propensity of an arm."""
        return cls(LEAST_SCALE * domain.outcome_range, domain.outcome_range / domain.least_propensity)

    def at(self, share: float) -> float:
        """Return the scale at a share of the interval."""
        return self.low * (self.high / self.low) ** share

    def place(self, values: Tensor) -> Tensor:
        """Return the shares at which values are, [n], in [0, 1]."""
        return (values.clamp(self.low, self.high) / self.low).log() / math.log(self.high / self.low)

    def nearest(self, scale: float, levels: int) -> float:
        """Return the scale nearest to one that an interval halved so often has in its middle."""
        cells = 2**levels
        share = math.log(scale / self.low) / math.log(self.high / self.low)
        return self.at((min(max(math.floor(share * cells), 0), cells - 1) + 0.5) / cells)

    def on_grid(self, scale: float, levels: int) -> bool:
        """Whether a scale is the middle of an interval that was halved so often."""
        if not self.low < scale < self.high:
            return False
        place = math.log(scale / self.low) / math.log(self.high / self.low) * 2 ** (levels + 1)
        return round(place) % 2 == 1 and abs(place - round(place)) < 1e-6


class Arms(NamedTuple):
    """Records as both arms' regression has them; the curator's.

    Attributes:
        z: Standardised covariates [n, k].
        a: Arms, [n].
        y: Outcomes, [n].
        known: Known propensities, [n]; None where they are to be fitted.
    """

    z: Tensor
    a: Tensor
    y: Tensor
    known: Tensor | None


class Scores(NamedTuple):
    """Doubly robust scores and what they were made of, which are the curator's, and their released clip.

    Attributes:
        score: [n].
        clip: S.
        outcome: The mean in each record's own arm, [n].
        propensity: pi, [n].
    """

    score: Tensor
    clip: float
    outcome: Tensor
    propensity: Tensor


@dataclass(frozen=True, eq=False)
class ArmRegressions(Regressions):
    """Fits of a plan with doubly robust scores; see ``Regressions``."""

    def scores(self, records: Arms, domain: Domain, centre: float, outcome: OutcomeScale) -> Scores:
        """Run all regressions but that of the effect.

        Args:
            records: The records.
            domain: Public bounds.
            centre: Of the outcome, released.
            outcome: Scale of the outcome about it, released.
        """
        z, a, y, known = records
        mu0, mu1 = (
            (centre + mean).clamp(domain.outcome_low, domain.outcome_high)
            for mean in self.arms(z, a, y - centre, outcome.clip, centre)
        )
        pi = self.propensity(z, a).values if known is None else known
        score = DRScore().rho_phi(a, y, NuisanceValues(pi, mu0, mu1))
        if outcome.few:
            scales, levels = ScoreScales.of(domain), self.plan.constants.quantile_levels
            clip = scales.nearest(outcome.clip * self.plan.score_scale, levels)
        else:
            clip = self.score_scale(score - (mu1 - mu0), a, pi, domain)
        return Scores(score, clip, torch.where(a > 0.5, mu1, mu0), pi)

    def arms(self, z: Tensor, a: Tensor, y: Tensor, scale: float, centre: float) -> tuple[Tensor, Tensor]:
        """Return m_0 and m_1 at the records about the released centre, [n] each; the curator's.

        Args:
            z: Standardised covariates [n, k].
            a: Arms, [n].
            y: Outcomes about their released centre, [n].
            scale: As of ``outcome``.
            centre: That centre.
        """
        regression = self.plan.both_arms(self.two_levels)
        mean, _ = self.mean(regression, regression.basis(z, a), z, y, scale, centre)
        none = torch.zeros_like(a)
        return mean.scores(regression.basis(z, none)), mean.scores(regression.basis(z, none + 1))

    def score_scale(self, correction: Tensor, a: Tensor, pi: Tensor, domain: Domain) -> float:
        """Return the clip S of scores: a private quantile of what they correct the arms' difference by.

        That of a binary outcome is the quantile of the inverse propensity of each record's arm, times the range: its
        corrections are few and large, and clipping those would leave none.

        Args:
            correction: Scores less the arms' difference, [n].
            a: Arms, [n].
            pi: Propensities [n].
            domain: Public bounds.
        """
        scales, plan = ScoreScales.of(domain), self.plan
        sizes = domain.outcome_range / torch.where(a > 0.5, pi, 1 - pi) if plan.binary else correction.abs()
        levels = plan.constants.quantile_levels
        place = private_quantile(
            scales.place(sizes), plan.score_quantile, 0.0, 1.0, levels, "residual scale", self.steps
        )
        return scales.at(place)

    def score_effect(self, z: Tensor, score: Tensor, scale: float) -> FittedEffect:
        """Return the effect's regression: Huber, of scores on the features, weighted by 1/|psi|.

        Args:
            z: Standardised covariates [n, k].
            score: Doubly robust scores [n].
            scale: Released clip S.
        """
        regression = self.plan.effect(self.two_levels, self.pairs)
        psi = regression.basis(z)
        weight = 1 / lengths(psi)
        d = self.nuisance_curvatures("effect", regression, psi, weight)
        asked = self.effect_plan(regression, d, scale)
        solution = self.solver.solution(HuberFit(psi, weight, score, scale), asked, self.steps)
        return self.fitted_effect(regression, d, asked, solution, scale)
