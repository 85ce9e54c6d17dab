"""What a release finds, in sentences: the one place that words it for terminals, pages and cards."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from torchdpcate.composition.planned import EffectErrors, effect_errors
from torchdpcate.data.censoring import EVENT_BY_HORIZON
from torchdpcate.data.covariates import bounds_in_words
from torchdpcate.data.words import aim, arm, contrast, outcome_unit, outcome_words
from torchdpcate.errors import InputError
from torchdpcate.estimators.cate.composition_plan import known_plan
from torchdpcate.estimators.planned_noise import SERVES, worth_asking
from torchdpcate.privacy.guarantee import Level
from torchdpcate.release.averages import ABOUT
from torchdpcate.release.estimate import quantile
from torchdpcate.release.file import Release
from torchdpcate.release.lines import BY_EFFECT, EVERYBODY, OF_POLICY, OF_RULE, QUERIES, SUBGROUPS, WEIGHTED, Lines
from torchdpcate.release.meta_analysis import FIXED
from torchdpcate.release.population import ROWS
from torchdpcate.release.statement import UNMEASURED

LEVEL = 0.95
"""Probability of the intervals."""
LEVEL_WORDS = f"{LEVEL:.0%} interval"
"""How sentences name an interval."""
MOST_WORDS = 25
"""Of a sentence."""
_MIDDLE = 0.9  # of a population: where its effects lie
_FIGURES = 3  # of a number without an interval
_FEW = 0.02, 0.005  # of people at the stated overlap, and of what a cause would explain, that are no findings
_FEW_SITES = 4  # which hardly show how far they differ
_OFF = 0.1  # of an interval's width, from its middle to an estimate: more asks for a reason
_LITTLE = 10.0  # epsilon, above which a guarantee says little
_NO_FIT = "no interval: "  # how a release says that its propensity does not fit
_CELLS = "people of all subgroups"
_NONE = torch.empty(0)
_NOTHING = Lines((), (), (), _NONE, _NONE, _NONE, _NONE, ends=lambda _: _NONE.view(0, 2), assumptions="")
_PARTS = {
    "head": "What was found",
    "whom": "Whom it is about",
    "groups": "Groups and comparisons",
    "rests_on": "What it rests on",
    "robustness": "If a cause was not measured",
    "person": "For one person",
    "privacy": "Privacy",
}
_SURE = {
    Level.CERTIFIED: "a proof covers all that was computed",
    Level.CONDITIONAL: "the proof rests on conditions, which the card lists",
}


@dataclass(frozen=True)
class Findings:
    """What a release finds, in sentences of at most 25 words, in the order in which a clinician reads.

    Attributes:
        head: The answer with its interval and direction; where nothing can be concluded, why and what would help. At
            most three sentences.
        whom: Whom it is about.
        groups: Comparisons of arms, who has the highest and lowest effects, which subgroups stand apart, policies, and
            how far sites differ.
        rests_on: What it assumes, the strongest first.
        robustness: How strong an unmeasured cause would have to be.
        person: What to do with one person's number.
        privacy: What is guaranteed, and that it is little where epsilon is large.

    Example:
        >>> from torchdpcate.release.average_effect import _example
        >>> Findings.of(_example()).head[1]
        'Higher y is better: this speaks for a = 1.'
    """

    head: tuple[str, ...]
    whom: tuple[str, ...]
    groups: tuple[str, ...]
    rests_on: tuple[str, ...]
    robustness: tuple[str, ...]
    person: tuple[str, ...]
    privacy: tuple[str, ...]

    @classmethod
    def of(cls, release: Release, reference: Tensor | None = None) -> "Findings":
        """Return the findings of any release; arguments as of ``findings``."""
        said = _Said(release, population(release) if reference is None else reference)
        parts = {name: tuple(getattr(said, name)()) for name in _PARTS}
        if any("reference population" in words for part in parts.values() for words in part):
            parts["whom"] += (said.reference(reference is not None),)
        return cls(**parts)

    def sections(self) -> Iterator[tuple[str, tuple[str, ...]]]:
        """Yield the title and the sentences of each part that has some, in order."""
        yield from ((title, getattr(self, name)) for name, title in _PARTS.items() if getattr(self, name))


def findings(release: Release, reference: Tensor | None = None) -> list[str]:
    """Return what a release finds, one sentence each, the most important first.

    Where there is no interval nothing is concluded.

    Args:
        release: Any release.
        reference: Encoded rows of the public population that shares and ranges are about, [k, q]; None takes
            ``population``.

    Example:
        >>> from torchdpcate.release.rule import _example
        >>> findings(_example())[0]
        'For high y, the rule gives a = 1 to 50% of the reference population and a = 0 to 50%.'
    """
    return [words for _, sentences in Findings.of(release, reference).sections() for words in sentences]


def answer(release: Release) -> tuple[list[str], list[str]]:
    """Return the head of a release's ``Findings`` and what it rests on, without the rest.

    Args:
        release: Any release.
    """
    said = _Said(release, population(release))
    return said.head(), said.rests_on()


def population(release: Release) -> Tensor:
    """Return encoded rows of people with released means and spreads, or evenly over public bounds, [k, q].

    Args:
        release: Any release.
    """
    known = None if release.function is None else release.function.reference
    return release.schema.grid(ROWS) if known is None else known


def numbers(values: Sequence[float], half: float | None = None) -> list[str]:
    """Return numbers with their signs, all to one decimal place.

    Args:
        values: The numbers.
        half: Half width of an interval, which is to have two figures; None shows the largest number to three.

    Example:
        >>> numbers([0.04261, -0.5]), numbers([-1234567.0, 88.0]), numbers([0.0]), numbers([1.234], 0.31)
        (['+0.043', '−0.500'], ['−1,230,000', '0'], ['0'], ['+1.23'])
    """
    size, figures = max((abs(value) for value in values if math.isfinite(value)), default=0.0), _FIGURES
    if half is not None and 0 < half < math.inf:
        size, figures = half, 2
    places = figures - 1 - math.floor(math.log10(size)) if size > 0 else 0
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


def noise_of(release: Release) -> float | None:
    """Return the error to expect of a release's effect by its plan and what it released, in outcome units.

    Of one composition it is that of an average person: noise and priors, at the released residual scale. Of other
    effects it is the public noise scale of an answer.

    Args:
        release: Of an effect or a rule by an effect; None of others, and where nothing public says it.
    """
    effect, errors = release.function, _planned(release.function)
    if errors is not None or effect is None:
        return None if errors is None else errors.total
    scales = effect.known_noise(getattr(effect, "queries", population(effect)))
    return None if scales is None else scales.mean().item()


def _planned(effect: Any) -> EffectErrors | None:
    """Return the errors to expect of a composition's effect; None of others, and where it states no plan."""
    scale = getattr(effect, "scale", None)
    plan = None if scale is None else known_plan(effect)
    return None if plan is None or plan.budget is None else effect_errors(plan, effect.domain, scale)


def _capital(words: str) -> str:
    return f"{words[0].upper()}{words[1:]}"


def _joined(starts: Sequence[str], more: str, apart: str) -> list[str]:
    """Return one sentence by the first start that is short enough, else two: with ``apart`` for what is ``more``."""
    ones = [one for start in starts if len((one := f"{start}{more}.").split()) <= MOST_WORDS]
    return ones[:1] or [f"{starts[0]}.", f"{_capital(apart)}."]


def _listed(start: str, names: Sequence[str]) -> str:
    """Return a sentence that names as many as fit, and how many more there are."""
    lengths = [len(f"{start} {' '.join(names[:k])} and 9 more".split()) for k in range(len(names) + 1)]
    shown = names[: max((k for k, length in enumerate(lengths) if length <= MOST_WORDS), default=0)]
    more = [f"and {len(names) - len(shown)} more"] if len(names) > len(shown) else []
    return f"{start}: {'; '.join([*shown, *more])}." if shown else f"{start}."


def _some(names: Sequence[Any], lines: Sequence[Any]) -> str:
    """Return how many of how many."""
    return f"{len(names) or 'none'} of {len(lines)}"


def _true(facts: Mapping[str, Any]) -> list[str]:
    """Return the sentences that hold."""
    return [words for words, holds in facts.items() if holds]


class _Line(NamedTuple):
    """A line: an estimate and the ends of its interval, which are NaN where none is known."""

    title: str
    group: str
    estimate: float
    low: float
    high: float
    error: float = math.nan
    noise: float = math.nan

    @property
    def known(self) -> bool:
        """Whether its interval says anything."""
        return not (math.isnan(self.low) or math.isinf(self.error))

    @property
    def clear(self) -> int:
        """The sign of all effects in the interval; 0 where it holds zero, or is not known."""
        return self.known * ((self.low > 0) - (self.high < 0))

    @property
    def half(self) -> float:
        """Half the interval's width."""
        return (self.high - self.low) / 2


class _Said:
    """The sentences of one release, by the parts of ``Findings``."""

    def __init__(self, release: Release, rows: Tensor) -> None:
        self.release, self.rows, self.schema, self.domain = release, rows, release.schema, release.domain
        self.effect, self.lines = release.function, release.named or _NOTHING
        censoring, assumed = self.domain.censoring, self.lines.assumptions
        chance = self.domain.outcome_kind == "binary" or (censoring and censoring.kind == EVENT_BY_HORIZON)
        self.factor, self.unit = (100.0, "percentage points") if chance else (1.0, outcome_unit(self.schema))
        self.outcome = f"{'the chance of ' if chance and not censoring else ''}{outcome_words(self.schema)}"
        self.compared = release.arm_titles or (contrast(self.schema),)
        designed = "randomised" in assumed or self.domain.known_propensity is not None
        self.trial, self.fixed = designed and UNMEASURED not in assumed, release.privacy.public.get("between") == FIXED
        self.lacking = 0.0 if self.trial else getattr(getattr(self.effect, "averages", None), "lacking", 0.0)
        self.sites = self.lines.means.index(True) if self.lines.means else 0  # rows of a line before their mean
        self.over = f"over {self.sites} sites, " if self.sites else ""
        self.all, wide = self._rows(self.lines.ends), self._rows(self.lines.at_once or self.lines.ends)
        self.people = f"{release.privacy.protected.name}s"
        self.people = "clusters" if self.schema.cluster else self.people if self.schema.pairs else "records"
        self.main = self.of(EVERYBODY) or self.of(WEIGHTED)[:1] or self._over_cells()
        others = (EVERYBODY, WEIGHTED, BY_EFFECT, OF_RULE, OF_POLICY, QUERIES)
        self.cells = [line for line in wide if line.group not in others]

    def _rows(self, ends: Callable[[float], Tensor]) -> list[_Line]:
        """Return the lines; of several sites their means, by what is compared between sites."""
        columns = (self.lines.estimates, *ends(LEVEL).unbind(1), self.lines.errors, self.lines.noise)
        rows = zip(self.lines.titles, self.lines.groups, *(column.tolist() for column in columns), strict=True)
        found = [_Line(*row) for row in rows]
        if not self.sites:
            return found
        everybody = (EVERYBODY, self.schema.treatment, *self.release.arm_titles)
        kinds = dict.fromkeys(ABOUT.values(), WEIGHTED) | dict.fromkeys(everybody, EVERYBODY)
        means = [line for line, mean in zip(found, self.lines.means, strict=True) if mean]
        return [line._replace(title=line.group, group=kinds.get(line.group, SUBGROUPS)) for line in means]

    def _over_cells(self) -> list[_Line]:
        """Return the mean over all subgroups of one partition by released counts: that of the narrowest interval.

        Who of all people is in which is sampled too, and a curve of censoring errs alike in all of them.
        """
        found, lines, z = list[_Line](), self.lines, quantile(LEVEL)
        for group in () if self.release.arms else dict.fromkeys(lines.disjoint):
            own = [k for k, line in enumerate(self.all) if line.group == group != BY_EFFECT]
            records = lines.records[own].clamp_min(0)
            if own and all(self.all[k].known for k in own) and records.sum() > 0:
                share, y = records / records.sum(), lines.estimates[own]
                half = lines.interval(LEVEL)[own].diff()[:, 0] / 2
                curve = half.new_zeros(len(own)) if lines.common is None else z * lines.common[own].sqrt()
                sampled = self.release.privacy.protected.records * share @ (y - share @ y).square() / records.sum()
                alone = share.square() @ (half.square() - curve.square()).clamp_min(0) + z.square() * sampled
                middle, width = float(share @ y), float(alone.sqrt().hypot(share @ curve))
                found.append(_Line(_CELLS, WEIGHTED, middle, middle - width, middle + width))
        return sorted(found, key=lambda line: line.half)[:1]

    def of(self, group: str) -> list[_Line]:
        """Return the lines of a group."""
        return [line for line in self.all if line.group == group]

    def written(self, *values: float, half: float | None = None, signed: bool = True) -> list[str]:
        """Return numbers as people write them, the first with its unit: to two figures of an interval's half."""
        found = numbers([self.factor * value for value in values], None if half is None else self.factor * half)
        found = found if signed else [text.lstrip("+\N{MINUS SIGN}") for text in found]
        return [f"{found[0]} {self.unit}".rstrip(), *found[1:]]

    def size(self, value: float) -> str:
        """Return an error or a cost with its unit."""
        return self.written(value, half=abs(value), signed=False)[0]

    def found(self, line: _Line, signed: bool = True) -> tuple[str, str]:
        """Return an estimate with its unit, and its interval; without signs where words say the direction."""
        ends = (line.low, line.high) if signed else sorted((abs(line.low), abs(line.high)))
        value, low, high = self.written(line.estimate, *ends, half=line.half, signed=signed)
        return value, f"{LEVEL_WORDS} {low} to {high}"

    def head(self) -> list[str]:
        """Return the answer, at most three sentences."""
        if self.release.decision is not None:
            return [*self._decides(), *map(self._gain, self.of(OF_RULE))][:3]
        if queries := [line.estimate for line in self.of(QUERIES)]:
            high, low = self.written(max(queries), min(queries), half=noise_of(self.release))
            at = f"At its {len(queries)} public queries, the effect of {self.compared[0]} on {self.outcome}"
            return [f"{at} is estimated between {low} and {high}.", self._unproven()]
        if self.main:
            pairs = list(zip(self.main, self.compared, strict=True))
            if len(pairs) == 1:
                line = self.main[0]
                noisy = _true({"Most of its width is noise for privacy.": 2 * line.noise**2 > line.error**2})
                more = self._meaning() if line.clear else self._worth(line.noise) or noisy
                return [*self._answer(*pairs[0]), *more][:3]
            pairs = sorted(pairs, key=lambda pair: pair[0].half - abs(pair[0].estimate)) if pairs[2:] else pairs
            named, meaning = self._known_arms(), self._meaning()
            return [*named, *(self._answer(*pair)[0] for pair in pairs[: max(2 - len(named), 0)]), *meaning]
        if self.cells:
            known = sorted((line for line in self.cells if line.known), key=lambda line: line.estimate)
            return [*self._in_cells(), *map(self._each, dict.fromkeys(known[-1:] + known[:1]))][:3]
        means = self.effect.effect_tensor(self.rows).view(len(self.rows), -1).mean(0).tolist()
        found = [self._bare("over the reference population", *pair) for pair in zip(means, self.compared, strict=True)]
        why = self.release.why_no_lines
        better = "stating it" if "state treated" in why else "fewer covariates"
        helps = f"Estimated chances of treatment do not fit the share treated: {better}, or more records, would help."
        return [*found[:2], self._unproven(), *_true({helps: why.startswith(_NO_FIT)})][:3]

    def _answer(self, line: _Line, compared: str) -> list[str]:
        """Return an average with its interval and direction; what is and is not shown where it holds zero."""
        about = _capital(f"{self.over}among {line.title if line.group == WEIGHTED else EVERYBODY}")
        if math.isinf(line.error):
            start = f"{about}, nothing can be concluded of the effect of {compared} on {self.outcome}"
            return [f"{start}.", "Noise added for privacy hides any effect that there may be: more records would help."]
        if not line.known:
            return [self._bare(about, line.estimate, compared), self._unproven()]
        value, interval = self.found(line, signed=not line.clear)
        averaged = "" if self.domain.censoring or self.factor > 1 else " on average"
        start = f"{compared} {'raises' if line.clear > 0 else 'lowers'} {self.outcome} by {value}{averaged}"
        start = start if line.clear else f"no effect of {compared} on {self.outcome} is shown"
        starts = [f"{about}, {start}", *[_capital(start)] * (len(self.main) > 1)]
        if line.clear:
            return _joined(starts, f" ({interval})", f"its {interval.replace('interval', 'interval is')}")
        found, more = f"{value} ({interval})", f"more {self.people}"
        more = "people alike in both arms" if self.lacking >= _FEW[0] else more
        possible = f"Any effect in that interval is possible; {more} would narrow it."
        return [*_joined(starts, f": {found}", f"the estimate is {found}"), possible]

    def _known_arms(self) -> list[str]:
        """Return which arms have an effect that is shown, where the two clearest answers would leave some out."""
        named = [(line.title.partition(" instead of ")[0], line.clear) for line in self.main]
        start = f"Of {len(named)} arms, these are shown to"
        arms = {word: [name for name, clear in named if clear == sign] for word, sign in (("raise", 1), ("lower", -1))}
        many = sum(map(len, arms.values())) > 2
        return [_listed(f"{start} {word} {self.outcome}", own) for word, own in arms.items() if own and many]

    def _bare(self, about: str, value: float, compared: str) -> str:
        text = self.written(value, half=noise_of(self.release))[0]
        return f"{_capital(about)}, {compared} changes {self.outcome} by about {text}."

    def _unproven(self) -> str:
        """Return that nothing can be concluded, with the error to expect where it is known."""
        noise, errors = noise_of(self.release), _planned(self.effect)
        if noise is None or self.schema.cluster:  # whose errors plans do not count
            return "It has no interval, and nothing can be concluded from it."
        planned = f"noise alone is about {self.size(noise)}, and other errors come on top"
        if errors is not None:
            planned = f"the error to expect is about {self.size(math.hypot(*errors[:3]))}"
        return f"It has no interval, and nothing can be concluded: {planned}."

    def _meaning(self) -> list[str]:
        """Return which arms a shown effect speaks for, where it is said what is better."""
        if self.domain.better is None:
            return []
        reference, *others = (arm(self.schema, action) for action in self.schema.actions)
        gains = [line.clear * self.domain.direction for line in self.main]
        good = [name for name, gain in zip(others, gains, strict=True) if gain > 0]
        good = [reference] if max(gains) < 0 else good
        better = f"{_capital(self.domain.better)} {self.outcome.removeprefix('the ')} is better"
        return [f"{better}: this speaks for {' and '.join(good)}."] if good else []

    def _in_cells(self) -> list[str]:
        """Return in which subgroups the effect differs from the average; if nothing tells, where one is shown."""
        known, at_once = [line for line in self.cells if line.known], self.lines.at_once is not None
        what = "comparisons" if self.release.arms else "subgroups"
        hidden = [line.title for line in self.cells if not line.known]
        hides = f"In {_some(hidden, self.cells)} {what} noise added for privacy hides any effect"
        more = [_listed(hides, hidden)] if hidden else []
        if at_once and self.main and len(known) == len(self.cells) == 2 and not (self.sites or self.release.arms):
            return [self._apart(known[0], known[1], " and ".join(line.title for line in known))]
        value, differs, signs = 0.0, "differs from zero", {line.clear for line in known} - {0}
        on = "" if self.main else f" on {self.outcome}"
        none = f"no effect{on} is shown"
        if at_once and self.main:
            value, differs = self.main[0].estimate, "differs from that average"
            none = "no difference from that average is shown"
        elif len(signs) == 1:
            differs = f"is {'above' if 1 in signs else 'below'} zero"
        apart = [line.title for line in known if not line.low <= value <= line.high]
        shown = f"in {_some(apart, self.cells)} {what} the effect{on} {differs}"
        start = _capital(f"{self.over}{shown if apart else f'in {len(self.cells)} {what} {none}'}")
        how = ", counting all at once" if at_once else ", each by itself"
        start += how if len(f"{start}{how}".split()) <= MOST_WORDS else ""
        return [_listed(start, apart), *more]

    def _apart(self, one: _Line, other: _Line, between: str) -> str:
        """Return by how much two lines differ, or that no difference is shown."""
        line = _Line("", "", *self.lines.contrast(one.title, other.title))
        start = "The effect differs" if line.clear else "No difference of the effect is shown"
        return _joined([f"{start} between {between}", start], ": {} ({})".format(*self.found(line)), "")[0]

    def _decides(self) -> list[str]:
        """Return whom a rule gives what."""
        decision, goal = self.release.decision, f"for {aim(self.schema)} {self.outcome.removeprefix('the ')}"
        name, start = getattr(decision, "title", getattr(decision, "name", None)), f"{_capital(goal)}, the rule"
        chosen = [] if name is None else [f"Chosen from public policies, {goal}: {name}."]
        try:
            answers = decision.answer(self.rows)
        except InputError:  # a function that nobody has given yet
            return chosen
        given = {label: (answers == label).double().mean().item() for label in answers.unique().flip(0).tolist()}
        first, *others = (f"{arm(self.schema, k)} to {f'{p:.0%}' if p < 1 else 'all'}" for k, p in given.items())
        gives = f"gives {' and '.join([f'{first} of the reference population', *others])}."
        start = "The policy" if chosen else start if len(f"{start} {gives}".split()) <= MOST_WORDS else "The rule"
        return [*chosen, f"{start} {gives}"]

    def _gain(self, line: _Line) -> str:
        """Return what a rule gains over treating nobody or everybody."""
        against, (value, interval) = line.title.rpartition(" over ")[2], self.found(line, signed=not line.clear)
        better = "Deciding by it", f"{_capital(against)}"
        how = f"{better[line.clear < 0]} is better than {'the rule' if line.clear < 0 else against} by {value} a person"
        unclear = f"It is not shown to be better or worse than {against}: {value} a person"
        return f"{how if line.clear else unclear} ({interval})."

    def whom(self) -> list[str]:
        """Return whom it is about."""
        unit, n, missing = self.release.privacy.protected, self.release.privacy.n, " or ".join(self.domain.dropped)
        people = f"{n // unit.records:,} {unit.name}s"
        people += f" of {self.sites} sites" if self.sites else ""
        numeric = [covariate for covariate in self.schema.covariates if not covariate.levels]  # they leave people out
        bounds = [bounds_in_words(covariate).replace(":", "", 1) for covariate in numeric]
        facts = {
            "Records are weighted: the answer is for those whom they stand for.": self.domain.weights
            and not self.domain.is_rate,
            f"Those of them whose {missing} is missing do not count.": missing,
        }
        return [_listed(f"It is about people like those in the {people}", bounds), *_true(facts)]

    def reference(self, given: bool) -> str:
        """Return who the reference population is."""
        known = self.effect is not None and self.effect.reference is not None
        own = "has the released means and spreads" if known else "is spread evenly over the bounds, like no real people"
        return f"The reference population {'is the public table that was given' if given else own}."

    def groups(self) -> list[str]:
        """Return comparisons of arms, who has most and least, which subgroups stand apart, and how far sites differ."""
        ends, weighted = self.of(BY_EFFECT), [line for line in self.of(WEIGHTED) if line not in self.main]
        pairs = zip(self.main, self.compared, strict=False)
        longer = [line for line, words in pairs if LEVEL_WORDS not in self._answer(line, words)[0]]
        arms = self.main if len(self.main) > 2 else longer if len(self.main) == 2 else []
        found = [self._each(line) for line in (*arms, *weighted, *ends[-1:], *ends[:1])]
        if len(self.main) == 2 and not self.sites:
            titles = [line.title for line in self.main[::-1]]
            compared = " instead of ".join(title.partition(" instead of ")[0] for title in titles)
            line = _Line("", EVERYBODY, *self.lines.contrast(titles[0], titles[1]))
            found += self._answer(line, compared)[: None if line.clear else -1]
        if ends[1:]:
            found.append(self._apart(ends[-1], ends[0], "these groups"))
            wrong = "Their order is not as predicted, so who has the larger effects is not known."
            found += _true({wrong: ends[-1].estimate < ends[0].estimate})
        if self.release.varies and not (ends or self.release.arms or self.release.decision or self.of(QUERIES)):
            found.append(self._spread())
        found += self._in_cells() if self.cells and self.main else []
        for against in ("treating nobody", "treating everybody"):
            each = [line for line in self.of(OF_POLICY) if line.title.endswith(f" over {against}")]
            clear = [line.title.removeprefix("treating ").partition(" over ")[0] for line in each if line.clear > 0]
            shown = f"Treating one subgroup alone is shown to be better than {against} in {_some(clear, each)}"
            found += [_listed(shown, clear)] if each else []
        cost = getattr(self.release.decision, "cost", self.release.privacy.public.get("cost", 0.0))
        return [*found, *_true({f"Gains count a cost of {self.size(cost)} a treatment.": cost}), *self._between()]

    def _each(self, line: _Line) -> str:
        value, interval = self.found(line)
        what = "the effect is" if line.clear else "no effect is shown:"
        if not line.known:
            return f"For {line.title}, nothing can be concluded."
        said = f"For {line.title}, {what} {value} ({interval})."
        return said if len(said.split()) <= MOST_WORDS else f"{_capital(line.title)}: {value} ({interval})."

    def _spread(self) -> str:
        """Return between which ends most effects of the reference population are released."""
        effects = self.effect.effect_tensor(self.rows)
        low, high = effects.quantile(effects.new_tensor([(1 - _MIDDLE) / 2, (1 + _MIDDLE) / 2])).tolist()
        half = self.main[0].half if self.main and self.main[0].known else noise_of(self.release)
        if high - low < (half or 0.0):
            least = self.size(half or 0.0)
            return f"No differences of the effect between people are shown; those below {least} would not be seen."
        most, least = self.written(high, low, half=half)
        people = f"For the middle {_MIDDLE:.0%} of the reference population"
        return f"{people} it is estimated between {least} and {most}; true effects may spread more."

    def _between(self) -> list[str]:
        """Return how far sites differ in the first average, noise and sampling taken out."""
        if not self.sites or not self.main:
            return []
        place, estimates, titles = self.all.index(self.main[0]), self.lines.estimates, self.lines.titles
        rows = len(titles) // len(self.all)
        least, *_, most = sorted(range(place * rows, place * rows + self.sites), key=estimates.__getitem__)
        new = self.lines.ends(LEVEL)[place * rows + self.sites + 1 :][: rows - self.sites - 1].flatten().tolist()
        high, low = self.written(*estimates[[most, least]].tolist(), half=self.main[0].half)
        at_new = " and ".join(self.written(*new[::-1], half=self.main[0].half)[::-1]) if new else ""
        spread = self.release.heterogeneity()[place]["between_sd"]  # type: ignore[attr-defined]
        facts = {
            f"The sites' own estimates run from {low} ({titles[least]}) to {high} ({titles[most]}).": True,
            f"At a new site the effect is expected between {at_new}.": at_new,
            "One effect at all sites is taken for granted.": self.fixed,
            "Sites differ no more than chance and noise explain.": not self.fixed and not spread,
            f"Beyond chance and noise, sites differ by a standard deviation of {self.size(spread)}.": spread,
            "So few sites hardly show how far they differ, which widens the interval.": self.sites <= _FEW_SITES
            and not self.fixed,
        }
        return _true(facts)

    def rests_on(self) -> list[str]:
        """Return what it assumes, the strongest first."""
        cohort, lacking, censoring = not self.trial, self.lacking, self.domain.censoring
        alone, pairs, cluster = self.schema.assignment is None, self.schema.pairs, self.schema.cluster
        missing, few = " or ".join(self.domain.dropped), lacking >= _FEW[0]
        name, most = "" if cluster is None else cluster.name, 0.0 if pairs is None else pairs.most or 0.0
        size, rho = (None, 0.0) if cluster is None else (cluster.size, cluster.correlation or 0.0)
        counted = size is not None and any(line.known for line in self.all)
        by, known = censoring and censoring.kind == EVENT_BY_HORIZON, self.domain.known_propensity is not None
        codes = "" if censoring is None else f"{' or '.join(map(str, censoring.success))} and {censoring.censored}"
        facts = {
            "Treatment was randomised person by person, as the design of the study says.": self.trial and alone,
            "Where whole schools or wards were treated at once, intervals are too narrow.": self.trial and alone,
            f"Whole clusters ({name}) were randomised, as the design says.": self.trial and cluster,
            f"Intervals count clusters of at most {size} records, correlated by at most {rho:g}.": counted,
            "In each pair it was drawn who is treated, as the design says.": self.trial and pairs and not pairs.period,
            "Which arm came first was drawn, and nothing of it is left in the second period.": pairs and pairs.period,
            f"A difference within a pair counts as {self.size(most)} at most.": most,
            "Nothing unmeasured drives both treatment and outcome.": cohort,
            f"Everybody may get each arm, with a chance of at least {self.domain.overlap:.0%}.": cohort
            and not (pairs or few),
            f"It is stated that everybody has a chance of at least {self.domain.overlap:.0%} of each arm.": few,
            f"By a noisy estimate, at least {lacking:.0%} of the people have less.": few,
            "For them it rests on the outcome's model alone: records without them would help.": few,
            "The models of outcome and treatment are about right, or one of them is right.": cohort and not pairs,
            "Treatment does not depend on what missing covariates would have been.": cohort and self.schema.may_miss,
            f"Whether the {missing} is missing does not depend on the outcome{', nor on the arm' * known}.": missing,
            "When follow-up ends tells nothing of the event.": censoring,
            "Who has another event first counts as never having this one.": by and censoring and censoring.competes,
            f"Any code of the event but {codes} counts as an event that ends the time.": censoring
            and not (by or censoring.levels),
            "How long a record is followed tells nothing of how often events come.": self.domain.is_rate,
            "Each person's records are at one site alone.": self.sites,
            "The sites are like a sample of those that the mean is about.": self.sites and not self.fixed,
            "The estimate lies off the middle of its interval because it is drawn toward the mean of the fitted "
            "effects.": self.effect is not None
            and not (self.sites or self.release.arms)
            and any(abs(line.estimate - (line.low + line.high) / 2) > _OFF * 2 * line.half for line in self.main),
        }
        return _true(facts)

    def robustness(self) -> list[str]:
        """Return how strong an unmeasured cause would have to be; nothing in trials, or of an effect of about zero."""
        own = getattr(self.effect, "averages", None) is not None and not self.release.arms and not self.trial
        average, end = self.effect.explained_away() if own else (0.0, 0.0)
        part = f"{average:.0%} of what covariates leave open in outcome and treatment"
        whole = f"An unmeasured cause would have to explain {part} to bring the average to zero."
        nearest = f"To bring the end of its interval to zero, {end:.0%} of each would do."
        return _true({whole: average >= _FEW[1], nearest: end >= _FEW[1]})

    def person(self) -> list[str]:
        """Return what to do with one person's number."""
        if self.release.decision is not None:
            return ["The rule sees the listed covariates alone: what else is known of a patient it does not count."]
        if not self.release.of_persons:
            return ["These are averages: what one person gains or loses they do not say."]
        if not self.release.varies:
            return ["Everybody has the same number here: so many records carry no more."]
        read = "It has no interval here: do not act on one person's number alone."
        if self.effect.has_intervals and self.main:
            low, high = torch.as_tensor(self.effect.interval(self.rows, LEVEL)).unbind(1)
            average, half = self.main[0].estimate, self.size((high - low).median().item() / 2)
            apart = ((low > average) | (high < average)).double().mean().item()
            people = f"{apart:.0%} of people" if apart else "nobody"
            read = f"Read it with its interval, about {half} on either side: for {people} it leaves the average out."
        mean = "A person's number is the mean of people alike in the covariates, and no forecast for one patient."
        return [mean, read, *self._worth()]

    def _worth(self, noise: float | None = None) -> list[str]:
        """Return that a number was not worth asking for, by the limits of plans; without its noise one person's."""
        planned, what = (_planned(self.effect), "error to expect") if noise is None else (None, "noise for privacy")
        noise = noise_of(self.release) if noise is None else noise
        if noise is None or not math.isfinite(noise):
            return []
        whole, of = self.schema.effect_scale
        worth = worth_asking(noise, self.schema, planned and planned.relative)
        size = f"its {what} is {noise / whole:.0%} of the outcome's {of}"
        trial = self.domain.known_propensity is not None and hasattr(self.release, "averages")
        way = "This way it" if trial else "It"  # sums of outcomes may have less noise
        no = f"{way} is not worth asking at so many records: {size}."
        serves = worth == SERVES and not self.of(BY_EFFECT)  # which say themselves how effects differ
        return _true({no: worth == "no", "At so many records one average effect serves as well.": serves})

    def privacy(self) -> list[str]:
        """Return what is guaranteed, and that it is little where epsilon is large."""
        privacy = self.release.privacy
        if privacy.claims:
            whom, level = privacy.protected.name, Level(privacy.level)
            budget = f"epsilon = {privacy.epsilon:.3g}, delta = {privacy.delta:.3g}"
            little = f"An epsilon above {_LITTLE:g} promises little: handle it almost like the records."
            said = f"Each {whom} is protected by {budget}, {level.value}: {_SURE[level]}."
            return [said, *_true({little: (privacy.epsilon or 0.0) > _LITTLE})]
        why = "there is no proof of any" if privacy.level == Level.HEURISTIC else "a condition of its proof fails"
        why = why if privacy.private_noise else "its noise had a fixed seed, as tests have it"
        return [f"No privacy guarantee, for {why}: keep it as confidential as the records."]
