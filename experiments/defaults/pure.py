"""The R-learner's composition at delta = 0, beside its constant, zero and a small delta, on generated data.

python -m experiments.defaults.pure --laws 20 --first 3000
"""

import argparse
import math
import zlib
from pathlib import Path

import torch
from rich.progress import track

from experiments.csv_files import write_lines
from experiments.defaults.random_laws import Setting, random_setting
from experiments.tables import paragraph, table
from torchdpcate.composition.planned import effect_errors
from torchdpcate.composition.settings import AdaptiveSecondStage
from torchdpcate.estimators.cate.composition_plan import GAIN
from torchdpcate.estimators.cate.learner import RLearner
from torchdpcate.privacy.budget import PrivacyBudget
from torchdpcate.privacy.noise import NoiseSource

CELLS = [(n, epsilon) for n in (1_500, 4_000, 16_000) for epsilon in (1.0, 4.0)]
METHODS = {"delta = 0": (0.0, False), "its constant": (0.0, True), f"delta = {GAIN:g}": (GAIN, False)}
OWN, CONSTANT, GAUSSIAN = METHODS
_FLOOR = 0.05  # of RMSEs, in standard deviations of the outcome's noise: smaller ones are as good
_ABOUT = (
    "Random laws (`random_laws.py`), others than those that the constants of pure plans were chosen on; means over "
    "laws of root mean squared errors of the effect at 2,000 points, over the standard deviation of the outcome's "
    "noise. *Ratio*: geometric mean over laws of the error with delta = 0 over that of its constant, errors below "
    ".05 counted as such, with its standard error. *Worse*: laws where it exceeds 1.1 times the constant's by more "
    "than .1 of the residual's scale. *Planned*: what the plan says that a delta of 1e-6 makes of the error with "
    "delta = 0; *found*: what it did, by geometric means. Two blocks (`second_stage=linear`) train their nuisances "
    "by DP-SGD, which needs a delta."
)


def fitted(setting: Setting, method: str) -> RLearner:
    """Return a fit of a setting's records by a method."""
    delta, constant = METHODS[method]
    noise = NoiseSource.fixed(zlib.crc32(f"{setting.name}, {method}".encode()))
    stage = AdaptiveSecondStage(constant_only=constant, intervals=False)
    learner = RLearner(setting.case.schema, PrivacyBudget(setting.epsilon, delta), second_stage=stage, noise=noise)
    records = setting.case.records
    return learner.fit(records.x, records.a, records.y)


def cell(n: int, epsilon: float, seeds: range) -> list[str]:
    """Return a line of the table."""
    errors: dict[str, list[float]] = {name: [] for name in (*METHODS, "zero")}
    scales, planned = [], []
    for seed in seeds:
        setting = random_setting(seed, n, epsilon)
        case, learners = setting.case, {name: fitted(setting, name) for name in METHODS}
        for name, learner in learners.items():
            effect = torch.as_tensor(learner.release_function().effect_tensor(case.queries))
            errors[name].append(math.sqrt(case.error(effect)[0]) / setting.noise)
        errors["zero"].append(math.sqrt(case.error(torch.zeros(len(case.queries)))[0]) / setting.noise)
        scales.append(learners[OWN].composed_.effect.scale / setting.noise)
        of = [effect_errors(learners[name].plan_, case.schema.domain).total for name in (GAUSSIAN, OWN)]
        planned.append(of[0] / of[1])
    found = {name: torch.tensor(values) for name, values in errors.items()}
    logs = {name: values.clamp_min(_FLOOR).log() for name, values in found.items()}
    log, gain = logs[OWN] - logs[CONSTANT], logs[GAUSSIAN] - logs[OWN]
    ratio = log.mean().exp()
    worse = int((found[OWN] > 1.1 * found[CONSTANT] + 0.1 * torch.tensor(scales)).sum())
    return [
        f"{n:,}",
        f"{epsilon:g}",
        *(f"{found[name].mean():.3f}" for name in found),
        f"{ratio:.2f} ± {ratio * log.std() / math.sqrt(len(log)):.2f}",
        str(worse),
        f"{torch.tensor(planned).log().mean().exp():.2f}",
        f"{gain.mean().exp():.2f}",
    ]


def main() -> None:
    """Fit all, write the table and print it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--laws", type=int, default=20)
    parser.add_argument("--first", type=int, default=3000)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent)
    words = parser.parse_args()
    torch.set_num_threads(1)
    seeds = range(words.first, words.first + words.laws)
    rows = [["n", "epsilon", *METHODS, "zero", "ratio", "worse", "planned", "found"]]
    rows += [cell(n, epsilon, seeds) for n, epsilon in track(CELLS, "cells")]
    head = "# A composition of pure events\n\nWritten by `python -m experiments.defaults.pure`.\n"
    about = f"{words.laws} laws, the first of seed {words.first}. {_ABOUT}"
    text = "\n".join([head, paragraph(about), table(rows)])
    write_lines(words.out / "pure.csv", rows)
    print(text)


if __name__ == "__main__":
    main()
