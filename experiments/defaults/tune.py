"""The constants of the public rule, tuned on generated data alone.

For each constant and value: mean over settings of the logarithm of the squared error over that with the constants in
use, on the same records and seeds of noise. Settings are those of ``random_laws``, seeds from ``--first`` on: n between
500 and 16,000, epsilon between .5 and 8. What the study's table shows (Datasets 1 and 2, Niu's designs, ACIC 2016,
Twins, LBIDD, LaLonde) is not looked at here. Writes tuning.csv beside this file. ``--set`` compares one set of
constants with those in use, best on seeds that nothing was chosen by (``--first``).

    python -m experiments.defaults.tune --settings 200
    python -m experiments.defaults.tune --only head_variance spike
    python -m experiments.defaults.tune --set spike=0.5 head_variance=0.2 --first 100000
    python -m experiments.defaults.tune --set pairs=0 --first 200000 --settings 40 --n 50000 --epsilon 4
    python -m experiments.defaults.tune --kind binary --set binary_part=0.01

Errors on laws of binary outcomes and counts are in units of the root mean squared effect.
By 134 laws of 1,000 to 40,000 records and epsilon from .5 to 4 prior variances of binary outcomes of .003 of those of
others halve the RMSE (its logarithm falls by .75 ± .08), as .01, .001 and .0003 of them do; from n epsilon of
25,000 on .003 is best, and ahead of a private constant. On counts no such part was clearly better (by .10 ± .07).
"""

import math
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from statistics import fmean
from typing import Any

from rich.progress import track

from experiments.defaults.random_laws import Setting, random_setting
from experiments.tables import standard_error
from experiments.tuning import Tuning
from torchdpcate.composition.constants import PlanConstants
from torchdpcate.composition.settings import AdaptiveSecondStage
from torchdpcate.estimators.cate.learner import RLearner
from torchdpcate.privacy.budget import PrivacyBudget
from torchdpcate.privacy.noise import NoiseSource

VALUES: dict[str, tuple[Any, ...]] = {
    "head_variance": (0.03, 0.06, 0.1, 0.2, 0.4),
    "outcome_variance": (0.1, 0.2, 0.3, 0.5, 0.8),
    "propensity_variance": (0.1, 0.2, 0.3, 0.5),
    "choice_variance": (0.1, 0.2, 0.3, 0.6),
    "nuisance_share": (0.2, 0.3, 0.4, 0.5),
    "propensity_share": (0.25, 0.35, 0.45, 0.55),
    "moment_share": (0.03, 0.05, 0.08),
    "curvature_share": (0.02, 0.04, 0.06),
    "screening_share": (0.08, 0.15, 0.22),
    "huber_quantiles": ((0.4, 0.8), (0.4, 0.9), (0.5, 0.9), (0.6, 0.9), (0.6, 0.95)),
    "part_shares": (
        (0.62, 0.2, 0.12, 0.04, 0.02),
        (0.5, 0.25, 0.15, 0.06, 0.04),
        (0.75, 0.15, 0.06, 0.03, 0.01),
        (0.55, 0.2, 0.2, 0.03, 0.02),
    ),
    "kinds": ("1", "12", "12x", "12xs", "12xsc"),
    "most": (8, 12, 16),
    "spike": (0.5, 0.7, 0.85, 0.95),
    "rank_error": (0.02, 0.03, 0.05),
    "steps": (25, 40, 60),
    "burn_in": (0.1, 0.2, 0.3),
    "step_size": (0.15, 0.25, 0.4),
}
FLOOR = 0.05  # of the noise's standard deviation: smaller RMSEs are as good


def error(setting: Setting, stage: AdaptiveSecondStage) -> float:
    """Return the squared error of the release by these settings, over the variance of the outcome's noise.

    Of binary outcomes and counts it is over the mean squared effect.
    """
    budget, noise = PrivacyBudget(setting.epsilon, 1e-5), NoiseSource.fixed(zlib.crc32(setting.name.encode()))
    records, schema = setting.case.records, setting.case.schema
    learner = RLearner(schema, budget, second_stage=stage, noise=noise).fit(records.x, records.a, records.y)
    mse, _ = setting.case.error(learner.release_function().effect_tensor(setting.case.queries))
    counted = setting.case.schema.domain.outcome_kind != "continuous"
    return mse / (float(setting.effects.square().mean()) if counted else setting.noise**2)


def compared(
    seeds: range,
    base: PlanConstants,
    others: dict[str, PlanConstants],
    kind: str = "continuous",
    fixed: Mapping[str, Any] | None = None,
) -> Iterator[dict[str, Any]]:
    """One line a set of constants: log ratios to the base over the settings, and how often the constant head wins."""
    ratios: dict[str, list[float]] = {name: [] for name in others}
    beaten: dict[str, list[bool]] = {name: [] for name in others}
    for seed in track(seeds, "settings"):
        setting = random_setting(seed, kind=kind, **(fixed or {}))
        first = error(setting, AdaptiveSecondStage(constants=base))
        constant = error(setting, AdaptiveSecondStage(constant_only=True, constants=base))
        for name, constants in others.items():
            seen = first if constants == base else error(setting, AdaptiveSecondStage(constants=constants))
            ratios[name].append(math.log((seen + FLOOR**2) / (first + FLOOR**2)))
            beaten[name].append(math.sqrt(seen) > 1.1 * math.sqrt(constant) + 0.1)
    for name, found in ratios.items():
        ratio = {"log_ratio": fmean(found), "error": standard_error(found)}
        yield {"constants": name, **ratio, "beaten": fmean(beaten[name])}


def main() -> None:
    """Compare values one constant at a time, or one set of constants with those in use."""
    tuning = Tuning.requested(__doc__.splitlines()[0], PlanConstants(), VALUES, Path(__file__).parent / "tuning.csv")
    lines = list(compared(tuning.seeds, tuning.base, tuning.others, tuning.kind, tuning.fixed))
    for line in lines:
        print(f"{line['constants']:58s} {line['log_ratio']:+.4f} ± {line['error']:.4f}   beaten {line['beaten']:.3f}")
    tuning.write(lines)


if __name__ == "__main__":
    main()
