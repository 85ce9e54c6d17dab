"""Regret of the best of public policies by three ways: the private choice, released sums of scores, the effect alone.

``python -m experiments.hospital.policies [--records 5000] [--epsilon 1] [--seeds 0:20] [--law NAME]``

Treatments cost what they gain on average. Values by lines are sums of those of treating single cells, of which the
largest is taken; by the effect its mean over released people. Regrets are over the mean size of gains. Covered is the
share of 95 % intervals of treating exactly one cell, over nobody and over everybody, that hold what the records gain.
"""

import argparse
import warnings
from collections.abc import Iterator

import numpy as np
import pandas as pd
import torch

from experiments.hospital.cases import DELTA
from experiments.hospital.laws import LAWS, Draw
from torchdpcate import PrivacyBudget, RLearner
from torchdpcate.candidates.kinds import Constants, Thresholds
from torchdpcate.candidates.library import PolicyLibrary
from torchdpcate.composition.settings import AdaptiveSecondStage
from torchdpcate.data.domain import Domain
from torchdpcate.estimators.selection.selector import PolicySelector
from torchdpcate.release.averages import OVER, Averages

LIBRARIES = {4: (2, [0.0]), 42: (4, np.linspace(-1.5, 1.5, 10).round(2).tolist())}
"""Covariates and cuts of policies by one covariate, by the number of policies: nobody and everybody come first."""


def rows_of(law: str, seed: int, n: int, epsilon: float) -> Iterator[dict[str, float | str]]:
    """Yield the regrets on one draw of a law, a row for each library."""
    draw = LAWS[law](np.random.default_rng([seed, *law.encode()]), n)
    cost, budget = float(draw.effect.mean()), PrivacyBudget(epsilon, DELTA)
    gain, y, (low, high) = draw.effect - cost, draw.y - cost * draw.a, draw.bounds
    ends = {"outcome_low": low - max(cost, 0.0), "outcome_high": high - min(cost, 0.0)}
    facts = draw.schema.domain.to_dict() | ends
    domain = Domain.from_dict(facts | {"outcome_kind": "continuous", "better": "higher"})
    for many, (covariates, cuts) in LIBRARIES.items():
        names = [f"x{j}" for j in range(covariates)]
        policies = [Constants([0, 1]), *(Thresholds(name, cuts) for name in names)]
        library = PolicyLibrary.of(policies).setup(domain, (0, 1))
        decided = library.decide(torch.from_numpy(draw.x)).numpy()
        regret = (gain @ decided).max() - gain @ decided
        regret /= np.abs(gain).sum()
        chosen = PolicySelector(domain, budget, policies=policies).fit(draw.x, draw.a, y)
        chosen.release()
        assert chosen.mechanism_ is not None
        chances = chosen.mechanism_.probabilities(chosen.utilities_).numpy()
        cells = [{name: cuts} for name in names]
        stage = AdaptiveSecondStage(intervals=False, lines=["policies"], cells=cells)
        release = RLearner(domain, budget, second_stage=stage).fit(draw.x, draw.a, y).release_function()
        lines, people = release.required_lines, release.population(4096)
        sums = [lines.estimate(f"{cell} over none") for cell in lines.cells]
        above = np.cumsum(np.reshape(sums, (covariates, -1))[:, ::-1], 1)[:, -2::-1]  # of the cells above each cut
        by_lines = np.concatenate([[0.0, lines.estimate()], above.ravel()])
        by_effect = release.effect_tensor(people).numpy() @ library.decide(people).numpy()
        yield {
            "law": law,
            "policies": many,
            "uniform": regret.mean(),
            "choice": chances @ regret,
            "lines": regret[by_lines.argmax()],
            "effect": regret[by_effect.argmax()],
            "covered": np.mean([low <= truth <= high for low, high, truth in _values(lines, draw, gain, cuts)]),
        }


def _values(lines: Averages, draw: Draw, gain: np.ndarray, cuts: list[float]) -> Iterator[tuple[float, float, float]]:
    """Yield the interval of treating each cell, over nobody and over everybody, and what the records gain by it."""
    for k, cell in enumerate(lines.cells):
        covariate, place = divmod(k, len(cuts) + 1)
        treated = np.digitize(draw.x[:, covariate], cuts) == place
        for over, truth in zip(OVER, ((treated * gain).mean(), -(~treated * gain).mean()), strict=True):
            yield *lines.interval(f"{cell}{over}"), float(truth)


def _main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--records", type=int, default=5000)
    parser.add_argument("--epsilon", type=float, default=1.0)
    parser.add_argument("--seeds", default="0:20")
    parser.add_argument("--law", action="append")
    words = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    seeds, laws = range(*map(int, words.seeds.split(":"))), words.law or ["trial", "linear", "skewed treated", "days"]
    found = [row for law in laws for seed in seeds for row in rows_of(law, seed, words.records, words.epsilon)]
    print(pd.DataFrame(found).groupby(["policies", "law"], sort=False).mean().round(3).to_string())


if __name__ == "__main__":
    _main()
