"""The library's defaults on generated data like a hospital's: ``torchdpcate study hospital``."""

import warnings
from collections.abc import Iterable, Sequence
from importlib.util import find_spec
from pathlib import Path

from experiments.defaults.hospital_laws import FAMILIES, REPORTED, hospital_case
from experiments.frame.study import NO_PRIVACY, OTHER, Cell, Found, Place, Settings, Study, seed_of
from experiments.frame.table import Row, Summary
from experiments.hospital.figures import draw_errors
from experiments.hospital.groups import AVERAGES, EFFECTS, GROUPS, Group
from experiments.hospital.pages import page

EPSILONS = ("1", "4")
SIZES = (4_000, 20_000)
SEEDS = 6
QUICK_FAMILIES = ("cohort", "trial", "interaction", "costs")


class HospitalStudy(Study):
    """No published numbers: everything is run here."""

    name = "hospital"
    title = "The defaults on laws like a hospital's"
    takes_seeds = True

    def cells(self, settings: Settings) -> Iterable[Cell]:
        """Yield a cell for each law, size, group of methods and budget; small sizes of all laws first."""
        sizes, epsilons = (SIZES[:1], EPSILONS[:1]) if settings.quick else (SIZES, EPSILONS)
        families = QUICK_FAMILIES if settings.quick else tuple(FAMILIES)
        seeds = settings.seeds or (1 if settings.quick else SEEDS)
        for n in sizes:
            for seed in REPORTED[:seeds]:
                for family in families:
                    for name, group in GROUPS.items():
                        if not lacks(group):
                            for epsilon in epsilons if group.private else (NO_PRIVACY,):
                                yield {"group": name, "family": family, "n": n, "epsilon": epsilon, "seed": seed}

    def compute(self, cell: Cell, settings: Settings) -> Iterable[Found]:
        """Draw the records of a law, and measure the methods of a group."""
        name, family, epsilon = str(cell["group"]), str(cell["family"]), str(cell["epsilon"])
        n, seed, group = int(cell["n"]), int(cell["seed"]), GROUPS[name]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of fixed seeds, and of plans with more noise than a user would want
            case = hospital_case(family, seed, n)
            found = list(group.run(case, float(epsilon), seed_of("hospital", family, n, epsilon, seed)))
        for one in found:
            place = Place(group.part, family, str(n), epsilon, one.method, one.metric)
            yield Found(place, OTHER, one.method, one.level, [one.value])

    def missing(self, settings: Settings) -> list[str]:
        """Return the libraries that are not installed."""
        absent = {group.library for group in GROUPS.values() if lacks(group)}
        return [f"{name} is not installed: pip install 'torchdpcate[peers-{name}]'." for name in sorted(absent)]

    def page(self, found: Sequence[Summary], notes: Sequence[str]) -> str:
        """Return a table of each metric: a line for each method, size and budget, a column for each family."""
        return page(self.title, found, notes, {name for name, group in GROUPS.items() if lacks(group)})

    def draw(self, rows: Sequence[Row], found: Sequence[Summary], folder: Path) -> None:
        """Draw errors of effects and of averages."""
        for part in (EFFECTS, AVERAGES):
            draw_errors(folder / f"{part}.png", part, found)


def lacks(group: Group) -> bool:
    """Return whether the library of a group is not installed."""
    return bool(group.library) and find_spec(group.library) is None


STUDY = HospitalStudy()
