import struct
import warnings
from collections.abc import Callable

import numpy as np
import pandas as pd
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.text import Text

from torchdpcate.evaluation.balance_figure import balance_figure, forest_figure
from torchdpcate.evaluation.comparison import budget_figure
from torchdpcate.evaluation.curator_figures import (
    SeenAnswers,
    bars_figure,
    overlap_figure,
    plan_figure,
)
from torchdpcate.evaluation.figures import (
    DecisionPanel,
    EffectPanel,
    answers_figure,
    decision_figure,
    decision_picture,
    effect_panels,
    effect_picture,
    rule_figure,
    save_figure,
)
from torchdpcate.release.average_effect import BalanceTable

NAMES = {
    "formulas": "_cost in $ of $\\frac{ $x_$ and $y^$ \\alpha\\ {x} $}$ %s \U0001f600 \u4e16",
    "many letters": "$_$" + "long name " * 400,
    "lines": "one\ntwo $_$",
}
GRID, TWO = np.array([0.0, 1.0]), np.array([[-1.0, 0.5], [0.0, 2.0]])


class _Balance(BalanceTable):
    unit = ""


def balance(name: str) -> BalanceTable:
    table = _Balance([name, "other"], before=[0.1, 0.2], after=[0.0, 0.1])
    object.__setattr__(table, "unit", name)
    return table


def cells(name: str) -> pd.DataFrame:
    rows = [(name, 0.1, -0.2, 0.4, 90.0, name), ("b", 0.2, -0.1, 0.5, 70.0, "other")]
    return pd.DataFrame(rows, columns=["line", "estimate", "low", "high", "records", "group"])


def panel(name: str, **more: object) -> EffectPanel:
    return EffectPanel(name, GRID, GRID, TWO, place=name, title=name, **more)


def shares(name: str, levels: tuple = ()) -> DecisionPanel:
    return DecisionPanel(name, GRID, np.full((2, 2), 0.5), levels, name)


WORDS = ("claim", "assumptions", "label")
DRAWN: dict[str, Callable[[str], Figure]] = {
    "balance": lambda name: balance_figure(balance(name), claim=name),
    "forest": lambda name: forest_figure(cells(name), **dict.fromkeys(WORDS, name), speaks=[name, "b"], texts=[name]),
    "effect": lambda name: effect_panels([panel(name)], **dict.fromkeys(WORDS, name)),
    "effects": lambda name: effect_panels([panel(name), panel(name, levels=(name, "b"))], **dict.fromkeys(WORDS, name)),
    "rule": lambda name: rule_figure([name, "b"], GRID, claim=name),
    "answers": lambda name: answers_figure(GRID, against=GRID, covariate=name, levels=(name, "b"), claim=name),
    "decision": lambda name: decision_figure([shares(name)], [name, "b"], title=name, claim=name),
    "decisions": lambda name: decision_figure([shares(name), shares(name, (name, "b"))], [name, "b"], title=name),
    "plan": lambda name: plan_figure(
        {1.0: {100: 0.5, 1000: 0.05}},
        outcome_range=2.0,
        here=(100, 1.0, 0.5),
        of=name,
        precision=0.1,
        title=name,
        seen=SeenAnswers.of(0.3, 100, outcome_range=2.0, unit=name, label=name),
    ),
    "overlap": lambda name: overlap_figure(GRID, GRID, 0.1, arms=[name, "b"]),
    "bars": lambda name: bars_figure([name, "b"], [1.0, 2.0], name),
    "errors": lambda name: budget_figure(
        pd.DataFrame({"epsilon": [1.0, 2.0], "line": [name, "b"], "pehe": [0.1, 0.2], "panel": [name, name]})
    ),
}


@pytest.mark.first(4)
@pytest.mark.parametrize("kind", NAMES)
@pytest.mark.parametrize("drawn", DRAWN)
def test_a_figure_is_drawn_whatever_a_name_is(drawn, kind, tmp_path):
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # nor does matplotlib say anything of letters or lengths
        figure = DRAWN[drawn](NAMES[kind])
        save_figure(figure, tmp_path / "f.png")
    assert struct.unpack(">I", (tmp_path / "f.png").read_bytes()[16:20])[0] < 6000  # pixels of width
    texts = [text for text in figure.findobj(Text) if text.get_text()]
    assert any(NAMES[kind].split()[0][:20] in text.get_text() for text in texts)
    assert not any(text.get_parse_math() for text in texts)
    assert not any("mathdefault" in text.get_text() for text in texts)  # of numbers on logarithmic axes


def test_a_name_that_begins_with_an_underscore_is_in_the_legend():
    figure = decision_figure([shares("age")], ["_dose", "none"])
    assert [text.get_text().strip() for text in figure.legends[0].get_texts()] == ["_dose", "none"]


def test_pictures_of_pages_have_names_as_they_are():
    for name in NAMES.values():
        assert effect_picture(panel(name, levels=(name, "b")), name)
        assert decision_picture(shares(name), [name, "b"])


def test_what_both_sides_of_a_forest_speak_for_does_not_overlap():
    """Of long arms in narrow axes, between long names and texts."""
    long = "levamisole or levamisole and fluorouracil"
    for speaks in (["observation", long], [long, long], ["a = 0", "a = 1"]):
        figure = forest_figure(cells(long), speaks=speaks, texts=["+0.10 (−0.20 to +0.40)"] * 2)
        canvas = FigureCanvasAgg(figure)
        canvas.draw()
        drawn = canvas.get_renderer()
        sides = [text for text in figure.findobj(Text) if "speaks for" in text.get_text()]
        one, other = (text.get_window_extent(drawn) for text in sides)
        assert not one.overlaps(other)
