"""What the coordinator of several sites does with their messages, whatever carries them."""

import base64
import json
from collections.abc import Callable, Mapping
from itertools import count
from pathlib import Path
from typing import Any, TextIO

import torch

from torchdpcate.composition.sites import added_up, require_same
from torchdpcate.errors import InputError, TorchDPCateError
from torchdpcate.release.file import RELEASE_FILE, load_release

MESSAGES = "messages.jsonl"
"""All that the coordinator saw, a message a line."""

Ask = Callable[[int, bytes, bool], Mapping[Any, bytes]]
"""From a message's number, the message, and whether no answer to it matters, to the answers by who gave them."""
_CLOSE = 1e-6  # of coefficients: sums of other machines


def coordinated(ask: Ask, sizes: Mapping[str, int], folder: Path) -> Path:
    """Bring the sites through one composition, and return the release that all of them made.

    Args:
        ask: Carries a message to all sites.
        sizes: Records of each site by name, as all sites have been told.
        folder: Takes the release, and all messages.

    Raises:
        InputError: A site does not answer, or stops; plans that differ; releases that differ.
    """
    answer: dict[str, Any] = {}
    with (folder / MESSAGES).open("w", encoding="utf-8") as seen:
        for number in count():
            try:
                asked = json.dumps({"round": number, "answer": answer}).encode()
                said = _said(ask(number, asked, False), sizes, seen)
                if all("release" in own for own in said.values()):
                    return _released(said, folder)
                answer = _answer(said, sizes)
            except InputError as error:
                refusal = {"round": number + 1, "answer": {"refused": str(error)}}
                ask(number + 1, json.dumps(refusal).encode(), True)
                raise
    raise AssertionError


def _said(answers: Mapping[Any, bytes], sizes: Mapping[str, int], seen: TextIO) -> dict[str, dict[str, Any]]:
    """Return what each site said, by name."""
    found = [json.loads(answer) for answer in answers.values()]
    for own in found:
        seen.write(json.dumps(own) + "\n")
    names = [own["site"] for own in found if "site" in own]
    missing = [name for name in sizes if name not in names]
    if missing:
        reasons = ", ".join(sorted({own["stopped"] for own in found if "stopped" in own})) or "did not answer"
        raise InputError(f"sites: {', '.join(missing)} {reasons}; nothing is released")
    strange = [name for name in names if name not in sizes or names.count(name) > 1]
    if strange:
        raise InputError(f"sites: {strange[0]} is none of the sites, or came twice; each site has a name of its own")
    by_name = {own["site"]: own for own in found}
    return {name: by_name[name] for name in sizes}


def _answer(said: Mapping[str, Mapping[str, Any]], sizes: Mapping[str, int]) -> dict[str, Any]:
    if all("plan" in own for own in said.values()):
        plans = {name: own["plan"] for name, own in said.items()}
        counted = {name: {"sizes": plan["sizes"]} for name, plan in plans.items()}
        require_same({"the coordinator": {"sizes": dict(sizes)}, **counted})
        require_same(plans)
        return {"agreed": True}
    if not all("values" in own for own in said.values()):
        raise InputError("sites: some have ended, others have not; use the same version of the library at all sites")
    sent = {n: (own["step"], torch.tensor(own["values"], dtype=torch.float64)) for n, own in said.items()}
    return {"total": added_up(sent).tolist()}


def _released(said: Mapping[str, Mapping[str, Any]], folder: Path) -> Path:
    """Write the first site's release, which all others must have made too."""
    found = []
    for place, own in enumerate(said.values()):
        path = folder / (RELEASE_FILE if place == 0 else "other.safetensors")
        path.write_bytes(base64.b64decode(own["release"]))
        try:
            found.append(load_release(path))
        except TorchDPCateError as error:
            raise InputError(f"sites: {list(said)[place]} sent no release: {error}") from None
        if place:
            path.unlink()
    first, *others = (release.tensors() for release in found)
    for name, other in zip(list(said)[1:], others, strict=True):
        if first.keys() != other.keys() or not all(_close(first[key], other[key]) for key in first):
            raise InputError(f"sites: the release of {name} is not that of {next(iter(said))}; nothing is released")
    return folder / RELEASE_FILE


def _close(one: torch.Tensor, other: torch.Tensor) -> bool:
    if one.shape != other.shape or one.numel() == 0:
        return one.shape == other.shape
    one, other = one.double(), other.double()
    return float((one - other).abs().max()) <= _CLOSE * float(one.abs().max())
