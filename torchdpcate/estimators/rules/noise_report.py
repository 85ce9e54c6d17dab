"""What the noise of a private rule will be: from its plan alone, before anything is spent."""

import math
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np
import scipy

from torchdpcate.data.domain import Domain
from torchdpcate.estimators.planned_noise import PlannedNoise
from torchdpcate.estimators.rules.outcome import Outcome
from torchdpcate.estimators.rules.plan import RulePlan
from torchdpcate.privacy.guarantee import Level
from torchdpcate.privacy.mechanisms import Spread

_GOOD = 0.9  # accuracy for which the number of records is worked out
_NODES = 200  # of the quadrature, in length and in angle


@dataclass(frozen=True, eq=False)
class NoiseReport:
    """What public facts say of a rule's noise; nothing is drawn, nothing is spent.

    Lengths are in units of one record's largest pull. The accuracy is that of the noise-dominated regime
    (`expected_accuracy`): with many records or a large epsilon objective perturbation does better than it says, for the
    curvature of the data then holds the rule in place.

    Attributes:
        plan: The rule's plan; before a fit ``RuleLearner.plan`` makes one.
        typical_weight: Public estimate of the mean weight; inverse propensities halved have mean one.
    """

    plan: RulePlan
    typical_weight: float = 1.0

    @property
    def n(self) -> int:
        """Records that fit the rule."""
        assert self.plan.problem.n is not None
        return self.plan.problem.n

    @property
    def size(self) -> int:
        """Coefficients of the rule."""
        return self.plan.problem.size

    @property
    def rule_share(self) -> float:
        """Share of epsilon that is left for the rule after its first stage."""
        return self.plan.spent.epsilon / self.plan.budget.epsilon

    @property
    def noise(self) -> float:
        """Root mean square length of the noise; infinite where its law does not say."""
        return math.inf if self._spread is None else self._spread.length

    @property
    def typical_pull(self) -> float:
        """Length of the summed pull of as many records of the typical weight that go the same way."""
        fit = self.plan.problem
        return self.n * min(self.typical_weight, fit.bounds.most) * fit.loss.slope

    @property
    def signal(self) -> float:
        """Length of the summed pull of records that the best rule separates, their features of uniform direction."""
        return self.typical_pull * separable_pull(self.size)

    @cached_property
    def accuracy(self) -> float:
        """Decisions expected to agree with those of the rule without noise, see `expected_accuracy`."""
        return 0.5 if self._spread is None else expected_accuracy(self._spread, self.signal)

    @cached_property
    def records_needed(self) -> int:
        """Records for an accuracy of 0.9, all else equal."""
        return self.n if self._spread is None else math.ceil(self.n * signal_for(_GOOD, self._spread) / self.signal)

    def score_noise(self, outcome: Outcome, domain: Domain, n: int, level: Level) -> PlannedNoise:
        r"""Return the noise of the score by which the rule decides, as an effect.

        .. math:: \frac{2 u \sqrt p}{n\, \bar\omega\, \zeta}\, \sqrt{E \|b\|^2}

        b is the noise on the summed pull of the records (in the scale of objective perturbation), zeta the loss's
        slope, omega the mean weight, and u the outcome units of a magnitude of one: a record that the treatment helps
        by tau has the mean pull omega zeta tau / (2 u) along its features, of which a direction holds the share 1/p.

        Args:
            outcome: The outcome's map.
            domain: Public bounds.
            n: Number of records.
            level: Of the release.
        """
        value = 2 * outcome.unit(domain) * math.sqrt(self.size) * self.noise / self.typical_pull
        lost = (1 - self.accuracy) * domain.outcome_range
        return PlannedNoise(
            value,
            "the score by which the rule decides, as an effect",
            domain.outcome_range,
            n,
            self.plan.budget,
            {"rule": value},
            level,
            assumes=(
                *outcome.assumes,
                "features spread over all directions; the noise is not shortened by the curvature of the records",
            ),
            left_out=("the noise in private weights and outcome constants",) if self.rule_share < 1 else (),
            remarks=(
                f"about {self.accuracy:.0%} of the decisions agree with those of the rule without noise if the "
                f"records speak as clearly as hoped; the others lose at most {lost:.3g} of the mean outcome",
            ),
        )

    @cached_property
    def _spread(self) -> Spread | None:
        """How far the noise reaches on the summed pull of the records, which the ridge turns into coefficients."""
        spread, ridge = self.plan.queries["rule"].law.spread, self.plan.problem.ridge
        return None if spread is None else Spread(ridge * spread.scale, spread.size, spread.order)


def expected_accuracy(noise: Spread, signal: float) -> float:
    r"""Share of decisions that noise leaves as they are, where it dominates the data's curvature.

    .. math:: 1 - \frac1\pi\, E \angle(S, S + b), \qquad \|S\| = \text{signal}

    Far from the margin the minimiser is (S - b) / ridge, S the summed pull of all records, so that decisions agree as
    far as S - b points where S does; for features of uniform direction the share is the above. Noise of length
    R and uniform direction (exact but for ``box``, whose length is replaced by one of the same root mean square)
    is integrated over quantiles of R and of the angle.

    Args:
        noise: How far b reaches.
        signal: Length of S, in the same units.

    Returns:
        From 0.5 (chance) to 1.

    Example:
        >>> [round(expected_accuracy(Spread(1.0, 5, 2), s), 3) for s in (0.0, 5.0, 50.0)]
        [0.5, 0.765, 0.972]
    """
    length, cosine, sine = _nodes(noise)
    along, across = signal + length * cosine, length * sine
    return 1 - float(np.arctan2(across, along).mean()) / math.pi


def signal_for(accuracy: float, noise: Spread) -> float:
    """Return the length of the summed pull at which `expected_accuracy` is this; from 0.5 to 1, both excluded."""

    def short(log_signal: float) -> float:
        return expected_accuracy(noise, noise.length * math.exp(log_signal)) - accuracy

    return noise.length * math.exp(scipy.optimize.brentq(short, -20.0, 20.0, xtol=1e-6))


def separable_pull(size: int) -> float:
    """Return E|psi_1| of a uniform direction: the mean pull of records whose best arm one direction decides."""
    return math.exp(math.lgamma(size / 2) - math.lgamma((size + 1) / 2)) / math.sqrt(math.pi)


@lru_cache(maxsize=64)
def _nodes(noise: Spread) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Lengths [k, 1] of noise; cosines and sines of its angle with a fixed direction."""
    levels = (np.arange(_NODES) + 0.5) / _NODES
    half = (noise.size - 1) / 2
    cosine = 2 * scipy.special.betaincinv(half, half, levels) - 1 if noise.size > 1 else np.array([-1.0, 1.0])
    return noise.lengths(levels)[:, None], cosine, np.sqrt(1 - cosine**2)
