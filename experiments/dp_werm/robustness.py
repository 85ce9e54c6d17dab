"""Supplementary Figures 1 to 4: does a public data set of another law still tune the ridge?"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from statistics import fmean

import torch
from torch import Tensor

from experiments.dp_werm.batch import Batch, accuracy
from experiments.dp_werm.trial import MOST, shifted
from experiments.dp_werm.tuning import AT_ONCE, GRID, MOST_WEIGHT, output_noise
from experiments.frame.study import OTHER, Cell, Found, Place, Settings, seed_of
from torchdpcate.fit.private_fit import WeightBounds
from torchdpcate.privacy.noise import NoiseSource

SIZES, EPSILONS = (200, 500, 1000, 2000), (0.5, 1.0, 5.0, 20.0, 150.0)
REPEATS, TRAINED = 1_000, 0.8
WINDOW = 0.95  # of the best accuracy
CURVE, BEST, LOST, WITHIN = (
    "accuracy_percent_by_ridge",
    "best_ridge",
    "accuracy_points_lost_with_it",
    "within_5_percent",
)
SHARE, WORST = "share_of_budgets_and_laws_within_5_percent", "most_accuracy_points_lost"
METHOD, LEVEL = "output perturbation", "none holds"


@dataclass(frozen=True)
class Public:
    """A law of public data.

    Attributes:
        coefficients: Of f, the intercept first.
        size: n_0.
        means: Of covariates, normals truncated to (0, 1) of deviation 1/4; None takes uniform ones.
    """

    coefficients: tuple[float, ...]
    size: int = 1_000
    means: float | None = None

    def draw(self, generator: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
        """Draw covariates [n_0, p], treatments and outcomes."""
        shape = self.size, len(self.coefficients) - 1
        x = torch.rand(*shape, generator=generator, dtype=torch.float64)
        if self.means is not None:
            # the quantiles of a normal, between those of 0 and 1
            low, high = (torch.special.ndtr(torch.tensor(4 * (end - self.means)).double()) for end in (0.0, 1.0))
            x = self.means + torch.special.ndtri(low + (high - low) * x) / 4
        a = (torch.rand(self.size, generator=generator) < 0.5).double()
        noise = 0.5 * torch.randn(self.size, generator=generator, dtype=torch.float64)
        return x, a, 0.01 + 0.02 * x[:, -1] + 3 * (2 * a - 1) * self.effect(x) + noise

    def effect(self, x: Tensor) -> Tensor:
        """Return f at covariates [..., p]."""
        return self.coefficients[0] + x @ x.new_tensor(self.coefficients[1:])


def _sparse(p: int) -> Public:
    slopes = (1.0, 1.0, -1.8, -2.2, 1.0, 1.0, -1.8, -2.2)[:p]  # the paper's four, then again: its others are not stated
    return Public((-sum(slopes) / 2, *slopes))


PAPER = (1.0, 1.0, 1.0, -1.8, -2.2)
LAWS = {
    "supp_figure1_size": {f"n_0 = {size}": Public(PAPER, size) for size in (100, 500, 1000, 2500)},
    "supp_figure2_coefficients": {
        "theta_0": Public(PAPER),
        "theta_1": Public((1.0, -1.0, -1.0, 1.5, -1.5)),
        "theta_2": Public((1.0, -0.5, 0.5, 1.0, 1.5, -2.5, -2.0)),
    },
    "supp_figure3_covariates": {"uniform": Public(PAPER)}
    | {f"normal, mean {mean:g}": Public(PAPER, means=mean) for mean in (0.25, 0.5, 0.75)},
    "supp_figure4_number": {f"p = {p}": _sparse(p) for p in (4, 2, 6, 8)},
}
"""Laws by figure; the first of each but the sizes' is that of the private data, there n_0 = 1,000 is."""


def reference(figure: str) -> str:
    """Return the name of the law that a figure's others are compared with."""
    return "n_0 = 1000" if figure == "supp_figure1_size" else next(iter(LAWS[figure]))


def cells(settings: Settings) -> Iterator[Cell]:
    """Yield one a figure and size."""
    for n in (1000,) if settings.quick else SIZES:
        for figure in LAWS:
            yield {"part": "robustness", "figure": figure, "n": n, "repeats": 40 if settings.quick else REPEATS}


def compute(cell: Cell) -> Iterator[Found]:
    """Yield each law's curve, its best ridge, what that ridge loses on the private data's law, and a summary."""
    figure, n = str(cell["figure"]), int(cell["n"])
    laws = LAWS[figure]
    curves = {name: _curves(law, n, int(cell["repeats"])) for name, law in laws.items()}
    losses, near = [], []
    for k, epsilon in enumerate(EPSILONS):
        private = curves[reference(figure)][k].mean(1)
        for name in laws:
            place = (figure, name, str(n), f"{epsilon:g}")
            best = int(curves[name][k].mean(1).argmax())
            for gamma, values in zip(GRID, curves[name][k], strict=True):
                # pooled over splits here: a study of 1,000 would carry half a million numbers
                mean = [values.mean().item()]
                yield Found(Place(*place, f"ridge {gamma}", CURVE), OTHER, METHOD, LEVEL, mean)
            lost = (private.max() - private[best]).item()
            within = float(private[best] >= WINDOW * private.max())
            for metric, value in {
                BEST: float(GRID[best]),
                LOST: lost,
                WITHIN: within,
            }.items():
                yield Found(Place(*place, "", metric), OTHER, METHOD, LEVEL, [value])
            if name != reference(figure):
                losses.append(lost)
                near.append(within)
    for metric, value in {SHARE: fmean(near), WORST: max(losses)}.items():
        yield Found(Place(figure, "all other laws", str(n), "all", "", metric), OTHER, METHOD, LEVEL, [value])


@cache
def _curves(law: Public, n: int, repeats: int) -> Tensor:
    """Return accuracies [budgets, ridges, repeats] on validation records, in per cent; a law of two figures once."""
    seed = seed_of("tuning robustness", law, n)
    generator = torch.Generator().manual_seed(seed)
    x, a, y = law.draw(generator)
    psi = torch.cat([torch.ones_like(x[:, :1]), x], 1) / math.sqrt(x.shape[1] + 1)
    weight, cut = (shifted(y[None])[0] / MOST).clamp(max=1), int(TRAINED * law.size)
    found = torch.empty(len(EPSILONS), len(GRID), repeats, dtype=torch.float64)
    for first in range(0, repeats, AT_ONCE):
        runs = min(AT_ONCE, repeats - first)
        order = torch.stack([torch.randperm(law.size, generator=generator) for _ in range(runs)])
        rest, held = order[:, :cut], order[:, cut:]
        rows = rest[:, :n] if n <= cut else rest.gather(1, torch.randint(cut, (runs, n), generator=generator))
        problem = Batch(psi[rows], 2 * a[rows] - 1, weight[rows], WeightBounds.per_record(1.0))
        for j, gamma in enumerate(GRID):
            theta = problem.fit(gamma / MOST_WEIGHT)
            for k, epsilon in enumerate(EPSILONS):
                noise = NoiseSource.fixed(seed_of(seed, epsilon, first))
                private = output_noise(problem, gamma / MOST_WEIGHT, epsilon, theta, noise)
                found[k, j, first : first + runs] = 100 * accuracy(psi[held], private, law.effect(x[held]))
    return found
