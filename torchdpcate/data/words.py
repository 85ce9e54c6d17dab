"""What arms, outcomes and covariates of a table are called in sentences."""

from typing import TYPE_CHECKING

from torchdpcate.data.censoring import RESTRICTED_MEAN

if TYPE_CHECKING:
    from torchdpcate.data.schema import TableSchema


_PLAIN = frozenset(["yes", "no", "true", "false", "y", "n", "ja", "nein", "oui", "non", "sí", "si", "sim", "não"])


def arm(schema: "TableSchema", label: int) -> str:
    """Return what an arm is called: by its word in the table, or by the column and its number, or yes or no.

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
    named = dict(zip(schema.actions, schema.arms, strict=False)).get(label, label)
    return named if isinstance(named, str) and named.lower() not in _PLAIN else f"{schema.treatment} = {named}"


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
        return f"{' or '.join(schema.compared)} instead of {schema.reference}"
    first, second = schema.actions[:2]
    return f"{arm(schema, second)} instead of {arm(schema, first).removeprefix(f'{schema.treatment} = ')}"


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
    """
    censoring = schema.domain.censoring
    if censoring is None:
        return schema.outcome
    what = "mean time without" if censoring.kind == RESTRICTED_MEAN else "chance of"
    within = f"within {censoring.horizon:,.10g} {schema.outcome_unit}".rstrip()
    return f"the {what} the event ({censoring.event_words}) {within}"


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
