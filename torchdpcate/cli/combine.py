"""``torchdpcate combine``: releases of several sites as one, by their released numbers alone."""

import os
from collections.abc import Sequence
from pathlib import Path

from torchdpcate._files import refuse_existing
from torchdpcate.errors import InputError, VerificationError
from torchdpcate.evaluation.figures import save_figure
from torchdpcate.release.combination import combine as combined
from torchdpcate.release.combined import SitesRelease
from torchdpcate.release.file import load_release, release_path
from torchdpcate.release.meta_analysis import FIXED, RANDOM
from torchdpcate.verify.file import verify_release
from torchdpcate.verify.finding import findings

FIGURE = "effect.png"
_FEW, _WIDE = 4, 2.0  # sites; times the width of intervals of one effect


def combine(
    releases: Sequence[str],
    output: str,
    between: str = RANDOM,
    names: str | None = None,
    overwrite: bool = False,
) -> None:
    """Verify the releases of several sites, combine them, and write the combination with its forest plot.

    Args:
        releases: Release files or run folders of two or more sites; a combination counts as its sites.
        output: Release file to write, in a folder that exists; ``effect.png`` is written beside it.
        between: ``fixed`` or ``random``.
        names: What the sites are called, separated by commas; None takes the names of files and run folders.
        overwrite: Whether files that are there may be replaced.

    Raises:
        InputError: A release that does not verify, or releases that are not about the same thing.
    """
    paths = [release_path(path) for path in releases]
    target = Path(output)
    if any(path.exists() and target.exists() and os.path.samefile(path, target) for path in paths):
        raise InputError(f"output {output} is one of the releases; give another name")
    if not target.parent.is_dir():
        raise InputError(f"output = {output}: the folder {target.parent} does not exist; make it first")
    for path in () if overwrite else (target, target.parent / FIGURE):
        refuse_existing(path, "output", "add --overwrite")
    called = _names(paths) if names is None else [name.strip() for name in names.split(",")]
    for path in paths:
        try:
            verify_release(path)
        except VerificationError as error:
            raise InputError(f"{error}; it is not combined") from None
    made = combined([load_release(path) for path in paths], called, between)
    figure = made.plot()
    made.save(target, overwrite)
    save_figure(figure, target.parent / FIGURE)
    for words in [*findings(made), *_wide(made)]:
        print(words)
    headline, count = made.privacy.headline, len(made.sites)
    print(f"{headline}: {count} sites combined in {target}, forest plot in {target.parent / FIGURE}")
    print(f"torchdpcate report {target} writes the page for readers")


def _wide(made: SitesRelease) -> list[str]:
    """Return what else there is where intervals are wide for want of sites; nothing where they are not."""
    if made.between == FIXED or len(made.sites) > _FEW:
        return []
    widths = [one.means()[:, 1:].diff() for one in (made, combined(made.sites, made.names, FIXED))]
    most = float((widths[0] / widths[1]).max())
    return [
        f"{len(made.sites)} sites say little of how far sites differ: intervals are up to {most:.1f} times as wide as "
        "with --between fixed, which takes it for granted that the effect is the same at all of them."
    ] * (most > _WIDE)


def _names(paths: Sequence[Path]) -> list[str]:
    """Return what sites are called: the file, or the run folder where all files have one name; numbered if alike."""
    alike = len({path.name for path in paths}) < len(paths)
    names = [(path.absolute().parent.parent.name if path.parent.name == "release" else path.stem) for path in paths]
    names = names if alike else [path.stem for path in paths]
    return [f"{name} {names[: k + 1].count(name)}" if names.count(name) > 1 else name for k, name in enumerate(names)]
