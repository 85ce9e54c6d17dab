"""Which policy is chosen, at which epsilon and by which calibration: table 3. Exact laws, no draws of the mechanism."""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor

from experiments.policy_selection.calibrations import (
    NAIVE,
    TWO_SIDED_RANGE,
    spreads,
)
from experiments.policy_selection.design import CONTROL, Draw, Population, boosted_trees, frozen_trees, ridge
from experiments.policy_selection.movement import Moves
from torchdpcate.causal.arm_scores import dr_scores
from torchdpcate.data.records import CausalData
from torchdpcate.estimators.selection.utilities import utilities
from torchdpcate.nuisance.arms.base import GuaranteedNuisances, ScoreNuisances
from torchdpcate.nuisance.arms.fixed import FixedNuisances
from torchdpcate.nuisance.arms.private import PrivateNuisances
from torchdpcate.nuisance.arms.stable import StableNuisances
from torchdpcate.nuisance.config import NuisanceConfig
from torchdpcate.nuisance.convex import ConvexNuisanceConfig
from torchdpcate.nuisance.recipe import NuisanceRecipe
from torchdpcate.privacy.budget import PrivacyBudget
from torchdpcate.privacy.guarantee import Level
from torchdpcate.privacy.noise import NoiseSource
from torchdpcate.privacy.selection_mechanisms import SELECTIONS, expected_regret
from torchdpcate.privacy.session import FitSession

EPSILONS = (0.5, 1.0, 2.0, 4.0, 8.0)
DELTA = 1e-5  # of private nuisances
HEURISTIC = str(Level.HEURISTIC)
MECHANISMS = ("exponential", "permute_and_flip")
CONVEX: dict[str, NuisanceRecipe] = {
    "private, convex": ConvexNuisanceConfig(),
    "private, convex, one propensity": ConvexNuisanceConfig(degree=1, propensity_degree=0),
}
NETWORKS: dict[str, NuisanceRecipe] = {
    "private, DP-SGD": NuisanceConfig(),
}
Rows = Iterator[dict[str, Any]]


@dataclass(frozen=True, eq=False)
class Scored:
    """Utilities of all policies, by ``records`` scoring records; spread and level of the nuisances' guarantee."""

    utilities: Tensor
    records: int
    spread: float
    level: str


def scored(
    recipe: ScoreNuisances, population: Population, draw: Draw, epsilon: float | None = None, all_score: bool = False
) -> Scored:
    """Fit nuisances, privately for an epsilon, and score with them.

    Args:
        recipe: The nuisances.
        population: Where the records come from.
        draw: The records.
        epsilon: What the training block spends; None fits without privacy.
        all_score: Whether training records score too.
    """
    score = draw.both if all_score else draw.score
    certified = fitted(recipe, population, draw, score.n, epsilon)
    nuisances, x = certified.nuisances, score.x
    phi = dr_scores(score.a.long(), score.y, nuisances.propensity(x), nuisances.outcome(x))
    return Scored(
        utilities(phi.double(), population.library, x), score.n, certified.range_sensitivity, str(recipe.level)
    )


def fitted(
    recipe: ScoreNuisances, population: Population, draw: Draw, scoring: int, epsilon: float | None
) -> GuaranteedNuisances:
    """Nuisances of a draw; their noise is a fixed one, so that numbers can be had again: not private."""
    train: CausalData | None = draw.train if recipe.trains else None
    seed = draw.seed if epsilon is None else 1000 * draw.seed + round(10 * epsilon)
    budget = None if epsilon is None else PrivacyBudget(epsilon, DELTA)
    facts = replace(population.facts(scoring), seed=draw.seed)
    return recipe.fit(train, facts, session=FitSession(NoiseSource.fixed(seed), budget))


def choice_rows(
    row: str,
    level: str,
    found: Scored,
    spread: float,
    regrets: Tensor,
    epsilons: tuple[float, ...],
    left: float = 1.0,
) -> Rows:
    """One row at every epsilon by both mechanisms; ``left`` is the share of epsilon that the choice may spend."""
    for epsilon in epsilons:
        for name in MECHANISMS:
            law = SELECTIONS.find(name)(left * epsilon, spread).probabilities(found.utilities)
            yield {
                "row": row,
                "level": level,
                "mechanism": name,
                "epsilon": epsilon,
                "width": spread,
                "regret": float(law @ regrets),
                "by the scores": float(expected_regret(found.utilities, law)) / found.records,
            }


def choice(population: Population, draw: Draw) -> Rows:
    """Table 3, but for nuisances by DP-SGD."""
    regrets, facts = population.regrets, population.facts()
    yield {"row": "uniform", "level": "public", "regret": float(regrets.mean())}
    recipes: dict[str, ScoreNuisances] = {
        "truth": population.truth,
        "control": ridge(CONTROL),
        "ridge 1": ridge(1.0),
        "smallest": StableNuisances(target=None),
        "frozen": frozen_trees(draw.public),
        "constants": FixedNuisances(),
        "target 0.4": FixedNuisances(outcome=0.4),
        "target 0": FixedNuisances(outcome=0.0),
    }
    found = {name: scored(recipe, population, draw) for name, recipe in recipes.items()}
    trees = Moves("boosted trees", boosted_trees(), population, draw)
    found["trees"] = Scored(trees.refits.base, draw.score.n, math.inf, HEURISTIC)
    for name in ("truth", "control", "ridge 1", "trees", "constants"):
        best = found[name].utilities.argmax()
        yield {"row": f"argmax: {name}", "level": "not private", "regret": float(regrets[best])}

    rows = [
        ("truth, two-sided range", "truth", TWO_SIDED_RANGE),
        ("truth, bounded range", "truth", found["truth"].range_sensitivity),
        *((f"control, {name}", "control", width) for name, width in spreads(CONTROL, facts).items()),
        ("ridge, smallest", "smallest", found["smallest"].range_sensitivity),
        ("frozen trees", "frozen", found["frozen"].range_sensitivity),
        ("constants", "constants", found["constants"].range_sensitivity),
        ("constants, target 0.4", "target 0.4", found["target 0.4"].range_sensitivity),
        ("constants, target 0", "target 0", found["target 0"].range_sensitivity),
    ]
    for row, name, spread in rows:
        yield from choice_rows(row, found[name].level, found[name], spread, regrets, EPSILONS)
    unproved = [
        ("control, naive", "control", NAIVE),
        ("trees, naive", "trees", NAIVE),
        ("trees, sampled x 1.3", "trees", trees.sampled),
    ]
    for row, name, spread in unproved:
        yield from choice_rows(row, HEURISTIC, found[name], spread, regrets, EPSILONS)
    everybody = scored(FixedNuisances(), population, draw, all_score=True)
    yield from choice_rows(
        "constants, all records", everybody.level, everybody, everybody.range_sensitivity, regrets, EPSILONS
    )
    yield from private(CONVEX, population, draw)


def default(population: Population, draw: Draw) -> Rows:
    """Table 3: the library's default, shrunk towards private means of the training block."""
    recipe = StableNuisances()
    for epsilon in EPSILONS:
        found = scored(recipe, population, draw, epsilon)
        regrets, left = population.regrets, 1 - recipe.budget_fraction
        yield from choice_rows(
            "ridge, private target", found.level, found, found.range_sensitivity, regrets, (epsilon,), left
        )


def networks(population: Population, draw: Draw) -> Rows:
    """Table 3: nuisances by DP-SGD."""
    yield from private(NETWORKS, population, draw)


def private(recipes: dict[str, NuisanceRecipe], population: Population, draw: Draw) -> Rows:
    """Private nuisances, fitted and used at each epsilon."""
    for row, recipe in recipes.items():
        for epsilon in EPSILONS:
            found = scored(PrivateNuisances(recipe), population, draw, epsilon)
            yield from choice_rows(row, found.level, found, found.range_sensitivity, population.regrets, (epsilon,))
