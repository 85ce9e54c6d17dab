"""What a release finds, in sentences: the one place that words it for terminals, pages and cards."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from torchdpcate.composition.planned import EffectErrors, effect_errors
from torchdpcate.data.schema import TableSchema
from torchdpcate.data.words import aim, arm, contrast, effect_words, labelled, outcome_unit, outcome_words
from torchdpcate.errors import InputError
from torchdpcate.estimators.cate.composition_plan import known_plan
from torchdpcate.estimators.planned_noise import SERVES, worth_asking
from torchdpcate.release.average_effect import AverageEffectRelease
from torchdpcate.release.combined import Combined
from torchdpcate.release.composed import ComposedRelease, ComposedRule
from torchdpcate.release.file import Release
from torchdpcate.release.lines import ABOUT, OVER, VALUES, powers, tilts_of, whom
from torchdpcate.release.meta_analysis import FIXED
from torchdpcate.release.population import ROWS
from torchdpcate.release.release import EffectRelease, QueryRelease
from torchdpcate.release.rule import DecisionRelease, PolicyRelease
from torchdpcate.release.subgroups import LEVEL, SubgroupRelease

_MIDDLE = 0.9  # of a population: where its effects lie
_MOST = 3  # subgroups that are named
_FIGURES = 3
_FEW_LACKING = 0.02  # of the people at the stated overlap, which is no finding
_NONE = "no interval: "  # how a release says why it has no lines that others have


def findings(release: Release, reference: Tensor | None = None) -> list[str]:
    """Return what a release finds, one sentence each, the most important first.

    What was estimated, of whom, in outcome units, with its interval or the noise to expect beside it. Where there is no
    interval nothing is concluded.

    Args:
        release: Any release.
        reference: Encoded rows of the public population that shares and ranges are about, [k, q]; None takes
            ``population``.

    Example:
        >>> from torchdpcate.release.rule import _example
        >>> findings(_example())
        ['So that y be high, the rule gives a = 1 to 50% of the reference population and 0 to the others.']
    """
    rows = population(release) if reference is None else reference
    if isinstance(release, AverageEffectRelease):
        found = _average(release)
    elif isinstance(release, SubgroupRelease):
        found = _subgroups(release)
    elif isinstance(release, Combined):
        found = [*_combined(release, rows), *_between(release)]
    elif isinstance(release, EffectRelease):
        found = _effects(release, rows)
    else:
        found = _decisions(release, rows)
    return [*found, *_unstated(release), *_not_worth(release)]


def population(release: Release) -> Tensor:
    """Return encoded rows of people with released means and spreads, or evenly over public bounds, [k, q].

    Args:
        release: Any release.
    """
    known = None if release.function is None else release.function.reference
    return release.schema.grid(ROWS) if known is None else known


def numbers(values: Sequence[float]) -> list[str]:
    """Return numbers with their signs, all to the decimal place that shows the largest to three figures.

    Example:
        >>> numbers([0.04261, -0.5]), numbers([-1234567.0, 88.0]), numbers([0.0])
        (['+0.043', '−0.500'], ['−1,230,000', '0'], ['0'])
    """
    largest = max((abs(value) for value in values if math.isfinite(value)), default=0.0)
    places = _FIGURES - 1 - math.floor(math.log10(largest)) if largest > 0 else 0
    return [_shown(value, places) for value in values]


def number(value: float) -> str:
    """Return a number with its sign, to three figures.

    Example:
        >>> number(0.04261), number(0.0)
        ('+0.0426', '0')
    """
    return numbers([value])[0]


def _shown(value: float, places: int) -> str:
    if round(value, places) == 0:
        return "0"
    return f"{round(value, places):+,.{max(places, 0)}f}".replace("-", "\N{MINUS SIGN}", 1)


def amount(schema: TableSchema, text: str) -> str:
    """Return a number of outcome units with its unit, where one is said."""
    return f"{text} {outcome_unit(schema)}".rstrip()


def noise_of(release: Release) -> float | None:
    """Return the error to expect of a release's effect by its plan and what it released, in outcome units.

    Of one composition it is that of an average person: noise and priors, at the released residual scale. Of other
    effects it is the public noise scale of an answer.

    Args:
        release: Of an effect or a rule by an effect; None of others, and where nothing public says it.
    """
    effect = release.function
    errors = _planned(effect)
    if errors is not None:
        return errors.total
    if effect is not None:
        rows = effect.queries if isinstance(effect, QueryRelease) else population(effect)
        scales = effect.known_noise(rows)
        return None if scales is None else scales.mean().item()
    return None


def _planned(effect: EffectRelease | None) -> EffectErrors | None:
    """Return the errors to expect of a composition's effect; None of others, and where it states no plan."""
    if not isinstance(effect, ComposedRelease):
        return None
    plan = known_plan(effect)
    return None if plan is None or plan.budget is None else effect_errors(plan, effect.domain, effect.scale)


def _said(
    schema: TableSchema,
    about: str,
    value: float,
    interval: Sequence[float] | None,
    noise: float | None,
    compared: str | None = None,
    for_all: bool = True,
    expected: bool = False,
) -> str:
    """Return the sentence of one number, with its interval, or with the noise beside it; of two arms if left out.

    Where effects vary, the noise is that of one person's, and a mean has less.
    """
    who = f"{about[0].upper()}{about[1:]}{_like(schema)}"
    text, *ends = numbers([value, *(interval if interval is not None else [])])
    averaged = " on average" if schema.domain.censoring is None else ""  # the others are a mean, or a chance
    start = f"{who}, {compared or contrast(schema)} changes {outcome_words(schema)} by {amount(schema, text)}{averaged}"
    if interval is not None:
        return f"{start} ({LEVEL:.0%} interval {ends[0]} to {ends[1]})."
    if noise is None:
        return f"{start}; it has no interval, and nothing can be concluded from it."
    beside = f"{numbers([value, noise])[1].removeprefix('+')}{'' if for_all else ' for one person'}"
    return f"{start}{_beside(beside, expected)}: it has no interval, and nothing can be concluded from it."


def _beside(noise: str, expected: bool) -> str:
    """Return how large the error to expect of a number is, or its noise, and that this is not its error."""
    if expected:
        return f", where the error to expect is about {noise}"
    return f", where noise alone is about {noise}, and errors of the nuisances come on top"


def _like(schema: TableSchema) -> str:
    """Return whom the records stand for, where they do not all count alike."""
    weighted, complete = schema.domain.weights is not None, bool(schema.domain.dropped)
    if weighted:
        return f" (those whom the weighted {'complete ' if complete else ''}records stand for)"
    return " (those like the complete records)" if complete else ""


def _meaning(schema: TableSchema, low: float, high: float) -> list[str]:
    """Return what an interval says of which arm is better."""
    if low <= 0 <= high:
        return ["The interval holds zero: the records do not show whether there is an effect."]
    if schema.domain.better is None:
        return []
    first, second = schema.actions[:2]
    better = second if (low > 0) == (schema.domain.better == "higher") else first
    what = f"{schema.domain.better.capitalize()} {outcome_words(schema).removeprefix('the ')}"
    return [f"{what} is better: this speaks for {arm(schema, better)}."]


def _average(release: AverageEffectRelease) -> list[str]:
    schema, main = release.schema, release.main
    about = f"among {whom(release.estimand)}"
    if main.noise_dominated:
        bound = amount(schema, numbers([release.domain.outcome_range])[0].removeprefix("+"))
        return [
            f"{about.capitalize()}, nothing can be said of the {effect_words(schema)}: noise dominates the estimate, "
            f"and any effect up to {bound} fits."
        ]
    if main.law is None:
        return [_said(schema, about, release.estimate, None, None)]
    low, high = release.interval().tolist()
    return [_said(schema, about, release.estimate, (low, high), None), *_meaning(schema, low, high)]


def overall(release: SubgroupRelease) -> tuple[float, float, float] | None:
    """Return the mean effect over the cells of one partition by released counts, with its 95 % interval.

    Cells of a partition hold different records and noise of their own: variances add up. Of several partitions it is
    that of the least error.

    Args:
        release: Effects in subgroups; None where noise dominates a cell of every partition.
    """
    found = []
    table, dominated = release.table(), release.effects.noise_dominated.numpy()
    half, records = (release.interval()[:, 1] - release.interval()[:, 0]) / 2, release.records
    for name in dict.fromkeys(table["partition"]):
        rows = (table["partition"] == name).to_numpy()
        weights = records[rows].clip(min=0)
        if dominated[rows].any() or weights.sum() <= 0:
            continue
        weights = weights / weights.sum()
        error = math.hypot(*(weights * half[rows]))
        found.append((error, float(weights @ release.estimate[rows])))
    if not found:
        return None
    error, middle = min(found)
    return middle, middle - error, middle + error


def _subgroups(release: SubgroupRelease) -> list[str]:
    if release.subgroups.of_everybody:
        return _everybody(release)
    schema, table = release.schema, release.table().assign(cell=release.titles)
    low, high = release.interval(simultaneous=True).T
    known, found = ~release.effects.noise_dominated.numpy(), []
    what, mean = _lines(release), None if release.arms else overall(release)
    if mean is None and known.any():
        clear = known & ((low > 0) | (high < 0))
        of = f" of an arm with {schema.arm_labels[0]} in a subgroup" if release.arms else ""
        found = [
            f"In {int(clear.sum())} of {len(table)} {what}{of} the interval of the effect on {outcome_words(schema)} "
            f"that counts all of them at once leaves zero out{_named(table['cell'][clear])}."
        ]
    if mean is not None:
        found = [_said(schema, "over all subgroups", mean[0], mean[1:], None), *_meaning(schema, *mean[1:])]
        apart = known & ((low > mean[0]) | (high < mean[0]))
        where = f"In {int(apart.sum())} of {len(table)} subgroups" if apart.any() else "In no subgroup"
        named = _named(table["cell"][apart])
        found.append(f"{where} the interval that counts all of them at once leaves that average out{named}.")
    if not known.all():
        found.append(
            f"In {int((~known).sum())} of {len(table)} {what} noise dominates: nothing is known of the "
            f"{effect_words(schema)} there."
        )
    return found


def _lines(release: Release) -> str:
    """Return what the lines of effects in subgroups are: of more than two arms each compares one with the reference."""
    return "comparisons" if release.arms else "subgroups"


def _named(names: Sequence[str]) -> str:
    """Return the first of some names, and how many more there are, after a colon; nothing if there are none."""
    more = f" and {len(names) - _MOST} more" if len(names) > _MOST else ""
    return f": {'; '.join(names[:_MOST])}{more}" if len(names) else ""


def _everybody(release: SubgroupRelease) -> list[str]:
    """Return a sentence for each arm's average effect."""
    schema, found = release.schema, []
    titles = release.titles if release.arms else [contrast(schema)]
    rows = zip(titles, release.estimate.tolist(), release.interval().tolist(), strict=True)
    for (title, estimate, interval), dominated in zip(rows, release.effects.noise_dominated.tolist(), strict=True):
        if dominated:
            found.append(
                f"Noise dominates the estimate of {title}: nothing is known of its effect on {outcome_words(schema)}."
            )
        else:
            found.append(_said(schema, "among everybody", estimate, interval, None, title))
            if not release.arms or interval[0] <= 0 <= interval[1]:
                found += _meaning(schema, *interval)
    return found


def _effects_of_arms(release: ComposedRelease, noise: float | None) -> list[str]:
    """Return a sentence for each arm's effect."""
    for_all, lines = release.form == "constant", release.lines
    if lines is not None:
        rows = zip(release.arm_titles, release.average_effects.tolist(), lines.names, strict=True)
        found = [
            _said(release.schema, "among everybody", mean, lines.interval(name), None, title)
            for title, mean, name in rows
        ]
        return [*found, *_at_overlap(release), f"This rests on the following: {release.line_assumptions}."]
    means = zip(release.arm_titles, release.average_effects.tolist(), strict=True)
    found = [
        _said(release.schema, "in these records", mean, None, noise, title, for_all, True) for title, mean in means
    ]
    if for_all:
        found.append("Those are the same numbers for everybody: so many records and this budget carry no more.")
    return found


def _effects(release: EffectRelease, reference: Tensor) -> list[str]:
    schema, noise = release.schema, noise_of(release)
    if isinstance(release, QueryRelease):
        low, high = numbers([release.answers.min().item(), release.answers.max().item()])
        beside = "" if noise is None else _beside(number(noise).removeprefix("+"), False)
        return [
            f"At its {len(release.answers)} public queries, the {effect_words(schema)} is estimated to lie "
            f"between {amount(schema, low)} and {amount(schema, high)}{beside}."
        ]
    if release.arms and isinstance(release, ComposedRelease):
        return _effects_of_arms(release, noise)
    if not isinstance(release, ComposedRelease):
        mean = release.effect_tensor(reference).mean().item()
        return [_said(schema, "over the reference population", mean, None, noise, for_all=False)]
    if release.lines is not None:
        return _of_lines(release, reference)
    if release.law is None:
        for_all = release.form == "constant"
        why = release.no_lines if release.no_lines and release.no_lines.startswith(_NONE) else ""
        found = [_said(schema, "in these records", release.average_effect, None, noise, for_all=for_all, expected=True)]
        return [*found, *([f"There is {why}."] if why else [])]
    low, high = release.average().tolist()
    about = "among everybody" if release.law.nuisances is None else f"among {ABOUT['ATO']}"
    found = [_said(schema, about, release.average_effect, (low, high), None), *_meaning(schema, low, high)]
    if release.form == "constant":
        return [*found, "That is one number for everybody: so many records and this budget carry no more."]
    wide = release.interval(reference, LEVEL)
    apart = ((wide[:, 0] > release.average_effect) | (wide[:, 1] < release.average_effect)).mean()
    return [
        *found,
        f"{_spread(release, reference)}; "
        f"{f'for {apart:.0%} of them' if apart else 'for nobody of them'} a person's interval leaves the average out.",
    ]


def _spread(release: EffectRelease, reference: Tensor) -> str:
    """Return between which ends most effects of a public population are released, without a full stop."""
    effects = release.effect_tensor(reference)
    edges = effects.quantile(effects.new_tensor([(1 - _MIDDLE) / 2, (1 + _MIDDLE) / 2])).tolist()
    least, most = numbers(edges)
    return (
        f"For the middle {_MIDDLE:.0%} of the reference population it is estimated between {least} and {most} "
        "(estimates are drawn towards their mean: true effects may spread more)"
    )


def _of_lines(release: ComposedRelease, reference: Tensor) -> list[str]:
    """Return the average and its meaning, the groups by effect, what all of it rests on, and how strongly."""
    schema, lines = release.schema, release.lines
    assert lines is not None
    low, high = release.average().tolist()
    found = [_said(schema, "among everybody", release.average_effect, (low, high), None), *_meaning(schema, low, high)]
    for name in tilts_of(lines.names):
        found.append(_said(schema, f"among {whom(name)}", lines.estimate(name), lines.interval(name), None))
    found += _cells(release) + _policies(release)
    if lines.groups:
        found.append(_groups(release))
    elif release.form == "constant":
        found.append("The effect is one number for everybody: so many records and this budget carry no more.")
    else:
        found.append(f"{_spread(release, reference)}.")
    rests = f"This rests on the following: {release.line_assumptions}."
    return [*found, *_at_overlap(release), rests, *_explained(release)]


def _at_overlap(release: ComposedRelease) -> list[str]:
    """Return how many people lie at the stated overlap at least, what that means and what helps; nothing if few do."""
    lines = release.required_lines
    if lines.lacking < _FEW_LACKING:
        return []
    others = "" if release.arms else "; or ATT or ATO, averages in which they may count less"
    return [
        f"By the released propensity at least {lines.lacking:.0%} of the people lie at the stated overlap of "
        f"{release.domain.overlap:g}: their effect rests on the models of the outcome alone, which the interval of an "
        "average counts. What helps: the overlap that holds, if a smaller one does; records of those alone whom "
        f"either arm may reach{others}."
    ]


def _cells(release: ComposedRelease) -> list[str]:
    """Return in which public cells the interval leaves zero, and the average, out."""
    lines = release.lines
    assert lines is not None
    low, high = (np.array([lines.interval(name)[end] for name in lines.cells]) for end in (0, 1))
    if not len(low):
        return []
    clear = (low > 0) | (high < 0)
    named = _named(labelled(release.schema, [name for name, there in zip(lines.cells, clear, strict=True) if there]))
    return [
        f"In {int(clear.sum())} of {len(clear)} subgroups the interval of the effect, each by itself, leaves zero "
        f"out{named}."
    ]


def _policies(release: ComposedRelease) -> list[str]:
    """Return of which public cells treating exactly their people is better than treating nobody, and everybody."""
    schema, lines = release.schema, release.required_lines
    if not lines.policies:
        return []
    cost = release.privacy.public.get("cost", 0.0)
    less = f", less its cost of {amount(schema, number(cost))} a treatment," if cost else ""
    found = []
    for over, of in OVER.items():
        cells = [cell for cell in lines.cells if f"{cell}{over}" in lines]
        clear = [cell for cell in cells if lines.interval(f"{cell}{over}", LEVEL)[0] > 0]
        if cells:
            found.append(f"over treating {of} in {len(clear)} of {len(cells)}{_named(labelled(schema, clear))}")
    improves = "raises" if schema.domain.better is None else "improves"
    what = f"Treating exactly the people of one subgroup {improves} {outcome_words(schema)}{less}"
    return [f"{what} {'; '.join(found)} (each {LEVEL:.0%} interval by itself lies above zero)."]


def _groups(release: ComposedRelease) -> str:
    """Return the sentence of the groups with the largest and the least effect."""
    schema, lines = release.schema, release.lines
    assert lines is not None
    titles = dict(zip(lines.names, release.line_titles, strict=True))
    last, first = lines.groups[-1], lines.groups[0]
    if schema.domain.better == "lower":
        last, first = first, last
    ends = [lines.interval(name) for name in (last, first)]
    texts = numbers([lines.estimate(last), *ends[0], lines.estimate(first), *ends[1]])
    return (
        f"Of {titles[last]} by the released effect it is {amount(schema, texts[0])} ({texts[1]} to {texts[2]}), of "
        f"{titles[first]} {amount(schema, texts[3])} ({texts[4]} to {texts[5]})."
    )


def _explained(release: ComposedRelease) -> list[str]:
    """Return how strong an unmeasured confounder would have to be; nothing in trials, or of an effect of about zero."""
    average, end = release.explained_away()
    if release.domain.known_propensity is not None or average < 0.005:
        return []
    start = (
        f"A confounder that is not among the covariates would have to explain {average:.0%} of what is left of the "
        f"outcome and {average:.0%} of the treatment's weights to bring this average to zero"
    )
    return [f"{start}; {end:.0%} of each would bring its interval's end there." if end else f"{start}."]


def _combined(release: Combined, reference: Tensor) -> list[str]:
    """Return the averages and what the first one means, the subgroups, and where effects lie."""
    found, rows = _averages_over_sites(release), release.means().tolist()
    if release.cells:
        known = zip(release.line_names, release.lines, rows, strict=True)
        clear = [title for name, title, (_, low, high) in known if name in release.cells and (low > 0 or high < 0)]
        found.append(
            f"Over {len(release.sites)} sites, the {LEVEL:.0%} interval of the mean {effect_words(release.schema)} "
            f"leaves zero out in {len(clear)} of {len(release.cells)} {_lines(release)}{_named(clear)}."
        )
    effect = release.function
    if effect is None:
        return found
    if effect.form == "constant":
        return [*found, "That is one number for everybody: so many records and these budgets carry no more."]
    return [*found, f"{_spread(effect, reference)}."]


def _averages_over_sites(release: Combined) -> list[str]:
    """Return a sentence for each average of a combination, and what the first one says of the arms."""
    schema, found = release.schema, []
    for name, title, row in zip(release.line_names or ("",), release.lines, release.means().tolist(), strict=True):
        if name not in release.cells:
            value, *ends = row
            of = f", among {title}" if name in ABOUT or powers(name) is not None else ""
            found.append(_said(schema, f"over {len(release.sites)} sites{of}", value, ends, None))
            found += _meaning(schema, *ends) if len(found) == 1 else []
    return found


def _between(release: Combined) -> list[str]:
    """Return how far sites differ, noise and sampling taken out: of the first average, and of subgroups."""
    from scipy.special import chdtrc

    known = list(zip(release.line_names or ("",), release.heterogeneity(), strict=True))
    found = [_between_of(release, known[0][1])] if known[0][0] not in release.cells else []
    if release.cells:
        lines = [line for name, line in known if name in release.cells]
        apart = [line["line"] for line in lines if chdtrc(max(line["q_if_equal"], 1), line["q"]) < 1 - LEVEL]
        found.append(
            f"In {len(apart)} of {len(lines)} {_lines(release)} sites lie further apart than noise and sampling would "
            f"put one in twenty of them{_named(apart)}."
        )
    return found


def _between_of(release: Combined, line: dict[str, Any]) -> str:
    """Return how far sites differ in one average."""
    beside = f"Q = {line['q']:.3g}, where about {line['q_if_equal']:.0f} is expected of sites with one effect"
    if release.between == FIXED:
        return f"One effect at all sites is taken for granted ({beside})."
    if not line["between_sd"]:
        return f"Sites lie no further apart than noise and sampling explain ({beside})."
    deviation = amount(release.schema, number(line["between_sd"]).removeprefix("+"))
    return (
        f"Between sites it is estimated to differ by a standard deviation of {deviation}, noise and sampling taken out "
        f"({line['i_squared']:.0%} of the variance of the sites' estimates; {beside})."
    )


def _decisions(release: Release, reference: Tensor) -> list[str]:
    schema, goal = release.schema, f"so that {outcome_words(release.schema)} be {aim(release.schema)}"
    if isinstance(release, PolicyRelease):
        chosen = f"Chosen from a public library, {goal}: {release.title}."
        try:
            answers = release.answer(reference)
        except InputError:  # a function that nobody has given yet
            return [chosen]
        shares = "; ".join(f"{arm(schema, action)} for {_share(answers == action)}" for action in release.actions)
        return [
            chosen,
            f"Of the reference population that is {shares}.",
        ]
    assert isinstance(release, DecisionRelease)
    answers = release.answer(reference)
    first, second = (arm(schema, action) for action in schema.actions[:2])
    values = _values(release) if isinstance(release, ComposedRule) and release.lines is not None else []
    if not isinstance(release, ComposedRule) or release.constant is None:
        other = first.removeprefix(f"{schema.treatment_label} = ")
        share = float((answers > 0).double().mean())
        if share in (0.0, 1.0):
            given = second if share else first
            return [f"S{goal[1:]}, the rule gives {given} to all of the reference population.", *values]
        return [
            f"S{goal[1:]}, the rule gives {second} to {share:.0%} of the reference population and {other} to the "
            "others.",
            *values,
        ]
    given, noise = (second if release.constant else first), noise_of(release)
    value = release.effect.average_effect
    beside = ""
    if noise is not None and not values:
        beside = _beside(numbers([value, noise])[1].removeprefix("+"), True)
    return [
        f"S{goal[1:]}, the rule gives {given} to everybody, by one estimated effect of {contrast(schema)}: "
        f"{amount(schema, number(value))}{beside}. So many records and this budget carry no more.",
        *values,
    ]


def _values(release: ComposedRule) -> list[str]:
    """Return what people gain if the rule decides, over treating nobody and everybody, and what that rests on."""
    schema, lines, against = release.schema, release.lines, dict(zip(VALUES, ("nobody", "everybody"), strict=True))
    assert lines is not None
    ends = {name: lines.interval(name, LEVEL) for name in lines.values}
    texts = numbers([value for name in lines.values for value in (lines.estimate(name), *ends[name])])
    found = [
        f"{amount(schema, texts[3 * k])} over treating {against[name]} ({LEVEL:.0%} interval {texts[3 * k + 1]} to "
        f"{texts[3 * k + 2]})"
        for k, name in enumerate(lines.values)
    ]
    cost = f", less its cost of {amount(schema, number(release.cost))} a treatment," if release.cost else ""
    start = f"Treating as it says improves {outcome_words(schema)}{cost} by {', and by '.join(found)}, a person"
    clear = [low > 0 for low, _ in ends.values()]
    worse = [against[name] for name, (_, high) in ends.items() if high < 0]
    means = f" Treating {worse[0]} is better than the rule." if worse else ""
    if not means and not any(clear):
        means = " The records do not show that it is better than either." if len(clear) > 1 else ""
    return [f"{start}.{means}", f"This rests on the following: {release.line_assumptions}."]


def _unstated(release: Release) -> list[str]:
    """Return that nothing says how large the noise of a fixed seed is, where a sentence would name it."""
    effect = release.function
    if release.privacy.private_noise or effect is None or noise_of(effect) is not None:
        return []
    if effect is release and release.function.has_intervals:
        return []  # its interval counts it
    return [
        "Its noise had a fixed seed, as tests have it: such a release states no budget, hence no size of the noise."
    ]


def _not_worth(release: Release) -> list[str]:
    """Return that the release was not worth asking for, by the limits of plans at the released scale of residuals."""
    domain = release.domain
    error = noise_of(release)
    if isinstance(release, AverageEffectRelease) and release.main.law is not None and not release.main.noise_dominated:
        low, high = release.interval()
        error = (high - low) / 4  # two standard errors on either side
    own = _planned(release.function) if getattr(release, "form", "constant") != "constant" else None
    worth = "" if error is None else worth_asking(error, domain.outcome_range, domain.outcome_sd, own and own.relative)
    if worth == SERVES:
        effect: Any = release.function
        words = "At so many records and this budget one average effect serves as well."
        grouped = effect.lines is not None and effect.lines.groups  # which say themselves how effects differ
        return [] if grouped or (effect.lines is None and effect.law is None) else [words]
    if error is None or worth != "no":
        return []
    share = (
        f"{error / domain.outcome_sd:.1f} standard deviations of the outcome"
        if domain.outcome_sd
        else f"{error / domain.outcome_range:.0%} of the outcome's range"
    )
    return [
        "Not worth asking at so many records and this budget: by the released scale of residuals the error to expect "
        f"is {share}."
    ]


def _share(chosen: Any) -> str:
    return f"{torch.as_tensor(chosen).double().mean().item():.0%}"
