"""The page: a table of each metric, methods by families."""

import math
from collections.abc import Collection, Sequence
from dataclasses import replace

from experiments.defaults.hospital_laws import FAMILIES
from experiments.frame.study import NO_PRIVACY
from experiments.frame.table import Summary
from experiments.hospital.averages import FREE
from experiments.hospital.groups import AVERAGES, DECISIONS, EFFECTS, GROUPS
from experiments.hospital.measured import BIAS, COVERAGE, ERROR, PLANNED, STATED, WIDTH
from experiments.tables import paragraph, table

ABOUT = """\
Each seed is another law, of those that no constant was chosen by (`experiments/defaults/hospital_laws.py`). Means over
the laws ± standard errors; *laws* are those that are done. delta = 1e-5, replace-one. Everything of this library is at
its default settings. What stands beside it is described in the [README](README.md)."""
HEADS = {
    (EFFECTS, ERROR): "Mean squared error at 3,000 patients held out over the variance of the true effect: 1 is what "
    "the true average effect would have for everybody alike.",
    (EFFECTS, BIAS): "Mean of the effect less that of the truth, in standard deviations of the outcome.",
    (EFFECTS, PLANNED): "The error that `torchdpcate plan` expects before any record is read, over the root of the "
    "realised mean squared error.",
    (EFFECTS, STATED): "The same of the plan at the released scale of the residuals.",
    (EFFECTS, COVERAGE): "Share of patients whose true effect lies in the 95 % interval, where the release has "
    "intervals. Those of the library hold what is expected beyond the released features.",
    (AVERAGES, ERROR): "Absolute error of the average effect, in standard deviations of the outcome.",
    (AVERAGES, BIAS): "Mean error, likewise.",
    (AVERAGES, COVERAGE): "Share of 95 % intervals that hold the average effect of the law.",
    (AVERAGES, WIDTH): f"Mean width of 95 % intervals over that of `{FREE}`.",
    (DECISIONS, ERROR): "Regret over that of chance, where a treatment costs what it gains on average. Of the rule: "
    "against the best rule, over a coin's. Of the choice among four public policies: against the best of them, over "
    "one drawn at random, expected over its own randomness.",
}


def page(title: str, found: Sequence[Summary], notes: Sequence[str], lacking: Collection[str]) -> str:
    """Return the page.

    Args:
        title: Its head.
        found: All means.
        notes: Sentences on the run.
        lacking: Groups whose library is not installed.
    """
    parts = [f"# {title}\n", *(paragraph(" ".join(text.split())) for text in (*notes, ABOUT))]
    shown = dict.fromkeys(part for part, _ in HEADS)
    for part in shown:
        parts.append(f"## {part.capitalize()}\n")
        for (of, metric), head in HEADS.items():
            if of == part:
                own = [one for one in found if (one.place.table, one.place.metric) == (part, metric)]
                own = _over(own) if metric == WIDTH else own
                parts += [f"### {metric.capitalize()}\n", paragraph(head), _table(part, metric, own, lacking)]
    return "\n".join(parts)


def _table(part: str, metric: str, found: Sequence[Summary], lacking: Collection[str]) -> str:
    families = [name for name in FAMILIES if any(one.place.setting == name for one in found)]
    lines = [["method", "guarantee", "n", "epsilon", "laws", *families]]
    for name, group in GROUPS.items():
        for method in group.methods if group.part == part else ():
            if name in lacking and metric == ERROR:
                lines.append([method, f"{group.library} is not installed", *["-"] * (3 + len(families))])
            own = [one for one in found if one.method == method]
            keys = dict.fromkeys((int(one.place.n), float(one.place.epsilon)) for one in own)
            for n, epsilon in sorted(keys):
                here = {s.place.setting: s for s in own if (int(s.place.n), float(s.place.epsilon)) == (n, epsilon)}
                laws = sorted({one.repeats for one in here.values()})
                words = [f"{n:,}", f"{epsilon:g}" if math.isfinite(epsilon) else "-", _span(laws)]
                cells = [_entry(here[family], metric) if family in here else "-" for family in families]
                lines.append([method, next(iter(here.values())).level, *words, *cells])
    return table(lines)


def _entry(one: Summary, metric: str) -> str:
    if metric == COVERAGE:
        return f"{one.mean:.0%}"
    spread = "" if math.isnan(one.error) else f" ± {one.error:.1g}"
    return f"{one.mean:.3g}{spread}"


def _span(laws: Sequence[int]) -> str:
    return str(laws[0]) if laws[0] == laws[-1] else f"{laws[0]}-{laws[-1]}"


def _over(found: Sequence[Summary]) -> list[Summary]:
    """Return widths over that of the default without a budget, on the same family and size."""
    base = {(s.place.setting, s.place.n): s.mean for s in found if (s.method, s.place.epsilon) == (FREE, NO_PRIVACY)}
    return [
        replace(one, mean=one.mean / base[one.place.setting, one.place.n], error=math.nan)
        for one in found
        if (one.place.setting, one.place.n) in base
    ]
