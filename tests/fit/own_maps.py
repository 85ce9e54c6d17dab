"""Feature maps that a user might write: sound ones, and ones that no claim may rest on."""

from typing import Any

import torch
from torch import Tensor, nn

from torchdpcate.fit.feature_maps import FeatureMap, Identity


class RawCovariates(FeatureMap):
    """Intercept and covariates in their own units: norms far above one."""

    @property
    def dimension(self) -> int:
        return 1 + self.domain.dimension

    def config(self) -> dict[str, Any]:
        return {}

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([x.new_ones(len(x), 1), x], 1).double()


class Small(RawCovariates):
    """Says that no entry is above a tenth, and lies."""

    @property
    def largest_entry(self) -> float:
        return 0.1


class ManyGaps(RawCovariates):
    """Numbers that are none, whatever the record."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.stack([torch.full((len(x),), bad).double() for bad in (torch.nan, torch.inf, -torch.inf)], 1)

    @property
    def dimension(self) -> int:
        return 3


class Centred(RawCovariates):
    """Rows that depend on all others."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x - x.mean(0)) / 4


class Shuffled(RawCovariates):
    """Rows that differ from one evaluation to the next."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x * torch.rand(1))


class Greedy(RawCovariates):
    """Changes what it is shown."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.sub_(x.mean()))


class Narrow(RawCovariates):
    """Another width than it says."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x)[:, :-1]


class Normalised(RawCovariates):
    """A layer that looks at the whole batch while it is trained, and at nothing but its row afterwards."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.BatchNorm1d(1)

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(self.layer(x.double()))


class Own(Identity):
    """The library's own but for its class."""


class Shortcut(RawCovariates):
    """Products that are not those of its features."""

    def product(self, theta: Tensor, x: Tensor) -> Tensor:
        return 1e6 * super().product(theta, x)


class Keeping(RawCovariates):
    """Keeps the covariates that it was shown, and their mean among its buffers."""

    def __init__(self) -> None:
        super().__init__()
        self.shown: list[Tensor] = []

    def _setup(self, width: int, nuisances: Any) -> None:
        self.register_buffer("mean", torch.zeros(width).double())

    def forward(self, x: Tensor) -> Tensor:
        self.shown.append(x)
        self.mean.copy_(x.mean(0))
        return super().forward(x)


class Vouching(RawCovariates):
    """Says that its claims rest on nothing."""

    @property
    def conditions(self) -> tuple[()]:
        return ()
