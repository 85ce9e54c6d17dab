import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from tests.pages.releases import cohort
from tests.release.test_population import release as composed_effect
from tests.release.test_reader import DRAWN, RELEASES
from torchdpcate.data.schema import TableSchema
from torchdpcate.errors import InputError
from torchdpcate.evaluation.figures import OF_REGRESSION
from torchdpcate.pages.reader import PAGE, reader_page, write_page
from torchdpcate.release import average_effect, rule
from torchdpcate.release.file import SUMS_FILE, check_sums, write_sums

OWN = rule._example().privacy  # that of the examples does not agree with itself, and such releases get no page
HOSTILE = "<script>alert(1)</script>&\"'"


@pytest.mark.parametrize("kind", DRAWN)
def test_every_kind_has_a_page_that_fetches_nothing(kind: str) -> None:
    page = reader_page(replace(RELEASES[kind](), privacy=OWN))
    assert "default-src 'none'" in page
    assert not re.search(r"https?://(?!www\.w3\.org)", page.split("<details")[0])
    assert len(page) < 1_000_000


def test_the_page_follows_from_the_file_alone(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    first = rule._example().save(tmp_path / "a" / "release.safetensors")
    second = tmp_path / "b" / "release.safetensors"
    second.write_bytes(first.read_bytes())
    pages = [write_page(path) for path in (first, second)]
    assert [page.name for page in pages] == [PAGE] * 2
    assert pages[0].read_bytes() == pages[1].read_bytes()


def test_names_are_text() -> None:
    schema = TableSchema.from_dict(
        {
            "treatment": HOSTILE,
            "outcome": {"name": HOSTILE + "y", "low": -1.0, "high": 1.0},
            "covariates": {HOSTILE + "x": {"low": 0.0, "high": 1.0}},
            "overlap": 0.1,
        }
    )
    found = rule._example()
    page = reader_page(type(found)(found.theta, found.features, schema, found.privacy))
    assert "<script>alert" not in page
    assert page.count("<script") == page.count("</script>") == 2  # the numbers, and the library's own


def test_one_script_is_allowed_and_it_is_the_library_s() -> None:
    page = reader_page(rule._example())
    assert re.search(r"script-src 'sha256-[A-Za-z0-9+/]{43}='", page)
    assert "unsafe-inline'; script" not in page
    assert "script-src" not in reader_page(average_effect._example())


def test_a_reference_changes_the_shares() -> None:
    given = torch.tensor([[0.1], [0.2], [0.3], [0.9]], dtype=torch.float64)
    page = reader_page(rule._example(), reference=given)
    assert "gives a = 1 to 25% of the reference population and a = 0 to 75%" in page
    assert "the 4 people of the public table" in page


def test_each_covariate_in_use_has_a_figure() -> None:
    page = reader_page(replace(composed_effect(law=True), privacy=OWN))
    assert re.findall(r'alt="answers against (\w+)"', page) == ["age"]
    assert "The answers do not depend on sex, site." in page


def test_an_effect_without_a_band_is_not_drawn() -> None:
    page = reader_page(replace(composed_effect(), privacy=OWN))
    assert 'alt="answers against' not in page
    assert "No band of noise is known, and no curve is drawn." in page
    assert "it has no interval, and no band of noise; hence no curve is drawn" in page


def test_an_effect_without_intervals_has_a_band_and_words_for_it() -> None:
    page = reader_page(cohort()).replace("&#39;", "'").replace("\\u0027", "'")
    assert 'alt="answers against' in page
    assert page.count(f"95% {OF_REGRESSION}") == 2  # below the answer, and below the figures


def test_checksums_of_the_folder_are_renewed(tmp_path: Path) -> None:
    path = rule._example().save(tmp_path / "release.safetensors")
    write_sums(tmp_path)
    write_page(path)
    report = check_sums(tmp_path)
    assert set(report.matching) == {"release.safetensors", PAGE}
    assert (tmp_path / SUMS_FILE).is_file()


def test_a_reference_of_other_columns_and_a_file_as_folder_are_refused(tmp_path: Path) -> None:
    path = rule._example().save(tmp_path / "release.safetensors")
    (tmp_path / "other.csv").write_text("age\n40\n")
    with pytest.raises(InputError, match="x0"):
        write_page(path, reference=str(tmp_path / "other.csv"))
    with pytest.raises(InputError, match="choose another folder"):
        write_page(path, folder=tmp_path / "other.csv")
    assert sorted(found.name for found in tmp_path.iterdir()) == ["other.csv", "release.safetensors"]
