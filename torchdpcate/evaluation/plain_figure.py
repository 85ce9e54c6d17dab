"""A matplotlib figure whose words stand as they are, whatever a column, a level or a policy is called."""

import warnings
from typing import Any

from matplotlib.figure import Figure
from matplotlib.text import Text

from torchdpcate._text import shortened

_LETTERS = 160  # of a line; a picture of longer ones is wider than matplotlib draws
_NOT_SAID = ("Glyph .* missing from", "constrained_layout not applied")  # of letters and lengths of names: no news


class PlainFigure(Figure):
    """A figure without formulas: dollars, backslashes and underscores of its words are letters.

    Lines of more than 160 letters are cut, and what matplotlib would say of letters that its font lacks is not said.

    Example:
        >>> figure = PlainFigure()
        >>> title = figure.subplots().set_title("cost in $, x_ of $")
        >>> figure.draw_without_rendering()
        >>> title.get_text(), title.get_parse_math()
        ('cost in $, x_ of $', False)
    """

    def draw(self, renderer: Any) -> None:
        """Draw the figure, after all of its words were taken as they are."""
        for text in self.findobj(Text):
            assert isinstance(text, Text)
            text.set_parse_math(False)
            text.set_text(shortened(text.get_text(), _LETTERS))
        with warnings.catch_warnings():
            for said in _NOT_SAID:
                warnings.filterwarnings("ignore", said)
            super().draw(renderer)
