"""The curator's figure of a private choice among policies."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from torchdpcate.evaluation.figures import NOT_FOR_PUBLICATION, new_grid

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_MARK = f"{NOT_FOR_PUBLICATION}: estimated on the records"


def policy_figure(
    names: Sequence[str],
    values: np.ndarray,
    probabilities: np.ndarray,
    chosen: int,
    *,
    regrets: np.ndarray | None = None,
    claim: str = "",
) -> "Figure":
    """Draw what each policy of a library would lose, and how likely it was to be chosen.

    Args:
        names: Names of the M policies.
        values: Estimated mean outcome of each, [M].
        probabilities: The law of the choice, [M].
        chosen: Index of the policy that was released.
        regrets: True mean outcome lost against the library's best, [M]; None where it is not known.
        claim: Guarantee, printed above.

    Returns:
        A matplotlib figure, marked as the curator's; the caller saves it.
    """
    order = np.argsort(-values, kind="stable")
    rank = np.arange(1, len(order) + 1)
    place = int(np.flatnonzero(order == chosen)[0])
    figure, (lost, chance) = new_grid(2, 1, (6.6, 5.0), sharex=True)
    lost.plot(rank, (values.max() - values)[order], ".", color="C0", ms=4, label="estimated")
    if regrets is not None:
        lost.plot(rank, regrets[order], "x", color="0.45", ms=3, mew=0.8, zorder=1, label="true")
    lost.set_ylabel("mean outcome lost\nagainst the best policy", fontsize=9)
    chance.vlines(rank, 0, probabilities[order], color="C0", lw=min(2.0, 250 / len(rank)))
    chance.axhline(1 / len(rank), color="black", ls=":", lw=1.0, label="uniform choice")
    chance.set_ylim(bottom=0)
    chance.set_ylabel("chance of being chosen", fontsize=9)
    chance.set_xlabel("policies, best estimate first", fontsize=9)
    for axes in (lost, chance):
        axes.axvline(place + 1, color="C1", lw=1.2, zorder=0, label=f"released: {names[chosen]}")
        axes.tick_params(labelsize=8)
    entries = [entry for axes in (lost, chance) for entry in zip(*axes.get_legend_handles_labels(), strict=True)]
    named = {label: handle for handle, label in entries}
    legend = lost.legend(named.values(), named.keys(), fontsize=8, frameon=False)
    for text in legend.get_texts():
        text.set_parse_math(False)
    lost.set_title("\n".join(filter(None, [claim, _MARK])), fontsize=9, parse_math=False)
    return figure
