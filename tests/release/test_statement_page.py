import pytest

from torchdpcate.errors import InputError
from torchdpcate.release.file import load_release
from torchdpcate.release.statement import _K_NORM, _PROCESS, ENTROPY, FLOATING_POINT, PrivacyStatement
from torchdpcate.verify.file import verify_release

WORDS = ("data.n=600", "privacy.chosen='the ethics board: 1 is usual there'")


def test_the_page_says_who_chose_the_budget_and_is_verified(finished):
    place = finished(*WORDS) / "release"
    text = (place / "privacy.md").read_text()
    assert "- epsilon 1, delta 1e-05: the ethics board: 1 is usual there\n" in text
    for heading in ("Who is protected", "Budget", "Mechanism", "Public bounds", "Assumptions", "Not protected"):
        assert f"\n## {heading}\n" in text
    assert "- clipping: values beyond these bounds are refused, or moved to the nearest one" in text
    assert "- constants:" not in text
    assert "quantile_levels" not in text
    path = place / "release.safetensors"
    release = load_release(path)
    assert "quantile_levels" in str(release.privacy.public["constants"])  # verification needs them
    assert release.privacy.chosen == "the ethics board: 1 is usual there"
    verify_release(path)
    (place / "privacy.md").write_text(text.replace("ethics board", "other board"))
    with pytest.raises(Exception, match=r"privacy\.md|checksum"):
        verify_release(path)
    (place / "privacy.md").write_text(text)


def test_assumptions_are_those_of_the_mechanisms_that_are_there(finished):
    text = (finished(*WORDS) / "release" / "privacy.md").read_text()
    assert ENTROPY not in text
    assert "DP-SGD" not in text
    assert _PROCESS not in text
    assert "mu^2" not in text
    assert _K_NORM not in text
    assert "discrete Gaussian or Laplace" in text
    privacy = load_release(finished(*WORDS)).privacy
    assert privacy.assumptions[0] == FLOATING_POINT  # the statement itself is that of every release


@pytest.mark.parametrize("chosen", ["a" * 501, "two\nlines", "\u202eright to left"])
def test_a_file_holds_no_words_that_cannot_be_the_curators(finished, chosen):
    release = load_release(finished(*WORDS))
    with pytest.raises(InputError, match="'chosen' is"):
        PrivacyStatement.from_dict(release.privacy.to_dict() | {"chosen": chosen})
