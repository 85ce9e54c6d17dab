import pandas as pd
import pytest

from torchdpcate.errors import InputError
from torchdpcate.evaluation.balance_figure import forest_figure

TABLE = pd.DataFrame(
    {
        "cell": ["sex = f", "sex = m", "age < 40", "age >= 40"],
        "estimate": [1.0, 2.0, 1234.5, 0.25],
        "low": [0.0, 1.0, -9000.0, 0.0],
        "high": [2.0, 3.0, 9000.0, 0.5],
        "records": [100.0, 200.0, 3.0, 150.0],
        "partition": ["sex", "sex", "age", "age"],
    }
)


def words(figure) -> str:
    axes = figure.axes[0]
    texts = [*(label.get_text() for label in axes.get_yticklabels()), *(text.get_text() for text in axes.texts)]
    return "\n".join([*texts, axes.get_title(), axes.get_xlabel()])


def test_each_cell_has_a_line_and_each_partition_a_heading():
    figure = forest_figure(TABLE, outcome="pay", claim="a claim", assumptions="it was a trial")
    text = words(figure)
    for part in (
        "sex = f",
        "age >= 40",
        "sex\n",
        "1,234 [-9,000, 9,000]",
        "effect on pay",
        "a claim",
        "it was a trial",
    ):
        assert part in text
    assert "curator" not in text
    assert len(figure.axes[0].get_yticks()) == 4 + 2


def test_a_cell_that_noise_dominates_does_not_stretch_the_axis():
    figure = forest_figure(TABLE, dominated=[False, False, True, False])
    low, high = figure.axes[0].get_xlim()
    assert -1 < low < 0
    assert 3 < high < 4
    assert "not known" in words(figure)


def test_what_is_not_released_is_the_curators():
    for more in ({"nonprivate": [1.0] * 4}, {"truth": [1.0] * 4}):
        assert "not for publication" in words(forest_figure(TABLE, **more))


def test_many_cells_are_cut_and_none_is_refused():
    many = pd.concat([TABLE] * 30, ignore_index=True)
    assert "60 further cells are not shown" in words(forest_figure(many))
    with pytest.raises(InputError, match="at least one cell"):
        forest_figure(TABLE.head(0))
