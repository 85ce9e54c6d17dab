"""``torchdpcate inspect``: what a release guarantees, for people and for programs."""

import json

from torchdpcate.release import load_release


def inspect(release: str, as_json: bool = False) -> None:
    """Print the privacy statement, schema and kind of a release.

    Args:
        release: Release file.
        as_json: Whether to print JSON instead of text.

    Raises:
        ReleaseFileError: Not a release, damaged, or of a newer format.
    """
    loaded = load_release(release)
    if as_json:
        facts = {"kind": loaded.kind, "privacy": loaded.privacy.to_dict(), "schema": loaded.schema.to_dict()}
        print(json.dumps(facts, indent=2))
        return
    from rich.console import Console
    from rich.markdown import Markdown

    domain = loaded.domain
    print(f"release of {loaded.kind}: {domain.dimension} covariates, outcome range {domain.outcome_range:g}")
    Console().print(Markdown(loaded.privacy.to_markdown()))
