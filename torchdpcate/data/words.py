"""What arms, outcomes and covariates of a table are called in sentences."""

import itertools
import re
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from torchdpcate.data._arrays import is_number
from torchdpcate.data._cells import MISSING_LEVEL
from torchdpcate.data.censoring import RESTRICTED_MEAN
from torchdpcate.data.covariates import written_level

if TYPE_CHECKING:
    from torchdpcate.data.covariates import Covariate
    from torchdpcate.data.schema import TableSchema


_PLAIN = frozenset(["yes", "no", "true", "false", "y", "n", "ja", "nein", "oui", "non", "sí", "si", "sim", "não"])


def arm(schema: "TableSchema", label: int) -> str:
    """Return what an arm is called: by its label, or by the treatment's and its number, or yes or no.

    Args:
        schema: Columns and public bounds.
        label: Label of the arm, one of ``schema.actions``.

    Example:
        >>> from torchdpcate.data.schema import TableSchema
        >>> facts = {"outcome": {"name": "pain", "low": 0, "high": 10}, "covariates": {"age": {"low": 0, "high": 99}}}
        >>> arms = {"name": "arm", "categories": ["placebo", "drug"]}
        >>> arm(TableSchema.from_dict({**facts, "treatment": arms}), 1)
        'drug'
        >>> arm(TableSchema.from_dict({**facts, "treatment": "treat"}), 1)
        'treat = 1'
    """
    word = dict(zip(schema.actions, schema.arm_labels, strict=True)).get(label, str(label))
    return f"{schema.treatment_label} = {word}" if _is_plain(word) else word


def _is_plain(word: str) -> bool:
    return is_number(word) or word.lower() in _PLAIN


def contrast(schema: "TableSchema") -> str:
    """Return what an effect compares: the second arm and the first, or each other arm and the reference.

    Example:
        >>> from torchdpcate.data.schema import TableSchema
        >>> facts = {"outcome": {"name": "pain", "low": 0, "high": 10}, "covariates": {"age": {"low": 0, "high": 99}}}
        >>> arms = {"name": "arm", "categories": ["placebo", "drug"]}
        >>> contrast(TableSchema.from_dict({**facts, "treatment": arms}))
        'drug instead of placebo'
        >>> contrast(TableSchema.from_dict({**facts, "treatment": "treat"}))
        'treat = 1 instead of 0'
        >>> arms = {"name": "arm", "categories": ["placebo", "low", "high"]}
        >>> contrast(TableSchema.from_dict({**facts, "treatment": arms}))
        'low or high instead of placebo'
    """
    if schema.compared:
        return f"{' or '.join(schema.arm_labels[1:])} instead of {schema.arm_labels[0]}"
    first, second = schema.actions[:2]
    return f"{arm(schema, second)} instead of {arm(schema, first).removeprefix(f'{schema.treatment_label} = ')}"


def outcome_words(schema: "TableSchema") -> str:
    """Return what an effect is on: the outcome; of time and event what is made of them by the horizon.

    Example:
        >>> from torchdpcate.data.schema import TableSchema
        >>> outcome = {"time": "days", "event": "relapse", "horizon": 1825, "kind": "restricted_mean", "unit": "days"}
        >>> facts = {"treatment": "a", "covariates": {"age": {"low": 0, "high": 99}}}
        >>> outcome_words(TableSchema.from_dict({**facts, "outcome": outcome}))
        'the mean time without the event (relapse) within 1,825 days'
        >>> outcome_words(TableSchema.from_dict({**facts, "outcome": {**outcome, "kind": "event_by_horizon"}}))
        'the chance of the event (relapse) within 1,825 days'
        >>> state = {"name": "state", "categories": ["mild", "severe"]}
        >>> outcome_words(TableSchema.from_dict({**facts, "outcome": state}))
        'state = severe'
    """
    censoring = schema.domain.censoring
    if censoring is None:
        rate, label, told = schema.domain.is_rate and schema.domain.weights, schema.outcome_label, schema.success
        told = () if label != schema.outcome or all(map(_is_plain, map(str, told))) else told
        return f"{label} per {rate.unit}" if rate else " = ".join([label, *[" or ".join(map(str, told))] * bool(told)])
    what = "mean time without" if censoring.kind == RESTRICTED_MEAN else "chance of"
    within = f"within {censoring.horizon:,.10g} {schema.outcome_unit}".rstrip()
    return f"the {what} {censoring.event_words} {within}"


def column_words(covariate: "Covariate") -> str:
    """Return what a covariate is called, with its unit where one is stated.

    Example:
        >>> from torchdpcate.data.covariates import Numeric
        >>> column_words(Numeric("x1", 18, 99, label="age at entry", unit="years"))
        'age at entry, years'
    """
    return ", ".join(filter(None, [covariate.label, getattr(covariate, "unit", "")]))


def labelled(schema: "TableSchema", names: Iterable[str]) -> list[str]:
    """Return names of cells and policies with labels in the place of columns, levels and arms.

    Args:
        schema: Columns, public bounds and labels.
        names: As the library makes them; what is none stays.

    Example:
        >>> from torchdpcate.data.schema import TableSchema
        >>> sex = {"categories": [1, 2], "label": "sex", "labels": {1: "men", 2: "women"}}
        >>> facts = {"treatment": "a", "outcome": {"name": "y", "low": 0, "high": 1}}
        >>> facts |= {"covariates": {"sx": sex, "x": {"low": 0, "high": 9, "label": "age"}}}
        >>> schema = TableSchema.from_dict(facts)
        >>> labelled(schema, ["sx = 2, 3 <= x < 5", "x <= 4", "x missing", "everybody"])
        ['sex = women, 3 <= age < 5', 'age <= 4', 'age missing', 'everybody']
    """
    words = {name: label for name, label in _words(schema) if name != label}
    parts = re.compile(rf"(?<!\S)({'|'.join(map(re.escape, words))})(?![^\s,:])")
    return [parts.sub(lambda part: words[part[0]], name) if words else name for name in names]


def labels_of(schema: "TableSchema", columns: Iterable[str]) -> list[str]:
    """Return the labels of columns, in which a category's may have its level.

    Example:
        >>> from torchdpcate.data.schema import TableSchema
        >>> facts = {"treatment": "a", "outcome": {"name": "y", "low": 0, "high": 1, "label": "pain"}}
        >>> schema = TableSchema.from_dict(facts | {"covariates": {"x": {"low": 0, "high": 9, "label": "age"}}})
        >>> labels_of(schema, ["x", "y", "a"])
        ['age', 'pain', 'a']
    """
    labels = {covariate.name: covariate.label for covariate in schema.covariates}
    labels |= {schema.outcome: schema.outcome_label, schema.treatment: schema.treatment_label}
    return [labels.get(name) or labelled(schema, [name])[0] for name in columns]


def _words(schema: "TableSchema") -> Iterator[tuple[str, str]]:
    """Yield parts of names as the library makes them, with what readers see in their place."""
    for covariate in schema.covariates:
        for column, sign in itertools.product(covariate.columns, ("<", "<=", ">", ">=", "+", "-", MISSING_LEVEL)):
            yield f"{column.name} {sign}", f"{column.label} {sign}"
        for level, label in zip(covariate.levels, covariate.labels, strict=True):
            yield f"{covariate.name} = {written_level(level)}", f"{covariate.label} = {label}"
    first, *others = schema.arm_labels
    for name, label in zip(schema.compared, others, strict=False):
        yield f"{name} instead of {schema.reference}", f"{label} instead of {first}"
    for (a, one), (b, other) in itertools.permutations(zip(schema.actions, schema.arm_labels, strict=True), 2):
        yield f"always {a}", f"always {one}"
        yield f"{a}, else {b}", f"{one}, else {other}"


def outcome_unit(schema: "TableSchema") -> str:
    """Return the unit of effects; empty if none is said, and of the chance of an event, whose horizon alone has one."""
    censoring = schema.domain.censoring
    return schema.outcome_unit if censoring is None or censoring.kind == RESTRICTED_MEAN else ""


def effect_words(schema: "TableSchema") -> str:
    """Return what an effect is of, and on what."""
    return f"effect of {contrast(schema)} on {outcome_words(schema)}"


def aim(schema: "TableSchema") -> str:
    """Return what the outcome is to be, ``high`` or ``low``; what is good where nothing is said of it.

    Example:
        >>> from torchdpcate.data.domain import Domain
        >>> from torchdpcate.data.schema import TableSchema
        >>> aim(TableSchema.from_domain(Domain([0.0], [1.0], 0.0, 1.0, better="lower")))
        'low'
    """
    return {"higher": "high", "lower": "low"}.get(schema.domain.better or "", "good")


def outcome_axis(schema: "TableSchema", what: str = "effect on") -> str:
    """Return what an axis of effects says: outcome, unit, and which direction is better.

    Example:
        >>> from torchdpcate.data.schema import TableSchema
        >>> outcome = {"name": "pain", "low": 0, "high": 10, "unit": "points", "better": "lower"}
        >>> facts = {"treatment": "a", "outcome": outcome, "covariates": {"age": {"low": 0, "high": 99}}}
        >>> outcome_axis(TableSchema.from_dict(facts))
        'effect on pain, points (lower is better)'
    """
    units = f", {outcome_unit(schema)}" if outcome_unit(schema) else ""
    better = f" ({schema.domain.better} is better)" if schema.domain.better else ""
    return f"{what} {outcome_words(schema)}{units}{better}".strip()
