import pytest

from tests.release.sites import NAMES, combined
from torchdpcate.errors import InputError
from torchdpcate.pages.reader import reader_page
from torchdpcate.release.combined import ALL_SITES
from torchdpcate.verify.finding import findings

SLOW = [pytest.param(task, marks=pytest.mark.slow) for task in ("effect",)]


@pytest.mark.parametrize("task", ["average", "subgroups", *SLOW])
def test_the_page_has_a_row_a_site_and_the_findings(task: str) -> None:
    made = combined(task)
    page = reader_page(made)
    assert all(f"<td>{name}</td>" in page for name in (*NAMES, ALL_SITES))
    assert "forest plot by site" in page
    for words in findings(made):
        assert words.replace("'", "&#39;") in page
    assert "nan" not in page.split("<details")[0].split("base64")[0]


def test_figures_draw_the_sites_and_the_mean() -> None:
    made = combined("effect")
    axes = made.forest().axes[0]
    assert [label.get_text() for label in axes.get_yticklabels()] == [*NAMES, ALL_SITES]
    assert len(made.plot(["dose", "sex"]).axes) >= 2
    band = made.mean_interval(made.reference)
    mean = made.effect_tensor(made.reference).mean().item()
    assert band[0, 0] <= mean <= band[0, 1]
    axes = combined("subgroups").plot().axes[0]
    shown = [label.get_text() for label in axes.get_yticklabels()]
    assert shown[-2:] == ["sex = f", "sex = m"]
    assert shown[:4] == [*NAMES, ALL_SITES]
    with pytest.raises(InputError, match="level = 2"):
        made.forest(level=2)
