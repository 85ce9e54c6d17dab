"""WRONG constant, for comparison alone: the kernel release of the paper as printed, broken by two neighbours.

Schroeder, Melnychuk & Feuerriegel (2025) calibrate the release of a whole function (Lemma 1, Theorem 3, equation 19)
for the Gaussian kernel K = kappa^2 exp(-||x - y||^2 / (2 h^2)) with kappa^2 = (sqrt(2 pi) h)^{-q}. A loss with slopes
up to L moves the fit by at most L kappa / (lambda n) in the kernel's norm. Equation 19 prints 4 L kappa^2 / (lambda n)
instead: 4 kappa times that, too small as soon as 4 kappa < 1. Its classical Gaussian scale sqrt(2 ln(2 / delta)) /
epsilon has 32 % to spare at (1, 1e-5), so the claim itself fails from 4 kappa = 0.755 downwards.

Here two data sets that differ in one record attain the right bound. One answer at that record's place then
distinguishes them as well as a Gaussian mechanism of that shift and scale allows: its exact epsilon is printed beside
the nominal one. The library's own mechanism uses the right constant; nothing in it uses the printed one.

    python experiments/dp_cate/lemma1_constant.py
"""

import math
from pathlib import Path

import torch

from torchdpcate import Domain
from torchdpcate.causal.score import ScoreBounds
from torchdpcate.fit.kernels import UnitKernel
from torchdpcate.heads.kernel import KernelStage
from torchdpcate.heads.kernel_system import ResidualLoss
from torchdpcate.heads.stage import SecondStageBlock
from torchdpcate.privacy.calibration import analytic_gaussian_sigma, gaussian_epsilon

EPSILON, DELTA = 1.0, 1e-5
N, THRESHOLD, RIDGE = 200, 0.01, 0.05  # the ridge of the unit kernel
CASES = ((1, 1.0), (2, 1.0), (2, 2.0), (4, 1.0), (8, 0.5), (8, 1.0), (12, 1.0))
LARGEST = 60.0
PAGE = """\
# The printed constant of the kernel release is wrong

Written by `python experiments/dp_cate/lemma1_constant.py`, for comparison alone: **no mechanism here uses the printed
constant.**

Lemma 1 and Theorem 3 (equation 19) of Schroeder, Melnychuk & Feuerriegel (2025) scale the noise of a released function
by 4 L kappa^2 / (lambda n), kappa^2 = (sqrt(2 pi) h)^(-q). One record moves the fit by up to L kappa / (lambda n) in
the kernel's norm: printed over right is 4 kappa. Below one it is too small; the claim itself fails below 0.755, as the
printed Gaussian scale sqrt(2 ln(2 / delta)) / epsilon has 32 % to spare. Two data sets of {records} records, one of
which differs, attain the right bound; the true epsilon is that of one answer at that record's place. Nominal:
({epsilon:g}, {delta:g}).

| q | h | moved | right bound | printed bound | 4 kappa | true epsilon, printed | true epsilon, ours |
| --- | --- | --- | --- | --- | --- | --- | --- |
{rows}

Above one the printed noise is needlessly large. At q = 8, h = 1 the nominal epsilon of 1 is 9.98. Unit kernels,
K(x, x) = 1, have no such constant to get wrong.
"""


def neighbours(q: int, bandwidth: float) -> tuple[KernelStage, KernelStage]:
    """Fits to two data sets that differ in record 0, which stands apart from the others and has s = 1 or s = -1.

    All residuals stay beyond the Huber threshold on both, so the others pull as hard on either.
    """
    domain = Domain([-1.0] * q, [1.0] * q, -1.0, 1.0)  # scaling changes nothing: h is in the covariates' own units
    x, s = -torch.ones(N, q, dtype=torch.float64), torch.ones(N, dtype=torch.float64)
    x[0] = 1.0
    kernel, stages = UnitKernel("gaussian", bandwidth, domain), []
    for first in (1.0, -1.0):
        s = s.clone()
        s[0] = first
        block = SecondStageBlock(x, s, torch.ones_like(s), lambda x, a, y: (y, a), domain, ScoreBounds(1, 1, 1, 1))
        stages.append(KernelStage(block, kernel, RIDGE, ResidualLoss(THRESHOLD)))
    return stages[0], stages[1]


def case(q: int, bandwidth: float) -> str:
    """One row of the table, all in the norm of the paper's kernel."""
    kappa = (math.sqrt(2 * math.pi) * bandwidth) ** (-q / 2)
    first, second = neighbours(q, bandwidth)
    here, other = first.block.x[:1], first.coefficients - second.coefficients
    moved = first.system.norm(other) / kappa  # w = 1; the paper's norm is the unit kernel's over kappa
    ridge, slope = RIDGE * kappa**2, 2 * THRESHOLD  # lambda ||f||^2 is the same number in both norms
    right, printed = slope * kappa / (ridge * N), 4 * slope * kappa**2 / (ridge * N)
    shift = abs((first.correction(here) - second.correction(here)).item())
    noise = printed * math.sqrt(2 * math.log(2 / DELTA)) / EPSILON * kappa  # of one answer, K(x, x) = kappa^2
    true = _epsilon(noise / shift)
    ours = _epsilon(right * analytic_gaussian_sigma(EPSILON, DELTA) * kappa / shift)
    cells = (q, f"{bandwidth:g}", f"{moved:.4g}", f"{right:.4g}", f"{printed:.4g}", f"{4 * kappa:.3g}", true, ours)
    return "| " + " | ".join(map(str, cells)) + " |"


def _epsilon(multiplier: float) -> str:
    if 1 / (2 * multiplier**2) > LARGEST:
        return f"over {LARGEST:g}"
    return f"{gaussian_epsilon(multiplier, DELTA):.2f}"


def main() -> None:
    """Write lemma1_constant.md beside this file."""
    rows = "\n".join(case(*setting) for setting in CASES)
    path = Path(__file__).with_suffix(".md")
    path.write_text(PAGE.format(records=N, epsilon=EPSILON, delta=DELTA, rows=rows), encoding="utf-8")
    print(path.read_text(encoding="utf-8"))


if __name__ == "__main__":
    main()
