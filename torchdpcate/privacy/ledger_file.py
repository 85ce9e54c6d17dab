"""The file of a ledger: strict JSON, written whole or not at all."""

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torchdpcate.errors import InputError
from torchdpcate.privacy.budget import PrivacyBudget, whole
from torchdpcate.privacy.events import Event, event_from_dict
from torchdpcate.privacy.guarantee import Level

_FORMAT = "torchdpcate ledger"
_VERSION = 1


@dataclass(frozen=True)
class Entry:
    """One line of a ledger.

    Attributes:
        id: Its number, from 0.
        block: The block of records that pays.
        label: What it was for.
        event: What happened, once.
        count: How often it happened so far; never too small.
        planned: How often it may happen; an entry with ``count < planned`` is open.
        level: How far the claim is proved.
    """

    id: int
    block: str
    label: str
    event: Event
    count: int
    planned: int
    level: Level

    def to_dict(self) -> dict[str, Any]:
        """Plain dictionary, for the file."""
        fields = {name: getattr(self, name) for name in ("id", "block", "label", "count", "planned")}
        return {**fields, "event": self.event.to_dict(), "level": self.level.value}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "Entry":
        """Inverse of `to_dict`."""
        number, count, planned = (whole(name, values[name], least=0) for name in ("id", "count", "planned"))
        if count > planned:
            raise InputError(f"count = {count}: more than planned = {planned}")
        event, level = event_from_dict(values["event"]), Level.of(values["level"])
        return cls(number, str(values["block"]), str(values["label"]), event, count, planned, level)


def dump(blocks: Mapping[str, PrivacyBudget], private: bool, entries: tuple[Entry, ...]) -> str:
    """A ledger as strict JSON."""
    content = {
        "format": _FORMAT,
        "version": _VERSION,
        "private": private,
        "blocks": {name: budget.to_dict() for name, budget in blocks.items()},
        "entries": [entry.to_dict() for entry in entries],
    }
    return json.dumps(content, indent=1, allow_nan=False)


def parse(path: Path) -> tuple[dict[str, PrivacyBudget], bool, tuple[Entry, ...]]:
    """Blocks, privacy of the noise and entries of a ledger's file; an `InputError` if it is not sound."""
    if not os.path.isfile(path):  # reading a pipe would wait for ever
        raise InputError(f"ledger {path}: there is no such file; restore it, the budget is not known")
    try:
        content = json.loads(path.read_text(encoding="utf-8"), object_pairs_hook=_once)
        if content["format"] != _FORMAT or content["version"] != _VERSION:
            raise InputError(f"format {content['format']!r}, version {content['version']!r}")
        blocks = {name: PrivacyBudget.from_dict(budget) for name, budget in content["blocks"].items()}
        entries = tuple(Entry.from_dict(values) for values in content["entries"])
        if [e.id for e in entries] != list(range(len(entries))) or any(e.block not in blocks for e in entries):
            raise InputError("its entries do not belong together")
        if not isinstance(content["private"], bool):
            raise InputError("private is not a truth value")
        return blocks, content["private"], entries
    except (ValueError, KeyError, TypeError, AttributeError, OSError, RecursionError) as error:
        why = " ".join(str(error).split())[:200]  # an InputError is a ValueError
        raise InputError(f"ledger {path}: damaged or of another format ({why}); restore it from a copy") from error


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object of the file; of an entry that is there twice, one would be forgotten."""
    result = dict(pairs)
    if len(result) < len(pairs):
        raise InputError("an entry is there twice")
    return result
