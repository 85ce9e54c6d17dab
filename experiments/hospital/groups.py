"""Groups of methods that share a cell: each draws its records once."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from experiments.defaults.hospital_laws import HospitalCase
from experiments.hospital import averages, decisions, effects
from experiments.hospital.measured import Measured

EFFECTS, AVERAGES, DECISIONS = "effects", "averages", "decisions"


@dataclass(frozen=True)
class Group:
    """Methods that share a cell.

    Attributes:
        part: What they answer: effects, averages or decisions.
        methods: Their names, in the order of the page.
        private: Whether they spend a budget.
        run: From case, epsilon and a seed to what is measured.
        library: Module that they need beside this library's; empty if none.
    """

    part: str
    methods: tuple[str, ...]
    private: bool
    run: Callable[[HospitalCase, float, int], Iterable[Measured]]
    library: str = ""


GROUPS = {
    "effects": Group(EFFECTS, tuple(effects.LEARNERS), True, effects.private),
    "effects, no budget": Group(EFFECTS, (effects.ZERO, effects.FREE), False, effects.nonprivate),
    "averages": Group(AVERAGES, tuple(averages.LEARNERS), True, averages.private),
    "averages, peers": Group(AVERAGES, (averages.FOLDS, averages.PRIVATE_ATE), True, averages.peers),
    "averages, no budget": Group(AVERAGES, (averages.FREE, averages.DIFFERENCE), False, averages.nonprivate),
    "decisions": Group(DECISIONS, (decisions.RULE, decisions.CHOICE), True, decisions.private),
    "decisions, no budget": Group(DECISIONS, (decisions.FREE_RULE, decisions.FREE_CHOICE), False, decisions.nonprivate),
    "effects, econml": Group(EFFECTS, (effects.LINEAR, effects.FOREST), False, effects.econml, "econml"),
    "averages, doubleml": Group(AVERAGES, (averages.DOUBLEML,), False, averages.doubleml, "doubleml"),
}
