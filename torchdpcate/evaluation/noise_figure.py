"""The figure of plans against what came out: noise that public facts promised, and noise that there was."""

from typing import TYPE_CHECKING

import numpy as np

from torchdpcate.evaluation.comparison import line_style
from torchdpcate.evaluation.figures import finish, new_figure

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure


def noise_figure(runs: "pd.DataFrame", of: str) -> "Figure":
    """Draw realised against planned noise, a point a run; on the line the plan was right.

    Args:
        runs: Columns ``planned`` and ``realised``, positive, in outcome units, and ``line``, the method.
        of: What it is the noise of.

    Returns:
        A matplotlib figure; the caller saves it.

    Example:
        >>> import pandas as pd
        >>> figure = noise_figure(pd.DataFrame({"planned": [0.1], "realised": [0.2], "line": ["a"]}), "an effect")
        >>> figure.axes[0].lines[1].get_xydata().tolist()
        [[0.1, 0.2]]
    """
    from matplotlib.ticker import LogLocator

    figure, axes = new_figure()
    both = runs[["planned", "realised"]].to_numpy(dtype=float)
    ends = np.array([both.min() / 1.5, both.max() * 1.5])
    axes.plot(ends, ends, color="0.6", lw=1.0, label="as planned")
    for place, (name, chosen) in enumerate(runs.groupby("line", sort=False)):
        style = line_style(place) | {"ls": ""}
        axes.plot(chosen["planned"], chosen["realised"], ms=5, label=str(name), **style)
    for axis, scale in ((axes.xaxis, axes.set_xscale), (axes.yaxis, axes.set_yscale)):
        scale("log")
        axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
        axis.set_major_formatter("{x:g}")
        axis.set_minor_formatter("")
    axes.tick_params(which="both", labelsize=8)
    axes.set_xlabel("planned, by public facts before the run")
    axes.set_ylabel("realised")
    axes.set_title(f"{of} (outcome units)", fontsize=9, parse_math=False)
    finish(axes, own=True)
    return figure
