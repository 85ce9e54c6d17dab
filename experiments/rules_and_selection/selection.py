"""The choice of a policy by default, by earlier defaults and without privacy: regret over that of a random policy.

```
python -m experiments.rules_and_selection.selection                 # 10 seeds; continues where it was
python -m experiments.rules_and_selection.selection --seeds 2       # a look
```

Observational designs of ``rule_cases`` with 160 public policies (everybody, nobody, 158 linear ones), the rare region
of ``RareRegion``, whose propensities are known there, with the 160 thresholds of ``policies=thresholds``, and
three observational laws of three arms (``three_arms``).
Regrets are true ones, expected under the exact law of the choice, over that of a policy drawn at random (of the rare
region as they are, in outcome units).
"""

import argparse
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import torch
from torch import Tensor

from experiments.csv_files import Lines, resume
from experiments.designs.rules import RareRegion
from experiments.rules_and_selection.rule_cases import OBSERVED, TRIAL, rule_case
from experiments.rules_and_selection.three_arms import THREE, THREE_ARMS, three_arms
from torchdpcate.candidates.kinds import Constants, LinearPolicies
from torchdpcate.candidates.library import PolicyLibrary, threshold_grid
from torchdpcate.data.records import CausalData
from torchdpcate.data.schema import TableSchema
from torchdpcate.estimators.selection.selector import PolicySelector
from torchdpcate.privacy.budget import PrivacyBudget

HERE = Path(__file__).parent
TABLE = HERE / "selection.csv"
LAWS, SIZES, EPSILONS, DELTA = ("A", "B", "D", "E", "2"), (1_000, 4_000, 20_000), (0.5, 1.0, 4.0), 1e-5
RARE, RARE_SIZES = "rare region", (4_000, 20_000)
EARLIER_SEEDS = 5  # of the rare region
TRIALS, TRIAL_EPSILON, TRIAL_SEEDS = tuple(f"{TRIAL} {law}" for law in LAWS), 1.0, 3
POLICIES = 160
COMPOSED, PLAIN = "composed (default)", "non-private argmax"
CENTRED, FIXED, RARE_COMPOSED = "centred (default)", "fixed, unclipped", "composed, C_2"
IN_RARE: dict[str, dict[str, Any]] = {
    CENTRED: {},
    FIXED: {"nuisance_guarantee": "fixed"},
    RARE_COMPOSED: {"nuisance_guarantee": "composed"},
}
IN_TRIALS: dict[str, dict[str, Any]] = {
    CENTRED: {},
    FIXED: {"nuisance_guarantee": "fixed"},
    RARE_COMPOSED: {"nuisance_guarantee": "composed"},
}
NOTE = {  # of the theory note, with clip C_1
    1_000: (0.51, 0.27, 0.11),
    4_000: (0.06, 0.04, 0.04),
    20_000: (0.02, 0.02, 0.02),
}
FIELDS = ("law", "n", "epsilon", "seed", "method", "regret", "uniform", "clip")


def linear_library(schema: TableSchema) -> list[object]:
    """Return everybody, nobody and 158 linear policies of public random coefficients."""
    domain, generator = schema.domain, torch.Generator().manual_seed(7)
    half = (domain.covariate_high - domain.covariate_low) / 2
    middle = (domain.covariate_high + domain.covariate_low) / 2
    shape = (POLICIES - 2, domain.dimension)
    weight = torch.randn(shape, generator=generator, dtype=torch.float64) / half
    through = middle + 0.3 * half * torch.randn(shape, generator=generator, dtype=torch.float64)
    return [Constants([0, 1]), LinearPolicies(weight.tolist(), (-(weight * through).sum(1)).tolist())]


def regrets(policies: object, schema: TableSchema, x: Tensor, effect: Tensor) -> Tensor:
    """Return each policy's true regret at covariates x [m, q] whose effects are known, [m]."""
    library = PolicyLibrary.of(policies).setup(schema.domain, (0, 1))
    gains = (effect[:, None] * library.decide(x)).mean(0)
    return gains.max() - gains


def rows(law: str, n: int, epsilon: float, seed: int, method: str) -> Iterator[tuple[object, ...]]:
    """Fit one method of one cell and seed; yield the columns after those of the cell."""
    if law == RARE:
        yield _rare(n, epsilon, seed, method)
        return
    budget = None if method == PLAIN else PrivacyBudget(epsilon, DELTA)
    if law in THREE_ARMS:
        study = three_arms(law, n, seed)
        selector = PolicySelector(study.schema, budget, policies=study.policies)
        yield _row(selector, study.records, study.lost)
        return
    design, name = (TRIAL, law.removeprefix(f"{TRIAL} ")) if law in TRIALS else (OBSERVED, law)
    case = rule_case(name, design, n, seed)
    policies = linear_library(case.schema)
    lost = regrets(policies, case.schema, case.queries, case.truth)
    own = IN_TRIALS[method] if design == TRIAL else {}
    selector = PolicySelector(case.schema, budget, policies=policies, **own)
    yield _row(selector, case.records, lost)


def _rare(n: int, epsilon: float, seed: int, method: str) -> tuple[object, ...]:
    """The rare region, its propensities known: a column beside the covariates."""
    generator = RareRegion(n=n + 500, train_fraction=n / (n + 500), queries=500, seed=seed)
    study = generator.load()
    facts = study.schema.to_dict()
    facts["propensity"] = "p"
    schema, records = TableSchema.from_dict(facts), study.records
    known = CausalData(records.x, records.a, records.y, generator.propensity(records.x))
    many = RareRegion(n=200_000, train_fraction=0.5, queries=100, seed=10_000).load().records.x
    policies = [threshold_grid(schema)]
    lost = regrets(policies, schema, many, generator.effect(many))
    budget = PrivacyBudget(epsilon, DELTA)
    selector = PolicySelector(schema, budget, policies=policies, **IN_RARE[method])
    return _row(selector, known, lost)


def _row(selector: PolicySelector, records: CausalData, lost: Tensor) -> tuple[object, ...]:
    selector.fit(records.x, records.a, records.y, records.propensity)
    if selector.mechanism_ is None:
        regret = float(lost[selector.utilities_.argmax()])
    else:
        regret = float(selector.mechanism_.probabilities(selector.utilities_) @ lost)
    found = selector.composed_
    return regret, float(lost.mean()), "" if found is None else found.clip / found.scale


def page(found: Lines) -> str:
    """Return the tables of the rows."""
    cells: dict[tuple[str, int, float], list[float]] = defaultdict(list)
    laws: dict[tuple[str, str, int, float], list[float]] = defaultdict(list)
    for row in found:
        scaled = float(row["regret"]) / (1.0 if row["law"] == RARE else float(row["uniform"]))
        place = int(row["n"]), float(row["epsilon"])
        laws[(row["law"], row["method"], *place)].append(scaled)
        kinds = {RARE: f"{RARE}: ", **dict.fromkeys(TRIALS, f"{TRIAL}: "), **dict.fromkeys(THREE_ARMS, f"{THREE}: ")}
        kind = kinds.get(row["law"], "")
        cells[(kind + row["method"], *place)].append(scaled)
    head = "| epsilon = .5 / 1 / 4, n = | " + " | ".join(f"{n:,}" for n in SIZES) + " |"
    lines = [head, "| --- " * (1 + len(SIZES)) + "|"]
    methods = list(dict.fromkeys(method for method, *_ in cells))

    def entry(values: list[float]) -> str:
        if not values:
            return "-"
        error = stdev(values) / len(values) ** 0.5 if len(values) > 1 else float("nan")
        return f"{fmean(values):.2f} ± {error:.2f}"

    for method in (m for m in methods if not m.startswith((RARE, TRIAL, THREE))):
        shown = [" / ".join(entry(cells[method, n, e]) for e in EPSILONS) for n in SIZES]
        lines.append(f"| {method} | " + " | ".join(shown) + " |")
    lines.append(
        "| the note's prototype, C_1 | " + " | ".join(" / ".join(f"{v:.2f}" for v in NOTE[n]) for n in SIZES) + " |"
    )
    lines += ["", "By law, of the default (non-private argmax in brackets):", ""]
    lines += [head.replace("epsilon", "law; epsilon"), "| --- " * (1 + len(SIZES)) + "|"]
    for law in LAWS:
        shown = []
        for n in SIZES:
            values = [(laws[law, COMPOSED, n, e], laws[law, PLAIN, n, e]) for e in EPSILONS]
            shown.append(" / ".join(f"{fmean(a):.2f} ({fmean(b):.2f})" if a and b else "-" for a, b in values))
        lines.append(f"| {law} | " + " | ".join(shown) + " |")
    lines += ["", "Three observational laws of three arms:", "", head, "| --- " * (1 + len(SIZES)) + "|"]
    for method in (m for m in methods if m.startswith(THREE)):
        shown = [" / ".join(entry(cells[method, n, e]) for e in EPSILONS) for n in SIZES]
        lines.append(f"| {method.removeprefix(THREE + ': ')} | " + " | ".join(shown) + " |")
    lines += ["", f"The first five laws in a trial, whose propensity of 1/2 is known; epsilon = {TRIAL_EPSILON:g}:", ""]
    lines += ["| n = | " + " | ".join(f"{n:,}" for n in SIZES) + " |", "| --- " * (1 + len(SIZES)) + "|"]
    for method in (m for m in methods if m.startswith(TRIAL)):
        shown = [entry(cells[method, n, TRIAL_EPSILON]) for n in SIZES]
        lines.append(f"| {method.removeprefix(TRIAL + ': ')} | " + " | ".join(shown) + " |")
    lines += ["", "The rare region, propensities known; regret in outcome units:", ""]
    lines += ["| epsilon = .5 / 1 / 4, n = | " + " | ".join(f"{n:,}" for n in RARE_SIZES) + " |", "| --- | --- | --- |"]
    for method in (m for m in methods if m.startswith(RARE)):
        shown = []
        for n in RARE_SIZES:
            values = [cells[method, n, e] for e in EPSILONS]
            shown.append(" / ".join(f"{fmean(v):.4f}" if v else "-" for v in values))
        lines.append(f"| {method.removeprefix(RARE + ': ')} | " + " | ".join(shown) + " |")
    return "\n".join(lines) + "\n"


def cells_of(seed: int) -> Iterator[tuple[str, int, float, int, str]]:
    """Yield law, n, epsilon, seed and method of each cell."""
    for n in SIZES:
        for law in (*LAWS, *THREE_ARMS):
            yield from ((law, n, epsilon, seed, method) for method in (COMPOSED, PLAIN) for epsilon in EPSILONS)
        if n in RARE_SIZES and seed < EARLIER_SEEDS:
            yield from ((RARE, n, epsilon, seed, method) for epsilon in EPSILONS for method in IN_RARE)
        if seed < TRIAL_SEEDS:
            yield from ((law, n, TRIAL_EPSILON, seed, method) for law in TRIALS for method in IN_TRIALS)


def main() -> None:
    """Run what is not in the table yet, and print the tables."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--seeds", type=int, default=10)
    seeds = parser.parse_args().seeds
    print(page(resume(TABLE, FIELDS, [cell for seed in range(seeds) for cell in cells_of(seed)], rows)))


if __name__ == "__main__":
    main()
