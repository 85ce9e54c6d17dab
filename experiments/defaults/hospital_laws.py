"""Random laws like a hospital's tables, in families: what defaults are tuned by, and others that they are judged by."""

from typing import Any

from experiments.defaults.sources import QUERIES, Case
from experiments.designs.hospital import Hospital

TUNING = range(200)
"""Seeds of laws by which constants may be chosen."""

REPORTED = range(1_000, 1_200)
"""Seeds of laws for tables; no constant is chosen by them."""


FAMILIES: dict[str, dict[str, Any]] = {
    "cohort": {"effect": "subgroup"},
    "cohort_threshold": {"effect": "threshold"},
    "trial": {"effect": "subgroup", "trial": True},
    "trial_death": {"outcome": "death", "effect": "subgroup", "trial": True},
    "interaction": {"effect": "threshold", "columns": range(5, 9)},
    "older": {"effect": "older", "columns": range(5, 9)},
    "older_trial": {"effect": "older", "columns": range(5, 9), "trial": True},
    "costs": {"outcome": "cost", "effect": "smooth", "columns": range(10, 16)},
    "costs_trial": {"outcome": "cost", "effect": "smooth", "columns": range(10, 16), "trial": True},
    "rare_treatment": {"effect": "subgroup", "treated": (0.02, 0.03, 0.05, 0.07, 0.1)},
}
"""Arguments of ``Hospital`` by family; of several values each law takes one, by its seed."""


def hospital_law(family: str, law: int, **given: Any) -> Hospital:
    """Return a random law.

    Args:
        family: One of ``FAMILIES``.
        law: Its seed.
        given: Further arguments of ``Hospital``.
    """
    own = {name: _one(value, law) for name, value in FAMILIES[family].items()}
    return Hospital(law=law, **own, **given)


def hospital_case(family: str, seed: int, n: int) -> Case:
    """Return records of a random law, and the effect at points held out.

    Args:
        family: One of ``FAMILIES``.
        seed: Of the law and of its records.
        n: Number of records.
    """
    total = n + QUERIES
    study = hospital_law(family, seed, n=total, train_fraction=n / total, queries=QUERIES, seed=seed).load()
    assert study.queries is not None
    assert study.effect is not None
    return Case(study.schema, study.records, study.queries, study.effect)


def _one(value: Any, seed: int) -> Any:
    return value[seed % len(value)] if isinstance(value, range | tuple) else value
