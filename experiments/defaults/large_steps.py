"""Few and large steps against many small ones where n mu is large, on random laws alone.

On the same records: root mean squared errors of the effect and seconds of processor time, by steps of each size; then
the mean logarithm of the ratios to the constants in use. n mu is 100,000 and 340,000, so that both rules of
``PlanConstants.large_steps`` can be asked for.

    python -m experiments.defaults.large_steps [--settings 24] [--first 920]
"""

import argparse
import math
import time
from statistics import fmean

import torch

from experiments.cells import standard_error
from experiments.defaults.random_laws import random_setting
from torchdpcate import PrivacyBudget, RLearner
from torchdpcate.composition.constants import PlanConstants
from torchdpcate.composition.noisy_newton import NoisyNewton
from torchdpcate.composition.nuisances import Additive
from torchdpcate.composition.settings import AdaptiveSecondStage

BUDGET = PrivacyBudget(8.0, 1e-5)
SIZES = (60_000, 200_000)
TRIED = {
    "60 of .27": PlanConstants(large_size=math.inf),
    "20 of .7": PlanConstants(large_size=0.0),
    "20 of .5": PlanConstants(large_size=0.0, large_steps=(20, 0.5)),
    "16 of .7": PlanConstants(large_size=0.0, large_steps=(16, 0.7)),
}


def main() -> None:
    """Run the comparison and print it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--settings", type=int, default=24)
    parser.add_argument("--first", type=int, default=920)
    options = parser.parse_args()
    torch.set_num_threads(1)
    ratios: dict[str, list[float]] = {name: [] for name in TRIED}
    for seed in range(options.first, options.first + options.settings):
        setting = random_setting(seed, SIZES[1 - seed % 2], BUDGET.epsilon)
        errors, shown = {}, []
        for name, constants in TRIED.items():
            start, x = time.process_time(), setting.case.records
            stage = AdaptiveSecondStage(constants=constants, nuisance=Additive(NoisyNewton()))
            learner = RLearner(setting.case.schema, BUDGET, second_stage=stage).fit(x.x, x.a, x.y)
            effect = torch.as_tensor(learner.release_function().effect(setting.case.queries))
            errors[name] = math.sqrt(setting.case.error(effect)[0]) / setting.noise
            shown.append(f"{name}: {errors[name]:.4f} ({time.process_time() - start:.1f} s)")
            ratios[name].append(math.log(errors[name] / errors["60 of .27"]))
        print(f"{seed}: n = {x.n:,}, {len(learner.composed_.effect.shrunk)} features; {'; '.join(shown)}", flush=True)
    for name, found in ratios.items():
        print(f"{name}: log ratio {fmean(found):+.3f} ± {standard_error(found):.3f}")


if __name__ == "__main__":
    main()
