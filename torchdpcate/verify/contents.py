"""Verification of what a release file holds: what the release itself would write, and nothing more."""

import json
from collections.abc import Iterator

from torchdpcate.release.file import DIGEST_KEY, ReleaseFile
from torchdpcate.release.release import Release

_METADATA = frozenset(("format", "format_version", "class", "facts", "schema", "privacy", DIGEST_KEY))
_TEXTS = ("facts", "schema", "privacy")


def contents_problems(file: ReleaseFile, release: Release) -> Iterator[str]:
    """Return what a file holds beside its release; tensors are compared when it is read.

    Args:
        file: The file.
        release: What was made of it.
    """
    strange = file.metadata.keys() - _METADATA
    if strange:
        yield f"it holds metadata that no release has: {', '.join(map(repr, sorted(strange)))}"
    own = {"facts": release.facts(), "schema": release.schema.to_dict(), "privacy": release.privacy.to_dict()}
    for name in _TEXTS:
        text = file.metadata[name]
        stated, needed = json.loads(text), json.loads(json.dumps(own[name]))
        if stated != needed:
            yield f"its {name} are not what its release would write"
        elif len(text) != len(json.dumps(json.loads(text))):
            yield f"its {name} are not written as its release would write them"
