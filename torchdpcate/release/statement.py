"""The privacy statement: what a release guarantees, under which conditions, at what privacy cost."""

import json
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass, field, fields
from functools import cache
from importlib.metadata import version
from typing import Any

from torchdpcate._text import markdown_text, plain
from torchdpcate.data.domain import Domain
from torchdpcate.errors import InputError
from torchdpcate.privacy.events import DPSGDEvent
from torchdpcate.privacy.filters import cost_from
from torchdpcate.privacy.guarantee import Guarantee, Level
from torchdpcate.privacy.ledger import Ledger
from torchdpcate.privacy.session import FitSession
from torchdpcate.privacy.unit import RECORD, PrivacyUnit
from torchdpcate.release.blocks import (
    Block,
    Check,
    StatedCharge,
    check_fields,
    has_keys,
    is_bool,
    is_cost,
    is_count,
    is_delta,
    is_facts,
    is_level,
    is_list_of_text,
    is_text,
    is_text_by_name,
)

STATED_AS = "assumptions"
"""The statement's name for it."""

ESTIMATED = (
    "nothing but the covariates confounds, and the log-odds of treatment are a combination of the features of the "
    "propensity's regression; where they are not, the interval may never hold its target, and where the mean outcome "
    "is none of its features it is somewhat too narrow (a stated bias widens it)"
)
"""When intervals of a composed effect hold whose propensity was estimated."""
RANDOMISED = (
    "treatment was randomised person by person with the propensity that the domain states; where it was not, the "
    "estimate is biased and the interval may never hold the effect; where whole schools or wards were treated at once, "
    "it is too narrow"
)
"""When those hold whose propensity is known."""
UNMEASURED = "no unmeasured cause of both treatment and outcome is left"
OVERLAPPING = "people of all covariates may get either arm, as often as the domain's overlap says"
MODELLED = (
    "the models of outcome and treatment follow the truth as far as their features do, or one of them follows it well"
)
"""What averages of a cohort rest on, the strongest first."""
RANDOMISED_LINES = (
    "treatment was randomised person by person with the propensity that the domain states; where whole schools or "
    "wards were treated at once, intervals are too narrow"
)
"""What averages of a trial rest on."""
MISSING_VALUES = "missing_values"
"""The statement's name for what becomes of them."""
IMPUTED = (
    "a missing covariate is a value of its own by an indicator, and counts as the released mean of the others in a "
    "composition, as the middle of its bounds elsewhere"
)
"""What becomes of missing covariates."""
MISSING_RANDOMISED = "nothing is assumed of why, as treatment was randomised"
MISSING_ESTIMATED = (
    "treatment does not depend on what a missing covariate would be, given which ones are missing and those that are "
    "there"
)
"""What is assumed of them where the propensity is known, and where it is estimated."""
UNSTATED = (
    "the log-odds of treatment and the mean outcomes of both arms are all combinations of the covariates (its "
    "estimator does not state which of these models must follow the truth); where one is not, the estimate may be "
    "biased and the interval may never hold the effect"
)
"""Of a release that does not state it, and of a mechanism that does not say it."""
LIKE_PRIOR = (
    "and effects vary over persons, by the released features and beyond them, as in the generated data on which the "
    "plan was tuned (docs/intervals.md)"
)
"""What intervals for a person rest on beside the rest."""
RESIDUALS = (
    "and what outcomes differ by from their mean is about as large whatever the covariates; where its skewness follows "
    "them or the arm, clipping hides about as much of the effect as was released of the mean effect "
    "(docs/intervals.md); else intervals may be too narrow or miss their target"
)
"""What the intervals of both assume besides, of the residuals that the effect's regression clips."""


ADJACENCY = "replace one record; the number of records is public"
UNIT = "one record (row): a person with several rows is protected only row by row"
PERSON_ADJACENCY = (
    "replace one person with all of their records; the number of persons and that of the records of each are public"
)
_PAIR_ADJACENCY = "replace one pair with both of its records; the number of pairs is public"
DEPENDENT = ", which may depend on each other: intervals count their sampling as often"
"""What is said of several records of a person."""
_DP_SGD = " and DP-SGD"
_ARITHMETIC = (
    f"real arithmetic inside fits{_DP_SGD} (float64 and float32); what is released is rounded to a public "
    "power-of-two grid and gets noise on that grid: discrete Gaussian or Laplace"
)
_K_NORM = ", or K-norm noise drawn in floating point and rounded to it, as are the tilts of objectives"
_PROCESS = (
    "; answers with Gaussian-process noise get noise mixed of discrete Gaussian numbers 2^50 times finer than itself, "
    "and are rounded to such a grid afterwards; their law is taken to be that of exact Gaussian noise, though up to a "
    "millionth of it may be unevenness of that lattice"
)
FLOATING_POINT = f"{_ARITHMETIC}{_K_NORM}{_PROCESS}"
ENTROPY = "DP-SGD noise and Poisson sampling come from a generator seeded by the operating system's entropy"
ENDING = (
    "nothing that was seen made the curator spend less of these records' budget than would have been spent otherwise; "
    "whatever was decided by looking, the budget of each block bounds all that is released from it"
)
ASSUMPTIONS = (
    FLOATING_POINT,
    ENTROPY,
    "bounds, split, queries, policies and settings are public facts, not read off the records",
    ENDING,
)
TUNING = {
    "runs": 1,
    "text": "this ledger holds one run and no charge for tuning; whatever else was tried on the same records, the "
    "other runs of a sweep included, is not counted here and adds up",
}
"""What one ledger knows of tuning."""
NOT_PROTECTED = (
    "the fact that training ended or was refused, and how long it took",
    "everything in the curator's folder",
    "what else is or will be published about the same records: its budget adds up with this one",
)
LIBRARIES = ("torchdpcate", "torch", "opacus", "dp-accounting", "opendp")
"""Libraries whose versions a statement lists."""
LONGEST_CHOICE = 500
"""Letters in which a curator may say who chose the budget, and why."""
_CONSTANTS = "constants"  # of a composition's plan: many, and no facts for a reader
_LATTICE, _GAUSSIAN_PROCESS = "composed", "gaussian_process"
"""The mechanism whose noise is discrete Gaussian or Laplace alone, and the one of Gaussian processes."""
_CLIPPED = "clipping: values beyond these bounds are refused, or moved to the nearest one, before anything is computed"
_COSTS = {"epsilon", "delta"}
"""Words in the names of public constants that say what something costs."""
_version = cache(version)  # looking one up reads files


def _distinct(names: list[Any]) -> bool:
    return all(map(is_text, names)) and len(set(names)) == len(names)


_STATEMENT: dict[str, Check] = {
    "mechanism": is_text,
    "formula": is_text,
    "level": is_level,
    "claim": is_text,
    "epsilon": is_cost,
    "delta": is_delta,
    "n": is_count,
    "blocks": lambda value: has_keys("name", "n", "charges")(value) and _distinct([v["name"] for v in value]),
    "conditions": lambda value: has_keys("name", "text", "holds")(value) and all(len(v) == 3 for v in value),
    "public": is_facts,
    "private_noise": is_bool,
    "adjacency": is_text,
    "unit": is_text,
    "assumptions": is_list_of_text,
    "not_protected": is_list_of_text,
    "versions": is_text_by_name,
    "accountant": is_text_by_name,
    "bounds_origin": is_text,
    "chosen": lambda value: is_text(value) and len(value) <= LONGEST_CHOICE,
    "bounds": is_facts,
    "tuning": lambda value: value == {} or (is_facts(value) and value.keys() == {"runs", "text"}),
    "person": lambda value: (
        value == {}
        or (is_facts(value) and value.keys() - {"pair"} == {"column", "records"} and is_text(value["column"] or None))
    ),
}
_CONDITION: dict[str, Check] = {
    "name": is_text,
    "text": is_text,
    "holds": lambda value: value is None or isinstance(value, bool),
}


@dataclass(frozen=True, repr=False)
class PrivacyStatement:
    """What a release guarantees. Holds public facts and released numbers alone.

    Attributes:
        mechanism: Name of the mechanism.
        formula: Its noise scale as a formula, with its source.
        level: ``certified``, ``conditional`` or ``heuristic``.
        claim: The guarantee in a sentence.
        epsilon: Total epsilon over all blocks, or None where nothing is claimed.
        delta: Total delta, or None.
        n: Number of records, public.
        blocks: The blocks of records, and what each was charged.
        conditions: Conditions of the guarantee and whether they were seen to hold.
        public: The mechanism's public constants.
        private_noise: Whether the noise came from the system's entropy.
        versions: Versions of the libraries that made the release.
        accountant: Name, version and neighbouring relation of what composed the charges; empty if nothing is
            claimed.
        bounds_origin: Where the public bounds come from, in the curator's words.
        bounds: ``outcome_low``, ``outcome_high`` and ``overlap`` of the domain, on which noise scales rest, and how
            records count where they do not all count alike; where the domain says it ``better_outcomes``, ``lower`` or
            ``higher``.
        tuning: ``runs`` on the same records that are known of (None if unknown) and a ``text`` on their cost.
        person: Where persons are protected, ``column`` that names them and how many ``records`` each has; epsilon,
            delta and claim are then by person, and those of blocks and charges by record. Empty for records.
        chosen: Who chose epsilon and delta, and why, in the curator's words; empty if nobody said.
    """

    mechanism: str
    formula: str
    level: str
    claim: str
    epsilon: float | None
    delta: float | None
    n: int
    blocks: tuple[Block, ...]
    conditions: list[dict[str, Any]] = field(default_factory=list)
    public: dict[str, Any] = field(default_factory=dict)
    private_noise: bool = True
    adjacency: str = ADJACENCY
    unit: str = UNIT
    assumptions: list[str] = field(default_factory=lambda: list(ASSUMPTIONS))
    not_protected: list[str] = field(default_factory=lambda: list(NOT_PROTECTED))
    versions: dict[str, str] = field(default_factory=lambda: {name: _version(name) for name in LIBRARIES})
    accountant: dict[str, str] = field(default_factory=dict)
    bounds_origin: str = ""
    bounds: dict[str, Any] = field(default_factory=dict)
    tuning: dict[str, Any] = field(default_factory=dict)
    person: dict[str, Any] = field(default_factory=dict)
    chosen: str = ""

    @property
    def protected(self) -> PrivacyUnit:
        """Who is protected."""
        return PrivacyUnit.from_dict(self.person)

    @property
    def charges(self) -> list[StatedCharge]:
        """The charges of all blocks."""
        return [charge for block in self.blocks for charge in block.charges]

    @property
    def claims(self) -> bool:
        """Whether an (epsilon, delta) is claimed."""
        return self.epsilon is not None

    @property
    def headline(self) -> str:
        """The level in a few words, never stronger than the claim."""
        claimed = self.claims or self.level == Level.HEURISTIC
        return self.level if claimed else f"{self.level}, and its conditions do not hold: no guarantee"

    def to_dict(self) -> dict[str, Any]:
        """Return the statement as plain types, which its caller may change."""
        return deepcopy(self._plain())

    def _plain(self) -> dict[str, Any]:
        plain = {field.name: getattr(self, field.name) for field in fields(self)}
        for name in ("person", "chosen"):
            if not plain[name]:
                del plain[name]
        return plain | {"blocks": [block.to_dict() for block in self.blocks]}

    @classmethod
    def from_dict(cls, stated: Mapping[str, Any]) -> "PrivacyStatement":
        """Rebuild a statement from ``to_dict``.

        Raises:
            InputError: A field is missing, unknown, or not of its kind.
        """
        check_fields(stated, _STATEMENT, "privacy statement")
        if (stated.get("epsilon") is None) != (stated.get("delta") is None):
            raise InputError("privacy statement: of epsilon and delta one is there without the other")
        for condition in stated.get("conditions", ()):
            check_fields(condition, _CONDITION, "condition of the privacy statement")
        try:
            return cls(**{**stated, "blocks": tuple(Block.from_dict(block) for block in stated["blocks"])})
        except (KeyError, TypeError) as error:
            raise InputError(f"privacy statement: {error}") from None

    def to_json(self, indent: int | None = 2) -> str:
        """Return the statement as JSON, indented by so many blanks, or in one line."""
        return json.dumps(self._plain(), indent=indent)

    def __repr__(self) -> str:
        """Return the claim and the mechanism, in one line."""
        return plain(f"<PrivacyStatement: {self.claim}; {self.mechanism}; n = {self.n:,}>")

    def to_markdown(self) -> str:
        """Return the statement as a page to read; what it says is text, never markup."""
        text = markdown_text
        lines = [f"# Privacy statement: {text(self.headline)}", "", f"**{text(self.claim)}**", ""]
        lines += ["## Who is protected", "", f"- adjacency: {text(self.adjacency)}", f"- unit: {text(self.unit)}"]
        lines += [f"- records: {self.n}"]
        lines += [f"- {self.protected.name}s: {self.n // self.protected.records}"] if self.person else []
        lines += ["", "## Budget", ""]
        if self.claims:
            chosen = self.chosen or "the curator did not say who chose it, and why"
            lines += [f"- epsilon {_short(self.epsilon)}, delta {_short(self.delta)}: {text(chosen)}"]
        lines += [f"- other releases: {text(self.tuning['text'])}"] if self.tuning else []
        lines += [f"- accountant: {text(' '.join(self.accountant.values()))}"] if self.accountant else []
        lines += ["", "## Mechanism", "", f"- mechanism: {text(self.mechanism)}", f"- noise: {text(self.formula)}"]
        public = {name: value for name, value in self.public.items() if name != _CONSTANTS}
        lines += [f"- {text(name.replace('_', ' '))}: {text(_short(value))}" for name, value in public.items()]
        lines += ["- constants of the plan: those that privacy.json lists"] if _CONSTANTS in self.public else []
        if self.bounds or self.bounds_origin:
            lines += ["", "## Public bounds", ""]
            lines += [f"- from: {text(self.bounds_origin)}"] if self.bounds_origin else []
            lines += [f"- {text(name.replace('_', ' '))}: {text(_short(value))}" for name, value in self.bounds.items()]
            lines += [f"- {_CLIPPED}"]
        lines += ["", f"## Blocks of records (disjoint{', spent by record' if self.person else ''})", ""]
        for block in self.blocks:
            lines.append(f"- {text(block.name)}: {block.n} records{_spent(block)}")
            lines += [f"  - {text(charge.words)} ({charge.level.value})" for charge in block.charges]
        if self.conditions:
            lines += ["", "## Conditions", ""]
            lines += [f"- {_mark(c['holds'])} {text(c['name'])}: {text(c['text'])}" for c in self.conditions]
        if self.assumptions:
            lines += ["", "## Assumptions", "", *(f"- {text(words)}" for words in self._assumed())]
        lines += ["", "## Not protected", "", *(f"- {text(words)}" for words in self.not_protected)]
        lines += ["", "## Made with", "", *(f"- {text(name)} {text(v)}" for name, v in self.versions.items()), ""]
        return "\n".join(lines)

    def _assumed(self) -> list[str]:
        """Return the assumptions, without what they say of mechanisms that the release has not."""
        events = [charge.event for charge in self.charges]
        trained = any(event is None or isinstance(event, DPSGDEvent) for event in events)
        left_out = [] if trained else [ENTROPY]
        words = "" if self.mechanism == _LATTICE else _K_NORM
        floating = f"{_ARITHMETIC}{words}{_PROCESS if self.mechanism == _GAUSSIAN_PROCESS else ''}"
        shown = {FLOATING_POINT: floating if trained else floating.replace(_DP_SGD, "", 1)}
        return [shown.get(words, words) for words in self.assumptions if words not in left_out]


def make_statement(
    session: FitSession,
    guarantee: Guarantee,
    *,
    own: set[int],
    mechanism: str,
    formula: str,
    public: Mapping[str, Any],
    bounds_origin: str = "",
    bounds: Mapping[str, Any] | None = None,
    tuning: Mapping[str, Any] = TUNING,
) -> PrivacyStatement:
    """Join a mechanism's guarantee with everything the ledger has been charged.

    The level is the weakest among the mechanism and the charges. Where that is heuristic, a condition is
    known to fail, or the noise is not private, the statement carries no epsilon, delta or event at all.

    Args:
        session: Of the fit, with all charges on the same records so far, this release's included.
        guarantee: Level and conditions of the release's own mechanism.
        own: Ledger entries of this release itself.
        mechanism: Name of the mechanism.
        formula: Its noise scale and source.
        public: Its public constants.
        bounds_origin: Where the public bounds come from (``Domain.origin``).
        bounds: The outcome's and the propensity's (``bounds_of``).
        tuning: What is known of tuning on the same records: ``runs`` and ``text``; of a fit that a shared ledger counts
            what that knows stands in its place.
    """
    if session.reservation is not None:
        tuning = dict(zip(("runs", "text"), session.reservation.words(), strict=True))
    ledger, sizes, private_noise = session.ledger, session.sizes, session.noise.private
    if ledger is None:
        raise InputError("budget = None: a session that charges nothing has no statement")
    guarantee, spent = guarantee.marked(private_noise), ledger.spent()
    order = list(Level)
    # a mechanism whose condition fails is charged as a heuristic, and claims nothing
    others = [e.level for e in ledger.entries if guarantee.holds_claim or e.id not in own]
    level = max([guarantee.level, *others], key=order.index)
    claims = guarantee.holds_claim and spent["total"]["epsilon"] is not None
    total, unit, stated = spent["total"], session.unit, dict(public) if private_noise else {}
    epsilon, delta = unit.cost(total["epsilon"], total["delta"]) if claims else (None, None)
    if epsilon is not None and delta is not None:
        claim = claim_sentence(epsilon, delta, level.value, unit)
    elif guarantee.holds_claim:
        claim = f"{level.value}: no privacy guarantee, because an earlier release from the same records has none"
    else:
        claim = guarantee.claim if private_noise else guarantee.source
    return PrivacyStatement(
        mechanism=mechanism,
        formula=formula,
        level=level.value,
        claim=claim,
        epsilon=epsilon,
        delta=delta,
        n=sum(sizes.values()),
        blocks=tuple(_block(name, n, ledger, spent if claims else None) for name, n in sizes.items()),
        conditions=[c.to_dict() for c in guarantee.conditions],
        # of a budget that nothing is claimed of, nothing is said that reads like a claim
        public={name: value for name, value in stated.items() if claims or not _COSTS & set(name.split("_"))},
        private_noise=private_noise,
        adjacency=adjacency_of(unit),
        unit=unit_words(unit),
        person=unit.to_dict(),
        assumptions=list(ASSUMPTIONS) if private_noise else [],
        accountant=accountant_of(_version("dp-accounting")) if claims else {},
        bounds_origin=bounds_origin,
        bounds=dict(bounds or {}),
        tuning=dict(tuning),
    )


def bounds_of(domain: Domain) -> dict[str, Any]:
    """Return what a statement says of the bounds of outcome and propensity, which outcomes are good, how records count.

    Example:
        >>> bounds_of(Domain([0.0], [1.0], -1.0, 2.0, overlap=0.1))
        {'outcome_low': -1.0, 'outcome_high': 2.0, 'overlap': 0.1}
    """
    bounds = {"outcome_low": domain.outcome_low, "outcome_high": domain.outcome_high, "overlap": domain.overlap}
    better = {} if domain.better is None else {"better_outcomes": domain.better}
    return {**bounds, **domain.counting, **better}


def and_counting(words: str, domain: Domain) -> str:
    """Return what estimates rest on, and how records count where they do not all count alike.

    Example:
        >>> and_counting("x", Domain([0.0], [1.0], 0.0, 1.0))
        'x'
    """
    return "; ".join([words, *domain.counting.values()])


def adjacency_of(unit: PrivacyUnit) -> str:
    """Return which data sets are neighbours, in words."""
    return _PAIR_ADJACENCY if unit.is_pair else PERSON_ADJACENCY if unit.is_person else ADJACENCY


def unit_words(unit: PrivacyUnit) -> str:
    """Return who is protected, in words.

    Example:
        >>> unit_words(PrivacyUnit.person("subject_id"))
        'one person: subject_id says whose a record is, and each person counts as one of the records'
    """
    if not unit.is_person:
        return UNIT
    if unit.is_pair:
        return f"one pair: {unit.column} says which one a record is in, and its difference counts as one of the records"
    words = f"one person: {unit.column} says whose a record is, and each person"
    if unit.records == 1:  # or the two rows of a crossover
        return f"{words} counts as one of the records"
    return f"{words} has exactly {unit.records} of the records{DEPENDENT}"


def claim_sentence(epsilon: float, delta: float, level: str, unit: PrivacyUnit = RECORD) -> str:
    """Return the sentence of a claim; no other sentence claims anything.

    Example:
        >>> claim_sentence(1.0, 1e-5, "certified")
        '(1, 1e-05)-differentially private, certified, replace-one'
    """
    who = f" {unit.name}" if unit.is_person else ""
    return f"({epsilon:.6g}, {delta:.6g})-differentially private, {level}, replace-one{who}"


def accountant_of(version: str) -> dict[str, str]:
    """Return what a statement says of the accountant.

    Args:
        version: Of dp-accounting.
    """
    return {
        "name": "torchdpcate.privacy.compose, with privacy loss distributions of dp-accounting",
        "version": version,
        "neighbouring_relation": "replace one record",
    }


def _block(name: str, n: int, ledger: Ledger, spent: Mapping[str, Any] | None) -> Block:
    entries = [entry for entry in ledger.entries if entry.block == name]
    if spent is None:
        bare = (StatedCharge(e.charge, e.level if ledger.private else Level.HEURISTIC) for e in entries)
        return Block(name, n, tuple(bare))
    later = [None if e.cost is None else cost_from(ledger.filter.cost_to_dict(e.cost)) for e in entries]
    charges = (StatedCharge(e.charge, e.level, e.event, e.count, cost) for e, cost in zip(entries, later, strict=True))
    return Block(name, n, tuple(charges), **{**spent[name], "level": Level(spent[name]["level"])})


def _spent(block: Block) -> str:
    if block.epsilon is None or block.delta is None:
        return ""
    return f", spent ({block.epsilon:.4g}, {block.delta:.3g})"


def _mark(holds: bool | None) -> str:
    return {True: "[holds]", False: "[FAILS]", None: "[not checked]"}[holds]


def _short(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)
