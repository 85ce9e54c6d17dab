"""Kernel balancing weights: a quadratic program on a box, with their certified indirect sensitivity."""

import itertools
import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from experiments.dp_2erm.balancing import BalancingWeights, largest_inverse
from torchdpcate.data.domain import Domain
from torchdpcate.data.records import CausalData
from torchdpcate.errors import InputError, NumericalError
from torchdpcate.fit.kernels import UnitKernel
from torchdpcate.privacy.budget import positive

_MOST_RECORDS = 5_000  # a dense quadratic program of so many takes twenty seconds and a gigabyte
_STRAY = 1e-5  # how far, in l2, the weights may stop from the minimiser
_GAP = 1e-12  # between primal and dual, at which the solver may stop
_BALANCED = 2.0  # 1 / pi(a|x) in a balanced trial: where the ridge pulls to


def mmd_indirect_sensitivity(n: int, cap: float, alpha: float, ridge: float) -> float:
    r"""Indirect sensitivity of kernel balancing weights, half of those in [0, R], for a kernel K in [0, 1].

    .. math:: D_1 = \tfrac14 \sqrt{\frac{n - 1}{n \rho}}\, H, \quad
        H^2 = \max_{w, w' \in \{0, R\}} \max_{k \in \{0, 1\}} Q(w) + Q(w') - 2 k\, C_\pm(w, w')

    In the two arms' feature space the objective's quadratic form is B, with 1 on the diagonal and -(1 - alpha) off it,
    and a record of arm a and weight w adds r = w B e_a - alpha (1, 1), times its feature, to its half gradient. With u
    what the other weights' change D adds up to there, strong monotonicity gives
    <u, B u> + n rho ||D||^2 <= <u, r - r'> <= |B^{1/2} u| H, where Q(w) = w^2 - 2 alpha w + 2 alpha is
    |B^{-1/2} r|^2, C the product of two such, of one arm or of both, and k the kernel between the two records.

    Args:
        n: Records.
        cap: R.
        alpha: Share of the balance towards everybody, in (0, 1].
        ridge: rho, a record.

    Example:
        >>> round(mmd_indirect_sensitivity(400, 4.0, 0.5, 1.0), 6)
        1.729884
    """
    pulls = []
    for w, other in itertools.product((0.0, cap), repeat=2):
        lengths = sum(v * v - 2 * alpha * v + 2 * alpha for v in (w, other))
        for entry in (1.0, alpha - 1):  # of B: the same arm, or the other
            product = entry * w * other - alpha * (w + other) + 2 * alpha
            pulls.append(lengths - 2 * min(product, 0.0))
    return math.sqrt((n - 1) / (n * ridge) * max(pulls)) / 4


@dataclass(frozen=True)
class MMDWeights(BalancingWeights):
    r"""Kernel balancing: weights that bring each arm near everybody, and the arms near each other, in a kernel's norm.

    With :math:`S_a = \sum_{a_i = a} w_i K_{x_i}`, :math:`T = \sum_i K_{x_i}` and :math:`\omega = w / 2`,

    .. math:: \min_{w \in [0, R]^n} \alpha \sum_a \|S_a - T\|^2 + (1 - \alpha) \|S_1 - S_0\|^2
        + n \rho \|w - 2\|^2 .

    There are no constraints on sums, for they would let one record move all weights. The kernel, a Gaussian, is of
    the scaled covariates.

    Guarantee:
        Certified indirect sensitivity (`mmd_indirect_sensitivity`), the solver's inexactness included: the gradient
        mapping at the end bounds the distance to the minimiser. Free.

    Args:
        ridge: rho, a record.
        cap: R, the largest 1 / pi(a|x); None takes the inverse of the domain's overlap.
        alpha: Share of the balance towards everybody, in (0, 1].
        bandwidth: Public length scale in units of the scaled covariates; None takes sqrt(q).

    Raises:
        InputError: alpha outside (0, 1], a bandwidth that is not positive.

    Example:
        >>> domain = Domain([0.0], [1.0], -1.0, 1.0, overlap=0.25)
        >>> round(MMDWeights(ridge=1.0).bounds(400, domain).first, 3)
        5.73
    """

    name = "mmd"

    ridge: float = 0.1
    cap: float | None = None
    alpha: float = 0.5
    bandwidth: float | None = None

    def __post_init__(self) -> None:
        """Refuse settings without a certificate."""
        super().__post_init__()
        if not 0 < self.alpha <= 1:
            raise InputError(f"weights.alpha = {self.alpha}: give a number in (0, 1]")
        if self.bandwidth is not None:
            positive("weights.bandwidth", self.bandwidth)

    def span(self, domain: Domain) -> tuple[float, float]:
        """Return the ends of the box."""
        return 0.0, largest_inverse(self.cap, domain) / 2

    def indirect_sensitivity(self, n: int, domain: Domain) -> float:
        """Return the indirect sensitivity; either solution lies up to a stray from its minimum.

        Raises:
            InputError: Too many records for a dense program.
        """
        if n > _MOST_RECORDS:
            raise InputError(
                f"weights = mmd: n = {n} records make too large a quadratic program (at most {_MOST_RECORDS}); "
                "use the tilting ones"
            )
        stray = 2 * math.sqrt(n - 1) * _STRAY / 2
        return mmd_indirect_sensitivity(n, largest_inverse(self.cap, domain), self.alpha, self.ridge) + stray

    def balance(self, records: CausalData, domain: Domain) -> Tensor:
        """Return the weights of the records, [n]."""
        kernel = UnitKernel(self.bandwidth or math.sqrt(domain.dimension), domain)(records.x, records.x)
        lam, label = records.n * self.ridge, 2 * records.a.double() - 1
        # half the objective over the ridge: its curvature lies between 1 and 1 + 1/rho, for no kernel entry exceeds one
        quadratic = kernel * torch.where(label[:, None] == label, 1.0, self.alpha - 1) / lam
        quadratic.diagonal().add_(1.0)
        linear = -self.alpha * kernel.sum(1) / lam - _BALANCED
        top = largest_inverse(self.cap, domain)
        return box_minimum(quadratic, linear, top, (1.0, 1 + 1 / self.ridge), _STRAY) / 2


def box_minimum(
    quadratic: Tensor, linear: Tensor, top: float, curvature: tuple[float, float], tolerance: float
) -> Tensor:
    r"""Minimiser of w'Pw/2 + c'w over [0, top]^n, to a certified distance.

    With all eigenvalues of P in [mu, L], :math:`\|w - w^*\| \le 2 \|G\| / \mu` for the gradient mapping
    :math:`G = L(w - \Pi(w - (Pw + c)/L))` (theory note ``policy_learning``, section 3).

    Args:
        quadratic: P, [n, n], symmetric.
        linear: c, [n].
        top: Upper end of the box.
        curvature: mu and L.
        tolerance: Largest distance to the minimiser, l2.

    Raises:
        NumericalError: The distance is not certified; nothing may be released.

    Example:
        >>> box_minimum(torch.eye(2).double(), torch.tensor([-0.5, -3.0]).double(), 1.0, (1.0, 1.0), 1e-8).tolist()
        [0.5, 1.0]
    """
    import piqp

    (least, most), n = curvature, len(linear)
    solver = piqp.DenseSolver()
    solver.settings.eps_abs = solver.settings.eps_duality_gap_abs = _GAP
    solver.settings.eps_rel = solver.settings.eps_duality_gap_rel = 0.0
    solver.setup(quadratic.numpy().T, linear.numpy(), x_l=np.zeros(n), x_u=np.full(n, top))
    solver.solve()  # whatever it says of itself, the mapping says how far it came
    w = torch.from_numpy(np.array(solver.result.x)).clamp(0, top)
    step = (w - (quadratic @ w + linear) / most).clamp(0, top)
    distance = 2 * most * (w - step).norm().item() / least
    if not distance <= tolerance:
        raise NumericalError(
            f"weights: the quadratic program stopped up to {distance:.1e} from its minimum, above {tolerance:.1e}; "
            "raise weights.ridge"
        )
    return step  # no farther from the minimiser than w, and exact on the faces of the box
