"""Small release files that request much memory or time: each carries a checksum that fits, and is refused at once."""

import json
import resource

import pytest
import torch
from safetensors import safe_open

from tests.faults.guards import bounded
from tests.release.test_file import function_release
from tests.verify import forgery
from torchdpcate.errors import ReleaseFileError, VerificationError
from torchdpcate.privacy.events import DPSGDEvent, GaussianEvent, PureEvent
from torchdpcate.release.file import DIGEST_KEY, load_release, release_digest
from torchdpcate.verify.file import verify_release

MEMORY_KIB = 100_000
SECONDS = 60  # no timing: unbounded, each of them takes minutes


def networks(facts, schema, tensors):
    """Two networks of widths that no tensor has."""
    facts["nuisances"]["width"] = 200_000
    facts["nuisances"]["domain"] |= {"covariate_low": [0.0] * 2000, "covariate_high": [1.0] * 2000, "names": None}
    tensors["pad"] = torch.zeros(200_000, dtype=torch.float64)


def fourier(facts, schema, tensors):
    """As many frequencies as the file has numbers, for thousands of covariates."""
    facts["features"] = {"name": "fourier", "pairs": 100_000, "bandwidth": 1.0, "seed": 0}
    schema["covariates"] = {f"c{i}": {"low": 0, "high": 1} for i in range(5000)}
    tensors["pad"] = torch.zeros(100_000, dtype=torch.float64)


def many_covariates(facts, schema, tensors):
    """A hundred thousand covariates."""
    schema["covariates"] |= {f"c{i}": {"low": 0.0, "high": 1.0} for i in range(100_000)}


def many_levels(facts, schema, tensors):
    """A hundred thousand levels, with a propensity for each."""
    levels = [f"l{i}" for i in range(100_000)]
    schema["covariates"]["g"] = {"categories": levels}
    schema["propensity"] = {"g": dict.fromkeys(levels, 0.5)}


def many_codes(facts, schema, tensors):
    """Codes of missing values that are compared with categories."""
    levels, codes = ([f"{letter}{i}" for i in range(100_000)] for letter in "ab")
    schema["covariates"]["g"] = {"categories": levels, "codes": codes, "missing": "indicator"}


def spoiled(folder, edit):
    path = function_release().save(folder / "bomb.safetensors")
    with safe_open(path, "pt") as file:
        metadata, tensors = file.metadata(), {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    facts, schema = json.loads(metadata["facts"]), json.loads(metadata["schema"])
    edit(facts, schema, tensors)
    metadata |= {"facts": json.dumps(facts), "schema": json.dumps(schema)}
    metadata[DIGEST_KEY] = release_digest(metadata, tensors)
    return forgery.write_file(tensors, path, metadata)


BOMBS = [networks, fourier, many_covariates, many_levels, many_codes]


@pytest.mark.parametrize("edit", BOMBS)
def test_files_that_describe_more_than_they_hold_take_no_memory(edit, tmp_path):
    path = spoiled(tmp_path, edit)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with bounded(SECONDS), pytest.raises(ReleaseFileError, match="do not fit together"):
        load_release(path)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < MEMORY_KIB


CHARGES = {
    "tiny noise, ten million steps": [(DPSGDEvent(1e-3, 0.5), 10**7)],
    "small noise": [(DPSGDEvent(0.05, 0.5), 1000)],
    "tiny noise beside a pure charge": [(GaussianEvent(1e-4), 3), (PureEvent(0.1), 3)],
    "a noise that float64 cannot square": [(GaussianEvent(1e-200), 1), (PureEvent(0.1), 3)],
    "nine million pure charges": [(PureEvent(1.0), 9_000_000), (GaussianEvent(1.0), 5)],
    "300 sampled events": [(DPSGDEvent(1 + i / 1000, 0.01 + i / 1e5), 9000) for i in range(300)],
}


@pytest.mark.parametrize("charges", CHARGES.values(), ids=CHARGES.keys())
def test_events_that_would_take_minutes_to_compose_are_answered_at_once(charges, tmp_path):
    path = forgery.release(forgery.statement()).save(tmp_path / "bomb.safetensors")

    def edit(privacy):
        named = [{"purpose": "nuisances", "part": f"{i}", "level": "certified"} for i in range(len(charges))]
        events = [{"event": event.to_dict(), "count": count} for event, count in charges]
        privacy["blocks"][0]["charges"] = [a | b for a, b in zip(named, events, strict=True)]

    forgery.restated(path, edit)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with bounded(SECONDS), pytest.raises(VerificationError):
        verify_release(path)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 4 * MEMORY_KIB


def charges(count, event, blocks=1):
    """Return the edit of a statement that makes blocks with charges, each of another event."""

    def edit(privacy):
        first = privacy["blocks"][0]
        privacy["blocks"] = [
            first
            | {
                "name": f"block {k}",
                "charges": [
                    {"purpose": "nuisances", "part": f"{i}", "level": "certified", "count": 100}
                    | {"event": event(i + count * k).to_dict()}
                    for i in range(count)
                ],
            }
            for k in range(blocks)
        ]

    return edit


STATEMENTS = {
    "thirty thousand charges": charges(30_000, lambda i: GaussianEvent(5.0 + i / 1000)),
    "a hundred blocks of a thousand charges": charges(1000, lambda i: PureEvent(1e-3 + i * 1e-8), 100),
    "a hundred blocks with sampled events": charges(16, lambda i: DPSGDEvent(1 + i / 1000, 0.01 + i / 1e5), 100),
}


@pytest.mark.parametrize("edit", STATEMENTS.values(), ids=STATEMENTS.keys())
def test_statements_of_many_charges_are_answered_at_once(edit, tmp_path):
    path = forgery.release(forgery.statement()).save(tmp_path / "bomb.safetensors")
    forgery.restated(path, edit)
    with (
        bounded(SECONDS),
        pytest.raises(VerificationError, match=r"of one release|events than can be composed|charges"),
    ):
        verify_release(path)
