"""Verification of what a release file holds: what the release itself would write, and nothing more."""

import json
from collections.abc import Iterator
from typing import Any

from torchdpcate.release.blocks import typed
from torchdpcate.release.digest import DIGEST_KEY
from torchdpcate.release.file import COMPLETE_SINCE, ReleaseFile
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
        stated = typed(stated) if name == "privacy" and file.version < 4 else stated
        if stated != needed and not (file.version < COMPLETE_SINCE and _is_part(stated, needed)):
            yield f"its {name} are not what its release would write"
        elif len(text) != len(json.dumps(json.loads(text))):
            yield f"its {name} are not written as its release would write them"


def _is_part(stated: Any, needed: Any) -> bool:
    """Whether everything that is stated is needed: the writer of an older format left out what came later."""
    if isinstance(stated, dict) and isinstance(needed, dict):
        return stated.keys() <= needed.keys() and all(_is_part(value, needed[name]) for name, value in stated.items())
    return bool(stated == needed)
