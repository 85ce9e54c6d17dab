"""Other libraries beside the defaults of this one: same records, same queries, same metric."""

import math
import resource
import time
import warnings
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from multiprocessing import get_context

import torch

from experiments.defaults.sources import Case, sources
from experiments.frame.study import NO_PRIVACY, OTHER, Cell, Found, Place, Settings, Study, seed_of
from experiments.frame.table import Summary
from experiments.peers.averages import AVERAGES, AverageMethod
from experiments.peers.effects import METHODS, Method
from experiments.tables import paragraph, table
from torchdpcate.errors import InputError

EFFECTS, AVERAGE = "effects", "averages"
ERROR, HELD, SECONDS, MEBIBYTES = "relative error", "interval holds the truth", "seconds", "MiB"
EPSILONS = ("1", "4")
SIZES = {"niu_a": 4_000, "niu_b": 4_000, "niu_c": 4_000, "niu_d": 4_000, "niu_e": 4_000}
SIZES |= {"dataset2": 9_000, "acic_5": 4_322}
QUICK = {"niu_b": 1_500, "dataset2": 1_500}
LIBRARIES = {"econml": "econml", "doubleml": "DoubleML", "interpret": "interpret-core"}
COLUMNS = ["method", "library", "guarantee", "epsilon"]
ABOUT = """\
EconML's and DoubleML's nuisances are scikit-learn's gradient boosting, the rest are their defaults. DP-EBM is put
into the learners of Niu et al. (2022) with *public* bounds (dp_ebm.py); theirs take bounds from the records, which
their epsilon does not cover. Bounds of doubly robust and residual scores are what the clipped propensity allows,
twenty outcome ranges, and DP-EBM's noise grows with them: its S-learner is the fair opponent. `diffprivlib` 0.6.6 is
not here: it imports a name that scikit-learn 1.9 does not have. delta = 1e-5. *Certified* is for replacing one
record; InterpretML's claim is its own, and takes the largest weight of the R-learner from the records. Means over
seeds ± their standard errors. Seconds are processor time of one thread; each method runs in a process of its own,
whose largest memory is shown, imports included."""
HEADS = {
    EFFECTS: """Root of the mean squared error at 3,000 points that were not learnt from (82 covariates of ACIC: at
other rows), over the standard deviation of the true effect: 1.00 is what the true average effect would reach,
for everybody alike. C's effect is one number: its column has root mean squared errors in outcome units.""",
    AVERAGE: """Absolute error in outcome units, and the share of 95 % intervals that hold the truth.""",
}


class Peers(Study):
    """No published numbers: everything is run here."""

    name = "peers"
    title = "Other libraries, run"
    about = ABOUT

    def cells(self, settings: Settings) -> Iterable[Cell]:
        """Return a cell for each method, budget and seed; it goes through all data sets."""
        seeds = 1 if settings.quick else 3
        for seed in range(seeds):
            for kind, methods in ((EFFECTS, METHODS), (AVERAGE, AVERAGES)):
                for name, method in methods.items():
                    if not _lacks(method.library):
                        for epsilon in EPSILONS if method.private else (NO_PRIVACY,):
                            yield {"kind": kind, "method": name, "epsilon": epsilon, "seed": seed, **_sizes(settings)}

    def compute(self, cell: Cell, settings: Settings) -> Iterable[Found]:
        """Run one method on all data sets, in a process of its own."""
        with ProcessPoolExecutor(1, get_context("spawn")) as pool:
            return pool.submit(measure, dict(cell), settings).result()

    def missing(self, settings: Settings) -> list[str]:
        """Return libraries that are not installed, and data that are not there."""
        absent = [name for name in LIBRARIES if _lacks(name)]
        lines = [f"{name} is not installed: pip install 'torchdpcate[peers-{name}]'." for name in absent]
        gone = (QUICK if settings.quick else SIZES).keys() - _sizes(settings).keys()
        return lines + [f"{name}: its files are not in the folder of data sets." for name in sorted(gone)]

    def page(self, found: Sequence[Summary], notes: Sequence[str]) -> str:
        """Return one table of effects and one of averages: a line for each method and budget."""
        versions = ", ".join(f"{name} {_version(name)}" for name in ("torchdpcate", *LIBRARIES.values()))
        parts = [f"# {self.title}\n", *(paragraph(" ".join(note.split())) for note in notes)]
        parts += [paragraph(f"Versions: {versions}."), paragraph(" ".join(ABOUT.split()))]
        for kind, methods in ((EFFECTS, METHODS), (AVERAGE, AVERAGES)):
            parts += [f"## {kind.capitalize()}\n", paragraph(" ".join(HEADS[kind].split()))]
            parts.append(_table([one for one in found if one.place.table == kind], methods))
        return "\n".join(parts)


STUDY = Peers()


def measure(cell: Mapping[str, str | int], settings: Settings) -> list[Found]:
    """Return what one method finds on all data sets of a cell, with its processor time and the process's memory.

    Args:
        cell: Kind, method, budget and seed, and the number of records of each data set.
        settings: Where the data sets are.
    """
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    kind, name, epsilon, seed = str(cell["kind"]), str(cell["method"]), str(cell["epsilon"]), int(cell["seed"])
    method: Method | AverageMethod = METHODS[name] if kind == EFFECTS else AVERAGES[name]
    values: dict[Place, float] = {}
    for source in sources(settings.data):
        if source.name in cell:
            n = int(cell[source.name])
            case, begun = source.draw(n, seed), time.process_time()
            measured = _measured(method, case, float(epsilon), seed_of("peers", name, epsilon, seed))
            measured[SECONDS] = time.process_time() - begun
            values |= {Place(kind, source.title, str(n), epsilon, name, what): v for what, v in measured.items()}
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    values[Place(kind, "all", "", epsilon, name, MEBIBYTES)] = memory
    return [Found(place, OTHER, name, method.guarantee, [value]) for place, value in values.items()]


def _measured(method: Method | AverageMethod, case: Case, epsilon: float, seed: int) -> dict[str, float]:
    if isinstance(method, Method):
        error = math.sqrt(case.error(method.run(case, epsilon, seed))[0])
        spread = case.truth.std(correction=0).item()
        return {ERROR: error / (spread if spread > 1e-6 else 1.0)}
    try:
        found, truth = method.run(case, epsilon, seed), case.truth.mean().item()
    except InputError:  # a plan that would hardly adjust
        return {}
    return {ERROR: abs(found.value - truth), HELD: float(found.low <= truth <= found.high)}


def _table(found: Sequence[Summary], methods: Mapping[str, Method] | Mapping[str, AverageMethod]) -> str:
    sets = list(dict.fromkeys((one.place.setting, one.place.n) for one in found if one.place.n))
    lines = [[*COLUMNS, *(f"{name}, {int(n):,}" for name, n in sets), SECONDS, MEBIBYTES]]
    for name, method in methods.items():
        for epsilon in dict.fromkeys(one.place.epsilon for one in found if one.method == name):
            own = [one for one in found if (one.method, one.place.epsilon) == (name, epsilon)]
            shown = [_shown([one for one in own if (one.place.setting, one.place.n) == where]) for where in sets]
            seconds = [one.mean for one in own if one.place.metric == SECONDS]
            memory = max(one.mean for one in own if one.place.metric == MEBIBYTES)
            spent = "-" if epsilon == NO_PRIVACY else epsilon
            cost = [f"{sum(seconds) / len(seconds):.2g}", f"{memory:.0f}"]
            lines.append([name, method.library, method.guarantee, spent, *shown, *cost])
    return table(lines)


def _shown(own: Sequence[Summary]) -> str:
    by_metric = {one.place.metric: one for one in own}
    if ERROR not in by_metric:
        return "-"
    error = by_metric[ERROR]
    text = f"{error.mean:.3g}" + ("" if math.isnan(error.error) else f" ± {error.error:.1g}")
    return text + (f", {by_metric[HELD].mean:.0%}" if HELD in by_metric else "")


def _sizes(settings: Settings) -> dict[str, int]:
    there = {source.name for source in sources(settings.data) if source.missing is None}
    return {name: n for name, n in (QUICK if settings.quick else SIZES).items() if name in there}


def _lacks(library: str) -> bool:
    return library in LIBRARIES and find_spec(library) is None


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "(not installed)"
