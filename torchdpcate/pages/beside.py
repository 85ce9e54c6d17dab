"""The figures and tables that a run writes beside its release, each made of the release alone.

``torchdpcate audit leak`` makes them again and compares, so that nothing else can be in them.
"""

from collections.abc import Callable, Mapping
from functools import singledispatch
from typing import Any

from torchdpcate._text import spreadsheet_cell
from torchdpcate.evaluation.figures import png_of
from torchdpcate.pages.figures import coefficients
from torchdpcate.release.average_effect import AverageEffectRelease
from torchdpcate.release.file import Release
from torchdpcate.release.release import EffectRelease, QueryRelease
from torchdpcate.release.rule import DecisionRelease
from torchdpcate.release.subgroups import SubgroupRelease

Made = Mapping[str, Callable[[], bytes]]
"""Files by their names, and how each is made."""


@singledispatch
def figures_of(release: Release, figure: Mapping[str, Any] | None = None) -> Made:
    """Return what a run writes beside a release for its readers; nothing of most kinds.

    Args:
        release: The release.
        figure: What the figure of an effect shows, as the settings ``figure`` of a run say: ``covariate``, ``profile``
            and ``level``; None takes those of ``plot``.
    """
    return {}


@figures_of.register
def _of_effect(release: EffectRelease, figure: Mapping[str, Any] | None = None) -> Made:
    return {"effect.png": lambda: png_of(release.plot(**(figure or {})))}


@figures_of.register
def _of_answers(release: QueryRelease, figure: Mapping[str, Any] | None = None) -> Made:
    return {}


@figures_of.register
def _of_average(release: AverageEffectRelease, figure: Mapping[str, Any] | None = None) -> Made:
    found = {"interval.png": lambda: png_of(release.plot())}
    return found if release.balance is None else found | {"balance.png": lambda: png_of(release.plot(balance=True))}


@figures_of.register
def _of_subgroups(release: SubgroupRelease, figure: Mapping[str, Any] | None = None) -> Made:
    return {"subgroups.csv": lambda: _table(release), "forest.png": lambda: png_of(release.plot())}


@figures_of.register
def _of_rule(release: DecisionRelease, figure: Mapping[str, Any] | None = None) -> Made:
    return {} if coefficients(release) is None else {"rule.png": lambda: png_of(release.plot())}


def _table(release: SubgroupRelease) -> bytes:
    """Return the effects of subgroups with both kinds of intervals as csv, its words fit for a spreadsheet."""
    table = release.table()
    low, high = release.interval(simultaneous=True).T
    words = {name: table[name].map(spreadsheet_cell) for name in ("cell", "arm", "partition") if name in table}
    table = table.assign(low_simultaneous=low, high_simultaneous=high, **words)
    return table.to_csv(index=False, lineterminator="\n").encode()
