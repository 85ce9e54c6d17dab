"""Where noise comes from: the operating system's entropy, or for tests alone a fixed seed."""

import copy
import hashlib
import math
import secrets
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from functools import lru_cache
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from torchdpcate.errors import InputError, NumericalError
from torchdpcate.privacy import draws
from torchdpcate.privacy.budget import integer, positive
from torchdpcate.privacy.draws import half_integers, random_bytes


class NoiseSource(ABC):
    """Source of privacy noise; made by ``NoiseSource.system`` or, in tests, ``NoiseSource.fixed``.

    Noise for privacy never comes from the experiment's seed: whoever knows the seed could subtract it.

    Attributes:
        private: Whether what is released with this noise may carry a privacy claim.

    Example:
        >>> noise = NoiseSource.system()
        >>> noise.private, noise.gaussian(3, scale=2.0).shape
        (True, torch.Size([3]))
    """

    private: bool

    @staticmethod
    def system() -> "NoiseSource":
        """Noise from the operating system's entropy, by OpenDP's exact samplers."""
        return SystemNoise()

    @staticmethod
    def fixed(seed: int) -> "NoiseSource":
        """Repeatable noise for tests alone; ``private`` is False, so releases are marked not private."""
        return FixedNoise(seed)

    @staticmethod
    def grid(scale: float) -> float:
        """Spacing of the numbers that noise of this scale lives on: the power of two in (2^-21, 2^-20] scale.

        Values must be rounded to this public grid before noise is added, and the sensitivity enlarged for it,
        else the low bits of a floating point sum give the value away (Mironov 2012).

        Raises:
            InputError: If ``scale`` is not positive.
        """
        # frexp gives scale = m 2^e with m in [1/2, 1), hence 2^(e-21) in (2^-21, 2^-20] scale
        return math.ldexp(1.0, math.frexp(positive("scale", scale))[1] - 21)

    @abstractmethod
    def gaussian(self, size: int, scale: float, step: float | None = None) -> Tensor:
        """Independent N(0, scale^2) numbers, float64 of shape [size].

        Args:
            size: How many.
            scale: Standard deviation.
            step: Spacing of the public grid, a power of two; None takes ``grid(scale)``. A scale that depends on
                the records needs a step that does not, because the spacing shows in what is released.

        Raises:
            InputError: If ``size`` is negative, or ``scale`` or ``step`` not positive.
        """

    @abstractmethod
    def laplace(self, size: int, scale: float) -> Tensor:
        """Independent Laplace numbers of scale b (standard deviation b sqrt 2), float64 of shape [size].

        Raises:
            InputError: If ``size`` is negative or ``scale`` not positive.
        """

    def k_norm(self, size: int, dimension: int, scale: float, order: float = 2.0, step: float | None = None) -> Tensor:
        r"""Independent vectors with density proportional to exp(-||z|| / scale), float64 [size, dimension].

        For the Euclidean norm a uniform direction times a length of law Gamma(dimension, scale); for the largest
        entry (``order`` infinity) a uniform point of the cube [-1, 1]^dimension times a factor of law
        Gamma(dimension + 1, scale). Drawn in floating point and put on the grid: add it to values rounded alike. On the
        grid of ``grid(scale)`` each number is moved by up to 2^14 cells, a 64th of the scale, uniformly: that costs no
        privacy, and makes probabilities right to ``float_loss`` (docs/guarantees/common.md).

        Args:
            size: How many.
            dimension: Of each.
            scale: Of the length.
            order: The norm, 2 or infinity.
            step: Spacing of the public grid, a power of two, to which the draw is rounded and not moved; None takes
                ``grid(scale)``.

        Raises:
            InputError: If ``size`` is negative, ``dimension``, ``scale`` or ``step`` not positive, or ``order``
                another.
        """
        shape = integer("size", size, least=0), integer("dimension", dimension, least=1)
        scale = positive("scale", scale)
        if order == 2:
            directions = draws.normals(self._bytes, math.prod(shape)).reshape(shape)
            # sums by halves, since the order in which others add has no bound of its own
            directions, exponentials = directions / np.sqrt(draws.total(directions**2))[:, None], shape
        elif order == math.inf:
            directions = 2 * draws.uniforms(self._bytes, math.prod(shape)).reshape(shape) - 1
            exponentials = shape[0], shape[1] + 1  # the uniform point's own law of the largest entry takes one
        else:
            raise InputError(f"order = {order}: give 2 or infinity")
        # a Gamma(p) length is a sum of p exponentials
        lengths = draws.total(draws.exponentials(self._bytes, math.prod(exponentials)).reshape(exponentials))
        found = torch.from_numpy(directions * lengths[:, None] * scale)
        return self._moved(found, scale) if step is None else torch.round(found / positive("step", step)) * step

    def uniform(self, size: int) -> Tensor:
        """Independent uniform numbers in [0, 1), multiples of 2^-53, float64 of shape [size].

        Raises:
            InputError: If ``size`` is negative.
        """
        return torch.from_numpy(draws.uniforms(self._bytes, integer("size", size, least=0)))

    def coins(self, size: int, probability: float) -> Tensor:
        """Independent coins, True with this probability, rounded down to a multiple of 2^-64; bool of shape [size].

        Raises:
            InputError: If ``size`` is negative or ``probability`` outside [0, 1].
        """
        if not 0 <= probability <= 1:
            raise InputError(f"probability = {probability}: give a number in [0, 1]")
        return torch.from_numpy(draws.coins(self._bytes, integer("size", size, least=0), probability))

    def chosen(self, size: int, probability: float) -> Tensor:
        """Which of so many independent coins show heads, in increasing order; int64 [heads].

        The law of ``coins`` to 2^-99 a coin, in a time that grows with the heads where they are few.

        Raises:
            InputError: If ``size`` is negative or ``probability`` outside [0, 1].
        """
        if not _LEAST_GAPPED <= probability <= _MOST_GAPPED:
            return self.coins(size, probability).nonzero().squeeze(1)
        return torch.from_numpy(draws.chosen(self._bytes, integer("size", size, least=0), probability))

    @staticmethod
    def tilt_grid(scale: float) -> float:
        """Spacing of an objective's noise, which is not released: the power of two in (2^-33, 2^-32] scale.

        What it moves a minimiser by does not shrink with the number of records, as the noise's own effect does.

        Raises:
            InputError: If ``scale`` is not positive.
        """
        return NoiseSource.grid(scale) * 2.0**-12

    @staticmethod
    def fine_grid(scale: float) -> float:
        """Spacing of the numbers that ``fine_gaussian`` noise lives on: the power of two in (2^-41, 2^-40] scale.

        Raises:
            InputError: If ``scale`` is not positive.
        """
        return NoiseSource.grid(scale) * 2.0**-20

    def fine_gaussian(self, size: int, scale: float) -> Tensor:
        r"""Independent N(0, scale^2) numbers in great number, on a grid that is hardly felt; float64 of shape [size].

        The discrete Gaussian on the odd multiples of half a ``fine_grid(scale)``, up to 40 scales. Every probability
        is right to a factor :math:`1 \pm 2^{-50}`: a hundred times faster than the exact ``gaussian``, and as good for
        many numbers (docs/guarantees/dp_sgd.md).

        Raises:
            InputError: If ``size`` is negative or ``scale`` not positive.
        """
        size, scale = integer("size", size, least=0), positive("scale", scale)
        step = self.fine_grid(scale)
        return torch.from_numpy(half_integers(self._bytes, size, scale / step)).mul_(step)

    def fine_gaussian_rows(self, rows: int, size: int, scale: float) -> Iterator[Tensor]:
        """Vectors as ``fine_gaussian`` gives them, so many, drawn together: faster, where they are short.

        Whatever pays for them is charged before the first.

        Raises:
            InputError: As ``fine_gaussian``.
        """
        yield from self.fine_gaussian(integer("rows", rows, least=0) * size, scale).view(-1, size)

    def _moved(self, found: Tensor, scale: float) -> Tensor:
        """Return draws on ``grid(scale)``, each number moved by a uniform number of cells, 2^14 at most."""
        step, shifts = self.grid(scale), torch.from_numpy(draws.shifts(self._bytes, found.numel()))
        return (torch.floor(found / step) + shifts.reshape(found.shape)) * step

    def _exponentials(self, *shape: int) -> Tensor:
        return torch.from_numpy(draws.exponentials(self._bytes, math.prod(shape))).reshape(shape)

    @abstractmethod
    def _bytes(self, count: int) -> bytes:
        """Uniformly random bytes, others at each call."""

    @abstractmethod
    def generator(self, device: str | torch.device = "cpu") -> torch.Generator:
        """A new torch generator on ``device``, a different stream at each call.

        For audits and tests: no mechanism draws from it, because torch's samplers differ in how many bits they use.
        """

    def permutation(self, n: int) -> Tensor:
        """A uniformly random order of n records, int64 [n], which must not be seen or kept.

        The order of independent numbers of 64 bits from the operating system's entropy, whatever else this source
        draws from. Where two of them are the same all are drawn anew, so that each of the n! orders has the same
        probability.

        Args:
            n: How many records.

        Raises:
            InputError: If ``n`` is not an integer of at least 1.

        Example:
            >>> sorted(NoiseSource.system().permutation(4).tolist())
            [0, 1, 2, 3]
        """
        count = integer("n", n, least=1)
        while True:
            keys, order = torch.frombuffer(bytearray(secrets.token_bytes(8 * count)), dtype=torch.int64).sort()
            if not bool((keys[1:] == keys[:-1]).any()):
                return order

    def released(self, output: Any) -> Any:
        """Return what a mechanism that drew from this source is about to hand out: the output itself.

        A replay on a neighbouring data set overrides it to freeze the output, so that whatever else differs was
        released without a charge.
        """
        return output

    @abstractmethod
    def _noisy_max(self, scores: Tensor, epsilon: float, sensitivity: float) -> int: ...

    @abstractmethod
    def _gumbel_max(self, scores: Tensor, epsilon: float, sensitivity: float) -> int: ...

    def select(self, scores: Tensor, epsilon: float, sensitivity: float = 1.0, law: str = "exponential") -> int:
        r"""Index of a high score, epsilon-differentially private.

        The largest of scores plus noise of scale :math:`2\Delta/\epsilon`. Exponential noise is permute-and-flip
        (McKenna & Sheldon 2020; Ding et al. 2021), which has the guarantee of the exponential mechanism and never a
        worse expected score; Gumbel noise is the exponential mechanism itself.

        Args:
            scores: Shape [k], finite; higher is better.
            epsilon: Privacy cost.
            sensitivity: Delta, the most that replacing one record moves any score; or half the range by which it
                moves them against each other.
            law: Of the noise: ``exponential`` or ``gumbel``.

        Raises:
            InputError: If the scores are empty, not a vector or not finite, a number is not positive, or the law
                another.
        """
        if scores.ndim != 1 or scores.numel() == 0 or not bool(torch.isfinite(scores).all()):
            raise InputError(f"scores of shape {tuple(scores.shape)}: give a vector of finite numbers")
        if law not in ("exponential", "gumbel"):
            raise InputError(f"law = {law!r}: give exponential or gumbel")
        checked = positive("epsilon", epsilon), positive("sensitivity", sensitivity)
        largest = self._noisy_max if law == "exponential" else self._gumbel_max
        return largest(scores.detach().cpu().double(), *checked)

    def __copy__(self) -> "NoiseSource":
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> "NoiseSource":
        return self


def float_loss(dimension: int, order: float = 2.0) -> float:
    r"""Return what float64 adds to the epsilon of ``NoiseSource.k_norm`` at most.

    .. math:: 2^{-37} \sqrt{p}\, L_p \text{ (2)}, \qquad 2^{-37} p\, L_{p+1} \text{ (infinity)}, \qquad
              L_k = k + \sqrt{2 k t} + t, \quad t = 666

    But for an event of probability below 2^-940, L scales bound the length (Laurent & Massart 2000, Gamma laws);
    docs/guarantees/common.md.

    Args:
        dimension: p.
        order: The norm: 2, or infinity.

    Example:
        >>> float_loss(4) < 2e-8, float_loss(6670) < 1e-5
        (True, True)
    """
    lengths, spread = (dimension, math.sqrt(dimension)) if order == 2 else (dimension + 1, dimension)
    return 2.0**-37 * spread * (lengths + math.sqrt(2 * lengths * _LONGEST) + _LONGEST)


class SystemNoise(NoiseSource):
    """Noise from the operating system's entropy.

    Gaussian and Laplace noise is the discrete one of Canonne, Kamath & Steinke (2020) on the public grid
    ``grid(scale)``, drawn without floating point error by OpenDP. All else is made of bytes that the operating system's
    cryptographic generator gives at each call, or where a call takes many of a cipher whose key it gives for that call
    alone (``random_bytes``); so that no state is kept that could be copied or predicted.
    """

    private = True

    def _bytes(self, count: int) -> bytes:
        return random_bytes(count)

    def gaussian(self, size: int, scale: float, step: float | None = None) -> Tensor:
        return self._on_grid(size, scale, _opendp_gaussian, step)

    def laplace(self, size: int, scale: float) -> Tensor:
        return self._on_grid(size, scale, _opendp_laplace)

    def _on_grid(self, size: int, scale: float, sampler: Callable[[float], Any], step: float | None = None) -> Tensor:
        step = self.grid(scale) if step is None else positive("step", step)
        count = integer("size", size, least=0)
        if count == 0:
            return torch.zeros(0, dtype=torch.float64)
        # dividing and multiplying by a power of two is exact
        draws = sampler(float(scale) / step)([0] * count)
        return torch.tensor(draws, dtype=torch.int64).double() * step

    def _noisy_max(self, scores: Tensor, epsilon: float, sensitivity: float) -> int:
        return int(_opendp_permute_and_flip(epsilon, sensitivity)(scores.tolist()))

    def _gumbel_max(self, scores: Tensor, epsilon: float, sensitivity: float) -> int:
        scale = 2 * sensitivity / epsilon * (1 + 1e-15)  # never below the quotient, however it is rounded
        return int(_opendp_noisy_max(scale, gumbel=True)(scores.tolist()))

    def generator(self, device: str | torch.device = "cpu") -> torch.Generator:
        """See ``NoiseSource.generator``; seeded from the operating system's entropy.

        On the CPU the full state of the Mersenne twister is drawn, because torch keeps only 32 bits of a
        seed there, few enough to try them all. The twister is not a cryptographic generator.
        """
        generator = torch.Generator(device=device)
        generator.manual_seed(secrets.randbits(63))
        if generator.device.type == "cpu":
            generator.set_state(_random_twister_state(generator.get_state()))
        return generator

    def __reduce__(self) -> Any:
        return NoiseSource.system, ()  # it has no state

    def __repr__(self) -> str:
        return "NoiseSource.system()"


class FixedNoise(NoiseSource):
    """Repeatable noise, for tests alone: nothing made with it is private.

    Args:
        seed: Integer of at least 0.

    Raises:
        InputError: If ``seed`` is not such a number.
    """

    private = False

    def __init__(self, seed: int) -> None:
        self._seed = integer("seed", seed, least=0)
        self._streams = self._calls = 0
        self._own = self.generator()

    def _bytes(self, count: int) -> bytes:
        self._calls += 1
        return hashlib.shake_256(f"{self._seed}:{self._calls}".encode()).digest(count)

    def gaussian(self, size: int, scale: float, step: float | None = None) -> Tensor:
        """See ``NoiseSource.gaussian``; not on a grid."""
        scale, size = positive("scale", scale), integer("size", size, least=0)
        return torch.randn(size, generator=self._own, dtype=torch.float64) * scale

    def laplace(self, size: int, scale: float) -> Tensor:
        scale, size = positive("scale", scale), integer("size", size, least=0)
        first, second = self._exponentials(2, size)
        return (first - second) * scale

    def _noisy_max(self, scores: Tensor, epsilon: float, sensitivity: float) -> int:
        noise = self._exponentials(scores.numel()) * (2 * sensitivity / epsilon)
        return int((scores + noise).argmax())

    def _gumbel_max(self, scores: Tensor, epsilon: float, sensitivity: float) -> int:
        noise = -self._exponentials(scores.numel()).log() * (2 * sensitivity / epsilon)
        return int((scores + noise).argmax())

    def permutation(self, n: int) -> Tensor:
        """The order as it is, so that a test knows where each record lies."""
        return torch.arange(integer("n", n, least=1))

    def generator(self, device: str | torch.device = "cpu") -> torch.Generator:
        """See ``NoiseSource.generator``; the k-th call always gives the same stream."""
        digest = hashlib.sha256(f"{self._seed}:{self._streams}".encode()).digest()
        self._streams += 1
        return torch.Generator(device=device).manual_seed(int.from_bytes(digest[:8], "big") >> 1)

    def __reduce__(self) -> Any:
        raise TypeError("a noise source with a fixed seed is not pickled: make it where it is used")

    def __repr__(self) -> str:
        return "NoiseSource.fixed(...)"


_LONGEST = 666.0  # the largest exponential of ``draws``

_LEAST_GAPPED, _MOST_GAPPED = 2.0**-40, 2.0**-4
"""Probabilities between which heads are so rare that their gaps are drawn, and not too rare for 64 bits of them."""

_CELL = 12**-0.5  # standard deviation of a number that is uniform over one step: what rounding adds


@lru_cache(maxsize=1)
def _opendp() -> SimpleNamespace:
    """Return what is needed of OpenDP under the names of its prelude, which would import scikit-learn and pandas."""
    from opendp import domains, measurements, measures, metrics, mod

    mod.enable_features("contrib")
    return SimpleNamespace(**vars(domains) | vars(measures) | vars(metrics), m=measurements)


def _opendp_gaussian(scale: float) -> Any:
    """Discrete Gaussian numbers of a scale in steps, and of the variance of rounded continuous ones (common.md)."""
    dp = _opendp()
    space = dp.vector_domain(dp.atom_domain(T="i64")), dp.l2_distance(T="f64")
    return dp.m.make_gaussian(*space, scale=math.nextafter(math.hypot(scale, _CELL), math.inf))


def _opendp_laplace(scale: float) -> Any:
    dp = _opendp()
    space = dp.vector_domain(dp.atom_domain(T="i64")), dp.l1_distance(T="i64")
    return dp.m.make_laplace(*space, scale=scale)


@lru_cache(maxsize=16)
def _opendp_noisy_max(scale: float, gumbel: bool = False) -> Any:
    dp = _opendp()
    space = dp.vector_domain(dp.atom_domain(T=float, nan=False)), dp.linf_distance(T=float)
    # the measure chooses the noise: exponential, or Gumbel
    measure = dp.zero_concentrated_divergence() if gumbel else dp.max_divergence()
    return dp.m.make_noisy_max(*space, measure, scale=scale)


@lru_cache(maxsize=16)
def _opendp_permute_and_flip(epsilon: float, sensitivity: float) -> Any:
    scale = 2 * sensitivity / epsilon
    mechanism = _opendp_noisy_max(scale)
    while mechanism.map(sensitivity) > epsilon:  # its map rounds up, so the last bit may be missing
        scale *= 1 + 1e-15
        mechanism = _opendp_noisy_max(scale)
    return mechanism


_TWISTER_BYTES = 5056  # torch's CPU generator state: 24 bytes of bookkeeping, 624 words of 8 bytes, the rest
_TWISTER_WORDS = slice(3, 3 + 624)


def _random_twister_state(state: Tensor) -> Tensor:
    """The state of a freshly seeded CPU generator with its 624 words of 32 bits drawn anew."""
    if state.numel() != _TWISTER_BYTES:
        raise NumericalError(f"torch's CPU generator state has {state.numel()} bytes, not {_TWISTER_BYTES}")
    words = np.frombuffer(secrets.token_bytes(4 * 624), dtype=np.uint32).astype(np.int64)
    state = copy.copy(state).clone()
    state.view(torch.int64)[_TWISTER_WORDS] = torch.from_numpy(words)
    return state
