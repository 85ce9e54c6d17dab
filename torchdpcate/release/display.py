"""How a release shows itself: in one line, in a notebook as a table, and as a figure."""

from collections.abc import Iterator
from importlib import import_module
from typing import TYPE_CHECKING, Any

from torchdpcate._templates import html_table_of
from torchdpcate._text import plain
from torchdpcate.data.covariates import bounds_in_words
from torchdpcate.data.words import aim, contrast, outcome_words

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from torchdpcate.release.release import Release

_MOST = 12
"""Covariates that a table names."""


def line(release: "Release") -> str:
    """Return what it is about and what it claims, in one line.

    Args:
        release: Any release.

    Example:
        >>> from torchdpcate.release.rule import _example
        >>> line(_example())[:54]
        '<RuleRelease: rule that says who should get a = 1 inst'
    """
    about = subject(release)
    about = about[0].lower() + about[1:]
    claim = release.privacy.claim.rstrip(".")
    return plain(f"<{type(release).__name__}: {about}; {claim}; n = {release.privacy.n:,}>")


def table(release: "Release") -> str:
    """Return the same with its numbers and the covariates' public bounds, as HTML without a script.

    Args:
        release: Any release.
    """
    return html_table_of(type(release).__name__, _rows(release))


def draw(function: str, release: "Release", *given: Any, **settings: Any) -> "Figure":
    """Return what a function of ``torchdpcate.pages`` draws; nothing else in a reader's process loads matplotlib.

    Args:
        function: Its name.
        release: Any release.
        given: Its further arguments.
        settings: Those with names.
    """
    return getattr(import_module("torchdpcate.pages"), function)(release, *given, **settings)


def subject(release: "Release") -> str:
    """Return what a release is about, with the names of its treatment and outcome."""
    schema = release.schema
    names = {"treatment": schema.treatment, "outcome": outcome_words(schema)}
    return release.subject.format(**names, contrast=contrast(schema), aim=aim(schema))


def _rows(release: "Release") -> Iterator[tuple[str, str]]:
    privacy, covariates = release.privacy, release.schema.covariates
    yield "about", subject(release)
    yield "claim", privacy.claim
    yield "mechanism", privacy.mechanism
    yield "records", f"{privacy.n:,}"
    for name, value in release.summary().items():
        yield name.replace("_", " "), _short(value)
    more = f"; and {len(covariates) - _MOST} more" if len(covariates) > _MOST else ""
    yield "covariates", "; ".join(map(bounds_in_words, covariates[:_MOST])) + more


def _short(value: Any) -> str:
    if isinstance(value, list) and value and isinstance(value[0], dict):
        return f"{len(value)}, see table()"
    if isinstance(value, list):
        return " to ".join(map(_short, value))
    return f"{value:.6g}" if isinstance(value, float) else str(value)
