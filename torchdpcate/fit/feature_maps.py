"""Public feature maps psi with norm at most one on the domain."""

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from copy import deepcopy
from inspect import signature
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from torchdpcate.errors import InputError
from torchdpcate.privacy.budget import integer, positive
from torchdpcate.privacy.guarantee import Condition, is_library_class, of_library
from torchdpcate.registry import Registry

if TYPE_CHECKING:
    from torchdpcate.data.domain import Domain
    from torchdpcate.fit.nuisances import NuisanceModel


_CHUNK_ELEMENTS = 2**18  # of a batch of features, of which a few live at once: 2 MiB each stay in a core's cache
_CHUNK_ELEMENTS_GPU = 2**26
_ROUNDING = 2.0**-52  # of a float64
FEATURE_MAPS = Registry("features")
"""Feature maps by the name under which a release file knows them."""


def additive_legendre(z: Tensor, degree: int) -> Tensor:
    """Intercept and Legendre polynomials P_1..P_degree of each coordinate, over sqrt(1 + q degree): norm at most 1.

    Args:
        z: Scaled covariates ``[B, q]`` in [-1, 1].
        degree: Highest degree; 0 is the intercept alone.

    Example:
        >>> additive_legendre(torch.tensor([[1.0]]), 3).tolist()
        [[0.5, 0.5, 0.5, 0.5]]
    """
    polynomials = [z.new_ones(z.shape), z]
    for k in range(1, degree):
        polynomials.append(((2 * k + 1) * z * polynomials[-1] - k * polynomials[-2]) / (k + 1))
    features = torch.cat([z.new_ones(z.shape[0], 1), *polynomials[1 : degree + 1]], 1)
    return features / math.sqrt(features.shape[1])


def batches(records: Tensor, width: int, dim: int = 0, least: int = 1) -> tuple[Tensor, ...]:
    """Return the records in batches of which an array ``width`` wide fits into a cache, at least ``least`` each.

    A graph that is exported takes them at once: their number is not known yet.
    """
    if torch.compiler.is_compiling():
        return (records,)
    elements = _CHUNK_ELEMENTS if records.device.type == "cpu" else _CHUNK_ELEMENTS_GPU
    return records.split(max(least, elements // width), dim)


def within_bounds(psi: Tensor, largest_entry: float) -> Tensor:
    r"""Return features [B, p] whose rows have norm at most one and entries of at most ``largest_entry``.

    .. math:: \psi_j \leftarrow \mathrm{clip}\big(\psi_j / \max(1, \|\psi\| / (1 - m)),\; \pm \max|\psi_j|\big),
        \quad m = (p + 8)\, 2^{-52}

    row by row, so it is a public map of each record; an entry that is not finite becomes zero. The margin m is twice
    what rounding can do to a norm of p numbers, added in any order, and to the quotient and the product: the numbers
    that are returned keep both bounds exactly, on every machine.

    Example:
        >>> within_bounds(torch.tensor([[0.6, 0.0], [1.0, 90.0]]).double(), 1.0).round(decimals=3).tolist()
        [[0.6, 0.0], [0.011, 1.0]]
    """
    finite = psi.nan_to_num(nan=0.0, posinf=0.0, neginf=0.0)
    most = 1 - (psi.shape[-1] + 8) * _ROUNDING
    norm = torch.linalg.vector_norm(finite, dim=-1, keepdim=True)
    return (finite * (most / norm.clamp_min(most))).clamp(-largest_entry, largest_entry)


def conditions_of(features: "FeatureMap | None") -> tuple[Condition, ...]:
    """Return what claims on a map rest on: a map that is not the library's cannot say that it is nothing."""
    if features is None:
        return ()
    if of_library(features):
        return features.conditions
    text = (
        f"features = {features.title}, which is no map of the library, works out each row from that record's "
        "covariates alone, always the same, and owes nothing to the records; norms and entries are held to their "
        "bounds, and rows were compared with those of a batch on public points"
    )
    return (Condition("feature map", text),)


class FeatureMap(nn.Module, ABC):
    """A map psi from covariates [B, q] to float64 features [B, p] with ||psi(x)|| <= 1 everywhere.

    The constructor takes public parameters alone (``config``); ``setup`` fixes the map from the
    public domain, or from private nuisances. No map may see a record.

    Whoever evaluates a map calls it: what ``forward`` returns passes through ``within_bounds``, in fits and in releases
    alike. Learners take maps through ``on_domain``, which holds those that are not the library's to more.

    What is computed from features goes through ``product``, ``adjoint``, ``norm`` and ``covariance``: batch by
    batch, so that memory does not grow with the records, and shorter where a map knows how.
    """

    unit: Tensor
    bound = 1.0
    intercept = False
    """Whether the first feature is ``largest_entry`` everywhere."""

    def __call__(self, x: Tensor) -> Tensor:
        """Return psi(x), [B, p] float64, within its bounds to the last bit."""
        return within_bounds(super().__call__(x), self.largest_entry)

    @property
    def title(self) -> str:
        """What statements call the map."""
        return type(self).__name__

    @property
    def conditions(self) -> tuple[Condition, ...]:
        """What a guarantee rests on beside its proof: nothing for the library's maps, whose rows see one record."""
        return () if of_library(self) else conditions_of(self)

    def setup(self, domain: "Domain", nuisances: "NuisanceModel | None" = None) -> "FeatureMap":
        """Fix the map on a domain and return it.

        Args:
            domain: Public bounds; covariates are scaled by them to [-1, 1].
            nuisances: DP-trained nuisances, for maps made of them.
        """
        self.domain = domain
        self.register_buffer("unit", torch.ones((), dtype=torch.float64), persistent=False)
        self._setup(domain.dimension, nuisances)
        return self.double().requires_grad_(False)

    def scaled(self, x: Tensor) -> Tensor:
        """Return covariates x [B, q] on [-1, 1], in float64, or in what ``.to(dtype)`` has made of the map."""
        return self.domain.scale(x.to(self.unit.dtype))

    def _setup(self, width: int, nuisances: "NuisanceModel | None") -> None:
        """Register the buffers of the map for covariates of this width."""

    def shapes(self, width: int) -> dict[str, tuple[int, ...]]:
        """Return the shapes of the buffers that ``setup`` makes for this many covariates, without making them.

        A map with buffers says so here, else its releases are not read again.
        """
        return {}

    def twin(self, nuisances: "NuisanceModel | None" = None) -> "FeatureMap":
        """Return the same map on the CPU, tied to these nuisances: for a release."""
        copy = type(self)(**self.config()).setup(self.domain, nuisances)
        copy.load_state_dict({name: tensor.cpu() for name, tensor in self.state_dict().items()})
        return copy

    @property
    @abstractmethod
    def dimension(self) -> int:
        """Number of features p, known after ``setup``."""

    @property
    def largest_entry(self) -> float:
        """Public bound of |psi_j(x)| over the domain; noise shaped like a cube is measured in it."""
        return self.bound

    def predictor_bounds(self, theta: Tensor) -> tuple[Tensor, Tensor]:
        r"""Return bounds of psi(x)'theta over the domain, each [...], for coefficients theta [..., p]; public.

        .. math:: |\psi'\theta| \le \min\{\|\theta\|_2,\; m \|\theta\|_1\}, \quad
            m (\theta_0 \pm \sum_{j > 0} |\theta_j|) \text{ with an intercept}, \quad m = \max |\psi_j|

        Example:
            >>> from torchdpcate.data.domain import Domain
            >>> psi = Identity().setup(Domain([0.0], [1.0], 0.0, 1.0))
            >>> [round(end.item(), 4) for end in psi.predictor_bounds(torch.tensor([2.0, 1.0], dtype=torch.float64))]
            [0.7071, 2.1213]
        """
        entry = self.largest_entry
        first = theta[..., 0] if self.intercept else torch.zeros_like(theta[..., 0])
        others = theta[..., 1:] if self.intercept else theta
        length, beside = self.bound * theta.norm(dim=-1), others.abs().sum(-1)
        return torch.maximum(-length, entry * (first - beside)), torch.minimum(length, entry * (first + beside))

    def config(self) -> dict[str, Any]:
        """Return the constructor's arguments as plain types: the attributes that are called as they are."""
        parameters = signature(type(self)).parameters  # a module without an __init__ takes any
        return {name: getattr(self, name) for name in parameters if name not in ("args", "kwargs")}

    @abstractmethod
    def forward(self, x: Tensor) -> Tensor:
        """Return psi(x), [B, p] float64, for covariates x [B, q] in their own units."""

    def product(self, theta: Tensor, x: Tensor) -> Tensor:
        """Return psi(x)'theta, [..., B], for coefficients theta [..., p] and covariates x [B, q]."""
        return torch.cat([theta @ self(part).mT for part in batches(x, self.dimension)], -1)

    def norm(self, x: Tensor) -> Tensor:
        """Return ||psi(x)||, [B]."""
        return torch.cat([self(part).norm(dim=1) for part in batches(x, self.dimension)])

    def covariance(self, x: Tensor, y: Tensor) -> Tensor:
        """Return the kernel psi(x)'psi(y), [m, k], for covariates x [m, q] and y [k, q]."""
        left = self(x)
        return left @ (left if x is y else self(y)).mT


class _Polynomials(FeatureMap):
    """An intercept and other features that may each be as large as it is, over the root of their number."""

    intercept = True

    @property
    def largest_entry(self) -> float:
        """Return the inverse root of the number of features."""
        return 1 / math.sqrt(self.dimension)


class Identity(_Polynomials):
    """Intercept and scaled covariates, (1, x) / sqrt(1 + q): a linear effect or rule.

    Args:
        centred: Whether covariates are scaled to [-1, 1], which halves what the same noise does to a rule, or to
            [0, 1] as some papers do.

    Example:
        >>> from torchdpcate.data.domain import Domain
        >>> psi = Identity().setup(Domain([0.0], [2.0], 0.0, 1.0))
        >>> [round(v, 4) for v in psi(torch.tensor([[2.0]])).flatten().tolist()]
        [0.7071, 0.7071]
    """

    def __init__(self, centred: bool = True) -> None:
        super().__init__()
        self.centred = centred

    @property
    def dimension(self) -> int:
        """Return 1 + q."""
        return 1 + self.domain.dimension

    def forward(self, x: Tensor) -> Tensor:
        """Return (1, scaled x) / sqrt(1 + q)."""
        z = self.scaled(x)
        z = z if self.centred else (z + 1) / 2
        return torch.cat([z.new_ones(z.shape[0], 1), z], 1) / math.sqrt(self.dimension)


class Legendre(_Polynomials):
    """Intercept and per-coordinate Legendre polynomials P_1..P_degree, over sqrt(1 + q degree).

    An additive smooth effect; |P_k| <= 1 on [-1, 1] gives the norm bound.

    Args:
        degree: Highest polynomial degree, at least one.
    """

    def __init__(self, degree: int = 2) -> None:
        super().__init__()
        if degree < 1:
            raise InputError(f"features.degree = {degree}: give a degree of at least 1")
        self.degree = degree

    @property
    def dimension(self) -> int:
        """Return 1 + q * degree."""
        return 1 + self.domain.dimension * self.degree

    def forward(self, x: Tensor) -> Tensor:
        """Return the polynomials, degree by degree."""
        return additive_legendre(self.scaled(x), self.degree)


class Products(_Polynomials):
    r"""Intercept, covariates and their pairwise products, over the root of their number: interactions.

    .. math:: \psi(x) = \frac1{\sqrt p} \big(1, z_j, z_j z_k, P_2(z_j)\big), \qquad j < k, \quad z \in [-1, 1]^q

    with the squares :math:`P_2(z) = (3 z^2 - 1) / 2` if they are requested. No number in brackets is beyond 1, so the
    norm is at most 1.

    Args:
        squares: Whether squares are among them.

    Example:
        >>> from torchdpcate.data.domain import Domain
        >>> psi = Products().setup(Domain([0.0, 0.0], [1.0, 1.0], 0.0, 1.0))
        >>> psi(torch.tensor([[1.0, 0.25]])).tolist(), Products(squares=True).setup(psi.domain).dimension
        ([[0.5, 0.5, -0.25, -0.25]], 6)
    """

    def __init__(self, squares: bool = False) -> None:
        super().__init__()
        self.squares = squares

    @property
    def dimension(self) -> int:
        """Return 1 + q + q (q - 1) / 2, and q more with squares."""
        q = self.domain.dimension
        return 1 + q + q * (q - 1) // 2 + q * self.squares

    def forward(self, x: Tensor) -> Tensor:
        """Return intercept, covariates, products row by row of the upper triangle, squares."""
        z = self.scaled(x)
        first, second = torch.triu_indices(z.shape[1], z.shape[1], 1, device=z.device)
        parts = [z.new_ones(z.shape[0], 1), z, z[:, first] * z[:, second]]
        if self.squares:
            parts.append((3 * z.square() - 1) / 2)
        return torch.cat(parts, 1) / math.sqrt(self.dimension)


class Fourier(FeatureMap):
    """Paired random Fourier features of the Gaussian kernel, norm exactly one.

    psi(x) = m^{-1/2} (cos w_j'x, sin w_j'x), j <= m, w_j ~ N(0, bandwidth^{-2} I), with x scaled to
    [-1, 1]: psi(x)'psi(x') estimates exp(-||x - x'||^2 / (2 bandwidth^2)) (Rahimi & Recht 2007).

    Args:
        pairs: Number m of frequencies; there are 2 m features.
        bandwidth: Public length scale in units of the scaled covariates; None takes sqrt(q).
        seed: Public seed of the frequencies.
    """

    frequencies: Tensor

    def __init__(self, pairs: int = 128, bandwidth: float | None = None, seed: int = 0) -> None:
        super().__init__()
        if pairs < 1:
            raise InputError(f"features.pairs = {pairs}: give at least one frequency")
        if bandwidth is not None and bandwidth <= 0:
            raise InputError(f"features.bandwidth = {bandwidth}: give a positive length or null for sqrt(q)")
        self.pairs, self.bandwidth, self.seed = pairs, bandwidth, seed

    def _setup(self, width: int, nuisances: "NuisanceModel | None") -> None:
        generator = torch.Generator().manual_seed(self.seed)
        draws = torch.randn(width, self.pairs, dtype=torch.float64, generator=generator)
        self.register_buffer("frequencies", draws / (self.bandwidth or math.sqrt(width)))

    def shapes(self, width: int) -> dict[str, tuple[int, ...]]:
        """Return that of the frequencies; see the base class."""
        return {"frequencies": (width, self.pairs)}

    @property
    def dimension(self) -> int:
        """Return 2 m."""
        return 2 * self.pairs

    @property
    def largest_entry(self) -> float:
        """Return 1 / sqrt(m)."""
        return 1 / math.sqrt(self.pairs)

    def forward(self, x: Tensor) -> Tensor:
        """Return (cos, sin) / sqrt(m)."""
        angles = self.scaled(x) @ self.frequencies
        return torch.cat([angles.cos(), angles.sin()], 1).mul_(1 / math.sqrt(self.pairs))

    def norm(self, x: Tensor) -> Tensor:
        """Return one, [B]."""
        return self.frequencies.new_ones(x.shape[0])


class Representation(FeatureMap):
    """Frozen hidden layer of the DP-trained outcome network: a neural head with a certificate.

    psi = (scale, h(x)) / max(1, ||(scale, h(x))||), the intercept included. The layer is paid for by the
    nuisance block, so for the second-stage block it is a public map.

    Args:
        scale: Size of the intercept before the norm is clipped.
    """

    def __init__(self, scale: float = 0.5) -> None:
        super().__init__()
        if not 0 < scale <= 1:
            raise InputError(f"features.scale = {scale}: give a number in (0, 1]")
        self.scale = scale

    def _setup(self, width: int, nuisances: "NuisanceModel | None") -> None:
        if nuisances is None:
            raise InputError("features = representation: needs the trained nuisances of the same learner")
        # In a tuple, so that its weights are not saved a second time as part of this module.
        self._nuisances = (nuisances,)
        point = self.domain.grid(1)
        point = point.to(next(nuisances.parameters(), point).device)
        self._dimension = 1 + nuisances.representation(point).shape[1]

    @property
    def dimension(self) -> int:
        """Return one more than the width of the hidden layer."""
        return self._dimension

    def forward(self, x: Tensor) -> Tensor:
        """Return the clipped hidden layer with its intercept."""
        hidden = self._nuisances[0].representation(x)
        psi = torch.cat([hidden.new_full((hidden.shape[0], 1), self.scale), hidden], 1)
        return psi / psi.norm(dim=1, keepdim=True).clamp(min=1.0)


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
        >>> from torchdpcate.data.domain import Domain
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
