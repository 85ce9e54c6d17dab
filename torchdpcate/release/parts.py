"""Networks and feature maps of a release file: their shapes must fit the file before memory is taken for them."""

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from torchdpcate.data.domain import Domain
from torchdpcate.fit.feature_maps import FeatureMap, from_config
from torchdpcate.fit.nuisance_kinds import Nuisances
from torchdpcate.fit.nuisances import NuisanceModel

_SIZES = ("degree", "pairs", "points", "width")  # settings that say how much there is of something


def load_features(
    tensors: Mapping[str, Tensor], config: Mapping[str, Any], domain: Domain, nuisances: NuisanceModel | None = None
) -> FeatureMap:
    """Return the feature map that a file describes, with the file's buffers.

    Args:
        tensors: All tensors of the file.
        config: The map's name and settings.
        domain: Public bounds of the covariates that the map sees.
        nuisances: Nuisances of the same file, for maps made of them.

    Raises:
        ValueError: Settings or buffers that do not fit together, or more than the file holds.
    """
    held = tensors_of("features", tensors)
    _require_sizes(config, tensors)
    features = from_config(config)
    _require_shapes(features.shapes(domain.dimension), held)
    features = features.setup(domain, nuisances)
    features.load_state_dict(held)
    return features


def load_nuisances(tensors: Mapping[str, Tensor], config: Mapping[str, Any]) -> NuisanceModel:
    """Return the nuisances that a file describes, with the file's weights, in float64; arguments as ``load_features``.

    Raises:
        ValueError: Settings or weights that do not fit together, or more than the file holds.
    """
    held = tensors_of("nuisances", tensors)
    _require_sizes(config, tensors)
    _require_shapes(Nuisances.shapes(config), held)
    nuisances = Nuisances.from_config(config).double().eval().requires_grad_(False)
    nuisances.load_state_dict(held)
    return nuisances


def named_tensors(prefix: str, module: nn.Module) -> dict[str, Tensor]:
    """Return a module's weights and buffers on the CPU, under names that begin with ``prefix`` and a dot."""
    return {f"{prefix}.{name}": tensor.cpu() for name, tensor in module.state_dict().items()}


def tensors_of(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return those of a file's tensors whose names begin with ``prefix`` and a dot, without it."""
    start = f"{prefix}."
    return {name.removeprefix(start): t for name, t in tensors.items() if name.startswith(start)}


def _require_sizes(config: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
    """Refuse settings that are no whole numbers, or larger than the count of numbers in the file."""
    held = sum(tensor.numel() for tensor in tensors.values())
    for name in _SIZES:
        size = config.get(name, 0)
        if type(size) is not int or not 0 <= size <= held:
            raise ValueError(f"{name} = {size} in a file of {held} numbers")


def _require_shapes(expected: Mapping[str, tuple[int, ...]], held: Mapping[str, Tensor]) -> None:
    """Refuse tensors that are not those that the settings request."""
    found = {name: tuple(tensor.shape) for name, tensor in held.items()}
    if found != dict(expected):
        raise ValueError("tensors whose names or shapes are not those of the settings")
