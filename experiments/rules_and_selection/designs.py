"""Treatment rules by default on the papers' designs: regret and right decisions, beside the methods named after them.

Writes designs.csv (one line a rule) beside this file and prints its means; lines that are there are not made again. The
trial of Giddens et al. (2023), the three shapes of ``ITR``, our own laws after Lee and Chen (2026), and the rare region
of ``RareRegion``, with known propensities and without.

    python -m experiments.rules_and_selection.designs --seeds 10
"""

import argparse
import time
import zlib
from collections.abc import Iterator
from pathlib import Path

import torch

from experiments.csv_files import read_lines, resume
from experiments.designs.rules import ITR, RareRegion
from experiments.dp_2erm.own_laws import Law, confounded, scenario
from experiments.rules_and_selection.design_pages import FIELDS, page
from experiments.rules_and_selection.rule_cases import RuleCase
from experiments.rules_and_selection.rule_pages import HERE
from torchdpcate.data.records import CausalData, public_generator
from torchdpcate.data.schema import TableSchema
from torchdpcate.data.study import GeneratedStudy
from torchdpcate.estimators.rules.effect_rule import EffectRule
from torchdpcate.estimators.rules.learner import OutcomeWeightedLearner, TwoStageRule
from torchdpcate.estimators.rules.outcome import SignedResidual
from torchdpcate.papers.rules import OWL
from torchdpcate.privacy.budget import PrivacyBudget
from torchdpcate.privacy.noise import NoiseSource

QUERIES, DELTA = 3_000, 1e-5
OWL_TRIAL, RARE, RARE_KNOWN = "OWL's trial", "rare region", "rare region, known propensity"
LAWS = {
    "two-stage linear, p = 10": scenario("linear"),
    "two-stage quadratic, p = 10": scenario("quadratic"),
    "two-stage tree, p = 10": scenario("tree"),
    "two-stage linear, p = 4": scenario("linear", 4),
    "two-stage confounded, p = 10": confounded(),
}
LAW_SIZES = (400, 400, 400, 1_140, 4_000)
SMALL, SMALL_FIRST = 1_000, 2_000  # up to that n seeds start at that one: the plan was another on those from 0


def cells(seeds: int) -> Iterator[tuple[str, int, str, int, str]]:
    """Yield design, n, epsilon, seed and method of all cells."""
    for design, n, epsilon, seed, method in _cells(seeds):
        yield design, n, epsilon, seed + SMALL_FIRST * (n <= SMALL), method


def _cells(seeds: int) -> Iterator[tuple[str, int, str, int, str]]:
    """Yield them with seeds from 0 on."""
    both = ("rule", "today")
    for seed in range(seeds):
        for n in (200, 500, 1_000):
            for epsilon in ("0.5", "1", "5"):
                yield from ((OWL_TRIAL, n, epsilon, seed, method) for method in (*both, "public"))
        for name, n in zip(LAWS, LAW_SIZES, strict=True):
            yield from ((name, n, epsilon, seed, method) for epsilon in ("1", "4") for method in both)
        for shape in ("linear", "quadratic", "tree"):
            for where in ("trial", "confounded"):
                sizes = (1_000, 4_000, 16_000)
                yield from ((f"ITR {shape}, {where}", n, "1", seed, method) for n in sizes for method in both)
        for name in (RARE, RARE_KNOWN):
            yield from ((name, n, "1", seed, method) for n in (4_000, 20_000) for method in both)


def design_case(design: str, n: int, seed: int) -> RuleCase:
    """Return n records of a design, and fresh covariates of known effect."""
    if design in LAWS:
        return _of_law(LAWS[design], n, seed)
    total = n + QUERIES
    settings = {"n": total, "train_fraction": n / total, "queries": QUERIES, "seed": seed}
    generator: GeneratedStudy
    if design == OWL_TRIAL:
        generator = OWL(**settings)
    elif design in (RARE, RARE_KNOWN):
        generator = RareRegion(**settings)
    else:
        shape, where = design.removeprefix("ITR ").split(", ")
        generator = ITR(shape, confounded=where == "confounded", **settings)
    study = generator.load()
    assert study.queries is not None
    schema, records = study.schema, study.records
    if design == RARE_KNOWN:
        schema = TableSchema.from_dict(schema.to_dict() | {"propensity": "p"})
        records = CausalData(records.x, records.a, records.y, generator.propensity(records.x))
    return RuleCase(schema, records, study.queries, generator.effect(study.queries))


def _of_law(law: Law, n: int, seed: int) -> RuleCase:
    generator = public_generator(seed, law.name)
    records = law.draw(1, n, generator).records(0, law.domain)
    queries = law.draw(1, QUERIES, generator).x[0]
    return RuleCase(TableSchema.from_domain(law.domain), records, queries, law.effect(queries))


def decisions(case: RuleCase, epsilon: float, method: str, noise: NoiseSource) -> torch.Tensor:
    """Return a method's decisions at the queries."""
    budget = PrivacyBudget(epsilon, DELTA)
    learner: EffectRule | OutcomeWeightedLearner | TwoStageRule
    if method == "rule":
        learner = EffectRule(case.schema, budget, noise=noise)
    elif method == "public":
        learner = OutcomeWeightedLearner(case.schema, budget, outcome=SignedResidual(0.0, 3.0), noise=noise)
    elif case.schema.domain.known_propensity is not None:
        learner = OutcomeWeightedLearner(case.schema, budget, noise=noise)
    else:
        learner = TwoStageRule(case.schema, budget, noise=noise)
    records = case.records
    return learner.fit(records.x, records.a, records.y, records.propensity).release().answer(case.queries)


def measure(design: str, n: int, epsilon: str, seed: int, method: str) -> Iterator[tuple[str, str, str]]:
    """Yield regret, share of right decisions and processor time of one rule."""
    case, start = design_case(design, n, seed), time.process_time()
    noise = NoiseSource.fixed(zlib.crc32(f"{design} {n} {epsilon} {seed} {method}".encode()))
    decided = decisions(case, float(epsilon), method, noise)
    seconds = time.process_time() - start
    right = ((decided > 0) == (case.truth > 0)).double().mean().item()
    yield f"{case.regret(decided):.5f}", f"{right:.5f}", f"{seconds:.3f}"


def main() -> None:
    """Make the lines that are not there yet, and print the page."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--out", type=Path, default=HERE / "designs.csv")
    words = parser.parse_args()
    torch.set_num_threads(1)
    lines = resume(words.out, FIELDS, cells(words.seeds), measure)
    print(page(lines, read_lines(HERE / "trials.csv")))


if __name__ == "__main__":
    main()
