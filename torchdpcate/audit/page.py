"""What is published of the audits: a table to read and a figure to look at."""

from collections.abc import Iterator, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

from torchdpcate.audit.attack import AGAIN, AuditResult
from torchdpcate.privacy.charge import Charge, Purpose
from torchdpcate.verify.known import plan_names

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_HOW_TO_READ = """\
Each mechanism is run many times on two neighbouring data sets, as bad for it as we know. An attack says which of the
two it was, and how often it is right or wrong bounds epsilon from below. A bound above the claim refutes the claim. A
bound near the claim shows that no noise is wasted. A bound far below the claim shows little: the attack may be weak, or
the proof generous."""

_WHAT_THE_BOUND_IS = """\
Rates are bounded by Clopper & Pearson (1934) on runs that chose neither threshold nor classifier. Of an (epsilon,
delta) or pure claim the bound is the largest epsilon that the rates refute at that delta. A Gaussian or DP-SGD claim is
a whole trade-off curve: the bound is the epsilon, at that delta, of the most private curve of its kind that the rates
do not refute, so it exceeds the claim exactly where the rates refute the claimed curve. Where a bound exceeds its
claim, all is run again up to four times, and only five in a row refute it. Of adaptive charges the best strategy's
epsilon is computed, without runs."""

_ATTAINED = 0.9  # of a claim: a bound that counts as one of real records that attain it
_WHAT_IS_ATTAINED = f"""\
A bound of {_ATTAINED:.0%} of the claim or more shows that real records attain what the plan's sensitivity allows, up to
the doubt of counting. Of these plans no pair is known that does so for every law of their noise: more may be proved of
them than any records need."""

_LEAST = 1e-2  # epsilon at which a bound of nearly nothing is drawn


def page(results: list[AuditResult], command: str, confidence: float, folder: Path, figure: str) -> str:
    """Return the page: how to read it, the table, the figure, the neighbours.

    Args:
        results: What was found.
        command: That found it.
        confidence: Of each bound.
        folder: Where the page will lie; a mechanism's name links to its own page there.
        figure: File name of the figure.
    """
    return "\n".join(
        [
            "# Claims and attacks",
            "",
            f"Written by `{command}` (torchdpcate {version('torchdpcate')}). Adjacency: replace one record, n public.",
            f"Each bound holds with confidence {confidence:g}.",
            "",
            _HOW_TO_READ,
            "",
            *_also(folder),
            "| mechanism | level | claimed epsilon | at delta | bound | attack | runs |",
            "| --- | --- | --- | --- | --- | --- | --- |",
            *(_row(result, folder) for result in results),
            "",
            f"![Claimed epsilon and lower bound of every mechanism]({figure})",
            "",
            "## The neighbours",
            "",
            *(f"- `{result.mechanism}`: {result.pair}" for result in results),
            "",
            "## Plans whose claim no pair of records attains",
            "",
            _WHAT_IS_ATTAINED,
            "",
            *_unattained(results),
            "",
            "## What the bound is",
            "",
            f"{_WHAT_THE_BOUND_IS} Chance alone refutes an honest mechanism with a probability of at most "
            f"{(1 - confidence) ** (AGAIN + 1):.2g}.",
            "",
        ]
    )


def _also(folder: Path) -> list[str]:
    """Return a line that links to the pages that are about no single mechanism, where they lie in the folder."""
    others = {"common.md": "what holds for all of them", "composition.md": "how costs add up"}
    links = [f"[{text}]({name})" for name, text in others.items() if (folder / name).exists()]
    return [f"See also: {', '.join(links)}.", ""] if links else []


def attained(results: Sequence[AuditResult], plan: str) -> dict[str, float]:
    """Return which share of its claim each attack shows of a plan's releases, by the attack's name.

    Args:
        results: What was found.
        plan: Name of its mechanism in statements.
    """
    release = Charge(Purpose.RELEASE, plan)
    own = (result for result in results if any(target.charge == release for target in result.attacks))
    return {result.mechanism: result.bound / result.claimed for result in own if result.claimed is not None}


def _unattained(results: Sequence[AuditResult]) -> Iterator[str]:
    """Yield the plans of the library of whose claim some attack shows less, or that none attacks."""
    for plan in sorted(plan_names()):
        shares = attained(results, plan)
        less = [f"{share:.3f} of it by `{name}`" for name, share in shares.items() if share < _ATTAINED]
        if less or not shares:
            yield f"- `{plan}`: {', '.join(less) or 'no attack on a claim of its own'}"


def _row(result: AuditResult, folder: Path) -> str:
    name = result.mechanism
    link = f"[{name}]({name}.md)" if (folder / f"{name}.md").exists() else name
    claim = f"none (noise as for {result.nominal:g})" if result.claimed is None else f"{result.claimed:.4g}"
    bound = f"{result.bound:.3f}" + (" **exceeds the claim**" if result.refuted else "")
    cells = [link, f"**{result.level}**", claim, f"{result.delta:g}", bound, result.attack, f"{result.trials:,}"]
    return f"| {' | '.join(cells)} |"


def audit_figure(results: list[AuditResult]) -> "Figure":
    """Draw claim and bound of each mechanism, one row a mechanism, epsilon on a logarithmic axis."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 1.4 + 0.42 * len(results)), layout="constrained")
    axes = figure.subplots()
    for place, result in enumerate(results):
        bound, claims = max(result.bound, _LEAST), result.claimed is not None
        claim = result.claimed if result.claimed is not None else result.nominal
        color = "C3" if result.bound > claim else "C0"
        axes.plot([bound, claim], [place, place], color="0.85", lw=5, solid_capstyle="butt", zorder=1)
        axes.plot(bound, place, "o", color=color, zorder=3, label="_" if place else "lower bound by attack")
        axes.text(bound, place - 0.26, f"{result.bound:.3g}", ha="center", va="bottom", fontsize=8)
        axes.plot(claim, place, "|", ms=18, mew=2.5, color="black" if claims else "0.65", zorder=2)
    axes.plot([], [], "|", ms=14, mew=2.5, color="black", label="claim")
    axes.plot([], [], "|", ms=14, mew=2.5, color="0.65", label="nothing claimed; noise as for this epsilon")
    axes.set_yticks(range(len(results)), [f"{r.mechanism} ({r.level})" for r in results])
    axes.set_ylim(len(results) - 0.4, -0.8)
    axes.set_xscale("log")
    axes.set_xlabel("epsilon")
    axes.grid(axis="x", alpha=0.3)
    figure.legend(loc="outside upper center", ncols=3, frameon=False, fontsize=9)
    return figure
