"""Utilities of two neighbours, the scales that the paper makes of them, and the choice by the library's default."""

from dataclasses import dataclass

import torch
from torch import Tensor

from experiments.frame.study import seed_of
from experiments.spillover.boosted import Nuisances, utilities
from experiments.spillover.design import OVERLAP, Block, Law
from experiments.spillover.likelihood import log_likelihood_ratio
from torchdpcate.estimators.selection.selector import PolicySelector
from torchdpcate.privacy.budget import PrivacyBudget
from torchdpcate.privacy.noise import NoiseSource
from torchdpcate.privacy.selection import ExponentialMechanism

FLOOR = 2 * (1 + 1 / OVERLAP)
"""2 B_psi: how far one scoring record moves a utility, by the paper."""
SAFETY = 1.3
EPSILON = 1.0
"""Of ratios and regrets, which the paper does not state."""
ANY, ASSUMED = "-", "not stated; 1 here"
"""Epsilon of what does not depend on it, and of what does."""
REGRET = "expected_regret"
DELTA = 1e-5
DEFAULT = "PolicySelector by default, delta = 1e-5"
CONDITIONAL = "conditional"
"""On the region's two policies, Python functions, deciding row by row."""


@dataclass(frozen=True, eq=False)
class Pair:
    """Utilities of one scoring block by nuisances of two neighbours.

    Attributes:
        before: U [M].
        after: U of the neighbour [M].
        outcome: Largest change of an outcome model on the scoring block.
        propensity: The same of the propensity.
        records: Scoring records n.
    """

    before: Tensor
    after: Tensor
    outcome: float
    propensity: float
    records: int

    @classmethod
    def of(cls, law: Law, scoring: Block, fitted: Nuisances, neighbour: Nuisances) -> "Pair":
        """Score a block by both."""
        rows = scoring.rows
        outcome = (fitted.mu - neighbour.mu)[rows].abs().amax()
        treated = (fitted.e - neighbour.e)[rows].abs().amax()
        sums = utilities(law, scoring, fitted), utilities(law, scoring, neighbour)
        return cls(*sums, float(outcome), float(treated), len(rows))

    @property
    def movement(self) -> float:
        """Largest change of a utility."""
        return float((self.before - self.after).abs().amax())

    @property
    def rho(self) -> float:
        """The paper's proxy of a score's movement, from changed predictions."""
        return (1 + 1 / OVERLAP) * self.outcome + self.propensity / OVERLAP**2

    @property
    def floored(self) -> float:
        """The scale by which the paper calibrates: 1.3 movements, or 2 B_psi if that is more."""
        return max(FLOOR, SAFETY * self.movement)

    def ratio(self, scale: float) -> float:
        """Largest log-likelihood ratio of the chosen policy over epsilon, two-sided noise of a scale."""
        return log_likelihood_ratio("exponential", EPSILON, 2 * scale, self.before, self.after) / EPSILON

    def regret(self, law: Law, scale: float, epsilon: float = EPSILON) -> float:
        """Expected true regret of the choice."""
        return float(ExponentialMechanism(epsilon, 2 * scale).probabilities(self.before) @ law.regrets)

    def best(self, law: Law) -> float:
        """True regret of the largest utility, without privacy."""
        return float(law.regrets[self.before.argmax()])

    def scales(self) -> dict[str, float]:
        """What Tables 2 to 4 print of a pair."""
        proxy = max(FLOOR, self.records * self.rho)
        return {
            "prediction_movement_proxy_rho": self.rho,
            "movement": self.movement,
            "audit_scale_1.3_move": SAFETY * self.movement,
            "audit_over_floor": SAFETY * self.movement / FLOOR,
            "floored_scale": self.floored,
            "floor_rate": float(SAFETY * self.movement < FLOOR),
            "theorem_proxy_scale": proxy,
            "proxy_over_floored": proxy / self.floored,
        }


def farthest(block: Block, index: int) -> Block:
    """Return the neighbour whose record ``index`` has the other treatment, and an outcome at the farther end."""
    return block.flipped(index, float(block.y[index] < 0.5), treatment=True)


def together(*blocks: Block) -> Block:
    """Return the records of several blocks."""
    return Block(*(torch.cat([getattr(block, name) for block in blocks]) for name in ("rows", "a", "y")))


def default_regret(law: Law, block: Block, repeat: int, epsilon: float = EPSILON, delta: float = DELTA) -> float:
    """Return the regret of `PolicySelector` by default on all records of a block, expected under its choice's law."""
    noise = NoiseSource.fixed(seed_of("spillover default", epsilon, delta, len(block.y), repeat))
    records, budget = law.records(block), PrivacyBudget(epsilon, delta)
    selector = PolicySelector(law.domain, budget, policies=law.policies, noise=noise)
    selector.fit(records.x, records.a, records.y)
    assert selector.mechanism_ is not None
    regret = float(selector.mechanism_.probabilities(selector.utilities_) @ law.regrets)
    return round(regret, 9)  # else differences of 1e-30 have standard errors
