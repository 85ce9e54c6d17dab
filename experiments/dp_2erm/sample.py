"""Data sets of one size, side by side."""

from dataclasses import dataclass

from torch import Tensor

from torchdpcate.data.domain import Domain
from torchdpcate.data.records import CausalData


@dataclass(frozen=True, eq=False)
class Sample:
    """Data sets of one size, side by side.

    Attributes:
        x: Covariates in [-1, 1], [runs, n, p].
        a: Treatments [runs, n], 0 or 1.
        y: Outcomes [runs, n], not clipped.
        propensity: P(A = 1 | x), [runs, n].
    """

    x: Tensor
    a: Tensor
    y: Tensor
    propensity: Tensor

    @property
    def features(self) -> Tensor:
        """Covariates over sqrt(p), [runs, n, p]: no intercept, as in the theory note."""
        return self.x / self.x.shape[2] ** 0.5

    def part(self, rows: slice) -> "Sample":
        """Some records of every data set."""
        return Sample(self.x[:, rows], self.a[:, rows], self.y[:, rows], self.propensity[:, rows])

    def records(self, run: int, domain: Domain) -> CausalData:
        """One data set, its outcomes clipped to the domain."""
        y = self.y[run].clamp(domain.outcome_low, domain.outcome_high)
        return CausalData(self.x[run], self.a[run], y)
