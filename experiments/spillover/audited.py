"""Tables 1 to 4: what one changed training record does to utilities of boosted nuisances, and the scales made of it."""

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from functools import partial

import torch

from experiments.frame.study import CERTIFIED, FREE, NO_PRIVACY, OTHER, PRINTED, Found, Place, seed_of
from experiments.spillover.boosted import STABLE, UNSTABLE, Nuisances, boosted, errors, propensity, with_new_outcome
from experiments.spillover.design import OVERLAP, Block, Law
from experiments.spillover.pairs import (
    ANY,
    ASSUMED,
    CONDITIONAL,
    DEFAULT,
    FLOOR,
    REGRET,
    SAFETY,
    Pair,
    default_regret,
    farthest,
    together,
)
from experiments.spillover.stable import StableFits

TABLE1, TABLE2, TABLE3, TABLE4 = "table1_separation", "table2_regularization", "table3_split", "table4_proxy_scales"
SEPARATION, SWEEP, SPLIT = "rare_region_separation_audit", "regularization_audit", "sample_split_decomposition"
TRAINING = 1_500
SIZES = (300, 700, 1_200, 2_000, 3_000)
RIDGES = ("0.01", "0.03", "0.10", "0.30", "1.00", "3.00", "10.0", "30.0", "100")
ANCHOR_RIDGES = ("0.01", "1.00", "10.0", "100")
FRACTIONS = ("0.20", "0.25", "0.35", "0.50", "0.65", "0.75", "0.80")
RECORDS = 3_600
ANCHOR_NOISE = 0.04
OTHER_EPSILONS = (0.5, 2.0, 4.0, 8.0)
RATIO = "max_log_likelihood_ratio_over_epsilon"
NAIVE, AUDITED = "naive: fixed-score floor, learned scores", "stability-calibrated"
NONE = "none holds"
Put = defaultdict[tuple[Place, str, str, str], list[float]]

COLUMNS = {
    TABLE2: (
        *("prediction_movement_proxy_rho", "movement", "audit_scale_1.3_move", "audit_over_floor"),
        *("floored_scale", "floor_rate"),
    ),
    TABLE3: ("prediction_movement_proxy_rho", "movement", "floored_scale", "floor_rate"),
    TABLE4: (
        *("movement", "audit_scale_1.3_move", "floored_scale", "theorem_proxy_scale"),
        *("proxy_over_floored", "floor_rate"),
    ),
}


def separation(law: Law, first: int, repeats: int) -> Iterator[Found]:
    """Yield Table 1: fits to one rare record and 1,499 others, its outcome 1 or 0; scoring blocks of rare records."""
    put: Put = defaultdict(list)
    for repeat in range(first, first + repeats):
        generator = torch.Generator().manual_seed(seed_of("spillover separation", repeat))
        fit = anchored(law, generator)
        other, e = fit.flipped(0, 0.0), propensity(law, fit)
        fits = {}
        for trees in (UNSTABLE, STABLE):
            fitted = boosted(law, fit, trees, e)
            fits[trees] = fitted, with_new_outcome(fitted, law, other, 0, trees)
        quality = errors(law, fits[UNSTABLE][0])
        for n in SIZES:
            scoring = _rare_block(law, n, generator)
            unstable, stable = (Pair.of(law, scoring, *fits[trees]) for trees in (UNSTABLE, STABLE))
            audited = SAFETY * stable.movement
            put_one = partial(_put, put, TABLE1, SEPARATION, n)
            for metric, value in quality.items():
                put_one(ANY, "learned scores", metric, PRINTED, "XGBoost, unstable", NONE, value)
            put_one(ANY, "unstable learner", "movement_over_floor", PRINTED, "XGBoost, unstable", NONE,
                    unstable.movement / FLOOR)  # fmt: skip
            put_one(ASSUMED, NAIVE, RATIO, PRINTED, "unstable, scale 22", NONE, unstable.ratio(FLOOR))
            put_one(ASSUMED, AUDITED, RATIO, PRINTED, "stable, floored scale", NONE, stable.ratio(stable.floored))
            put_one(ANY, "stability-audit scale", "share_of_pairs_covered", PRINTED, "stable", NONE,
                    float(stable.movement <= audited))  # fmt: skip
            put_one(ANY, "stable learner", "movement_over_floor", OTHER, "XGBoost, stable", NONE,
                    stable.movement / FLOOR)  # fmt: skip
            put_one(ANY, "stability-audit scale", "unstable_learner_covered", OTHER, "stable's scale", NONE,
                    float(unstable.movement <= stable.floored))  # fmt: skip
            _certified(put_one, law, fit, other, scoring)
    yield from _found(put)


def _certified(put_one: "partial[None]", law: Law, fit: Block, other: Block, scoring: Block) -> None:
    """Put stable fits at the same pair, with their own noise."""
    stable = StableFits(law.domain, OVERLAP, TRAINING, len(scoring.y))
    both = [stable.fit(law.records(block)) for block in (fit, other)]
    fitted, neighbour = (Nuisances(one.propensity(law.x), one.outcome(law.x)) for one in both)
    certified = stable.bound.range_sensitivity(len(scoring.y))
    pair, quality = Pair.of(law, scoring, fitted, neighbour), errors(law, fitted)
    name, level = "ridge fits", "certified"
    for metric, value in quality.items():
        put_one(ANY, "learned scores", metric, CERTIFIED, name, level, value)
    put_one(ANY, "unstable learner", "movement_over_floor", CERTIFIED, name, level, pair.movement / FLOOR)
    put_one(ANY, "stability-audit scale", "share_of_pairs_covered", CERTIFIED, name, level,
            float(2 * pair.movement <= certified))  # fmt: skip
    ratio = pair.ratio(certified / 2)
    for row in (NAIVE, AUDITED):
        put_one(ASSUMED, row, RATIO, CERTIFIED, name, level, ratio)


def sweep(law: Law, first: int, repeats: int) -> Iterator[Found]:
    """Yield Tables 2 and 4: lambda of the stable learner's trees at the pair of Table 1."""
    put: Put = defaultdict(list)
    for repeat in range(first, first + repeats):
        generator = torch.Generator().manual_seed(seed_of("spillover ridge", repeat))
        fit = anchored(law, generator)
        other, scoring = fit.flipped(0, 0.0), _rare_block(law, TRAINING, generator)
        for ridge in RIDGES:
            trees = replace(STABLE, ridge=float(ridge))
            fitted = boosted(law, fit, trees, propensity(law, fit, max(0.1, float(ridge))))
            pair = Pair.of(law, scoring, fitted, with_new_outcome(fitted, law, other, 0, trees))
            _put_scales(put, law, pair, SWEEP, f"lambda = {ridge}", "swept lambda", TABLE2)
        regret = default_regret(law, together(fit, scoring), repeat)
        _put(put, TABLE2, SWEEP, TRAINING, ASSUMED, "", REGRET, CERTIFIED, DEFAULT, CONDITIONAL, regret)
    yield from _found(put)


def anchors(law: Law, first: int, repeats: int) -> Iterator[Found]:
    """Yield Table 2 once more, for anchors of either arm: the paper does not say which treatment its anchor has."""
    put: Put = defaultdict(list)
    for repeat in range(first, first + repeats):
        for arm, word in ((0, "untreated"), (1, "treated")):
            generator = torch.Generator().manual_seed(seed_of("spillover anchors", repeat))
            fit = anchored(law, generator, arm)
            other, scoring = fit.flipped(0, 0.0), _rare_block(law, TRAINING, generator)
            for ridge in ANCHOR_RIDGES:
                trees = replace(STABLE, ridge=float(ridge))
                fitted = boosted(law, fit, trees, propensity(law, fit, max(0.1, float(ridge))))
                scales = Pair.of(law, scoring, fitted, with_new_outcome(fitted, law, other, 0, trees)).scales()
                for metric in COLUMNS[TABLE2]:
                    row = f"lambda = {ridge}, anchor {word}"
                    _put(put, TABLE2, SWEEP, TRAINING, ANY, row, metric, OTHER, "swept lambda", NONE, scales[metric])
    yield from _found(put)


def split(law: Law, first: int, repeats: int) -> Iterator[Found]:
    """Yield Tables 3 and 4: 3,600 records, a part of which trains the stable learner; blocks as the law draws them."""
    put: Put = defaultdict(list)
    for repeat in range(first, first + repeats):
        generator = torch.Generator().manual_seed(seed_of("spillover split", repeat))
        everybody = law.observe(torch.randperm(len(law.x), generator=generator)[:RECORDS], generator)
        ours = default_regret(law, everybody, repeat)
        for fraction in FRACTIONS:
            m = round(float(fraction) * RECORDS)
            fit, scoring = everybody.part(slice(m)), everybody.part(slice(m, None))
            other = farthest(fit, 0)
            fitted, neighbour = (boosted(law, block, STABLE, propensity(law, block)) for block in (fit, other))
            pair, row = Pair.of(law, scoring, fitted, neighbour), f"m / (m + n) = {fraction}"
            _put_scales(put, law, pair, SPLIT, row, "stable learner", TABLE3)
            _put(put, TABLE3, SPLIT, pair.records, ASSUMED, "", REGRET, CERTIFIED, DEFAULT, CONDITIONAL, ours)
            quality = errors(law, fitted)["nuisance_rmse"]
            _put(put, TABLE3, SPLIT, pair.records, ANY, row, "nuisance_rmse", PRINTED, "stable learner", NONE, quality)
            _put(put, TABLE3, SPLIT, pair.records, ANY, row, "one_over_sqrt_n", PRINTED, "stable learner", "public",
                 pair.records**-0.5)  # fmt: skip
    yield from _found(put)


def anchored(law: Law, generator: torch.Generator, arm: int | None = None) -> Block:
    """Return a fitting sample: one rare record, whose outcome is 1, and others from outside of the region.

    Args:
        law: Of the records.
        generator: Of the draws.
        arm: The rare record's treatment; None draws it.
    """
    inside, outside = law.regions
    anchor = inside[torch.randint(len(inside), (1,), generator=generator)]
    others = outside[torch.randperm(len(outside), generator=generator)[: TRAINING - 1]]
    found = law.observe(torch.cat([anchor, others]), generator, ANCHOR_NOISE)
    return found.flipped(0, 1.0, treatment=arm is not None and int(found.a[0]) != arm)


def _rare_block(law: Law, n: int, generator: torch.Generator) -> Block:
    """Return scoring records, rows of the rare region with replacement."""
    inside = law.regions[0]
    return law.observe(inside[torch.randint(len(inside), (n,), generator=generator)], generator)


def _put_scales(put: Put, law: Law, pair: Pair, setting: str, row: str, method: str, table: str) -> None:
    scales = pair.scales()
    for name in (table, TABLE4):
        for metric in COLUMNS[name]:
            _put(put, name, setting, pair.records, ANY, row, metric, PRINTED, method, NONE, scales[metric])
    _put(put, table, setting, pair.records, ASSUMED, row, REGRET, PRINTED, method, NONE,
         pair.regret(law, pair.floored))  # fmt: skip
    _put(put, table, setting, pair.records, NO_PRIVACY, row, REGRET, FREE, method, "not private", pair.best(law))
    for epsilon in OTHER_EPSILONS:
        regret = pair.regret(law, pair.floored, epsilon)
        _put(put, table, setting, pair.records, f"{epsilon:g}", row, REGRET, OTHER, method, NONE, regret)


def _put(
    put: Put, table: str, setting: str, n: int, epsilon: str, row: str, metric: str, role: str, method: str, level: str,
    value: float,
) -> None:  # fmt: skip
    put[Place(table, setting, str(n), epsilon, row, metric), role, method, level].append(value)


def _found(put: Put) -> Iterator[Found]:
    for (place, role, method, level), values in put.items():
        yield Found(place, role, method, level, values)
