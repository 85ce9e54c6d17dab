"""Where records come from: laws with known effects, benchmarks on real covariates, LaLonde's tables."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path

import pandas as pd
import torch
from torch import Tensor

from experiments.designs.given_outcomes import GivenOutcomes
from experiments.designs.niu import Niu
from torchdpcate.data.records import CausalData, public_permutation, public_split
from torchdpcate.data.schema import TableSchema
from torchdpcate.data.study import GeneratedStudy
from torchdpcate.papers.oprescu import Dataset1, Dataset2

QUERIES = 3_000
ACIC_BOUNDS = {  # of y0 and y1 in the published files, moved outwards to tens: public with the competition's data
    1: (-20, 40),
    2: (0, 100),
    3: (-20, 30),
    4: (-20, 80),
    5: (-60, 30),
    6: (-10, 60),
    7: (-50, 200),
    8: (-20, 190),
    9: (-20, 30),
    10: (-110, -20),
}
LBIDD = {"72dc": "72dc49234bd24c22ab6e215974cc34c7", "e441": "e441b36b44ef4f3596c80955cf853ca7"}
LBIDD_BOUNDS = (-5, 40)
TRIAL_EFFECT = 1_794.34  # dollars: mean of the treated less mean of the controls in the trial, standard error 671


@dataclass(frozen=True, eq=False)
class Case:
    """Records, and how a release is judged.

    Attributes:
        schema: Public facts.
        records: The records.
        queries: Where the effect is requested, [m, q].
        truth: The effect there, [m]; or one number, [1], that the mean over the queries should be.
    """

    schema: TableSchema
    records: CausalData
    queries: Tensor
    truth: Tensor

    def error(self, effect: Tensor) -> tuple[float, float]:
        """Mean squared error and mean error of effects [m] at the queries, in units of the outcome."""
        apart = effect.mean() - self.truth if len(self.truth) == 1 else effect - self.truth
        return apart.square().mean().item(), apart.mean().item()


@dataclass(frozen=True)
class Source:
    """One table or law.

    Attributes:
        name: Short, as in the tables.
        title: As in figures.
        sizes: Numbers of records that are tried.
        draw: Makes the case of n records and a seed.
        needs: Files that must be there.
        group: ``generated``, ``benchmark`` or ``lalonde``.
    """

    name: str
    title: str
    sizes: tuple[int, ...]
    draw: Callable[[int, int], Case]
    needs: tuple[Path, ...] = ()
    group: str = "generated"

    @property
    def missing(self) -> str | None:
        """Why it cannot be had, None if it can."""
        absent = [path.name for path in self.needs if not path.exists()]
        return f"{self.name}: {', '.join(absent)} not found" if absent else None


def sources(folder: Path | None) -> Iterator[Source]:
    """All sources; those that need files look for them in ``folder``."""
    niu, oprescu = (500, 1_500, 4_000, 16_000, 64_000, 270_000), (500, 1_000, 2_700, 9_000, 27_000, 270_000)
    for make in (Dataset1, Dataset2):
        yield Source(make.__name__.lower(), make.__name__, oprescu, partial(_generated, make))
    for design in "ABCDE":
        yield Source(f"niu_{design.lower()}", f"Niu {design}", niu, partial(_generated, partial(Niu, design)))
    where = folder or Path("none")
    for number in ACIC_BOUNDS:
        paths = (where / "acic2016" / "x.csv", where / "acic2016" / f"zymu_{number}.csv")
        draw = partial(_acic, paths, number)
        yield Source(f"acic_{number}", f"ACIC {number}", (500, 1_500, 4_322), draw, paths, "benchmark")
    twins = where / "twins" / "Twin_data.csv"
    yield Source("twins", "Twins", (500, 1_500, 4_000, 10_260), partial(_twins, twins), (twins,), "benchmark")
    for name, file in LBIDD.items():
        paths = (where / "lbidd" / "covariates.parquet", where / "lbidd" / f"{file}.parquet")
        draw = partial(_lbidd, paths)
        yield Source(f"lbidd_{name}", f"LBIDD {name}", (500, 2_700, 9_000, 45_000), draw, paths, "benchmark")
    trial = where / "lalonde" / "nsw_dw.csv"
    yield Source("lalonde_trial", "LaLonde, trial", (445,), partial(_lalonde, trial, None), (trial,), "lalonde")
    for name, n in (("psid", 2_675), ("cps", 16_177)):
        survey = where / "lalonde" / f"{name}_controls.csv"
        draw = partial(_lalonde, trial, survey)
        yield Source(f"lalonde_{name}", f"LaLonde, {name.upper()}", (n,), draw, (trial, survey), "lalonde")


def _generated(make: Callable[..., GeneratedStudy], n: int, seed: int) -> Case:
    total = n + QUERIES
    study = make(n=total, train_fraction=n / total, queries=QUERIES, seed=seed).load()
    assert study.queries is not None
    assert study.effect is not None
    return Case(study.schema, study.records, study.queries, study.effect)


def _acic(paths: tuple[Path, Path], number: int, n: int, seed: int) -> Case:
    means = ("mu0", "mu1")
    surface = GivenOutcomes(paths[1], means=means, treatment="z", bounds=ACIC_BOUNDS[number])
    return _held_out(paths[0], "acic2016", surface, n, seed)


def _twins(path: Path, n: int, seed: int) -> Case:
    surface = GivenOutcomes(outcomes=("outcome(t=0)", "outcome(t=1)"), event_below=9999, bounds=(0, 1))
    return _held_out(path, "twins", surface, n, seed)


def _held_out(path: Path, domain: str, surface: GivenOutcomes, n: int, seed: int) -> Case:
    """What ``SemiSynthetic`` makes of all rows with a share of n, the covariates being read once."""
    schema, x = _covariates(path, domain)
    drawn = surface.draw(x, torch.arange(len(x)), schema, path, seed)
    schema = schema.with_outcome_bounds(*drawn.bounds).handling("clip")
    train, held_out = public_split(len(x), n / len(x), seed, "held-out")
    records, queries = CausalData(x[train], drawn.a[train], drawn.y[train]), held_out[:QUERIES]
    return Case(schema, records, x[queries], drawn.effect[queries])


@cache
def _covariates(path: Path, domain: str) -> tuple[TableSchema, Tensor]:
    schema = TableSchema.from_yaml(domain).handling("clip")
    return schema, schema.within(schema.encode(pd.read_csv(path)))


def _lbidd(paths: tuple[Path, Path], n: int, seed: int) -> Case:
    schema, x, frame = _births(paths)
    train, held_out = public_split(len(x), n / len(x), seed, "held-out")
    a, y0, y1 = (torch.tensor(frame[name].to_numpy(float)) for name in ("z", "y0", "y1"))
    records = CausalData(x[train], a[train], torch.where(a == 1, y1, y0)[train])
    queries = held_out[:QUERIES]
    return Case(schema, records, x[queries], (y1 - y0)[queries])


@cache
def _births(paths: tuple[Path, Path]) -> tuple[TableSchema, Tensor, pd.DataFrame]:
    outcome = {"name": "y", "low": LBIDD_BOUNDS[0], "high": LBIDD_BOUNDS[1], "better": "higher"}
    schema = TableSchema.from_yaml(Path(__file__).parent / "lbidd.yaml").handling("clip")
    schema = TableSchema.from_dict(schema.to_dict() | {"outcome": outcome}).handling("clip")
    frame = pd.read_parquet(paths[1]).merge(pd.read_parquet(paths[0]), on="sample_id", validate="one_to_one")
    return schema, schema.within(schema.encode(frame)), frame


def _lalonde(trial: Path, survey: Path | None, n: int, seed: int) -> Case:
    """The trial, or its treated with a survey's controls; the effect is requested at the treated."""
    schema, records, treated = _earnings(trial, survey)
    order = public_permutation(records.n, seed, "order")[:n]
    return Case(schema, records.subset(order), treated, torch.tensor([TRIAL_EFFECT], dtype=torch.float64))


@cache
def _earnings(trial: Path, survey: Path | None) -> tuple[TableSchema, CausalData, Tensor]:
    schema = TableSchema.from_yaml("lalonde").handling("clip")
    frame = pd.read_csv(trial)
    if survey is not None:
        frame = pd.concat([frame[frame["treat"] == 1], pd.read_csv(survey)], ignore_index=True)
    x, a = schema.within(schema.encode(frame)), schema.encode_treatment(frame)
    y = schema.domain.clip_outcome(torch.tensor(frame["re78"].to_numpy(float)))
    return schema, CausalData(x, a, y), x[a == 1]
