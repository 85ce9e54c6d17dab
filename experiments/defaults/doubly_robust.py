"""The DR-learner's composition beside the R-learner's, its own constant and two blocks, on generated data.

python -m experiments.defaults.doubly_robust --laws 40 --first 2000
"""

import argparse
import math
import zlib
from pathlib import Path
from typing import Any

import torch
from rich.progress import track
from torch import Tensor

from experiments.csv_files import write_lines
from experiments.defaults.methods import DELTA
from experiments.defaults.random_laws import Setting, random_setting
from experiments.tables import paragraph, table
from torchdpcate.composition.planned import planned_noise
from torchdpcate.composition.settings import AdaptiveSecondStage
from torchdpcate.estimators.cate.learner import CATELearner, DRLearner, RLearner
from torchdpcate.heads.recipes import LinearSecondStage
from torchdpcate.privacy.budget import PrivacyBudget
from torchdpcate.privacy.noise import NoiseSource

COMPOSED, CONSTANT = {"second_stage": AdaptiveSecondStage(intervals=False)}, AdaptiveSecondStage(constant_only=True)
METHODS: dict[str, tuple[type[CATELearner], dict[str, Any]]] = {
    "DR, composition": (DRLearner, COMPOSED),
    "R, composition": (RLearner, COMPOSED),
    "DR, its constant": (DRLearner, {"second_stage": CONSTANT}),
    "DR, two blocks": (DRLearner, {"second_stage": LinearSecondStage()}),
}
OWN, *OTHERS = METHODS
_ABOUT = (
    "Random laws (`random_laws.py`), delta = 1e-5; root mean squared errors of the effect at 2,000 points, over the "
    "standard deviation of the outcome's noise. *Ratio*: geometric mean over laws of the composition's error over the "
    "row's, with its standard error. *Worse*: laws where the composition's error exceeds 1.1 times the row's by more "
    "than .1 of the residual's scale."
)
_SCALES = (
    "The clip S of scores was {low:.2f} to {high:.2f} times that of the R-learner's residuals, median {middle:.2f}; "
    "the plan takes 2. Its noise before shrinkage, over {releases} releases of the same records, was {noise:.2f} times "
    "the planned one (median of {laws} laws; middle half {first:.2f} to {third:.2f})."
)


def fitted(setting: Setting, method: str, run: int = 0) -> CATELearner:
    """Return a fit of a setting's records by a method."""
    case, (kind, settings) = setting.case, METHODS[method]
    noise = NoiseSource.fixed(zlib.crc32(f"{setting.name}, {method}, {run}".encode()))
    learner = kind(case.schema, PrivacyBudget(setting.epsilon, DELTA), noise=noise, **settings)
    return learner.fit(case.records.x, case.records.a, case.records.y)


def error(setting: Setting, learner: CATELearner) -> float:
    """Return the RMSE of a release, in standard deviations of the outcome's noise."""
    effect = torch.as_tensor(learner.release_function().effect_tensor(setting.case.queries))
    return math.sqrt(setting.case.error(effect)[0]) / setting.noise


def noise_ratio(setting: Setting, releases: int) -> float:
    """Return the noise before shrinkage that releases show, over the plan's."""
    learners = [fitted(setting, OWN, run) for run in range(releases)]
    made = [learner.release_function() for learner in learners]
    effects = torch.stack([release.features(setting.case.queries) @ release.estimates for release in made])
    planned = [planned_noise(learner.plan_, 1.0, learner.composed_.effect.scale) for learner in learners]
    return effects.var(0).mean().sqrt().item() / float(torch.tensor(planned).mean())


def lines(found: dict[str, list[float]], scales: Tensor) -> list[list[str]]:
    """Return the table."""
    own, shown = torch.tensor(found[OWN]), [["learner", "geometric mean", "root mean square", "ratio", "worse"]]
    for name in METHODS:
        errors = torch.tensor(found[name])
        log = (own / errors).log()
        ratio = f"{log.mean().exp():.2f} ± {log.mean().exp() * log.std() / math.sqrt(len(log)):.2f}"
        worse = int((own > 1.1 * errors + 0.1 * scales).sum())
        means = errors.log().mean().exp(), errors.square().mean().sqrt()
        shown.append([name, *(f"{m:.3f}" for m in means), *(("", "") if name == OWN else (ratio, f"{worse}"))])
    return shown


def main() -> None:
    """Fit all, write the table and print it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--laws", type=int, default=40)
    parser.add_argument("--first", type=int, default=2000)
    parser.add_argument("--releases", type=int, default=6)
    parser.add_argument("--noise-laws", type=int, default=12)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent)
    words = parser.parse_args()
    torch.set_num_threads(1)
    found: dict[str, list[float]] = {name: [] for name in METHODS}
    clips, residuals, seeds = [], [], range(words.first, words.first + words.laws)
    for seed in track(seeds, "laws"):
        setting = random_setting(seed)
        learners = {name: fitted(setting, name) for name in METHODS}
        for name, learner in learners.items():
            found[name].append(error(setting, learner))
        clips.append(learners[OWN].composed_.effect.scale / setting.noise)
        residuals.append(learners["R, composition"].composed_.effect.scale / setting.noise)
    ratios = [noise_ratio(random_setting(seed), words.releases) for seed in seeds[: words.noise_laws]]
    quarters = torch.tensor(ratios).quantile(torch.tensor([0.25, 0.5, 0.75])).tolist()
    factors = torch.tensor(clips) / torch.tensor(residuals)
    scales = _SCALES.format(
        low=factors.min(),
        middle=factors.median(),
        high=factors.max(),
        releases=words.releases,
        laws=len(ratios),
        first=quarters[0],
        noise=quarters[1],
        third=quarters[2],
    )
    head = "# Doubly robust scores in a composition\n\nWritten by `python -m experiments.defaults.doubly_robust`.\n"
    about = f"{words.laws} laws, the first of seed {words.first}. {_ABOUT}"
    found_lines = lines(found, torch.tensor(residuals))
    text = "\n".join([head, paragraph(about), table(found_lines), paragraph(scales)])
    write_lines(words.out / "doubly_robust.csv", found_lines)
    print(text)


if __name__ == "__main__":
    main()
