"""How weighted records become an estimate: the interface of stage two."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple

from torch import Tensor

from torchdpcate.causal.estimand import Estimand
from torchdpcate.privacy.session import FitSession


class Weighted(NamedTuple):
    """Records with the weights and the centre that stage one fixed.

    Attributes:
        z: Treatment in {0, 1}, [runs, b].
        y: Outcome in [0, 1], [runs, b].
        w: Weights, [runs, b].
        m: Outcome model in [0, 1], [runs, b].
    """

    z: Tensor
    y: Tensor
    w: Tensor
    m: Tensor


Total = Callable[[Callable[[Weighted], Tensor]], Tensor]
"""From sums over a batch, [runs, k], to sums over all records, [runs, k]."""


@dataclass(frozen=True)
class ReadoutFacts:
    """What is public before the readout begins.

    Attributes:
        n: Number of records.
        estimand: Estimand and clip, which bound the weights.
        low: Least value of the outcome model, of outcomes in [0, 1].
        high: Its largest.
        imbalance: Standard deviation of an entry of sum t w phi by the noise of stage one; 0 where an outcome model
            makes it second order, as the logistic loss leaves it.
        slope_bound: B, public bound of how far the outcome model's coefficients (in phi) are off, for the interval.
    """

    n: int
    estimand: Estimand
    low: float = 0.5
    high: float = 0.5
    imbalance: float = 0.0
    slope_bound: float = 0.25


@dataclass(frozen=True, eq=False)
class Conclusion:
    """An estimate and the law of its error, for outcomes in [0, 1], one entry a run.

    Attributes:
        estimate: In [-1, 1], [runs].
        gaussian: Standard deviation of the Gaussian part of its error, an upper bound, [runs].
        laplace: Scales of independent Laplace parts, [runs, k].
        polytope: What a draw of root-polytope noise with W/epsilon = 1 is multiplied by and summed, [runs, 4]; None
            where there is none.
        swamped: Whether noise swamps a denominator, so that the interval must be the whole range, [runs].
        size: N, what imbalances are divided by, [runs].
        released: Paid-for sums by name, [runs] each.
    """

    estimate: Tensor
    gaussian: Tensor
    laplace: Tensor
    polytope: Tensor | None
    swamped: Tensor
    size: Tensor
    released: Mapping[str, Tensor] = field(default_factory=dict)


class Readout(ABC):
    """Releases sums of weighted records and concludes from them alone.

    Attributes:
        name: Of the mechanism.
        formula: Its noise scales, with their source.
        parts: What it buys, by name, with the default share of the whole budget.
    """

    name: ClassVar[str]
    formula: ClassVar[str]
    parts: ClassVar[Mapping[str, float]]

    @abstractmethod
    def run(self, total: Total, facts: ReadoutFacts, prices: Mapping[str, float], session: FitSession) -> Conclusion:
        """Pay for the sums, add noise, conclude; weights and centre are fixed before.

        Args:
            total: Sums over the weighted records.
            facts: Public facts.
            prices: Epsilon of each of ``parts``.
            session: Pays, and draws the noise; its scope is the release's.
        """

    @abstractmethod
    def without_noise(self, total: Total, facts: ReadoutFacts) -> Conclusion:
        """Conclude from the sums as they are. The curator's, never to be published."""

    def public(self, facts: ReadoutFacts, prices: Mapping[str, float]) -> dict[str, Any]:
        """Return the public constants of the readout, as statements tell them."""
        return {}
