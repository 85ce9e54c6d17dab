"""A release of each kind, by its name: what is recorded, and what other tests go through."""

from tests.verify import test_average, test_composed, test_policy, test_subgroups
from tests.verify import test_file as others

AVERAGES = ("ATE", "strata of ATE", "ATT")


KINDS = {
    **others.MADE,
    **{f"composed, {name}": make for name, make in test_composed.MADE.items()},
    **{f"subgroups, {name}": lambda name=name: test_subgroups.released(name) for name in test_subgroups.SETTINGS},
    **{f"average, {name}": lambda name=name: test_average.fitted(test_average.LEARNERS[name]()) for name in AVERAGES},
    "policy, fixed": test_policy.released,
}
DEFAULT = ("objective", "owl", "composed, trial", "subgroups, laplace", "average, ATE", "policy, fixed")
"""One kind of each family: tests of the others are slow."""
