"""The default average effect of randomised data before and after: RMSEs, coverage and widths on the same draws.

``python -m experiments.average_effects.randomised`` writes a csv file a law and prints their
tables; cells that are done are kept. All noise is from fixed seeds: nothing here is private.
"""

import argparse
import math
import zlib
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from functools import cache, cached_property, partial
from itertools import product
from multiprocessing import get_context
from pathlib import Path

import torch
from torch import Tensor

from experiments.csv_files import Lines, read_lines, resume
from experiments.tables import table
from torchdpcate import AverageEffect, Domain, NoiseSource, PrivacyBudget
from torchdpcate.estimators.average.composed import ComposedAverageEffect
from torchdpcate.estimators.average.covariate_balancing import CovariateBalancingEffect
from torchdpcate.estimators.average.weighted import BalancedDifference
from torchdpcate.fit.feature_maps import on_domain
from torchdpcate.fit.stacked_records import Batch, StackedRecords
from torchdpcate.privacy.session import FitSession
from torchdpcate.release.estimate import half_width

HERE = Path(__file__).parent
N, EPSILONS, DELTA, LEVEL = 5_000, (0.5, 1.0), 1e-5, 0.95
TARGET = {0.5: 0.0110, 1.0: 0.0070}
EFFECT, DEVIATION = 0.1, 0.12
SLOPES = torch.tensor([0.12, 0.10, -0.08, 0.06], dtype=torch.float64)
AT_ONCE = 100  # data sets
NAMES = ("law", "epsilon", "method", "draws", "rmse", "rmse_error", "covered", "width")
Found = tuple[Tensor, Tensor]
"""Errors and half widths, one a data set."""


def _uniform(g: torch.Generator, runs: int) -> Tensor:
    x = 2 * torch.rand(runs, N, 4, generator=g, dtype=torch.float64) - 1
    x[..., 3] = x[..., 3].sign()
    return x


def _normal(g: torch.Generator, runs: int) -> Tensor:
    """Within public bounds of three deviations, over which they are scaled."""
    return torch.randn(runs, N, 4, generator=g, dtype=torch.float64).clamp(-3, 3) / 3


def _even(g: torch.Generator, runs: int) -> Tensor:
    return DEVIATION * torch.randn(runs, N, generator=g, dtype=torch.float64)


def _skewed(g: torch.Generator, runs: int) -> Tensor:
    return DEVIATION * (-torch.rand(runs, N, generator=g, dtype=torch.float64).log() - 1)


LAWS: dict[str, tuple[Callable[[torch.Generator, int], Tensor], Callable[[torch.Generator, int], Tensor], float]] = {
    "uniform covariates": (_uniform, _even, 0.5),
    "normal covariates": (_normal, _even, 0.5),
    "skewed outcomes": (_uniform, _skewed, 0.5),
    "one in five treated": (_uniform, _even, 0.2),
}
"""Covariates, what they leave of the outcome, and the share of the treated, which the domain does not state."""


def domain(law: str) -> Domain:
    """Return the public facts of a law: outcomes in [0, 1], overlap .1."""
    two = [False, False, False, law != "normal covariates"]
    return Domain([-1.0] * 4, [1.0] * 4, 0.0, 1.0, 0.1, two_levels=two, better="higher")


def data_sets(law: str, runs: int, seed: int) -> StackedRecords:
    """Return randomised data sets of an effect of .1 on everybody, before outcomes are cut off at their bounds."""
    covariates, residual, share = LAWS[law]
    g = torch.Generator().manual_seed(zlib.crc32(f"{law} {seed}".encode()))
    x = covariates(g, runs)
    z = (torch.rand(runs, N, generator=g, dtype=torch.float64) < share).double()
    y = (0.4 + x @ SLOPES + EFFECT * (z - 0.5) + residual(g, runs)).clamp(-0.6, 1.4)
    psi = on_domain(None, domain(law))(x.reshape(-1, 4)).reshape(runs, N, -1)
    return StackedRecords(Batch(x, psi, z, y.clamp(0, 1)))


@cache
def effect(law: str) -> float:
    """Return the average effect on outcomes within their bounds, of ten million records: at most ``EFFECT``."""
    covariates, residual, _ = LAWS[law]
    g, found = torch.Generator().manual_seed(0), []
    for _ in range(20):
        x = covariates(g, AT_ONCE)
        mean = 0.4 + x @ SLOPES + residual(g, AT_ONCE)
        found.append((mean + EFFECT / 2).clamp(0, 1).mean() - (mean - EFFECT / 2).clamp(0, 1).mean())
    return torch.stack(found).mean().item()


class OneByOne(BalancedDifference):
    """Each sum charged by itself, as before."""

    @cached_property
    def units(self) -> dict[str, Tensor]:
        """See ``BalancedDifference``."""
        epsilon = math.fsum(self.epsilons[part] for part in self.parts)
        return {part: moved * epsilon / self.epsilons[part] for part, moved in self.moved(self.facts).items()}


def _balancing(
    kind: type[BalancedDifference], ranges: bool, law: str, epsilon: float, records: StackedRecords, noise: NoiseSource
) -> Found:
    """Covariate balancing, with noise by released coefficients or by bounds for all."""
    plan = CovariateBalancingEffect(domain(law), PrivacyBudget(epsilon, 0.0)).plan(N)
    learnt = plan.learn(records, FitSession(noise))
    facts = plan.released(learnt)
    facts = facts if ranges else replace(facts, ranges=None)
    if kind is OneByOne:  # intervals did not count what noise in weights and outcome model do together
        facts = replace(facts, slope_bound=0.0)
    estimator = kind(facts, plan.epsilons)
    answers = estimator.ask(
        plan.total(records, learnt), lambda query, exact: estimator.laws[query].draw(noise, len(exact), exact)
    )
    found = estimator.concluded(answers)
    return found.estimate - effect(law), half_width(LEVEL, found.gaussian, found.laplace)


def _composed(law: str, epsilon: float, records: StackedRecords, noise: NoiseSource) -> Found:
    facts, found = domain(law), []
    for x, a, y in zip(records.batch.x, records.batch.z, records.batch.y, strict=True):
        learner = ComposedAverageEffect(facts, PrivacyBudget(epsilon, DELTA), noise=noise).fit(x, a, y)
        release = learner.release()
        low, high = release.interval(LEVEL)
        found.append((float(release.estimate) - effect(law), float(high - low) / 2))
    errors, halves = torch.tensor(found, dtype=torch.float64).T
    return errors, halves


METHODS: dict[str, Callable[[str, float, StackedRecords, NoiseSource], Found]] = {
    "bounds for all coefficients": partial(_balancing, OneByOne, False),
    "released coefficients": partial(_balancing, OneByOne, True),
    "one event": partial(_balancing, BalancedDifference, True),
    "composed": _composed,
}
"""Three states of covariate balancing, the oldest first, and the composition."""


def measure(draws: int, law: str, epsilon: float, method: str) -> Iterator[list[object]]:
    """Yield the line of a cell; all methods of a law see the same data sets."""
    torch.set_num_threads(1)
    errors, halves = [], []
    for seed, start in enumerate(range(0, draws, AT_ONCE)):
        records = data_sets(law, min(AT_ONCE, draws - start), seed)
        noise = NoiseSource.fixed(zlib.crc32(f"{law} {epsilon} {seed} noise".encode()))
        found = METHODS[method](law, epsilon, records, noise)
        errors.append(found[0])
        halves.append(found[1])
    error, half = torch.cat(errors), torch.cat(halves)
    squares = error.square()
    root = math.sqrt(squares.mean().item())
    spread = squares.std().item() / math.sqrt(len(squares)) / (2 * root)
    covered = (error.abs() <= half).double().mean().item()
    yield [len(error), f"{root:.6f}", f"{spread:.6f}", f"{covered:.4f}", f"{2 * half.mean().item():.5f}"]


def chosen(epsilon: float, delta: float) -> str:
    """Return what the default is at a budget, in the words of ``METHODS``."""
    effect = AverageEffect(domain(next(iter(LAWS))), PrivacyBudget(epsilon, delta)).choose(N).effect
    return {"covariate_balancing": "one event", "composed": "composed"}[effect]


def page(lines: Lines) -> str:
    """Return the page of all cells that are there."""
    heads = ["law", "epsilon", *METHODS, "to reach"]
    rows, covered = [heads], [heads[:-1]]
    for law, epsilon in product(LAWS, EPSILONS):
        cells = {line["method"]: line for line in lines if (line["law"], line["epsilon"]) == (law, str(epsilon))}
        key = [law, f"{epsilon:g}"]
        rows.append([*key, *(_root(cells.get(m)) for m in METHODS), f"{TARGET[epsilon]:.4f}"])
        covered.append([*key, *(_covered(cells.get(m)) for m in METHODS)])
    draws = sorted({int(line["draws"]) for line in lines})
    defaults = {delta: {chosen(epsilon, delta) for epsilon in EPSILONS} for delta in (0.0, DELTA)}
    return WORDS.format(
        draws=" or ".join(f"{d:,}" for d in draws),
        pure=" and ".join(sorted(defaults[0.0])),
        delta=" and ".join(sorted(defaults[DELTA])),
        errors=table(rows),
        covered=table(covered),
    )


def _root(line: Mapping[str, str] | None) -> str:
    return "-" if line is None else f"{float(line['rmse']):.4f} ± {float(line['rmse_error']):.4f}"


def _covered(line: Mapping[str, str] | None) -> str:
    return (
        "-" if line is None else f"{float(line['covered']):.1%} of {int(line['draws']):,}, {float(line['width']):.4f}"
    )


WORDS = """# The average effect of randomised data

Written by `python -m experiments.average_effects.randomised`.
5,000 records, four covariates, overlap .1, outcomes in [0, 1],
an effect of .1 but for what the bounds cut off, treatment randomised with a probability that the domain does not
state; {draws} data sets a cell, the same for all methods of a law. *Bounds for all coefficients*: covariate balancing
with the sensitivities of any coefficients, each sum charged by itself. *Released coefficients*: suprema over the domain
at those that were released. *One event*: all three sums together
([proof](../../docs/guarantees/average_effects.md)), with intervals that count what noise in weights and outcome
model do together, as those before did not. These are pure.
Figures of the first two are of an earlier run, which took the effect to be .1, at most .001 more than it is.
*Composed*: `effect=composed`, delta = 1e-5. The default (`effect=auto`) is *{pure}* at delta = 0 and *{delta}* at
delta = 1e-5.

Root mean squared error:

{errors}
Coverage of nominal 95 % intervals, and their mean width:

{covered}"""


def main() -> None:
    """Compute what is not done, and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--draws", type=int, default=2000)
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=list(METHODS))
    parser.add_argument("--processes", type=int, default=1, help="laws at once")
    parser.add_argument("--folder", type=Path, default=HERE)
    given = parser.parse_args()
    files = {law: given.folder / f"randomised_{law.replace(' ', '_')}.csv" for law in LAWS}
    work = [(files[law], law, given.draws, given.methods) for law in LAWS]
    with ProcessPoolExecutor(given.processes, mp_context=get_context("spawn")) as pool:
        list(pool.map(_law, *zip(*work, strict=True)))
    lines = [line for path in files.values() for line in read_lines(path)]
    print(page(lines))


def _law(path: Path, law: str, draws: int, methods: list[str]) -> None:
    resume(path, NAMES, product([law], EPSILONS, methods), partial(measure, draws))


if __name__ == "__main__":
    main()
