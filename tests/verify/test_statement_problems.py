import json
from dataclasses import replace

import pytest

from tests.release.helpers import nuisances
from tests.verify.forgery import release, restated, rewritten, statement
from torchdpcate.cli.main import main
from torchdpcate.errors import ReleaseFileError, VerificationError
from torchdpcate.privacy.guarantee import Level
from torchdpcate.release.file import load_release, read_release_file, write_sums
from torchdpcate.verify.file import verify_release
from torchdpcate.verify.statement import check_statement

STATEMENTS = {
    "certified": statement(),
    "Gaussian": statement(gaussian=True),
    "conditional": statement(Level.CONDITIONAL),
    "failing": statement(Level.CONDITIONAL, holds=False),
    "heuristic": statement(Level.HEURISTIC),
    "not private": statement(private=False),
}


@pytest.fixture
def path(tmp_path):
    return release(STATEMENTS["certified"]).save(tmp_path / "r.safetensors")


@pytest.mark.parametrize("kind", STATEMENTS)
def test_an_honest_release_agrees_with_itself(kind, tmp_path):
    findings = dict(verify_release(release(STATEMENTS[kind]).save(tmp_path / "r.safetensors")))
    assert "not a signature" in findings["checksum"]
    assert ("block nuisance" in findings) == STATEMENTS[kind].claims
    assert ("nothing is claimed" in findings.get("accounting", "")) != STATEMENTS[kind].claims


def lowered(privacy):
    """A smaller epsilon, and the sentence that says it."""
    privacy |= {"epsilon": 1.0, "claim": privacy["claim"].replace("(2,", "(1,")}


def lowered_everywhere(privacy):
    lowered(privacy)
    for block in privacy["blocks"]:
        block["epsilon"] = block["naive_epsilon"] = min(1.0, block["epsilon"])


def lowered_a_little(privacy):
    privacy["epsilon"] = privacy["blocks"][1]["epsilon"] = 2 * (1 - 1e-7)


def nothing_used(privacy):
    for block in privacy["blocks"]:
        block.update(epsilon=0.0, naive_epsilon=0.0)
        for charge in block["charges"]:
            charge["count"] = 0
    privacy.update(epsilon=0.0, claim=privacy["claim"].replace("(2,", "(0,"))


def charge(block: int, **changes):
    return lambda privacy: privacy["blocks"][block]["charges"][0].update(changes)


def first_block(**changes):
    return lambda privacy: privacy["blocks"][0].update(changes)


def said(**changes):
    return lambda privacy: privacy.update(changes)


TINY = {"kind": "gaussian", "noise_multiplier": 1e-200}
PLANTED = {
    "a lower total": (lowered, "epsilon = 1 is claimed, but the largest of a block is 2"),
    "lower everywhere": (
        lowered_everywhere,
        "'nuisance' claims epsilon = 1 .*but its events cost 1.9.*'second_stage' claims epsilon = 1 ",
    ),
    "a little lower": (lowered_a_little, "'second_stage' claims epsilon = 1.9999998 .*but its events cost 2"),
    "a lower count": (charge(0, count=50), "'nuisance' claims epsilon = .*cost only 1"),
    "a lower event": (
        charge(1, event={"kind": "approximate", "epsilon": 0.5, "delta": 1e-5}),
        "'second_stage' claims epsilon = 2 .*cost only 0.5",
    ),
    "a lower delta": (
        lambda privacy: privacy.update(delta=1e-9, claim=privacy["claim"].replace("1e-05", "1e-09")),
        "delta = 1e-09 is claimed, but the largest of a block is 1e-05",
    ),
    "a lower sum": (first_block(naive_epsilon=0.9), "'nuisance' claims naive_epsilon"),
    "a weaker charge": (
        charge(1, level="heuristic"),
        "level is certified, but the charge 'release by objective' is heuristic",
    ),
    "nothing used": (nothing_used, "is stated with a count of 0"),
    "another mechanism": (said(mechanism="gaussian"), "none of the library's, so it may claim nothing"),
    "no event": (
        lambda privacy: privacy["blocks"][0]["charges"][0].pop("event"),
        "'nuisance' has a charge without event",
    ),
    "a block less": (lambda privacy: privacy["blocks"].pop(0), "n = 1001, but the blocks do not add up"),
    "no blocks": (said(blocks=[], n=0), "a claim without any block"),
    "no cost": (first_block(epsilon=None), "'nuisance' does not say what it cost"),
    "no private noise": (said(private_noise=False), "the noise had a fixed seed, yet something is claimed"),
    "another sentence": (
        said(claim="(0.1, 1e-05)-differentially private, certified, replace-one"),
        "does not say the epsilon, delta and level beside it",
    ),
    "another unit": (said(unit="one person, whatever they contribute"), "adjacency or unit of privacy"),
    "too many events": (charge(0, count=10**12), "'nuisance' counts more events than can be composed"),
    "no sense": (charge(1, event=TINY), "'second_stage' has events that do not compose"),
}


@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_edit_is_caught_with_and_without_a_new_checksum(name, path):
    edit, problem = PLANTED[name]
    honest = path.read_bytes()
    restated(path, edit)
    assert read_release_file(path).fault is None
    with pytest.raises(VerificationError, match=problem):
        verify_release(path)
    path.write_bytes(honest)
    restated(path, edit, checksum=False)
    with pytest.raises(ReleaseFileError, match="do not match its checksum"):
        load_release(path)
    with pytest.raises(VerificationError, match="do not match its checksum; .*" + problem):
        verify_release(path)


def test_a_raised_level_is_caught(tmp_path):
    path = release(STATEMENTS["conditional"]).save(tmp_path / "r.safetensors")

    def raise_level(privacy):
        privacy["level"] = "certified"
        privacy["claim"] = privacy["claim"].replace("conditional", "certified")

    with pytest.raises(VerificationError, match=r"charge .* is conditional; .*certified, but a condition is open"):
        verify_release(restated(path, raise_level))


@pytest.mark.parametrize("kind", ["failing", "heuristic", "not private"])
def test_a_claim_where_there_is_none_is_caught(kind, tmp_path):
    path = release(STATEMENTS[kind]).save(tmp_path / "r.safetensors")

    def claim(privacy):
        privacy["claim"] = "(1, 1e-05)-differentially private, certified, replace-one"

    def number(privacy):
        privacy["blocks"][0]["epsilon"] = 1.0

    def event(privacy):
        privacy["blocks"][0]["charges"][0] |= {"event": {"kind": "pure", "epsilon": 1.0}, "count": 1}

    for edit, words in ((claim, "nothing is claimed, but"), (number, "numbers that read like"), (event, "events to")):
        with pytest.raises(VerificationError, match=words):
            verify_release(restated(release(STATEMENTS[kind]).save(path, overwrite=True), edit))


def test_an_accountant_of_another_version_is_no_excuse(path):
    def age(privacy):
        privacy["versions"]["dp-accounting"] = privacy["accountant"]["version"] = "0.1"

    verify_release(restated(path, age))
    with pytest.raises(VerificationError, match="'nuisance' claims epsilon"):
        verify_release(restated(path, lambda p: p["blocks"][0].update(epsilon=(1 - 1e-5) * p["blocks"][0]["epsilon"])))


def test_sums_beside_the_release_are_checked(path, tmp_path):
    (tmp_path / "notes.md").write_text("for readers")
    write_sums(tmp_path)
    (tmp_path / "page.html").write_text("a page")
    findings = dict(verify_release(path))
    assert findings["SHA256SUMS"] == "2 files match; not listed: page.html"
    (tmp_path / "notes.md").write_text("another")
    with pytest.raises(VerificationError, match=r"notes\.md is not as in SHA256SUMS"):
        verify_release(path)
    (tmp_path / "notes.md").unlink()
    assert "not here: notes.md" in dict(verify_release(path))["SHA256SUMS"]


def test_the_program_says_so_and_ends_with_0_1_or_2(path, tmp_path, capsys):
    assert main(["verify", str(path)]) == 0
    shown = capsys.readouterr().out
    assert "agrees with itself" in shown
    assert "not a signature" in shown
    assert main(["verify", str(restated(path, lowered))]) == 1
    error = capsys.readouterr().err
    assert len(error.splitlines()) == 1
    assert "changed or inconsistent: epsilon = 1 is claimed" in error
    path.write_bytes(path.read_bytes()[:200])
    for broken in (path, tmp_path / "absent"):
        assert main(["verify", str(broken)]) == 2
        assert len(capsys.readouterr().err.splitlines()) == 1


def test_networks_that_nobody_paid_for_are_told(tmp_path):
    privacy = statement()
    made = replace(release(privacy), nuisances=nuisances())
    path = made.save(tmp_path / "release.safetensors")
    verify_release(path)
    fields = privacy.to_dict()
    fields["n"] -= fields["blocks"].pop(0)["n"]
    rewritten(path, privacy=json.dumps(fields))
    with pytest.raises(VerificationError, match="holds nuisances, but no charge is for their training"):
        verify_release(path)


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"person": {"column": "id", "records": 2}}, "is, for the 2 records of a person,"),
        ({"person": {"column": "id", "records": 1}}, "replace one person"),
        ({"unit": "one person"}, "replace one record"),
    ],
)
def test_a_person_is_not_protected_by_words(change, problem) -> None:
    honest = STATEMENTS["certified"]
    assert check_statement(honest)[1] == []
    assert any(problem in text for text in check_statement(replace(honest, **change))[1])
