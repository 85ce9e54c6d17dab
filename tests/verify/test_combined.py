import json
from collections.abc import Callable
from pathlib import Path

import pytest
from safetensors import safe_open

from tests.release.sites import combined, released
from tests.verify.forgery import write_file
from torchdpcate.errors import ReleaseFileError, VerificationError
from torchdpcate.release.combination import combine
from torchdpcate.release.file import DIGEST_KEY, release_digest
from torchdpcate.verify.card import card_html
from torchdpcate.verify.file import verify_release

Change = Callable[[dict, dict, dict], None]


def forged(path: Path, change: Change) -> Path:
    """Change tensors, facts and statement of a file, and write its checksum anew."""
    with safe_open(path, framework="pt") as file:
        metadata = dict(file.metadata())
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a dict
    facts, privacy = json.loads(metadata["facts"]), json.loads(metadata["privacy"])
    change(tensors, facts, privacy)
    metadata |= {"facts": json.dumps(facts), "privacy": json.dumps(privacy)}
    metadata[DIGEST_KEY] = release_digest(metadata, tensors)
    return write_file(tensors, path, metadata)


def site_too(tensors: dict, facts: dict, k: int) -> None:
    """Write the checksum of a site anew, as a forger would who knows the format."""
    entry = facts["sites"][k]
    own = {name.partition(".")[2]: part for name, part in tensors.items() if name.startswith(f"{k}.")}
    entry[DIGEST_KEY] = release_digest({key: text for key, text in entry.items() if key != "name"}, own)


@pytest.mark.parametrize("task", ["effect", "average", "subgroups"])
def test_an_honest_combination_verifies_and_has_a_card(task: str, tmp_path) -> None:
    made = combined(task)
    found = dict(verify_release(made.save(tmp_path / "all.safetensors")))
    for file in made.files:
        assert file.stated_digest in found[f"site {file.path}"]
    assert "each site has blocks of its own, by its name" in card_html(made)
    assert sorted(block.n for block in made.privacy.blocks) == [400, 1200, 2500]


def test_the_checksum_of_a_site_is_that_of_its_own_file(tmp_path) -> None:
    site = released("average", 1)
    path = site.save(tmp_path / "site.safetensors")
    assert combined("average").files[1].stated_digest in dict(verify_release(path))["checksum"]


def _number(tensors: dict, facts: dict, privacy: dict) -> None:
    tensors["1.law.average"] += 1.0


def _number_and_site(tensors: dict, facts: dict, privacy: dict) -> None:
    _number(tensors, facts, privacy)
    site_too(tensors, facts, 1)


def _dropped(tensors: dict, facts: dict, privacy: dict) -> None:
    for name in [name for name in tensors if name.startswith("2.")]:
        del tensors[name]
    del facts["sites"][2]


def _between(tensors: dict, facts: dict, privacy: dict) -> None:
    facts["between"] = "fixed"


def _renamed(tensors: dict, facts: dict, privacy: dict) -> None:
    facts["sites"][0]["name"] = "east"


def _cheaper(tensors: dict, facts: dict, privacy: dict) -> None:
    privacy["public"]["site_epsilon"][0] = 0.1


def _person(tensors: dict, facts: dict, privacy: dict) -> None:
    privacy["public"]["person_at_several_sites"] = "each record is protected as its own site says"


def _site_statement(tensors: dict, facts: dict, privacy: dict) -> None:
    entry = facts["sites"][0]
    stated = json.loads(entry["privacy"])
    stated["epsilon"], stated["claim"] = 0.5, stated["claim"].replace("(2,", "(0.5,")
    entry["privacy"] = json.dumps(stated)
    site_too(tensors, facts, 0)


FORGERIES: dict[str, tuple[Change, str]] = {
    "a number of a site": (_number, "do not fit together"),
    "a number of a site, with its checksum": (_number_and_site, "site south: .* does not follow"),
    "a site left out": (_dropped, "statement does not follow from those of its sites"),
    "one effect at all sites": (_between, "statement does not follow from those of its sites"),
    "the name of a site": (_renamed, "statement does not follow from those of its sites"),
    "what a site spent": (_cheaper, "statement does not follow from those of its sites"),
    "what a person has spent": (_person, "statement does not follow from those of its sites"),
    "the statement of a site": (_site_statement, "site north: epsilon = 0.5 is claimed"),
}


@pytest.mark.parametrize("forgery", FORGERIES)
def test_a_forged_combination_is_refused(forgery: str, tmp_path) -> None:
    change, why = FORGERIES[forgery]
    path = forged(combined("effect").save(tmp_path / "all.safetensors"), change)
    with pytest.raises((VerificationError, ReleaseFileError), match=why):
        verify_release(path)


def test_sites_of_which_one_claims_nothing_verify(tmp_path) -> None:
    made = combine([released("average", 0), released("average", 1, private=False)], ["a", "b"])
    found = dict(verify_release(made.save(tmp_path / "all.safetensors")))
    assert found["accounting"] == "nothing is claimed, so there is nothing to recompute"
