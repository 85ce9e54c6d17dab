"""Public tables whose effect is known, as csv files with their domain files: twins, ACIC 2016, births, job training.

``python -m experiments.hospital.public_tables --data FOLDER --out FOLDER``

A fair coin of a fixed seed chooses which twin of a pair is observed. Outcomes of the other tables are those of their
files. What is known of each is printed.
"""

import argparse
from pathlib import Path

import numpy as np
import pandas as pd
import yaml

from experiments.defaults.sources import ACIC_BOUNDS, LBIDD, LBIDD_BOUNDS, TRIAL_EFFECT
from torchdpcate.data.schema import TableSchema

SEED = 2016
_BIRTHS = Path(__file__).parent.parent / "defaults" / "lbidd.yaml"


def twins(folder: Path) -> tuple[TableSchema, pd.DataFrame, float]:
    """Return one twin of each pair, and the mean effect of all pairs."""
    frame = pd.read_csv(folder / "twins" / "Twin_data.csv")
    died = [(frame.pop(f"outcome(t={arm})") < 9999).astype(int) for arm in (0, 1)]
    heavier = np.random.default_rng(SEED).integers(0, 2, len(frame))
    observed = frame.assign(heavier=heavier, died=np.where(heavier == 1, died[1], died[0]))
    schema = TableSchema.from_dict(TableSchema.from_yaml("twins").to_dict() | {"propensity": 0.5})
    return schema, observed, float((died[1] - died[0]).mean())


def acic(folder: Path, setting: int) -> tuple[TableSchema, pd.DataFrame, float]:
    """Return a setting of the competition, and its mean effect."""
    x, own = (pd.read_csv(folder / "acic2016" / f"{name}.csv") for name in ("x", f"zymu_{setting}"))
    observed = x.assign(z=own["z"], y=np.where(own["z"] == 1, own["y1"], own["y0"]))
    schema = TableSchema.from_yaml("acic2016").with_outcome_bounds(*ACIC_BOUNDS[setting])
    return schema, observed, float((own["mu1"] - own["mu0"]).mean())


def births(folder: Path, name: str) -> tuple[TableSchema, pd.DataFrame, float]:
    """Return births with a simulated outcome, and its mean effect."""
    outcomes, x = (pd.read_parquet(folder / "lbidd" / f"{file}.parquet") for file in (LBIDD[name], "covariates"))
    observed = outcomes.merge(x, on="sample_id", validate="one_to_one")
    schema = TableSchema.from_yaml(_BIRTHS).with_outcome_bounds(*LBIDD_BOUNDS)
    effect = float((observed["y1"] - observed["y0"]).mean())
    return schema, observed[["z", "y", *(covariate.name for covariate in schema.covariates)]], effect


def job_training(folder: Path) -> tuple[TableSchema, pd.DataFrame, float]:
    """Return the trial's records with a survey's controls, and the trial's effect, which is of the treated."""
    tables = [pd.read_csv(folder / "lalonde" / f"{name}.csv") for name in ("nsw_dw", "cps_controls")]
    facts = {"overlap": 0.002, "treated": 0.0113}
    schema = TableSchema.from_dict(TableSchema.from_yaml("lalonde").to_dict() | facts)
    return schema, pd.concat(tables, ignore_index=True), TRIAL_EFFECT


def _main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True, help="folder with twins, acic2016, lbidd and lalonde")
    parser.add_argument("--out", type=Path, required=True)
    words = parser.parse_args()
    words.out.mkdir(parents=True, exist_ok=True)
    found = {"twins_coin": twins(words.data)}
    found |= {f"acic_{setting}": acic(words.data, setting) for setting in (1, 4, 6)}
    found |= {f"births_{name}": births(words.data, name) for name in LBIDD}
    found["job_training"] = job_training(words.data)
    for name, (schema, frame, effect) in found.items():
        frame.to_csv(words.out / f"{name}.csv", index=False)
        facts = yaml.safe_dump(schema.handling("clip").to_dict(), sort_keys=False)
        (words.out / f"{name}.yaml").write_text(facts)
        print(f"{name}: {len(frame):,} records, effect {effect:.4g}")


if __name__ == "__main__":
    _main()
