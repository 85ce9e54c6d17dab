"""Combining releases of several sites: whether they are about the same thing, and what is guaranteed to whom."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from torchdpcate._text import is_plain
from torchdpcate.data.schema import TableSchema
from torchdpcate.errors import InputError
from torchdpcate.privacy.guarantee import Level
from torchdpcate.release.blocks import Block, StatedCharge
from torchdpcate.release.combined import ALL_SITES, NEW_SITE, SitesRelease, common_lines
from torchdpcate.release.file import Release, release_digest
from torchdpcate.release.meta_analysis import BETWEEN, FIXED, RANDOM
from torchdpcate.release.statement import (
    ASSUMPTIONS,
    PrivacyStatement,
    accountant_of,
    adjacency_of,
    bounds_of,
    claim_sentence,
    unit_words,
)

COMBINED = "combined"
"""What statements call the combination: post-processing, which asks nothing of the records."""
_FORMULA = {
    FIXED: "none: releases of the sites weighted by their known variances, one effect at all sites",
    RANDOM: "none: releases of the sites weighted by their known variances, effects that differ between sites",
}
_SEVERAL = (
    "each record is protected as its own site says; a person with records at several sites has the sum of what these "
    "sites spent, at all of them ({:.6g}, {:.6g})"
)
SITES_TUNING = {"runs": 1, "text": "none beyond that of the sites, whose own releases say what is known of theirs"}
"""What statements say of tuning."""
_SAID = ("origin", "typical", "codes", "sd", "missing", "label", "labels")
"""What the domain files of two sites may say differently of one column: where facts come from, how values are coded."""
_LEVELS = list(Level)
_LONGEST, _NONE = 80, ("", ALL_SITES, NEW_SITE)  # of a name; what is none


def combine(releases: Sequence[Release], names: Sequence[str], between: str = RANDOM) -> SitesRelease:
    """Return the combination of releases of several sites.

    Post-processing of the releases alone. Budgets, plans, numbers of records, learners and covariates in use may differ
    between sites; the sites' records are taken to be different ones.

    Args:
        releases: Of one kind, with lines that have intervals: effects or averages by one composition, average effects,
            or effects in the same subgroups. In the place of a combination are its sites, so that none counts twice.
        names: What the releases are called, each once. Sites of a combination keep their names; where that is one of
            another site too, the combination's stands before it.
        between: ``random``, where effects differ between sites and their mean is estimated, or ``fixed``, where they
            are taken to be the same.

    Raises:
        InputError: Fewer than two sites, names that are not one each, one release twice, releases that are not about
            the same thing (names the first difference), or one whose error is not known.

    Example:
        >>> from torchdpcate.release.average_effect import _example
        >>> found = combine([_example(), _example(0.35)], ["north", "south"], "fixed")
        >>> found.lines().round(3).loc[:, "estimate":"high"].to_numpy()[-1].tolist()
        [0.3, 0.231, 0.369]
    """
    if len(names) == len(releases):
        names, releases = _flat(names, releases)
    if len(names) != len(releases) or len(set(names)) < len(names):
        raise InputError(f"names = {list(names)}: give each of the {len(releases)} sites a name of its own")
    if len(releases) < 2:
        raise InputError(f"releases: {len(releases)} given; a combination needs two or more")
    strange = [name for name in names if name in _NONE or not is_plain(name) or len(name) > _LONGEST]
    if strange:
        raise InputError(f"names: {strange[0]!r} is none of a site; give 1 to {_LONGEST} letters in one line")
    if between not in BETWEEN:
        raise InputError(f"between = {between}: choose one of {', '.join(BETWEEN)}")
    seen: dict[str, str] = {}
    for name, release in zip(names, releases, strict=True):
        _check_alone(name, release)
        says = {"privacy": release.privacy.to_json()}
        other = seen.setdefault(release_digest(says, release.tensors()), name)
        if other != name:
            raise InputError(f"{other} and {name} are one and the same release; give each site's once")
    for name, release in zip(names[1:], releases[1:], strict=True):
        _check_alike(names[0], releases[0], name, release)
    if not common_lines(releases):
        each = "; ".join(
            f"{name}: {', '.join(common_lines([site])[0].names)}" for name, site in zip(names, releases, strict=True)
        )
        raise InputError(f"releases: no line with a known error is one of all sites ({each}); request one at all")
    schema = schema_of(releases)
    statement = statement_of(releases, names, between, schema)
    return SitesRelease(tuple(releases), tuple(names), between, schema, statement)


def _flat(names: Sequence[str], releases: Sequence[Release]) -> tuple[list[str], list[Release]]:
    """Return names and releases of single sites, those of a combination in its place."""
    each = [
        (name, own, site)
        for name, release in zip(names, releases, strict=True)
        for own, site in (
            zip(release.names, release.sites, strict=True) if isinstance(release, SitesRelease) else [("", release)]
        )
    ]
    taken = Counter(own or name for name, own, _ in each)
    called = [name if not own else own if taken[own] == 1 else f"{name}: {own}" for name, own, _ in each]
    return called, [site for *_, site in each]


def _check_alone(name: str, release: Release) -> None:
    """Refuse a release whose error nothing in it tells."""
    if release.decision is not None:
        raise InputError(
            f"{name}: a decision has no known error to weigh it by; combine effects, and decide by theirs together"
        )
    if not common_lines([release]):
        why = getattr(release, "without", None) or (
            release.why_no_lines if release.named is None else f"mechanism = {release.privacy.mechanism} knows none"
        )
        raise InputError(f"{name}: no interval, hence no known error to weigh it by: {why}")


def _check_alike(name: str, first: Release, other_name: str, other: Release) -> None:
    """Refuse two releases that are not about the same thing, and name the first difference."""
    if first.kind != other.kind:
        raise InputError(f"{name} is a release of {first.kind}, {other_name} one of {other.kind}; combine one kind")
    for (what, one), (_, two) in zip(_subject(first, other), _subject(other, first), strict=True):
        if one != two:
            raise InputError(
                f"{name} and {other_name} cannot be combined: {what} is {_said(one)} in the one and {_said(two)} in "
                "the other"
            )


def _subject(release: Release, other: Release) -> Iterator[tuple[str, Any]]:
    """Return what a release is about, name by name, as far as it must agree with another's."""
    schema, facts = release.schema, release.schema.to_dict()
    yield "the treatment", schema.treatment
    yield "the treatment's categories", list(schema.arms)
    yield "the outcome", schema.outcome
    outcome = facts["outcome"]
    for key in ("unit", "better", "kind", "low", "high", *sorted({*outcome, *other.schema.to_dict()["outcome"]})):
        if key not in _SAID:
            yield f"{key} of {schema.outcome}", outcome.get(key)
    entries, others = facts["covariates"], other.schema.to_dict()["covariates"]
    for name in sorted(entries.keys() & others.keys()):
        for key in sorted({*entries[name], *others[name]} - {*_SAID}):
            yield f"{key} of {name}", entries[name].get(key)
        yield f"missing of {name}", entries[name].get("missing")
    unit = release.privacy.protected
    yield "who is protected", f"a {unit.name} of {unit.records} records" if unit.is_person else "one record"
    private = release.privacy.private_noise and other.privacy.private_noise  # others state no constants
    yield "whom effects are averages of", release.privacy.public.get("estimand") if private else None
    if release.function is None:
        yield "the list of its lines", list(release.required_lines.titles)


def _said(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:g}"
    return "not said" if value is None else repr(value)


def schema_of(releases: Sequence[Release]) -> TableSchema:
    """Return the schema of a combination: the first one's, with the covariates of all and the least overlap.

    A known propensity and an assignment are the combination's where they are those of all sites.
    """
    each = [release.schema.to_dict() for release in releases]
    shared = ["treatment", "outcome", "out_of_bounds"]
    shared += [key for key in ("propensity", "assignment") if all(one.get(key) == each[0].get(key) for one in each)]
    facts = {name: each[0][name] for name in shared if name in each[0]}
    covariates = {name: entry for one in reversed(each) for name, entry in one["covariates"].items()}
    order = dict.fromkeys(name for one in each for name in one["covariates"])
    origins = dict.fromkeys(one["origin"] for one in each if one.get("origin"))
    codes = next((one["codes"] for one in each if "codes" in one), None)
    return TableSchema.from_dict(
        facts
        | {"covariates": {name: covariates[name] for name in order}, "overlap": min(one["overlap"] for one in each)}
        | ({"origin": "; ".join(origins)} if origins else {})
        | ({"codes": codes} if codes else {})
    )


def statement_of(
    releases: Sequence[Release],
    names: Sequence[str],
    between: str,
    schema: TableSchema,
    versions: Mapping[str, str] | None = None,
) -> PrivacyStatement:
    """Return the statement of a combination: blocks are those of all sites, the level is the weakest of theirs.

    A record lies at one site, so that the whole costs the largest of the sites. Where a site claims nothing, nothing is
    claimed.

    Args:
        releases: The sites' releases.
        names: What the sites are called.
        between: ``fixed`` or ``random``.
        schema: Of the combination.
        versions: Of the libraries that combined them; None takes those that are installed.
    """
    each = [release.privacy for release in releases]
    unit, private = each[0].protected, all(privacy.private_noise for privacy in each)
    without = [privacy for privacy in each if not privacy.claims]
    level = Level(max((p.level for p in each), key=lambda level: _LEVELS.index(Level(level))))
    blocks = [_renamed(name, block, bool(without)) for name, p in zip(names, each, strict=True) for block in p.blocks]
    public: dict[str, Any] = {"sites": list(names), "between": between}
    epsilon = delta = None
    if without:
        level, claim = Level.HEURISTIC, without[0].claim
    else:
        spent = [(float(p.epsilon or 0), float(p.delta or 0)) for p in each]
        (epsilon, delta), totals = map(max, zip(*spent, strict=True)), [sum(part) for part in zip(*spent, strict=True)]
        claim = claim_sentence(epsilon, delta, level.value, unit)
        public |= {"site_epsilon": [e for e, _ in spent], "site_delta": [d for _, d in spent]}
        public |= {"person_at_several_sites": _SEVERAL.format(*totals)}
    statement = PrivacyStatement(
        mechanism=COMBINED,
        formula=_FORMULA[between],
        level=level.value,
        claim=claim,
        epsilon=epsilon,
        delta=delta,
        n=sum(privacy.n for privacy in each),
        blocks=tuple(blocks),
        conditions=[
            {**condition, "text": f"{name}: {condition['text']}"}
            for name, privacy in zip(names, each, strict=True)
            for condition in privacy.conditions
        ],
        public=public if private else {},
        private_noise=private,
        adjacency=adjacency_of(unit),
        unit=unit_words(unit),
        person=unit.to_dict(),
        assumptions=list(ASSUMPTIONS) if private else [],
        bounds_origin=schema.domain.origin,
        bounds=bounds_of(schema.domain),
        tuning=SITES_TUNING,
    )
    statement = statement if versions is None else replace(statement, versions=dict(versions))
    return statement if without else replace(statement, accountant=accountant_of(statement.versions["dp-accounting"]))


def _renamed(site: str, block: Block, bare: bool) -> Block:
    """Return a site's block under the site's name; without costs where nothing is claimed of the whole."""
    name = f"{site}: {block.name}"
    if not bare:
        return replace(block, name=name)
    return Block(name, block.n, tuple(StatedCharge(charge.charge, charge.level) for charge in block.charges))
