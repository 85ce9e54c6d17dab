"""The simulated trial: supplementary Table 1 and Figure 1."""

import math
from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor

from experiments.dp_werm.batch import scores
from experiments.dp_werm.trial import LAW, Trials
from experiments.dp_werm.tuning import MOST_WEIGHT, output_noise, tuned
from experiments.frame.study import CERTIFIED, FREE, OTHER, PRINTED, Cell, Found, Place, Settings, batches, seed_of
from torchdpcate.estimators.rules.effect_rule import EffectRule
from torchdpcate.estimators.rules.outcome import PrivateResidual, Shifted
from torchdpcate.estimators.rules.weighted_erm import default_ridge
from torchdpcate.privacy.budget import PrivacyBudget
from torchdpcate.privacy.noise import NoiseSource

TABLE, FIGURE = "supp_table1_owl", "figure1"
TABLE_SIZES, SIZES = (200, 500, 800, 1000), (1000, 200, 500, 800, 1500, 2000, 2500)
TABLE_EPSILONS = (0.1, 0.5, 1.0, 2.0, 5.0)
EPSILONS = (*TABLE_EPSILONS, 20.0, 50.0, 150.0, 300.0, 500.0, 800.0, 1000.0)
REPEATS, RESAMPLES, TEST = 200, 1_000, 5_000
SHIFT = Shifted(-7.5, 7.5)
BATCH = 50  # repeats of the certified rule in a cell


def cells(settings: Settings) -> Iterator[Cell]:
    """Yield the paper's and ours for each size; the paper's tunes for all budgets of a size at once."""
    repeats, resamples = (20, 50) if settings.quick else (REPEATS, RESAMPLES)
    for n in (1000, 200) if settings.quick else SIZES:
        yield {"part": "simulated", "who": "paper", "n": n, "repeats": repeats, "resamples": resamples}
        for first, count in batches(repeats, BATCH):
            for epsilon in EPSILONS:
                cell = {"part": "simulated", "who": "ours", "n": n, "first": first, "repeats": count}
                yield cell | {"epsilon": epsilon}


def compute(cell: Cell) -> Iterator[Found]:
    """Yield what a cell finds."""
    n, repeats = int(cell["n"]), int(cell["repeats"])
    if cell["who"] == "paper":
        yield from _paper(n, repeats, int(cell["resamples"]))
    else:
        yield from _ours(n, float(cell["epsilon"]), int(cell["first"]), repeats)


def data(n: int, first: int, repeats: int) -> tuple[Trials, Trials]:
    """Return data sets and their test sets, which depend on n and the repeat alone."""
    drawn: list[tuple[Trials, Trials]] = []
    for repeat in range(first, first + repeats):
        generator = torch.Generator().manual_seed(seed_of("simulated trial", n, repeat))
        drawn.append((Trials.draw(1, n, generator), Trials.draw(1, TEST, generator)))
    train, test = (Trials(*(torch.cat(parts) for parts in zip(*((t.x, t.a, t.y) for t in side), strict=True)))
                   for side in zip(*drawn, strict=True))  # fmt: skip
    return train, test


def _paper(n: int, repeats: int, resamples: int) -> Iterator[Found]:
    """Yield output perturbation by the paper's ridge and shift, the same with a public shift, and no privacy."""
    chosen = tuned(n, (*EPSILONS, math.inf), resamples)
    train, test = data(n, 0, repeats)
    problem, public, psi = train.problem(None, False), train.problem(SHIFT, False), test.features(False)
    label = "output perturbation"
    for epsilon, ridge in chosen.items():
        gamma, noise = ridge / MOST_WEIGHT, NoiseSource.fixed(seed_of("paper", n, epsilon))
        theta = output_noise(problem, gamma, epsilon, problem.fit(gamma), noise)
        role, level = (FREE, "not private") if math.isinf(epsilon) else (PRINTED, "none holds")
        name = "outcome weighted learning" if math.isinf(epsilon) else f"{label}, shift by the sample's least"
        yield from _found(n, epsilon, role, name, level, test, scores(psi, theta) > 0)
        where = replace(place(n, epsilon, "ridge_of_algorithm_2"), table=FIGURE)
        yield Found(where, OTHER, label, level, [float(ridge)])
        if math.isfinite(epsilon):
            theta = output_noise(public, gamma, epsilon, public.fit(gamma), noise)
            decided = scores(psi, theta) > 0
            yield from _found(n, epsilon, OTHER, f"{label}, public shift", "certified", test, decided)


def _ours(n: int, epsilon: float, first: int, repeats: int) -> Iterator[Found]:
    """Yield the rule by default, pure, and the library's outcome weighted learning by default."""
    train, test = data(n, first, repeats)
    schema, decided = LAW.schema(), []
    for run in range(repeats):
        noise = NoiseSource.fixed(seed_of("ours", n, epsilon, first + run))
        y = train.y[run].clamp(*LAW.outcome_bounds)
        learner = EffectRule(schema, PrivacyBudget(epsilon, 0.0), noise=noise)
        decided.append(learner.fit(train.x[run], train.a[run], y).release().answer(test.x[run]) > 0)
    yield from _found(n, epsilon, CERTIFIED, "task=rule, default, delta = 0", "certified", test, torch.stack(decided))
    noise = NoiseSource.fixed(seed_of("owl", n, epsilon, first))
    words = (OTHER, "task=owl, default", "certified")
    yield from _found(n, epsilon, *words, test, _owl(train, test, epsilon, noise))


def _owl(train: Trials, test: Trials, epsilon: float, noise: NoiseSource) -> Tensor:
    """Return decisions of signed residuals with private constants, box noise and the default ridge."""
    outcome = PrivateResidual()
    problem = train.private(outcome, epsilon, noise)
    left = epsilon * (1 - outcome.budget_fraction)
    gamma = default_ridge(train.y.shape[1], left, problem.bounds, problem.loss.curvature)
    theta = problem.release(gamma, "objective", "box", PrivacyBudget(left, 0.0), noise)
    return scores(test.features(True), theta) > 0


def _found(
    n: int, epsilon: float, role: str, method: str, level: str, test: Trials, decided: Tensor
) -> Iterator[Found]:
    """Yield accuracy and value of decisions [runs, m]; a rule that agrees with no treatment has no value."""
    found = {"accuracy_percent": test.correct(decided), "treatment_value": test.value(decided)}
    for metric, values in found.items():
        yield Found(place(n, epsilon, metric), role, method, level, values[values.isfinite()].tolist())


def place(n: int, epsilon: float, metric: str) -> Place:
    """Return where a number of the simulated trial belongs: in the supplement's table if it has that n and epsilon."""
    in_table = n in TABLE_SIZES and (epsilon in TABLE_EPSILONS or math.isinf(epsilon))
    return Place(TABLE if in_table else FIGURE, "simulated_trial", str(n), f"{epsilon:g}", "", metric)
