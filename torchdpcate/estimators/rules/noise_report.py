"""What the noise of a private rule will be, and what to change: from its plan alone, before anything is spent."""

import math
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np
import scipy

from torchdpcate.data.domain import Domain
from torchdpcate.estimators.planned_noise import PlannedNoise
from torchdpcate.estimators.rules.outcome import Outcome, Shifted
from torchdpcate.estimators.rules.plan import RulePlan
from torchdpcate.estimators.rules.weighted_erm import RULE_MECHANISMS
from torchdpcate.laws import Law
from torchdpcate.privacy.guarantee import Level
from torchdpcate.privacy.mechanisms import Spread

_GOOD = 0.9  # accuracy for which the number of records is worked out
_WORTH = 1.15  # a factor below is not worth advice
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
        share: Public estimate of the summed pull as a share of the largest; None takes records that the best rule
            separates without error, their features of uniform direction and norm one.
        remedy: What has no indirect sensitivity, for the advice.
    """

    plan: RulePlan
    typical_weight: float = 1.0
    share: float | None = None
    remedy: str = "weights=private has none"

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
    def jacobian_fraction(self) -> float:
        """Share of the rule's epsilon that the determinants take; 0 for output perturbation."""
        return float(self._law.constants().get("epsilon_jacobian", 0.0)) / self.plan.spent.epsilon

    @property
    def first(self) -> float:
        """W_1, by how much one record moves the summed pull."""
        return self.plan.problem.shift

    @property
    def indirect_fraction(self) -> float:
        """Share of W_1 that comes from other records' weights."""
        bounds = self.plan.problem.bounds
        return max(0.0, 1 - 2 * bounds.most / bounds.first)

    @property
    def noise(self) -> float:
        """Root mean square length of the noise; infinite where its law does not say."""
        return math.inf if self._spread is None else self._spread.length

    @cached_property
    def others(self) -> dict[str, float]:
        """The same for every way that is possible here, by "mechanism perturbation"."""
        fit, budget = self.plan.problem, self.plan.spent
        return {
            f"{way} {kind}": spread.length * fit.ridge
            for way, mechanism in RULE_MECHANISMS.items()
            for kind, spread in mechanism.spreads(fit, budget).items()
        }

    @property
    def typical_pull(self) -> float:
        """Length of the summed pull of as many records of the typical weight that go the same way."""
        fit = self.plan.problem
        return self.n * min(self.typical_weight, fit.bounds.most) * fit.loss.slope

    @property
    def most_signal(self) -> float:
        """The largest signal there could be: every record pulls the same way with the largest weight."""
        fit = self.plan.problem
        return self.n * fit.bounds.most * fit.loss.slope

    @property
    def signal(self) -> float:
        """Length of the summed pull that is hoped for."""
        if self.share is None:
            return self.typical_pull * separable_pull(self.size)
        return self.most_signal * self.share

    @cached_property
    def accuracy(self) -> float:
        """Decisions expected to agree with those of the rule without noise, see `expected_accuracy`."""
        return 0.5 if self._spread is None else expected_accuracy(self._spread, self.signal)

    @cached_property
    def records_needed(self) -> int:
        """Records for an accuracy of 0.9, all else equal."""
        return self.n if self._spread is None else math.ceil(self.n * signal_for(_GOOD, self._spread) / self.signal)

    @cached_property
    def advice(self) -> tuple[str, ...]:
        """What would help, by the factor of noise to signal that it may save; the most helpful first."""
        # between mechanisms lengths do not decide: the curvature of the data shortens objective noise, not output noise
        rivals = {name.split()[1]: length for name, length in self.others.items() if name.split()[0] == self._way}
        best = min(rivals, key=lambda kind: rivals[kind], default=self.plan.mechanism.perturbation)
        saved = self.noise / rivals.get(best, self.noise)
        most, shifted = self.plan.problem.bounds.most, self.plan.parts.get("outcome") == Shifted.name
        factors = [
            (
                1 / self.rule_share,
                f"the first stage takes {1 - self.rule_share:.0%} of epsilon: weights=known or constant need none of "
                "it, a block of their own spends none of the rule's",
            ),
            (
                1 / (1 - self.indirect_fraction),
                f"indirect sensitivity is {self.indirect_fraction:.0%} of what one record moves: {self.remedy}",
            ),
            (
                most,  # inverse propensities, halved, have mean one
                f"the largest weight is {most:.3g} times the mean of inverse propensities: clip these further from 0 "
                "and 1, or take weights=constant",
            ),
            (
                1 / (1 - self.jacobian_fraction),
                f"the determinants take {self.jacobian_fraction:.0%} of epsilon: raise the ridge",
            ),
            (saved, f"perturbation={best} has {saved:.2g} times less noise"),
            (2.0 if shifted else 1.0, "outcome=signed_residual halves the bound of the weights on the same range"),
            (
                self.noise / self.first * self.plan.spent.epsilon if self.accuracy < _GOOD else 1.0,
                f"noise grows with the {self.size} coefficients: fewer features",
            ),
            (
                self.records_needed / self.n,
                f"too few records: about {self.records_needed} for an accuracy of {_GOOD:.0%}",
            ),
        ]
        return tuple(text for factor, text in sorted(factors, key=lambda f: -f[0]) if factor > _WORTH)

    def __str__(self) -> str:
        best = ", ".join(f"{name} {value:.3g}" for name, value in sorted(self.others.items(), key=lambda o: o[1]))
        plan = self.plan
        lines = [
            f"{self._way} perturbation, {plan.mechanism.perturbation} noise: n = {self.n}, p = {self.size}, "
            f"ridge = {plan.problem.ridge:.4g}",
            f"epsilon: {plan.budget.epsilon:.4g} in all, {plan.spent.epsilon:.4g} for the rule, of which "
            f"{self.jacobian_fraction:.0%} goes to the determinants",
            f"one record moves the summed pull by {self.first:.4g}, {self.indirect_fraction:.0%} of it through the "
            "weights of others",
            f"noise {self.noise:.4g} (possible: {best})",
            f"signal {self.signal:.4g} hoped for, {self.most_signal:.4g} at most",
            f"expected agreement with the rule without noise: {self.accuracy:.0%}; "
            f"{_GOOD:.0%} takes about {self.records_needed} records",
            *(f"- {line}" for line in self.advice),
        ]
        return "\n".join(lines)

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
                *self.advice[:1],
            ),
        )

    @property
    def _law(self) -> Law:
        return self.plan.queries["rule"].law

    @property
    def _way(self) -> str:
        return self.plan.mechanism.way

    @cached_property
    def _spread(self) -> Spread | None:
        """How far the noise reaches on the summed pull of the records, which the ridge turns into coefficients."""
        spread, ridge = self._law.spread, self.plan.problem.ridge
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
