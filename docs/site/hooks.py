"""What the documentation site does beyond MkDocs: pages of the studies beside the docs, links to files, formulas."""

import html
import os.path
import re
from pathlib import Path
from typing import Any

from latex2mathml.converter import convert

ROOT = Path(__file__).resolve().parents[2]
"""The checkout."""
STUDIES = "experiments"
"""Folder of the pages and figures that the docs quote; they stand in the site at the same path."""

_LINK = re.compile(r"(!?)\[([^\]]*)\]\(([^)\s#]+)(#[^)]*)?\)")
_FENCE = re.compile(r"^```.*?^```", re.DOTALL | re.MULTILINE)
_FORMULA = re.compile(r'<(span|div) class="arithmatex">\\([(\[])(.*?)\\[)\]]</\1>', re.DOTALL)


def on_files(files: Any, config: Any) -> Any:
    """Add the studies' pages and figures, and the list of changes."""
    from mkdocs.structure.files import File

    outside = [path for kind in ("md", "png") for path in sorted((ROOT / STUDIES).rglob(f"*.{kind}"))]
    for path in [*outside, ROOT / "CHANGELOG.md"]:
        place = path.relative_to(ROOT).as_posix()
        files.append(File.generated(config, place, abs_src_path=str(path)))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """Turn links that are right in a checkout into those of the site.

    Docs stand at the site's root, so that a link out of ``docs`` loses that folder; what is no page of the site
    (sources, tests, settings) is named by its path in the checkout.
    """
    source = page.file.src_uri
    folder = Path("." if _is_outside(source) else "docs") / Path(source).parent
    parts, last = [], 0
    for fence in _FENCE.finditer(markdown):
        parts += [_relink(markdown[last : fence.start()], source, folder, files), fence.group()]
        last = fence.end()
    return "".join([*parts, _relink(markdown[last:], source, folder, files)])


def on_page_content(page_html: str, page: Any, config: Any, files: Any) -> str:
    """Turn formulas into MathML, which browsers show without a script."""

    def formula(found: re.Match[str]) -> str:
        display = "block" if found.group(2) == "[" else "inline"
        tex = html.unescape(found.group(3)).strip().replace(r"\arg", r"\operatorname{arg}")  # not known to the library
        shown = str(convert(tex, display=display))
        return f'<div class="formula">{shown}</div>' if display == "block" else shown

    return _FORMULA.sub(formula, page_html)


def _relink(text: str, source: str, folder: Path, files: Any) -> str:
    def link(found: re.Match[str]) -> str:
        picture, words, target, anchor = found.groups()
        if re.match(r"[a-z]+:", target):
            return found.group()
        in_checkout = os.path.normpath(folder / target).replace(os.sep, "/")
        place = _place(in_checkout, files)
        if place is None:
            path = f"`{in_checkout}`"
            return path if words.strip("`") == in_checkout else f"{words} ({path})"
        there = os.path.relpath(place, Path(source).parent).replace(os.sep, "/")
        return f"{picture}[{words}]({there}{anchor or ''})"

    return _LINK.sub(link, text)


def _place(in_checkout: str, files: Any) -> str | None:
    """Return where a file of the checkout stands in the site; None if it does not."""
    if in_checkout == "README.md":
        return "index.md"
    candidates = (in_checkout.removeprefix("docs/"), f"{in_checkout.removeprefix('docs/')}/README.md")
    return next((place for place in candidates if files.get_file_from_path(place)), None)


def _is_outside(source: str) -> bool:
    return source.startswith(f"{STUDIES}/") or source == "CHANGELOG.md"
