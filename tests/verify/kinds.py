"""A release of each kind, by its name: what is recorded, and what other tests go through."""

from tests.verify import test_average, test_composed, test_policy, test_subgroups
from tests.verify import test_file as others
from torchdpcate.data.domain import Domain
from torchdpcate.estimators.average.composed import ComposedAverageEffect
from torchdpcate.privacy.budget import PrivacyBudget

AVERAGES = ("ATE", "strata of ATE", "ATT")


def composed_average():
    domain = Domain([0.0], [1.0], outcome_low=-1.0, outcome_high=2.0, overlap=0.2, better="higher")
    return test_average.fitted(ComposedAverageEffect(domain, PrivacyBudget(8.0, 1e-6)))


KINDS = {
    **others.MADE,
    **{f"composed, {name}": make for name, make in test_composed.MADE.items()},
    **{f"subgroups, {name}": lambda name=name: test_subgroups.released(name) for name in test_subgroups.SETTINGS},
    **{f"average, {name}": lambda name=name: test_average.fitted(test_average.LEARNERS[name]()) for name in AVERAGES},
    "average, composed": composed_average,
    "policy, fixed": test_policy.released,
}
DEFAULT = ("objective", "owl", "composed, trial", "subgroups, laplace", "average, ATE", "policy, fixed")
"""One kind of each family: tests of the others are slow."""
