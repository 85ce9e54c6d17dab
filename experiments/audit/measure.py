"""Influence against truth: how far one record really moves a fit and its noise scale, against what Theorem 1 takes.

The mechanism ``influence`` (Schroeder, Melnychuk & Feuerriegel 2025, Theorem 1) adds noise as if
Sigma(D) = gamma(D) sqrt(ln n) / n were a smooth bound of the local sensitivity: (C1) no neighbour moves the
answers by more than Sigma(D), and (C2) Sigma(D) <= e^xi Sigma(D') for every neighbour, as the scale itself leaks
(theory note ``dp_cate``, section 3.5). Both are measured here on searched neighbours. Everything is the curator's.
"""

import dataclasses
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch import Tensor

from experiments.audit.neighbours import Retrain, refitted, worst_neighbour
from experiments.audit.scale_search import ScaleSearch
from torchdpcate.errors import NumericalError
from torchdpcate.heads.influence import InfluenceFunction
from torchdpcate.heads.stage import LinearStage, ParametricStage
from torchdpcate.heads.supremum import Supremum, gross_error_sensitivity
from torchdpcate.privacy.calibration import analytic_gaussian_sigma, smooth_sensitivity_multiplier, smoothness

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure


@dataclass(frozen=True, eq=False)
class Case:
    """A fitted stage and where its answers are requested.

    Attributes:
        stage: The fitted stage; a linear one is taken with the squared loss, as the mechanism does.
        queries: Covariates, [d, q].
        retrain: Fits a block from scratch by the same recipe and seed; for neural heads.
    """

    stage: ParametricStage
    queries: Tensor
    retrain: Retrain | None = None


def influence_versus_truth(
    stage_factory: Callable[[int, int, int], Case],
    ns: Sequence[int],
    parameters: Sequence[int],
    seed: int = 0,
    *,
    epsilon: float = 1.0,
    delta: float = 1e-5,
    starts: int = 256,
) -> "pd.DataFrame":
    r"""Measure (C1) and (C2) on searched neighbours, over n and over parameters per record.

    The changes are attained and gamma is searched, as in the mechanism; so a ratio above one refutes the condition
    at that data set (unless the search for gamma missed), and one below it proves nothing.

    Args:
        stage_factory: (n, parameter, seed) -> the case.
        ns: Records of the second-stage block.
        parameters: What the factory takes as the size of the head: a degree, a number of frequencies, a width.
        seed: Of the factory and the searches.
        epsilon: For the smoothness xi.
        delta: For the smoothness xi.
        starts: Starting points of every search.

    Returns:
        One row for each n and parameter: ``n``, ``parameter``, ``p``, ``per_record`` = p / n, ``gamma``, ``scale`` =
        gamma sqrt(ln n) / n, ``change``, ``ratio`` = change / scale, ``retrained_ratio``, ``gamma_ratio`` (of D and
        a neighbour, the larger over the smaller), ``xi``, ``smooth_ratio`` = gamma_ratio / e^xi, ``leak`` =
        ln(gamma_ratio) / xi, ``delta_scale`` (`scale_delta` at epsilon), and ``note``, which says why figures are
        missing.
    """
    import pandas as pd

    rows = []
    for n in ns:
        for parameter in parameters:
            row = {"n": n, "parameter": parameter, "note": ""}
            try:
                case = stage_factory(n, parameter, seed)
                row |= {"p": case.stage.theta.numel(), "per_record": case.stage.theta.numel() / n}
                row |= measure(case, epsilon=epsilon, delta=delta, starts=starts, seed=seed)
            except NumericalError as error:
                row["note"] = str(error)
            rows.append(row)
    return pd.DataFrame(rows, columns=[*_KEYS, *_FIGURES, "note"])


_KEYS = ("n", "parameter", "p", "per_record")
_FIGURES = (
    "gamma",
    "scale",
    "change",
    "ratio",
    "retrained_ratio",
    "gamma_ratio",
    "xi",
    "smooth_ratio",
    "leak",
    "delta_scale",
)


def scale_delta(ratio: float, dimension: int, epsilon: float) -> float:
    r"""Return the delta at epsilon between N(m, sd^2 I_d) and N(m, (ratio sd)^2 I_d): what the scale alone leaks.

    The likelihood ratio is a function of the squared distance from m, whose laws are chi-squared. Means that
    differ only make it larger (theory note ``dp_cate``, section 3.5).

    Args:
        ratio: The larger scale over the smaller, at least 1.
        dimension: Number d of answers.
        epsilon: At which delta is wanted.

    Example:
        >>> round(scale_delta(1 + 0.25 / 13.5, 300, 1.0), 4)  # the note's counterexample
        0.0049
    """
    from scipy.stats import chi2

    if ratio <= 1:
        return 0.0
    curvature, growth = (1 - ratio**-2) / 2, dimension * math.log(ratio)
    far, near = (growth + epsilon) / curvature, (growth - epsilon) / curvature
    wide = chi2.sf(far / ratio**2, dimension) - math.exp(epsilon) * chi2.sf(far, dimension)
    narrow = chi2.cdf(near, dimension) - math.exp(epsilon) * chi2.cdf(near / ratio**2, dimension)
    return max(float(wide), float(narrow), 0.0)


def measure(
    case: Case, *, epsilon: float = 1.0, delta: float = 1e-5, starts: int = 256, seed: int = 0
) -> dict[str, float]:
    """Return the figures of one case, as named in `influence_versus_truth`.

    Raises:
        NumericalError: A neural head that is at no strict minimum, or whose neighbours cannot be polished.
    """
    stage = case.stage.squared() if isinstance(case.stage, LinearStage) else case.stage
    n, queries = len(stage.block.s), case.queries
    gamma = _gamma(stage, queries, starts, seed)
    scale = gamma.value * math.sqrt(math.log(n)) / n
    worst = worst_neighbour(stage, queries, starts=starts, seed=seed, retrain=case.retrain)
    blocks = [worst.block(stage.block)]
    if isinstance(stage, LinearStage):
        blocks += [ScaleSearch(stage, queries, gamma, sign).worst_block(starts, seed) for sign in (1.0, -1.0)]
    others = [_gamma(refitted(stage, block), queries, starts, seed).value for block in blocks]
    gamma_ratio = max(max(gamma.value, other) / min(gamma.value, other) for other in others)
    xi = smoothness(epsilon, delta, len(queries))
    return {
        "gamma": gamma.value,
        "scale": scale,
        "change": worst.change,
        "ratio": worst.change / scale,
        "retrained_ratio": worst.retrained / scale,
        "gamma_ratio": gamma_ratio,
        "xi": xi,
        "smooth_ratio": gamma_ratio / math.exp(xi),
        "leak": math.log(gamma_ratio) / xi,
        "delta_scale": scale_delta(gamma_ratio, len(queries), epsilon),
    }


def _gamma(stage: ParametricStage, queries: Tensor, starts: int, seed: int) -> Supremum:
    """Gamma in outcome units and where it is attained, as the mechanism searches it."""
    block = stage.block
    influence = InfluenceFunction(
        stage.model, stage.theta, block.x, block.s, block.w, stage.ridge, queries.to(stage.theta)
    )
    found = gross_error_sensitivity(influence, block.regression, block.domain, starts=starts, seed=seed)
    return dataclasses.replace(found, value=stage.unit * found.value)


def breaking_ratio(epsilon: float, delta: float) -> float:
    """Return the change over Sigma(D) beyond which the moved answers alone break (epsilon, delta), scales being equal.

    Theorem 1's noise is 5 sqrt(2 ln(2/delta)) / epsilon times Sigma(D), more than the analytic Gaussian needs for a
    change of Sigma(D): a ratio between 1 and this one breaks the proof, a larger one the claim.

    Example:
        >>> round(breaking_ratio(1.0, 1e-5), 3)
        6.622
    """
    return smooth_sensitivity_multiplier(epsilon, delta) / analytic_gaussian_sigma(epsilon, delta)


def truth_figure(table: "pd.DataFrame", epsilon: float = 1.0, delta: float = 1e-5) -> "Figure":
    """Draw change over scale, and how fast the scale leaks, against n and against parameters per record.

    Args:
        table: Rows of `influence_versus_truth` with a column ``head`` that names the kind of head.
        epsilon: For the `breaking_ratio`.
        delta: For the `breaking_ratio`.

    Returns:
        A matplotlib figure, the curator's; the caller saves it.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9.0, 6.6), layout="constrained")
    axes = figure.subplots(2, 2, sharey="row", sharex="col")
    panels = (("ratio", "true change / Sigma(D)"), ("leak", "|ln gamma(D) / gamma(D')| / xi"))
    for row, (column, label) in zip(axes, panels, strict=True):
        for axis, key in zip(row, ("n", "per_record"), strict=True):
            for i, (head, rows) in enumerate(table.groupby("head", sort=False)):
                rows = rows.dropna(subset=[column])
                axis.plot(rows[key], rows[column], "os^Dv*"[i % 6], color=f"C{i}", ms=5, alpha=0.75, label=head)
                if column == "ratio":
                    axis.plot(rows[key], rows["retrained_ratio"], "x", color=f"C{i}", ms=7)
                if key == "n":
                    worst = rows.groupby("n")[column].max()
                    axis.plot(worst.index, worst, color=f"C{i}", lw=1)
            axis.axhline(1, color="k", lw=1, ls="--")
            if column == "ratio":
                axis.axhline(breaking_ratio(epsilon, delta), color="k", lw=1, ls=":")
            axis.set_xscale("log")
            axis.set_yscale("log")
            axis.spines[["top", "right"]].set_visible(False)
            axis.grid(alpha=0.3, lw=0.5)
        row[0].set_ylabel(f"{label}\nabove 1: the condition fails")
    axes[1, 0].set_xlabel("n, records of the second-stage block")
    axes[1, 1].set_xlabel("parameters per record, p / n")
    axes[0, 0].set_title("(C1) change of the answers, worst neighbour found", fontsize=9)
    axes[0, 1].set_title("crosses: fitted again from scratch; dotted: the claim itself breaks", fontsize=9)
    axes[1, 0].set_title("(C2) the scale's own change, worst neighbour found", fontsize=9)
    handles, labels = axes[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=3, fontsize=8, frameon=False)
    return figure
