"""Regret of treatment rules by default, over that of the best constant rule, against n.

Writes rules.csv (one line a rule) and rules.md (means over seeds) beside this file. Lines that are there are not made
again; ``--methods rule`` makes those of one method alone.

    python -m experiments.rules_and_selection.rules --seeds 10
    python -m experiments.rules_and_selection.rules --seeds 3 --methods today nonprivate
"""

import argparse
import csv
import time
import zlib
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import fmean

import torch

from experiments.rules_and_selection.rule_cases import MEANS, OBSERVED, TRIAL, RuleCase, rule_case
from torchdpcate.estimators.rules.effect_rule import EffectRule
from torchdpcate.estimators.rules.owl import OutcomeWeightedLearner
from torchdpcate.estimators.rules.two_stage import TwoStageRule
from torchdpcate.privacy.budget import PrivacyBudget
from torchdpcate.privacy.noise import NoiseSource

HERE = Path(__file__).parent
SIZES, BUDGET = (500, 1_000, 2_000, 4_000, 16_000), PrivacyBudget(1.0, 1e-5)
PROTOTYPE = {  # theory note composed_rules_and_selection, section 1: the better of its two bases
    TRIAL: (0.53, 0.19, 0.10, 0.056, 0.013),
    OBSERVED: (0.86, 0.51, 0.24, 0.13, 0.028),
}
FIELDS = ("design", "n", "law", "seed", "method", "regret", "seconds")
WORDS = {
    "rule": "task=rule, the default",
    "today": "OWL in a trial, the two-stage rule else, by default",
    "nonprivate": "the default without privacy",
}


def effect_rule(case: RuleCase, noise: NoiseSource) -> torch.Tensor:
    """Decisions of the rule that the library picks."""
    learner = EffectRule(case.schema, BUDGET, noise=noise)
    return learner.fit(case.records.x, case.records.a, case.records.y).release().answer(case.queries)


def weighted_rule(case: RuleCase, noise: NoiseSource) -> torch.Tensor:
    """Decisions of the paper's method for the design."""
    known = case.schema.domain.known_propensity is not None
    learner = (OutcomeWeightedLearner if known else TwoStageRule)(case.schema, BUDGET, noise=noise)
    return learner.fit(case.records.x, case.records.a, case.records.y).release().answer(case.queries)


def nonprivate(case: RuleCase, noise: NoiseSource) -> torch.Tensor:
    """Decisions of the default without privacy."""
    learner = EffectRule(case.schema, None, noise=noise).fit(case.records.x, case.records.a, case.records.y)
    return torch.as_tensor(learner.nonprivate_effect(case.queries)) > 0


METHODS: dict[str, Callable[[RuleCase, NoiseSource], torch.Tensor]] = {
    "rule": effect_rule,
    "today": weighted_rule,
    "nonprivate": nonprivate,
}


def cells(methods: list[str], seeds: int) -> Iterator[tuple[str, int, str, int, str]]:
    """Yield the cells of the study, small ones first."""
    for n in SIZES:
        for design in (TRIAL, OBSERVED):
            for law in MEANS:
                for seed in range(seeds):
                    yield from ((design, n, law, seed, method) for method in methods)


def read(path: Path) -> list[dict[str, str]]:
    """Return the lines of a file of results."""
    if not path.exists():
        return []
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def page(lines: list[dict[str, str]]) -> str:
    """Return the table of means over laws and seeds."""
    found: dict[tuple[str, str, int], list[float]] = defaultdict(list)
    laws: dict[tuple[str, str, str, int], list[float]] = defaultdict(list)
    for line in lines:
        key = line["design"], line["method"], int(line["n"])
        found[key].append(float(line["regret"]))
        laws[(line["design"], line["method"], line["law"], int(line["n"]))].append(float(line["regret"]))
    head = "| design | rule | " + " | ".join(f"{n:,}" for n in SIZES) + " |"
    rows = [head, "| --- | --- |" + " ---: |" * len(SIZES)]

    def cell(values: list[float]) -> str:
        return f"{fmean(values):.3f} ({len(values)})" if values else "-"

    for design, prototype in PROTOTYPE.items():
        for method, words in WORDS.items():
            rows.append(f"| {design} | {words} | " + " | ".join(cell(found[design, method, n]) for n in SIZES) + " |")
        rows.append(f"| {design} | prototype of the theory note | " + " | ".join(f"{v:.3f}" for v in prototype) + " |")
    missed = [
        f"{design} at {n:,} ({fmean(found[design, 'rule', n]):.3f}, wanted {wanted:.3f})"
        for design, prototype in PROTOTYPE.items()
        for n, wanted in zip(SIZES, prototype, strict=True)
        if found[design, "rule", n] and fmean(found[design, "rule", n]) > wanted
    ]
    above = [line for line in lines if line["method"] == "rule" and float(line["regret"]) > 1.05]
    many = sum(line["method"] == "rule" for line in lines)
    where = ", ".join(sorted({f"{line['design']} {line['law']} at {int(line['n']):,}" for line in above})) or "none"
    rows += ["", f"Cells above the prototype's: {'; '.join(missed) or 'none'}.", ""]
    rows += [f"Single rules above 1.05 of the best constant's: {len(above)} of {many} ({where})."]
    rows += ["", "By law, the default:", "", head.replace("rule", "law", 1), rows[1]]
    for design in PROTOTYPE:
        for law in MEANS:
            values = (laws[design, "rule", law, n] for n in SIZES)
            rows.append(f"| {design} | {law} | " + " | ".join(cell(v) for v in values) + " |")
    intro = (
        "# Regret of treatment rules\n\n"
        "Regret over that of the best constant rule (treating everybody, or nobody), mean over laws and seeds, how "
        f"many in brackets; epsilon = {BUDGET.epsilon:g}, delta = {BUDGET.delta:g}, all at default settings. Laws: "
        "Niu's A, B, D and E and Dataset 2 of Oprescu et al., the mean of each effect taken from it, in a trial by a "
        "fair coin that the domain knows and with the law's own propensity, unknown (`rule_cases.py`). How the theory "
        "note built its variants is not known, so that its figures are of like laws, not of these. Nothing was tuned "
        "on them (`tune.py`).\n\n"
    )
    return intro + "\n".join(rows) + "\n"


def main() -> None:
    """Make the lines that are not there yet, and the page."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=list(METHODS))
    parser.add_argument("--out", type=Path, default=HERE / "rules.csv")
    words = parser.parse_args()
    torch.set_num_threads(1)
    there = {tuple(line[name] for name in FIELDS[:5]) for line in read(words.out)}
    new = not words.out.exists()
    with words.out.open("a", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        if new:
            writer.writerow(FIELDS)
        for design, n, law, seed, method in cells(words.methods, words.seeds):
            if (design, str(n), law, str(seed), method) in there:
                continue
            case, start = rule_case(law, design, n, seed), time.perf_counter()
            noise = NoiseSource.fixed(zlib.crc32(f"{design} {n} {law} {seed} {method}".encode()))
            regret = case.regret(METHODS[method](case, noise))
            writer.writerow([design, n, law, seed, method, f"{regret:.5f}", f"{time.perf_counter() - start:.3f}"])
            file.flush()
    (words.out.parent / f"{words.out.stem}.md").write_text(page(read(words.out)), encoding="utf-8")


if __name__ == "__main__":
    main()
