"""Treatment rules by default on two real trials, by their value on records that the fit has not seen.

Writes trials.csv beside this file, one line a trial, method and seed: mean outcome under the rule, by
inverse-probability-weighted means over five held-out folds, and its difference to treating everybody and to treating
nobody with standard errors over records. ``designs`` prints the table. Hillstrom's women's e-mail against none, visits
(in per cent) as they are and less a cost of an e-mail near its mean effect, which ``task=rule`` takes as ``cost`` and
OWL within the outcome; the NSW trial (Dehejia and Wahba's sample), earnings in 1978.

    python -m experiments.rules_and_selection.trials --data FOLDER --seeds 5
"""

import argparse
import time
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import pandas as pd
import torch
from torch import Tensor

from experiments.csv_files import resume
from experiments.rules_and_selection.design_pages import TRIAL_FIELDS
from experiments.rules_and_selection.designs import DELTA
from experiments.rules_and_selection.rule_pages import HERE
from torchdpcate.data._yaml import read_yaml, shipped
from torchdpcate.data.checked import encode_records
from torchdpcate.data.records import CausalData, public_generator
from torchdpcate.data.schema import TableSchema
from torchdpcate.estimators.rules.effect_rule import EffectRule
from torchdpcate.estimators.rules.learner import OutcomeWeightedLearner
from torchdpcate.privacy.budget import PrivacyBudget
from torchdpcate.privacy.noise import NoiseSource

FOLDS, COST = 5, 0.045
NSW_TREATED = 185 / 445  # as published; the sample's design


@dataclass(frozen=True, eq=False)
class RealTrial:
    """Records of a trial, as the domain reads them.

    Attributes:
        schema: Public facts, the propensity among them.
        records: All records.
        unit: Of the page's values, in outcome units.
        cost: Of a treatment, in outcome units.
    """

    schema: TableSchema
    records: CausalData
    unit: float
    cost: float = 0.0

    @property
    def propensity(self) -> float:
        """Probability of the treatment, of every record."""
        known = self.schema.domain.known_propensity
        assert known is not None
        return float(known.of(self.records)[0])


def trials(folder: Path) -> dict[str, RealTrial]:
    """Return the trials."""
    frame = pd.read_csv(folder / "hillstrom" / "hillstrom.csv.gz")
    mails = _trial(frame[frame["segment"] != "Mens E-Mail"], read_yaml(shipped("domain", "hillstrom_womens")), 0.01)
    facts = read_yaml(shipped("domain", "lalonde")) | {"propensity": NSW_TREATED}
    work = pd.read_csv(folder / "lalonde" / "nsw_dw.csv")
    work["re78"] = work["re78"].clip(upper=60_000)
    return {
        "Hillstrom, visits": mails,
        "Hillstrom, visits less a cost": replace(mails, cost=COST),
        "NSW, earnings": _trial(work, facts, 1.0),
    }


def _trial(frame: pd.DataFrame, facts: dict[str, object], unit: float) -> RealTrial:
    schema = TableSchema.from_dict(facts)
    return RealTrial(schema, encode_records(frame, schema), unit)


def less_cost(trial: RealTrial) -> RealTrial:
    """Return the trial with outcomes less the public cost of the treated, which is then none."""
    if not trial.cost:
        return trial
    facts, records = trial.schema.to_dict(), trial.records
    outcome = facts["outcome"]
    facts["outcome"] = outcome | {"low": outcome["low"] - trial.cost}
    y = records.y - trial.cost * records.a
    return RealTrial(TableSchema.from_dict(facts), CausalData(records.x, records.a, y), trial.unit)


def held_out(trial: RealTrial, method: str, epsilon: float, seed: int, noise: NoiseSource) -> Tensor:
    """Return the decision on every record by a rule fitted on the four folds without it, [n]."""
    read = trial if method == "rule" else less_cost(trial)
    records, budget = read.records, PrivacyBudget(epsilon, DELTA)
    order = torch.randperm(records.n, generator=public_generator(seed, "folds"))
    decided = torch.zeros(records.n)
    for fold in range(FOLDS):
        held = order[fold::FOLDS]
        kept = records.subset(torch.cat([order[k::FOLDS] for k in range(FOLDS) if k != fold]))
        learner: EffectRule | OutcomeWeightedLearner = OutcomeWeightedLearner(read.schema, budget, noise=noise)
        if method == "rule":
            learner = EffectRule(read.schema, budget, cost=trial.cost, noise=noise)
        release = learner.fit(kept.x, kept.a, kept.y).release()
        decided[held] = release.answer(records.x[held]).float()
    return decided


def influence(decided: Tensor, trial: RealTrial) -> tuple[float, Tensor]:
    """Return the value of decisions by self-normalised weights, and what each record adds to its error, [n]."""
    a, y, p = trial.records.a, trial.records.y, trial.propensity
    weight = (a == decided).double() / torch.where(a == 1, p, 1 - p)
    value = (weight * y).sum() / weight.sum()
    return float(value), weight * (y - value) / weight.mean()


def line(decided: Tensor, trial: RealTrial) -> list[float]:
    """Return value, and gain over treating everybody and nobody, each with its standard error, in the page's unit."""
    value, own = influence(decided, trial)
    numbers = [value]
    for everybody in (1.0, 0.0):
        constant, other = influence(torch.full_like(decided, everybody), trial)
        numbers += [value - constant, float((own - other).std() / len(own) ** 0.5)]
    return [number / trial.unit for number in (*numbers, trial.unit * float(decided.mean()))]


def measure(
    cases: Mapping[str, RealTrial], name: str, epsilon: str, seed: int, method: str
) -> Iterator[tuple[object, ...]]:
    """Yield the number of records, what ``line`` returns, and processor time of one method."""
    trial, start = cases[name], time.process_time()
    noise = NoiseSource.fixed(zlib.crc32(f"{name} {epsilon} {seed} {method}".encode()))
    found = line(held_out(trial, method, float(epsilon), seed, noise), less_cost(trial))
    yield trial.records.n, *(f"{number:.6g}" for number in found), f"{time.process_time() - start:.3f}"


def main() -> None:
    """Make the lines that are not there yet."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, required=True, help="folder of hillstrom/ and lalonde/")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--out", type=Path, default=HERE / "trials.csv")
    words = parser.parse_args()
    torch.set_num_threads(1)
    cases = trials(words.data)
    cells = [
        (name, epsilon, seed, method)
        for name in cases
        for seed in range(words.seeds)
        for epsilon in ("1", "4")
        for method in ("rule", "today")
    ]
    resume(words.out, TRIAL_FIELDS, cells, partial(measure, cases))


if __name__ == "__main__":
    main()
