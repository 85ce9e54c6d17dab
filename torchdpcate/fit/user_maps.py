"""The one way by which learners and releases take a feature map: what claims rest on holds for a user's map too."""

from collections.abc import Mapping
from copy import deepcopy
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from torchdpcate.errors import InputError
from torchdpcate.fit.feature_maps import FEATURE_MAPS, FeatureMap, Identity, conditions_of
from torchdpcate.privacy.budget import integer, positive
from torchdpcate.privacy.guarantee import Condition, is_library_class, of_library

if TYPE_CHECKING:
    from torchdpcate.data.domain import Domain
    from torchdpcate.fit.nuisances import NuisanceModel

_TRIED = 40  # public points on which a user's map is tried: half of them inside the domain, half corners
_SAME = 1e-6  # how far a row may differ from itself in a batch: rounding of single precision


def on_domain(features: FeatureMap | None, domain: "Domain", nuisances: "NuisanceModel | None" = None) -> FeatureMap:
    """Return a copy of a feature map, set up on the domain, with enforced bounds; None is ``Identity``.

    A map of the library is made anew from its settings. Any other becomes a ``UserFeatures``, and is tried on public
    points of the domain: a row that differs from the same row by itself, or from one evaluation to the next, is
    refused. A trial cannot prove that there is none, so that releases on such a map are conditional.

    Args:
        features: The map, set up or not; it is not changed.
        domain: Public bounds.
        nuisances: Private nuisances, for maps made of them.

    Raises:
        InputError: Not a ``FeatureMap``; a map that needs trained nuisances; features of another shape than the map
            says; rows that depend on each other.

    Example:
        >>> from torchdpcate.data import Domain
        >>> psi = on_domain(None, Domain([0.0], [1.0], 0.0, 1.0))
        >>> psi.dimension, psi.conditions
        (2, ())
    """
    features = Identity() if features is None else features
    if not isinstance(features, FeatureMap):
        raise InputError(f"features = {type(features).__name__}: give a FeatureMap, or None for scaled covariates")
    if isinstance(features, UserFeatures):
        features = features.made
    if is_library_class(type(features)):  # made anew: a method that was replaced is not asked
        return type(features)(**features.config()).setup(domain, nuisances)
    own = UserFeatures(deepcopy(features)).setup(domain, nuisances)
    _try_rows(own, domain)
    return own


def to_config(features: FeatureMap) -> dict[str, Any]:
    """Return a map's name and settings, as release files hold them.

    Raises:
        InputError: A map without a name in ``FEATURE_MAPS``, which no reader could rebuild.
    """
    inner = features.inner if isinstance(features, UserFeatures) else features
    names = {cls: name for name, cls in FEATURE_MAPS.items()}
    if type(inner) not in names:
        raise InputError(
            f"features = {features.title}: has no name that a release file could hold; keep the release in memory, use "
            f"one of {', '.join(FEATURE_MAPS)}, or add the class to FEATURE_MAPS here and where the file is read"
        )
    return {"name": names[type(inner)], **features.config()}


def from_config(config: Mapping[str, Any]) -> FeatureMap:
    """Return the map of ``to_config``, not set up yet."""
    settings = dict(config)
    features = FEATURE_MAPS[settings.pop("name")](**settings)
    return features if of_library(features) else UserFeatures(features)


class UserFeatures(FeatureMap):
    """A map that is no class of the library, held to what claims rest on.

    Width and largest entry are requested once. What the map keeps of the covariates that it is shown stays here: a twin
    is made of the map as it was before it saw any. Rows come from the map's ``forward`` alone, on a copy of the
    covariates, and are brought ``within_bounds``: shortcuts to products that a map may have are not taken.

    Args:
        inner: The map.

    Raises:
        InputError: In ``setup``, a width or a largest entry that is not positive; later, features of another shape.
    """

    def __init__(self, inner: FeatureMap) -> None:
        super().__init__()
        self.inner = inner

    def setup(self, domain: "Domain", nuisances: "NuisanceModel | None" = None) -> FeatureMap:
        """Fix the map on a domain and return it; see the base class."""
        made = deepcopy(self.inner)
        inner = self.inner.setup(domain, nuisances)
        if not isinstance(inner, FeatureMap):
            raise InputError(f"features = {self.title}: its setup returned {type(inner).__name__}; return the map")
        self.inner = inner.eval()
        self._dimension = integer("features.dimension", self.inner.dimension, least=1)
        self._largest = min(self.bound, positive("features.largest_entry", self.inner.largest_entry))
        super().setup(domain, nuisances)
        # in a tuple, so that it is no part of this module
        self._made = (made, {name: tensor.cpu().clone() for name, tensor in self.state_dict().items()})
        return self

    @property
    def made(self) -> FeatureMap:
        """The map as the user made it, which was shown no covariates here."""
        return self._made[0] if hasattr(self, "_made") else self.inner

    def twin(self, nuisances: "NuisanceModel | None" = None) -> FeatureMap:
        """Return the same map on the CPU, tied to these nuisances: for a release."""
        made, state = self._made
        copy = UserFeatures(deepcopy(made).cpu()).setup(self.domain, nuisances)
        copy.load_state_dict(state)
        return copy

    @property
    def title(self) -> str:
        """What statements call the map: the user's name for it."""
        return self.inner.title

    def shapes(self, width: int) -> dict[str, tuple[int, ...]]:
        """Return what the map says of its buffers; see the base class."""
        return {f"inner.{name}": shape for name, shape in self.inner.shapes(width).items()}

    @property
    def conditions(self) -> tuple[Condition, ...]:
        """That rows see one record, which is tried and not proved."""
        return conditions_of(self.inner)

    @property
    def dimension(self) -> int:
        """Return the map's width, as it was when it was set up."""
        return self._dimension

    @property
    def largest_entry(self) -> float:
        """Return the map's own bound, at most one, as it was when it was set up."""
        return self._largest

    def config(self) -> dict[str, Any]:
        """Return the map's settings."""
        return self.inner.config()

    def forward(self, x: Tensor) -> Tensor:
        """Return the map's features of a copy of x.

        Raises:
            InputError: Anything but a tensor [B, p].
        """
        psi = self.inner.forward(x.clone())
        if not isinstance(psi, Tensor) or psi.shape != (x.shape[0], self._dimension):
            gave = f"a tensor {list(psi.shape)}" if isinstance(psi, Tensor) else type(psi).__name__
            raise InputError(
                f"features = {self.title}: gave {gave} for covariates {list(x.shape)}; give [{len(x)}, "
                f"{self._dimension}], one row a record"
            )
        return psi.to(self.unit.dtype)


def _try_rows(features: FeatureMap, domain: "Domain") -> None:
    """Refuse a map whose rows on public points are not those of the same points by themselves."""
    inside, sides = domain.grid(_TRIED).split(_TRIED // 2)
    middle = domain.from_unit(torch.full((1, domain.dimension), 0.5, dtype=torch.float64))
    x = torch.cat([inside, torch.where(sides > middle, domain.covariate_high, domain.covariate_low)])
    with torch.no_grad():
        together = features(x)
        try:
            alone, turned = torch.cat([features(row) for row in x.split(1)]), features(x.flip(0)).flip(0)
        except InputError:
            raise
        except Exception as error:  # whatever a user's code says of a batch of one
            raise InputError(
                f"features = {features.title}: failed on one record by itself ({type(error).__name__}); work out each "
                "row from that record alone"
            ) from error
    if not (torch.allclose(together, alone, 0, _SAME) and torch.allclose(together, turned, 0, _SAME)):
        raise InputError(
            f"features = {features.title}: a row depends on the other rows, or differs from one evaluation to the "
            "next, so that no bound holds of what one record moves; work out each row from that record's covariates "
            "alone (x.mean(0) sees all of them), with public numbers in place of statistics"
        )
