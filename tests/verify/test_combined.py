import json
from pathlib import Path

import pytest

from tests.release.sites import combined, released
from tests.verify import forgeries as forge
from tests.verify.forgery import card_html
from torchdpcate.errors import ReleaseFileError, VerificationError
from torchdpcate.release.combination import combine
from torchdpcate.release.file import DIGEST_KEY, ReleaseFile, release_digest
from torchdpcate.verify.file import verify_release


def site_too(draft: forge.Draft, k: int) -> None:
    """Write the checksum of a site anew, as a forger would who knows the format."""
    entry = draft.facts["sites"][k]
    own = {name.partition(".")[2]: part for name, part in draft.tensors.items() if name.startswith(f"{k}.")}
    entry[DIGEST_KEY] = release_digest({key: text for key, text in entry.items() if key != "name"}, own)


@pytest.mark.parametrize("task", ["effect", "average", "subgroups", "cohort"])
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


def number_and_site(draft: forge.Draft) -> None:
    draft.tensors["1.law.average"] += 1.0
    site_too(draft, 1)


def dropped(draft: forge.Draft) -> None:
    draft.tensors = {name: part for name, part in draft.tensors.items() if not name.startswith("2.")}
    del draft.facts["sites"][2]


def site_statement(draft: forge.Draft) -> None:
    entry = draft.facts["sites"][0]
    stated = json.loads(entry["privacy"])
    stated["epsilon"], stated["claim"] = 0.5, stated["claim"].replace("(2,", "(0.5,")
    entry["privacy"] = json.dumps(stated)
    site_too(draft, 0)


def kind(draft: forge.Draft) -> None:
    draft.metadata["class"] = "composed"


def nested(draft: forge.Draft) -> None:
    """A combination in the place of a site, with checksums that match."""
    inner = ReleaseFile.of(combine([released("effect", 1), released("effect", 2)], ["a", "b"]), Path("west"))
    draft.tensors = {key: part for key, part in draft.tensors.items() if not key.startswith("2.")}
    draft.tensors |= {f"2.{key}": part for key, part in inner.tensors.items()}
    draft.facts["sites"][2] = {"name": "west", **inner.metadata}


def strangers(draft: forge.Draft) -> None:
    """Sites without a line that all have."""
    facts = json.loads(draft.facts["sites"][0]["facts"])
    del facts["lines"]
    draft.facts["sites"][0]["facts"] = json.dumps(facts)
    draft.tensors = {key: part for key, part in draft.tensors.items() if not key.startswith(("0.line", "0.law"))}
    site_too(draft, 0)


def cheaper(draft: forge.Draft) -> None:
    draft.privacy["public"]["site_epsilon"][0] = 0.1


FOLLOWS = "statement does not follow from those of its sites"
FORGERIES: dict[str, tuple[forge.Edit, str]] = {
    "a number of a site, with its checksum": (number_and_site, "site south: .* does not follow"),
    "a site left out": (dropped, FOLLOWS),
    "its kind": (kind, "do not fit together"),
    "a combination in the place of a site": (nested, "do not fit together"),
    "sites without a line that all have": (strangers, "do not fit together"),
    "what a site spent": (cheaper, FOLLOWS),
    "the statement of a site": (site_statement, "site north: epsilon = 0.5 is claimed"),
}


@pytest.mark.parametrize("forgery", FORGERIES)
def test_a_forged_combination_is_refused(forgery: str, tmp_path) -> None:
    edit, why = FORGERIES[forgery]
    path = combined("effect").save(tmp_path / "all.safetensors")
    with pytest.raises((VerificationError, ReleaseFileError), match=why):
        verify_release(forge.forged(path, edit, path))


def test_sites_of_which_one_claims_nothing_verify(tmp_path) -> None:
    made = combine([released("average", 0), released("average", 1, private=False)], ["a", "b"])
    found = dict(verify_release(made.save(tmp_path / "all.safetensors")))
    assert found["accounting"] == "nothing is claimed, so there is nothing to recompute"
