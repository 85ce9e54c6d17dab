"""Table 5, the certified control, and the true regret of choices by all calibrations against epsilon."""

from collections.abc import Iterator
from dataclasses import replace
from statistics import fmean

import torch
from torch import Tensor

from experiments.frame.study import CERTIFIED, FREE, NO_PRIVACY, OTHER, PRINTED, Found, Place, seed_of
from experiments.spillover.audited import TRAINING
from experiments.spillover.boosted import STABLE, Nuisances, boosted, errors, propensity, utilities
from experiments.spillover.design import CONTROL, CONTROL_COVARIATES, OVERLAP, WHOLE, Block, Law
from experiments.spillover.pairs import (
    ANY,
    ASSUMED,
    CONDITIONAL,
    DEFAULT,
    EPSILON,
    FLOOR,
    REGRET,
    Pair,
    default_regret,
    together,
)
from experiments.spillover.stable import IndirectBound, StableFits, indirect_bound
from torchdpcate.fit.arms.base import SelectionFacts
from torchdpcate.fit.arms.fixed import FixedNuisances
from torchdpcate.privacy.selection import SELECTIONS

TABLE, SETTING = "table5_certified_erm", "certified_erm_positive_control"
ROW = "ridge and logistic ERM, lambda = 50"
FIGURE = "regret against epsilon"
RADIUS, RIDGE = (CONTROL_COVARIATES + 1) ** 0.5, 50.0
PAIRS = 5  # neighbours a repeat
EPSILONS = (0.5, 1.0, 2.0, 4.0, 8.0)
PRINTED_CHOICE, PURE = "control as printed", "PolicySelector by default, delta = 0"
NOT_PRIVATE, BEST = "not private", "no privacy: largest utility"


def printed_bound() -> IndirectBound:
    """Return the paper's certificate, by its constants."""
    return indirect_bound(TRAINING, RIDGE, OVERLAP, radius=RADIUS, localised=False)


def learner(law: Law) -> StableFits:
    """Return the paper's fits, in the library's features of norm at most 1."""
    return StableFits(law.domain, OVERLAP, TRAINING, TRAINING, RIDGE / RADIUS**2)


def control(law: Law, printed: Law, repeats: int) -> Iterator[Found]:
    """Yield Table 5: sampled neighbours of the certified fits, one training outcome at its farther end.

    Args:
        law: Of the control.
        printed: The same with the rare region, for the error of the nuisances there.
        repeats: How many; all in one cell, as the paper prints two maxima.
    """
    bound = printed_bound()
    scale = max(FLOOR, bound.paper(TRAINING))
    found: dict[str, list[float]] = {"rho_star": [bound.rho], "certified_scale": [scale]}
    moved, ratios = [], []
    for repeat in range(repeats):
        fit, scoring = blocks(law, repeat)
        fitted = _fitted(law, fit)
        neighbours = [fit.flipped(index, float(fit.y[index] < 0.5)) for index in range(PAIRS)]
        pairs = [Pair.of(law, scoring, fitted, _fitted(law, neighbour)) for neighbour in neighbours]
        moved += [pair.movement / scale for pair in pairs]
        ratios += [pair.ratio(scale) for pair in pairs]
        rho = max(pair.rho for pair in pairs)
        own = {"empirical_rho": rho, "rho_star_over_empirical_rho": bound.rho / rho}
        own |= {"nuisance_rmse": errors(law, fitted)["nuisance_rmse"]}
        own |= {"share_of_pairs_covered": fmean(pair.movement <= scale for pair in pairs)}
        for metric, value in own.items():
            found.setdefault(metric, []).append(value)
    found |= {"mean_movement_over_certified_scale": moved, "max_movement_over_certified_scale": [max(moved)]}
    for metric, values in found.items():
        yield Found(_place(ANY, metric), PRINTED, "as printed", "certified", values)
    ratio = "log_likelihood_ratio_over_epsilon"
    yield Found(_place(ASSUMED, f"mean_{ratio}"), PRINTED, "as printed", "certified", ratios)
    yield Found(_place(ASSUMED, f"max_{ratio}"), PRINTED, "as printed", "certified", [max(ratios)])
    place = replace(_place(ANY, "nuisance_rmse"), variant="with the rare region")
    errors_there = [errors(printed, _fitted(printed, blocks(printed, k)[0]))["nuisance_rmse"] for k in range(repeats)]
    yield Found(place, OTHER, "as printed", "certified", errors_there)


def choices(law: Law, name: str, epsilon: float, first: int, repeats: int, trees: bool) -> Iterator[Found]:
    """Yield true regrets of private choices at one epsilon.

    Args:
        law: Whose policies are chosen from.
        name: Of the law.
        epsilon: Budget of each choice.
        first: Repeat.
        repeats: How many.
        trees: Whether boosted trees score too.
    """
    found: dict[tuple[str, str], list[float]] = {}
    for repeat in range(first, first + repeats):
        for row, value in _regrets(law, name, epsilon, repeat, trees).items():
            found.setdefault(row, []).append(value)
    roles = {PRINTED_CHOICE: PRINTED, DEFAULT: CERTIFIED, BEST: FREE}
    for (method, level), values in found.items():
        role, word = roles.get(method, OTHER), NO_PRIVACY if level == NOT_PRIVATE else f"{epsilon:g}"
        yield Found(Place(FIGURE, name, str(2 * TRAINING), word, "", REGRET), role, method, level, values)
        if name == CONTROL and epsilon == EPSILON and role != OTHER:
            place = _place(NO_PRIVACY if role == FREE else ASSUMED, REGRET)
            yield Found(place, role, method, level, values)


def blocks(law: Law, repeat: int) -> tuple[Block, Block]:
    """Return disjoint blocks that train and that score, 1,500 rows each."""
    generator = torch.Generator().manual_seed(seed_of("spillover control", repeat))
    everybody = law.observe(torch.randperm(len(law.x), generator=generator)[: 2 * TRAINING], generator)
    return everybody.part(slice(TRAINING)), everybody.part(slice(TRAINING, None))


def _regrets(law: Law, name: str, epsilon: float, repeat: int, trees: bool) -> dict[tuple[str, str], float]:
    """Return the regret of each method, by its name and level."""
    fit, scoring = blocks(law, repeat)
    both = together(fit, scoring)
    half = Nuisances(torch.full_like(law.propensities, 0.5), torch.full_like(law.outcomes, 0.5))
    known = utilities(law, scoring, Nuisances(law.propensities, law.outcomes))
    found = {
        (DEFAULT, CONDITIONAL): default_regret(law, both, repeat, epsilon),
        (PURE, CONDITIONAL): default_regret(law, both, repeat, epsilon, 0.0),
    }

    def choose(method: str, sums: Tensor, spread: float, mechanism: str, level: str = CONDITIONAL) -> None:
        chosen = SELECTIONS[mechanism](epsilon, spread).probabilities(sums)
        found[method, level] = float(chosen @ law.regrets)

    facts = SelectionFacts(law.domain, (0, 1), OVERLAP, TRAINING)
    constants = FixedNuisances().fit(None, facts).range_sensitivity
    choose("constants of 1/2, all records", utilities(law, both, half), constants, "permute_and_flip")
    choose("true nuisances", known, 2 / OVERLAP, "permute_and_flip")
    if trees:
        boost = boosted(law, fit, STABLE, propensity(law, fit))
        choose("stable trees, scale 22", utilities(law, scoring, boost), 2 * FLOOR, "exponential", "none holds")
    if name != WHOLE:
        sums, bound = utilities(law, scoring, _fitted(law, fit)), printed_bound()
        choose(PRINTED_CHOICE, sums, bound.paper_range_sensitivity(TRAINING), "exponential")
        choose("control, bounded range", sums, bound.range_sensitivity(TRAINING), "exponential")
        own = learner(law).bound.range_sensitivity(TRAINING)
        choose("control, localised bounds", sums, own, "permute_and_flip")
    if epsilon == EPSILON:  # what does not depend on it, once
        found["uniform choice", NOT_PRIVATE] = float(law.regrets.mean())
        found["true nuisances, largest utility", NOT_PRIVATE] = float(law.regrets[known.argmax()])
        if name != WHOLE:
            found[BEST, NOT_PRIVATE] = float(law.regrets[sums.argmax()])
    return found


def _fitted(law: Law, block: Block) -> Nuisances:
    found = learner(law).fit(law.records(block))
    return Nuisances(found.propensity(law.x), found.outcome(law.x))


def _place(epsilon: str, metric: str) -> Place:
    return Place(TABLE, SETTING, str(TRAINING), epsilon, ROW, metric)
