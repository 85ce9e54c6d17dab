"""``torchdpcate verify``: does a release agree with itself, who signed it, and what does it guarantee?"""

import json
from collections.abc import Iterator

from torchdpcate._text import plain
from torchdpcate.cli.tables import facts
from torchdpcate.data.covariates import bounds_in_words
from torchdpcate.data.words import aim, contrast, outcome_unit, outcome_words
from torchdpcate.release.file import Release, load_release, release_path
from torchdpcate.release.signature import read_signature
from torchdpcate.verify.card import summary_rows
from torchdpcate.verify.file import verify_release
from torchdpcate.verify.finding import Findings, findings

_NOT_FOR_READERS = ("residual scale", "features")
_MOST = 30  # covariates that are listed


def verify(release: str, key: str | None = None, as_json: bool = False) -> None:
    """Print what was recomputed, the findings as the page for readers has them, and the privacy statement.

    Args:
        release: Release file, or the run folder that holds it.
        key: File of the public key that must have signed it.
        as_json: Whether to print JSON instead of text.

    Raises:
        InputError: No public key in the file.
        ReleaseFileError: Not a release, damaged, or of a newer format.
        VerificationError: It was changed, does not agree with itself, or is not signed by the key.
    """
    path = release_path(release)
    checked = verify_release(release, key)
    loaded, signature = load_release(path), read_signature(path)
    if as_json:
        shown = {
            "kind": loaded.kind,
            "privacy": loaded.privacy.to_dict(),
            "schema": loaded.schema.to_dict(),
            "signature": "unsigned" if signature is None else signature.words,
            "verified": dict(checked),
            "findings": findings(loaded),
        }
        print(json.dumps(shown | loaded.summary(), indent=2))
        return
    print(f"{release}: agrees with itself")
    print(facts(checked))
    for title, sentences in Findings.of(loaded).sections():
        print(f"\n{facts([('', words) for words in sentences], title)}")
    print(f"\n{facts(_columns(loaded))}\nrelease of {loaded.kind}")
    for name, value in summary_rows(loaded.summary()):
        if name not in _NOT_FOR_READERS:
            print(f"{plain(name)}: {plain(value)}")
    from rich.console import Console
    from rich.markdown import Markdown

    Console().print(Markdown(loaded.privacy.to_markdown()))


def _columns(release: Release) -> Iterator[tuple[str, str]]:
    """Return what treatment, outcome and covariates are, with units and levels by name."""
    schema, domain = release.schema, release.domain
    yield "treatment", f"{schema.treatment_label}: {contrast(schema)}"
    unit = f" {outcome_unit(schema)}" if outcome_unit(schema) else ""
    better = f", to be {aim(schema)}" if domain.better else ""
    yield "outcome", f"{outcome_words(schema)}: {domain.outcome_low:g} to {domain.outcome_high:g}{unit}{better}"
    more = len(schema.covariates) - _MOST
    shown = "; ".join(map(bounds_in_words, schema.covariates[:_MOST]))
    yield "covariates", shown + (f"; and {more} more" if more > 0 else "")
