"""Which runs are comparable, and by what: effects by error, rules by value, choices by regret, averages by interval."""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Measure:
    """A number by which runs are compared.

    Attributes:
        key: Its key in a summary.
        title: Its name in tables.
        heading: Heading of its table.
        note: What the table's numbers are.
        figure: File of its figure; None where means over runs are told in tables alone.
        references: What it is held against, names by their keys in a summary.
    """

    key: str
    title: str
    heading: str
    note: str
    figure: str | None
    references: Mapping[str, str] = field(default_factory=dict)

    @property
    def keys(self) -> tuple[str, ...]:
        """Keys of the measure and of what it is held against."""
        return (self.key, *self.references)


@dataclass(frozen=True)
class Family:
    """Tasks whose runs are comparable.

    Attributes:
        tasks: Their names.
        heading: Heading of the table of all methods.
        note: What its columns are.
        settings: What tells methods apart besides their mechanism, as a summary names it.
        measures: What runs are compared by.
        numbers: Further numbers of a summary that are listed.
    """

    tasks: tuple[str, ...]
    heading: str
    note: str
    settings: tuple[str, ...]
    measures: tuple[Measure, ...]
    numbers: tuple[str, ...] = ()

    @property
    def keys(self) -> tuple[str, ...]:
        """Keys of all numbers in a summary but budgets and counts."""
        return (*(key for measure in self.measures for key in measure.keys), *self.numbers)


EFFECTS = Family(
    tasks=("cate",),
    heading="Methods side by side",
    note="Noise is the mean public scale of the answers; what is secret is a dash.",
    settings=("learner", "release", "second_stage", "features", "split", "nuisance"),
    measures=(
        Measure(
            key="pehe",
            title="PEHE",
            heading="Error against budget",
            note="PEHE: mean ± standard error over runs.",
            figure="error_against_budget.png",
            references={
                "pehe_plug_in": "plug-in",
                "pehe_nonprivate": "non-private",
                "pehe_constant": "constant effect",
            },
        ),
    ),
    numbers=("pehe_zero", "noise"),
)
RULES = Family(
    tasks=("owl", "two_stage_rule", "pairwise"),
    heading="Rules side by side",
    note="Value is estimated on the records, by a propensity that is known or was paid for; without one it is a dash.",
    settings=("learner", "features", "weights", "outcome", "loss", "matching"),
    measures=(
        Measure(
            key="accuracy",
            title="accuracy",
            heading="Accuracy of rules against budget",
            note="Share of decisions that are those of the best rule: mean ± standard error over runs.",
            figure="accuracy_against_budget.png",
            references={
                "accuracy_nonprivate": "non-private",
                "accuracy_treat_all": "treat all",
                "accuracy_treat_none": "treat none",
            },
        ),
        Measure(
            key="value",
            title="value",
            heading="Value of rules against budget",
            note="Mean outcome if the rule decided, estimated by self-normalised inverse-propensity weights: mean ± "
            "standard error over runs.",
            figure="value_against_budget.png",
            references={
                "value_nonprivate": "non-private",
                "value_treat_all": "treat all",
                "value_treat_none": "treat none",
            },
        ),
    ),
)
SELECTIONS = Family(
    tasks=("policy_selection",),
    heading="Choices of a policy side by side",
    note="What the choice is expected to come to by its exact law; without a known truth regret is a dash.",
    settings=("certificate", "policies", "nuisance"),
    measures=(
        Measure(
            key="regret_expected",
            title="regret",
            heading="Regret of the choice against budget",
            note="True mean outcome lost against the library's best policy, expected of the choice: mean ± standard "
            "error over runs. Non-private: the policy of the best estimate.",
            figure="regret_against_budget.png",
            references={"regret_nonprivate": "non-private", "regret_uniform": "uniform choice"},
        ),
        Measure(
            key="value_expected",
            title="value",
            heading="Value of the choice against budget",
            note="Mean outcome if the policy decided, estimated by the same doubly robust scores, expected of the "
            "choice: mean ± standard error over runs.",
            figure="choice_against_budget.png",
            references={"value_nonprivate": "non-private", "value_uniform": "uniform choice"},
        ),
    ),
    numbers=("regret", "value", "estimated_regret", "spread"),
)
AVERAGES = Family(
    tasks=("average_effect",),
    heading="Average effects side by side",
    note="Means over runs; without a known truth error and coverage are dashes.",
    settings=("effect", "estimand", "features", "nuisance"),
    measures=(
        Measure(
            key="estimate",
            title="estimate",
            heading="Average effects against budget",
            note="Mean ± standard error over runs. Difference in means: private, at the whole budget; it adjusts for "
            "nothing.",
            figure="estimate_against_budget.png",
            references={"estimate_nonprivate": "non-private", "difference_in_means": "difference in means"},
        ),
        Measure(
            key="error",
            title="error",
            heading="Error of average effects against budget",
            note="Absolute error: mean ± standard error over runs.",
            figure="average_error_against_budget.png",
            references={"error_nonprivate": "non-private", "error_difference_in_means": "difference in means"},
        ),
        Measure(
            key="width",
            title="interval width",
            heading="Width of intervals against budget",
            note="Of the 95 % interval: mean ± standard error over runs.",
            figure="width_against_budget.png",
        ),
        Measure(
            key="covered",
            title="coverage",
            heading="Coverage of intervals against budget",
            note="Share of runs whose 95 % interval holds the truth.",
            figure=None,
        ),
    ),
    numbers=("low", "high", "truth", "clipped"),
)
FAMILIES = (EFFECTS, RULES, SELECTIONS, AVERAGES)


def family_of(task: str) -> Family:
    """Return the family of a task.

    Raises:
        KeyError: No such task.
    """
    return {name: family for family in FAMILIES for name in family.tasks}[task]
