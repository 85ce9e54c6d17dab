"""Regret of treatment rules by default, over that of the best constant rule, against n.

Writes rules.csv (one line a rule), prints means over seeds and draws rules.png beside this file. Lines that are there
are not made again; ``--methods rule`` makes those of one method alone.

    python -m experiments.rules_and_selection.rules --seeds 10 --methods rule today
    python -m experiments.rules_and_selection.rules --seeds 3 --methods nonprivate
    python -m experiments.rules_and_selection.rules --seeds 10 --methods "pure rule" "pure today"
"""

import argparse
import time
import zlib
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import torch

from experiments.csv_files import resume
from experiments.rules_and_selection.rule_cases import MEANS, OBSERVED, TRIAL, RuleCase, rule_case
from experiments.rules_and_selection.rule_pages import BUDGET, FIELDS, HERE, PURE, SIZES, draw, page
from torchdpcate.estimators.rules.effect_rule import EffectRule
from torchdpcate.estimators.rules.learner import OutcomeWeightedLearner, TwoStageRule
from torchdpcate.privacy.budget import PrivacyBudget
from torchdpcate.privacy.noise import NoiseSource

FIRST = 1_000  # seed: those below were seen while the plan was made
SMALL, LATER = (
    1_000,
    1_000,
)  # up to that n seeds of these methods are that much larger: they had another plan on FIRST's
AGAIN = ("rule", "today")


def effect_rule(case: RuleCase, noise: NoiseSource, budget: PrivacyBudget = BUDGET) -> torch.Tensor:
    """Decisions of the rule that the library picks."""
    learner = EffectRule(case.schema, budget, noise=noise)
    return learner.fit(case.records.x, case.records.a, case.records.y).release().answer(case.queries)


def weighted_rule(case: RuleCase, noise: NoiseSource, budget: PrivacyBudget = BUDGET) -> torch.Tensor:
    """Decisions of the paper's method for the design."""
    known = case.schema.domain.known_propensity is not None
    learner = (OutcomeWeightedLearner if known else TwoStageRule)(case.schema, budget, noise=noise)
    return learner.fit(case.records.x, case.records.a, case.records.y).release().answer(case.queries)


def nonprivate(case: RuleCase, noise: NoiseSource) -> torch.Tensor:
    """Decisions of the default without privacy."""
    learner = EffectRule(case.schema, None, noise=noise).fit(case.records.x, case.records.a, case.records.y)
    return torch.as_tensor(learner.nonprivate_effect(case.queries)) > 0


METHODS: dict[str, Callable[[RuleCase, NoiseSource], torch.Tensor]] = {
    "rule": effect_rule,
    "today": weighted_rule,
    "nonprivate": nonprivate,
    "pure rule": partial(effect_rule, budget=PURE),
    "pure today": partial(weighted_rule, budget=PURE),
}


def cells(methods: list[str], seeds: range) -> Iterator[tuple[str, int, str, int, str]]:
    """Yield the cells of the study, small ones first."""
    for n in SIZES:
        for design in (TRIAL, OBSERVED):
            for law in MEANS:
                for seed in seeds:
                    for method in methods:
                        yield design, n, law, seed + LATER * (n <= SMALL and method in AGAIN), method


def measure(design: str, n: int, law: str, seed: int, method: str) -> Iterator[tuple[str, str]]:
    """Yield regret and processor time of one rule."""
    case, start = rule_case(law, design, n, seed), time.process_time()
    noise = NoiseSource.fixed(zlib.crc32(f"{design} {n} {law} {seed} {method}".encode()))
    regret = case.regret(METHODS[method](case, noise))
    yield f"{regret:.5f}", f"{time.process_time() - start:.3f}"


def main() -> None:
    """Make the lines that are not there yet, and print the page."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=10, help="how many")
    parser.add_argument("--first-seed", type=int, default=FIRST, help="seeds below 1,000 were seen; see the page")
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=list(METHODS))
    parser.add_argument("--out", type=Path, default=HERE / "rules.csv")
    words = parser.parse_args()
    torch.set_num_threads(1)
    seeds = range(words.first_seed, words.first_seed + words.seeds)
    lines = resume(words.out, FIELDS, cells(words.methods, seeds), measure)
    print(page(lines))
    draw(lines, words.out.with_suffix(".png"))


if __name__ == "__main__":
    main()
