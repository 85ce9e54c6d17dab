import pytest

from tests.release.sites import NAMES, combined
from torchdpcate.pages.reader import reader_page
from torchdpcate.release.combined import ALL_SITES, NEW_SITE
from torchdpcate.verify.finding import findings

SLOW = [pytest.param(task, marks=pytest.mark.slow) for task in ("effect",)]


@pytest.mark.parametrize("task", ["average", "subgroups", "cohort", *SLOW])
def test_the_page_has_a_row_a_site_and_the_findings(task: str) -> None:
    made = combined(task)
    page = reader_page(made)
    assert all(f'<th scope="row">{name}</th>' in page for name in (*NAMES, ALL_SITES, NEW_SITE))
    assert "By site" in page
    assert 'alt="Forest plot.' in page
    for words in findings(made):
        assert words.replace("'", "&#39;") in page
    assert "nan" not in page.split("<details")[0].split("base64")[0]
