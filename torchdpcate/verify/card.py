"""The release card: what a data protection officer should know of one release, as JSON and as a page."""

import errno
import json
import math
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from torchdpcate._files import PUBLIC, atomic_path, refuse_existing
from torchdpcate._templates import number, render
from torchdpcate.data.schema import TableSchema
from torchdpcate.data.words import outcome_words
from torchdpcate.errors import InputError, VerificationError
from torchdpcate.privacy.charge import Charge, Purpose
from torchdpcate.privacy.events import DPSGDEvent, GaussianEvent, PureEvent
from torchdpcate.privacy.gaussian_dp import GaussianDP, Validity, event_mu, gaussian_dp
from torchdpcate.privacy.guarantee import Level
from torchdpcate.privacy.worst_case import Target
from torchdpcate.release.blocks import Block, StatedCharge
from torchdpcate.release.file import SUMS_FILE, check_sums, file_sum, load_release, read_release_file, write_sums
from torchdpcate.release.release import Release
from torchdpcate.release.signature import Signature, read_private_key, read_signature, signature_path, write_signature
from torchdpcate.release.statement import PrivacyStatement
from torchdpcate.verify.card_words import (
    composition_in_words,
    describe,
    level_in_words,
    own_words,
    split_in_words,
    summary_rows,
)
from torchdpcate.verify.deployments import FIELDS, SCHEMA, record, wanted
from torchdpcate.verify.finding import findings
from torchdpcate.verify.statement import check_statement

CARD_JSON, CARD_HTML = "card.json", "card.html"
CARD_FORMAT = 1
UNSIGNED = "unsigned: its checksum says nothing of who wrote it"
_BY_PERSON = "; blocks and charges are by record, epsilon and delta by person, who has {} of them"
_MOST_COVARIATES = 12
_ABOUT = {
    "basic.name": "Data product",
    "basic.data_curators": "Curator",
    "basic.description": "What it is",
    "basic.intended_use": "Intended use",
    "basic.data_product_region": "Region",
    "basic.data_product_sector": "Sector",
    "basic.publication_date": "Published",
}
_DEPLOYMENT = {
    "deployment_model.model_name": "Model",
    "deployment_model.actors": "Actors",
    "deployment_model.trust_assumptions": "Trust",
    "deployment_model.release_type_details": "Releases",
    "deployment_model.data_source_type": "Data source",
    "deployment_model.access_type_details": "Access",
    "implementation.preprocessing_and_hyperparameter_tuning": "Before training",
    "implementation.post_processing": "Afterwards",
    "implementation.justification": "Why so",
    "implementation.utility": "Usefulness",
    "implementation.additional_information": "More",
}


def statement_page(release: Release) -> str:
    """Return ``privacy.md``: the privacy statement, and the fields that a registry still wants of the curator.

    Args:
        release: The release.
    """
    _, missing = record(own_words(release), {})
    tiers = [f"- tier {tier}: {', '.join(names)}" for tier, names in wanted(missing).items()]
    title = "## What a registry of releases still wants of the curator (inspect RELEASE --new-facts FILE)"
    return release.privacy.to_markdown() + "\n".join(["", title, "", *tiers, ""])


def make_card(
    release: Release,
    *,
    path: str | Path | None = None,
    facts: Mapping[str, Any] | None = None,
    audit: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Return the card of a release, in plain types fit for JSON.

    Where nothing is claimed (a heuristic, a condition that fails, noise of a fixed seed) the card holds no epsilon,
    delta or mu, of the release or of any part of it.

    Args:
        release: The release.
        path: Its file, whose name and checksum go into the card, and by whom it is signed.
        facts: What only the curator knows, from ``read_facts``.
        audit: Audit results by mechanism: ``claimed``, ``delta``, ``bound``, ``confidence``, ``attack``,
            ``trials``, ``level``; under ``influence_truth``, by kind of head (a neural one's name begins with
            ``neural``), a record's true change over the noise's scale, for what is not certified.

    Raises:
        VerificationError: The privacy statement does not agree with itself, or the file's signature is of another
            file; nothing of it should be passed on.

    Example:
        >>> from torchdpcate import Dataset1, LinearSecondStage, PrivacyBudget, RLearner
        >>> study = Dataset1(n=600).load()
        >>> learner = RLearner(study.domain, PrivacyBudget(4.0, 1e-5), second_stage=LinearSecondStage())
        >>> release = learner.fit(study.records.x, study.records.a, study.records.y).release_function()
        >>> card = make_card(release)
        >>> card["guarantee"]["level"], card["registry"]["deployment"]["dp_variant"]["variant_name"]
        ('certified', 'Approximate DP')
    """
    privacy = release.privacy
    _, problems = check_statement(privacy)
    if problems:
        raise VerificationError(
            f"release: no card of a statement that does not agree with itself: {'; '.join(problems)}"
        )
    filled, missing = record(own_words(release), facts or {})
    card: dict[str, Any] = {
        "card_format": CARD_FORMAT,
        "release": {"kind": release.kind, "mechanism": privacy.mechanism, "versions": dict(privacy.versions)},
        "findings": findings(release),
        **({"summary": summary} if (summary := release.summary()) else {}),
        "guarantee": _guarantee(privacy),
        "event_tree": _event_tree(privacy),
        "bounds": _bounds(release),
        "split": _split(privacy),
        "tuning": dict(privacy.tuning) or "not recorded",
        "not_protected": list(privacy.not_protected),
        "assumptions": list(privacy.assumptions),
        "audit": _audit(privacy, audit or {}),
        "registry_schema": SCHEMA,
        "registry": filled,
        "stated_by_the_curator": sorted(facts or {}),
        "to_be_filled_in_by_the_curator": missing,
    }
    if path is not None:
        card["release"] |= {"file": Path(path).name, "sha256": file_sum(Path(path)), "signature": signed_by(path)}
    if privacy.claims:
        card["accountant"] = dict(privacy.accountant) or "not recorded"
        card["mechanism"] = {"formula": privacy.formula, "public_numbers": _plain(privacy.public)}
    return card


def card_html(card: Mapping[str, Any]) -> str:
    """Return the page of a card: one self-contained file, no script, two sheets of A4.

    Args:
        card: From ``make_card``; everything in it is text to show, never markup.

    Raises:
        LookupError: It is no card.
    """
    return render("card.html", title="Release card", **card_values(card))


def card_texts(card: Mapping[str, Any]) -> dict[str, str]:
    """Return the texts of a card's files by their names.

    Raises:
        LookupError: It is no card.
        ValueError: It holds what is no number.
    """
    return {CARD_JSON: json.dumps(card, indent=2, allow_nan=False) + "\n", CARD_HTML: card_html(card)}


def card_values(card: Mapping[str, Any], heading: str = "h1") -> dict[str, Any]:
    """Return what the template ``card_parts.html`` shows of a card.

    Args:
        card: From ``make_card``.
        heading: Element of its title.
    """
    split = card["split"]
    share, seed = split.get("share_of_the_first_block"), split.get("public_seed")
    shares = [] if share is None else [f"share of the first {share}" if isinstance(share, float) else str(share)]
    shares += [] if seed is None else [f"public seed {seed}"]
    return {
        "card": card,
        "heading": heading,
        "about": _ABOUT,
        "deployment": _DEPLOYMENT,
        "wanted": wanted(card["to_be_filled_in_by_the_curator"]),
        "most": _MOST_COVARIATES,
        "summary": [(name, _found(value)) for name, value in summary_rows(card.get("summary", {}))],
        "found": card["findings"],
        "said": [name for name in card["stated_by_the_curator"] if not FIELDS[name].added],  # which says so itself
        "shares": "; ".join([*shares, split["how"]]),
    }


def _found(value: Any) -> str:
    """Return a number, an interval or words as a page shows them."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    return " to ".join(map(number, value)) if isinstance(value, list) else number(value)


def write_card(card: Mapping[str, Any], folder: str | Path) -> list[Path]:
    """Write ``card.json`` and ``card.html``, both or neither; their lines of a ``SHA256SUMS`` there are renewed.

    Args:
        card: From ``make_card``.
        folder: Made if it does not exist.

    Returns:
        The files written.

    Raises:
        InputError: The folder cannot be written to.
        VerificationError: Its ``SHA256SUMS`` is no list of checksums.
    """
    folder = Path(folder)
    listed = (folder / SUMS_FILE).is_file()
    texts = card_texts(card)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if listed:
            check_sums(folder)  # before anything is written
        with ExitStack() as both:
            for name, text in texts.items():
                if (folder / name).is_dir():  # a rename would fail, perhaps after the other file's
                    raise IsADirectoryError(errno.EISDIR, f"{name} is a folder")
                both.enter_context(atomic_path(folder / name, PUBLIC)).write_text(text, encoding="utf-8")
    except OSError as error:
        raise InputError(f"output = {folder}: cannot be written to ({error.strerror}); choose another folder") from None
    if listed:
        write_sums(folder, texts)
    return [folder / name for name in texts]


def renew_signature(path: str | Path) -> bool:
    """Write into the card beside a release by whom it is signed, and change nothing else of it.

    Args:
        path: The release's file.

    Returns:
        Whether there is a card of this file.

    Raises:
        InputError: The card is damaged, or cannot be written.
    """
    path = Path(path)
    if not (path.parent / CARD_JSON).is_file():
        return False
    try:
        card = json.loads((path.parent / CARD_JSON).read_text(encoding="utf-8"))
        if card["release"].get("file") != path.name:
            return False
        card["release"]["signature"] = signed_by(path)
        write_card(card, path.parent)
    except (AttributeError, LookupError, TypeError, ValueError, RecursionError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(
            f"{path.parent / CARD_JSON}: is no card; remove it, or make it anew with inspect --card"
        ) from None
    return True


def signed_by(path: str | Path) -> str:
    """Return by whom a release file is signed, in words.

    Raises:
        VerificationError: Its signature is of another file, or damaged.
    """
    signature = read_signature(path)
    return UNSIGNED if signature is None else signature.words


def _guarantee(privacy: PrivacyStatement) -> dict[str, Any]:
    guarantee: dict[str, Any] = {
        "level": privacy.level,
        "headline": privacy.headline,
        "level_in_words": level_in_words(privacy),
        "claim": privacy.claim,
        "in_words": describe(privacy),
        "adjacency": privacy.adjacency,
        "unit_of_privacy": privacy.unit,
        "records": privacy.n,
        **({"persons": privacy.n // privacy.protected.records} if privacy.person else {}),
        "conditions": [dict(condition) for condition in privacy.conditions],
    }
    if privacy.claims:
        guarantee |= {"epsilon": privacy.epsilon, "delta": privacy.delta, "mu_gdp": _mu(_total_mu(privacy))}
    return guarantee


def _event_tree(privacy: PrivacyStatement) -> dict[str, Any]:
    tree: dict[str, Any] = {
        "composition": composition_in_words(privacy)
        + (_BY_PERSON.format(privacy.protected.records) if privacy.person else ""),
        "blocks": [_block(block, privacy.claims) for block in privacy.blocks],
    }
    return {**tree, "epsilon": privacy.epsilon, "delta": privacy.delta} if privacy.claims else tree


def _block(block: Block, claims: bool) -> dict[str, Any]:
    branch: dict[str, Any] = {
        "name": block.name,
        "records": block.n,
        "composition": "sequential and adaptive",
        "charges": [_charge(charge, claims) for charge in block.charges],
    }
    if claims:
        branch |= {key: getattr(block, key) for key in ("epsilon", "delta", "naive_epsilon")}
        branch["mu_gdp"] = _mu(_block_mu(block))
    return branch


def _charge(charge: StatedCharge, claims: bool) -> dict[str, Any]:
    shown: dict[str, Any] = {"label": charge.words, "level": charge.level.value}
    if claims and charge.event is not None:
        shown |= {"event": charge.event.to_dict(), "count": charge.count}
    return shown


def _block_mu(block: Block) -> GaussianDP:
    charges = [(c.event, c.count) for c in block.charges if c.event is not None and c.count is not None]
    if len(charges) < len(block.charges):
        return GaussianDP(None, Validity.NONE)
    if any(isinstance(event, DPSGDEvent) and event.sampling_rate < 1 for event, _ in charges):
        # beside a curve that ends at delta, a pure charge that was chosen later counts as its Gaussian
        charges = [
            (
                GaussianEvent(1 / event_mu(event)) if c.later is not None and isinstance(event, PureEvent) else event,
                count,
            )
            for c, (event, count) in zip(block.charges, charges, strict=True)
        ]
    return gaussian_dp(charges, block.delta or 0.0)


def _total_mu(privacy: PrivacyStatement) -> GaussianDP:
    """Mu of the total: the largest of the blocks, as far as the one that reaches least."""
    blocks = [_block_mu(block) for block in privacy.blocks]
    without = [block for block in blocks if block.mu is None]
    if without or not blocks:
        return without[0] if without else GaussianDP(None, Validity.NONE)
    validity, k = max((block.validity for block in blocks), key=list(Validity).index), privacy.protected.records
    if k > 1 and validity is Validity.CURVE:
        return GaussianDP(None, Validity.ENDS)
    return GaussianDP(k * max(block.mu or 0.0 for block in blocks), validity, max(block.down_to for block in blocks))


def _mu(found: GaussianDP) -> dict[str, Any]:
    return {"mu": found.mu, "kind": found.validity.value} | ({"down_to_delta": found.down_to} if found.down_to else {})


def _bounds(release: Release) -> dict[str, Any]:
    schema, facts = release.schema, release.schema.to_dict()
    origins = schema.origins
    covariates = [
        {"name": name, **{key: value for key, value in entry.items() if key != "origin"}, "origin": origins[name]}
        for name, entry in facts["covariates"].items()
    ]
    return {
        "origin": schema.domain.origin,
        "treatment": facts["treatment"],
        "outcome": {**_outcome(schema), **facts["outcome"], "origin": origins[schema.outcome]},
        "overlap": {"least_propensity": schema.domain.overlap, "origin": schema.domain.origin},
        **({"propensity": {"known": facts["propensity"]}} if "propensity" in facts else {}),
        **({"cluster": facts["cluster"]} if "cluster" in facts else {}),
        "covariates": covariates,
        "note": "Public facts that the curator states; none is read off the records",
    }


def _outcome(schema: TableSchema) -> dict[str, Any]:
    """Return name and bounds of an outcome by a horizon, whose facts are columns; nothing of one that has them."""
    censoring = schema.domain.censoring
    return {} if censoring is None else {"name": outcome_words(schema), **censoring.facts}


def _split(privacy: PrivacyStatement) -> dict[str, Any]:
    split: dict[str, Any] = {"block_sizes": {block.name: block.n for block in privacy.blocks}}
    stated = {"share_of_the_first_block": "split", "public_seed": "seed"} if len(privacy.blocks) > 1 else {}
    split |= {name: privacy.public[key] for name, key in stated.items() if key in privacy.public}
    return {**split, "how": split_in_words(privacy)}


def _audit(privacy: PrivacyStatement, audit: Mapping[str, Any]) -> dict[str, Any]:
    """What attacks found of the mechanisms' code; of what claims nothing, no bound is shown."""
    shown: dict[str, Any] = {
        "what_it_is": "Attacks on this program's own mechanisms, run on worst-case pairs of data sets and not on this "
        "release or its records; a bound far below the claim proves nothing, one above it would disprove the claim"
    }
    if privacy.claims:
        shown["what_it_is"] += (
            ". The attacks ran at their own budget, stated in the table; for Gaussian and DP-SGD mechanisms the bound "
            "is measured within the family of such mechanisms"
        )
        found = {name: _plain(audit[name]) for name in audits_of(privacy, audit)}
        bounds = {
            name: {key: value for key, value in entry.items() if key != "attacks"} for name, entry in found.items()
        }
        shown["lower_bounds"] = bounds or "none shipped for this mechanism"
    if privacy.level != Level.CERTIFIED and audit.get("influence_truth"):
        neural = any(condition["name"] == "unique minimiser" for condition in privacy.conditions)
        truth = {head: v for head, v in audit["influence_truth"].items() if head.startswith("neural") == neural}
        shown["influence_versus_truth"] = _plain(truth)
    return shown


def audits_of(privacy: PrivacyStatement, results: Mapping[str, Any]) -> tuple[str, ...]:
    """Return which audits attacked what a release was charged for, those of its own mechanism first.

    Of the audits of one charge, one of any release gives way to those of releases with its constants.

    Args:
        privacy: The statement of the release.
        results: What audits found, by name; each says what it ``attacks``.
    """
    own = Charge(Purpose.RELEASE, privacy.mechanism)
    targets = [
        (name, Target.from_dict(target))
        for name, result in results.items()
        if isinstance(result, Mapping)
        for target in result.get("attacks", ())
    ]
    terms = {"pure": not privacy.delta, "person": bool(privacy.person)}
    names: list[str] = []
    for charge in [own, *(paid.charge for paid in privacy.charges)]:
        fitting = [(name, target) for name, target in targets if target.fits(charge, privacy.public, **terms)]
        names += [
            name
            for name, target in fitting
            if not any(
                other.charge == target.charge and other.public.keys() > target.public.keys() for _, other in fitting
            )
        ]
    return tuple(dict.fromkeys(names))


def _plain(value: Any) -> Any:
    """Plain types alone; JSON knows no infinity."""
    if isinstance(value, Mapping):
        return {str(key): _plain(entry) for key, entry in value.items()}
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, Iterable) and not isinstance(value, str):
        return [_plain(entry) for entry in value]
    return value


def sign_release(
    path: str | Path,
    key: str | Path,
    signer: str | None = None,
    password: bytes | None = None,
    overwrite: bool = False,
) -> tuple[Path, Signature]:
    """Sign a release with ed25519: the signature covers every byte of the file, the privacy statement among them.

    Written are ``<file>.sig`` beside it, its line of a ``SHA256SUMS`` there, and by whom it is signed into a card
    there. The release itself stays as it is. That it agrees with itself is ``verify_release``'s to say.

    Args:
        path: Release file, or the run folder that holds it.
        key: File of the private key in PEM.
        signer: Name of the signer, which is signed too; None takes the one in the key's file, if there is one.
        password: Of an encrypted key.
        overwrite: Whether the signature may take the place of one that is there.

    Returns:
        The signature's file, and the signature.

    Raises:
        InputError: No ed25519 key, no name of one line, or a signature that is there.
        ReleaseFileError: Not a release, changed or damaged.
        VerificationError: The ``SHA256SUMS`` beside it is no list of checksums.
    """
    private, named = read_private_key(key, password)
    file = read_release_file(path).path
    load_release(file)  # refuses a damaged one
    if not overwrite:
        refuse_existing(signature_path(file), "signature", "give overwrite=True (torchdpcate sign: --overwrite)")
    listed = (file.parent / SUMS_FILE).is_file()
    if listed:
        check_sums(file.parent)  # before anything is written
    signature = write_signature(file, private, named if signer is None else signer)
    written = signature_path(file)
    if listed:
        write_sums(file.parent, [written.name])
    renew_signature(file)
    return written, signature
