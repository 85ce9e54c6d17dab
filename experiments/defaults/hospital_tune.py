"""Constants of plans, and intervals, on laws like a hospital's, of the seeds that constants may be chosen by.

Effects: the squared error over the variance of the effect, and the mean error in standard deviations of the outcome,
with the constants in use and with others, on the same records and seeds of noise. Averages (``--average``): errors and
coverage of ``effect=composed``, with what both nuisances lose of a confounder and without it. Subgroups
(``--subgroups``): errors and coverage in the halves by age and in both levels of the first condition, released
together, by a fitted propensity, by scores, and by scores whose errors of nuisances are counted as in an average.

    python -m experiments.defaults.hospital_tune --family cohort --n 4000 --set window_rank=0.0
    python -m experiments.defaults.hospital_tune --family costs --n 8000 --epsilon 4 --average
    python -m experiments.defaults.hospital_tune --family cohort --n 4000 --laws 30 --subgroups
"""

import argparse
import json
import zlib
from collections.abc import Iterator
from statistics import fmean
from typing import Any

import torch

from experiments.defaults.hospital_laws import FAMILIES, TUNING, HospitalCase, hospital_case
from experiments.tables import standard_error
from torchdpcate.composition import score_errors
from torchdpcate.composition.constants import PlanConstants
from torchdpcate.composition.settings import AdaptiveSecondStage
from torchdpcate.estimators.average.composed import ComposedAverageEffect
from torchdpcate.estimators.cate.learner import RLearner
from torchdpcate.estimators.subgroups.learner import SubgroupEffects
from torchdpcate.privacy.budget import PrivacyBudget
from torchdpcate.privacy.noise import NoiseSource
from torchdpcate.release import cell_effects

DELTA = 1e-5


def effect(case: HospitalCase, budget: PrivacyBudget, seed: int, constants: PlanConstants) -> tuple[float, float]:
    """Return the squared error over the effect's variance, and the size of the mean error in deviations of y."""
    stage, noise = AdaptiveSecondStage(constants=constants), NoiseSource.fixed(seed)
    learner = RLearner(case.schema, budget, second_stage=stage, noise=noise)
    learner.fit(case.records.x, case.records.a, case.records.y)
    mse, bias = case.error(learner.release_function().effect_tensor(case.queries))
    return mse / float(case.truth.var()), abs(bias) / float(case.records.y.std())


def average(case: HospitalCase, budget: PrivacyBudget, seed: int) -> tuple[float, float, float]:
    """Return the size of the error, whether the 95 % interval holds the effect, and its width, in deviations of y."""
    learner = ComposedAverageEffect(case.schema, budget, noise=NoiseSource.fixed(seed))
    release = learner.fit(case.records.x, case.records.a, case.records.y).release()
    (low, high), unit = release.interval(0.95), float(case.records.y.std())
    return abs(release.estimate - case.average) / unit, float(low <= case.average <= high), (high - low) / unit


def subgroups(case: HospitalCase, budget: PrivacyBudget, seed: int) -> list[tuple[float, ...]]:
    """Return error and its size, whether the 95 % interval holds the effect, and its width, in deviations of y.

    One row a cell; the true effect is that of points held out, by whose median age is cut.
    """
    names = case.schema.columns
    condition = next(name for name in names if name.startswith("condition"))
    cut = float(case.queries[:, 0].median())
    noise = NoiseSource.fixed(seed)
    cells = [{names[0]: [cut]}, {condition: True}]
    learner = SubgroupEffects(case.schema, budget, subgroups=cells, noise=noise)
    release = learner.fit(case.records.x, case.records.a, case.records.y).release()
    at, unit, rows = release.subgroups.positions(case.queries), float(case.records.y.std()), []
    for cell, (low, high) in enumerate(release.interval(0.95)):
        truth = float(case.truth[(at == cell).any(1)].mean())
        error = (release.estimate[cell] - truth) / unit
        rows.append((error, abs(error), float(low <= truth <= high), (high - low) / unit))
    return rows


def subgroup_lines(cases: dict[int, HospitalCase], budget: PrivacyBudget, noise: dict[int, int]) -> Iterator[str]:
    """Yield a line a way and cell."""
    power = cell_effects.POWER
    for name, own in (("composed", power), ("e", 0.0)):
        cell_effects.POWER = own
        found = [subgroups(case, budget, noise[seed]) for seed, case in cases.items()]
        for cell, label in enumerate(("younger", "older", "without", "with")):
            parts = zip(*(rows[cell] for rows in found), strict=True)
            bias, error, held, width = (fmean(values) for values in parts)
            yield (f"{name:10s} {label:8s} bias {bias:+.3f}  error {error:.3f}  coverage {held:.2f}  width {width:.3f}")
    cell_effects.POWER = power


def lines(given: argparse.Namespace) -> Iterator[str]:
    """Yield a line a set of constants, or one with and one without what both nuisances lose."""
    budget, seeds = PrivacyBudget(given.epsilon, DELTA), range(given.first, given.first + given.laws)
    if not set(seeds) <= set(TUNING):
        raise SystemExit(f"--first, --laws: seeds {seeds} are not all in {TUNING}, which constants may be chosen by")
    noise = {seed: zlib.crc32(f"{given.family} {given.n} {given.epsilon} {seed}".encode()) for seed in seeds}
    cases = {seed: hospital_case(given.family, seed, given.n) for seed in seeds}
    if given.subgroups:
        yield from subgroup_lines(cases, budget, noise)
        return
    if given.average:
        for name, together in (("in use", score_errors.TOGETHER), ("without what both lose", 0.0)):
            score_errors.TOGETHER = together
            found = [average(case, budget, noise[seed]) for seed, case in cases.items()]
            error, held, width = (fmean(values) for values in zip(*found, strict=True))
            yield f"{name:24s} error {error:.3f}  coverage {held:.2f}  width {width:.3f}"
        return
    others: dict[str, Any] = {key: json.loads(value) for key, value in (word.split("=", 1) for word in given.set)}
    for name, constants in (("in use", PlanConstants()), (" ".join(given.set), PlanConstants(**others))):
        found = [effect(case, budget, noise[seed], constants) for seed, case in cases.items()]
        errors, biases = zip(*found, strict=True)
        yield f"{name:24s} error {fmean(errors):.3f} ± {standard_error(errors):.3f}  bias {fmean(biases):.3f}"


def main() -> None:
    """Print the lines of one family, number of records and epsilon."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--family", choices=FAMILIES, required=True)
    parser.add_argument("--n", type=int, required=True)
    parser.add_argument("--epsilon", type=float, default=1.0)
    parser.add_argument("--first", type=int, default=100)
    parser.add_argument("--laws", type=int, default=16)
    parser.add_argument("--set", nargs="+", default=["window_rank=0.0"])
    parser.add_argument("--average", action="store_true")
    parser.add_argument("--subgroups", action="store_true")
    torch.set_num_threads(1)
    for line in lines(parser.parse_args()):
        print(line)


if __name__ == "__main__":
    main()
