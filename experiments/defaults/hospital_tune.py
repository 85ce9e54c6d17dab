"""Constants of plans on laws like a hospital's, of the seeds that constants may be chosen by.

Effects: the squared error over the variance of the effect, and the mean error in standard deviations of the outcome,
with the constants in use and with others, on the same records and seeds of noise.

    python -m experiments.defaults.hospital_tune --family cohort --n 4000 --set window_rank=0.0
"""

import argparse
import json
import zlib
from collections.abc import Iterator
from statistics import fmean
from typing import Any

import torch

from experiments.defaults.hospital_laws import FAMILIES, TUNING, hospital_case
from experiments.defaults.sources import Case
from experiments.tables import standard_error
from torchdpcate.composition.constants import PlanConstants
from torchdpcate.composition.settings import AdaptiveSecondStage
from torchdpcate.estimators.cate.learner import RLearner
from torchdpcate.privacy.budget import PrivacyBudget
from torchdpcate.privacy.noise import NoiseSource

DELTA = 1e-5


def effect(case: Case, budget: PrivacyBudget, seed: int, constants: PlanConstants) -> tuple[float, float]:
    """Return the squared error over the effect's variance, and the size of the mean error in deviations of y."""
    stage, noise = AdaptiveSecondStage(constants=constants), NoiseSource.fixed(seed)
    learner = RLearner(case.schema, budget, second_stage=stage, noise=noise)
    learner.fit(case.records.x, case.records.a, case.records.y)
    mse, bias = case.error(learner.release_function().effect_tensor(case.queries))
    return mse / float(case.truth.var()), abs(bias) / float(case.records.y.std())


def lines(given: argparse.Namespace) -> Iterator[str]:
    """Yield a line a set of constants."""
    budget, seeds = PrivacyBudget(given.epsilon, DELTA), range(given.first, given.first + given.laws)
    if not set(seeds) <= set(TUNING):
        raise SystemExit(f"--first, --laws: seeds {seeds} are not all in {TUNING}, which constants may be chosen by")
    noise = {seed: zlib.crc32(f"{given.family} {given.n} {given.epsilon} {seed}".encode()) for seed in seeds}
    cases = {seed: hospital_case(given.family, seed, given.n) for seed in seeds}
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
    torch.set_num_threads(1)
    for line in lines(parser.parse_args()):
        print(line)


if __name__ == "__main__":
    main()
