"""The documentation site: every public name has its entry, every page is linked, links are those of the site."""

import importlib.util
import inspect
import os
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

import torchdpcate
from tests.test_docstrings import own_members
from torchdpcate._lazy import constructor_arguments

PROJECT = Path(__file__).parents[2]
DOCS, SITE = PROJECT / "docs", PROJECT / ".mkdocs.yml"
LINK = re.compile(r"\]\(([^)\s#]+\.md)(?:#[^)]*)?\)")


@pytest.fixture(scope="module")
def hooks() -> ModuleType:
    pytest.importorskip("latex2mathml", reason="the extra docs is not installed")
    return _loaded("hooks")


def _loaded(name: str) -> ModuleType:
    """Return a module of the site."""
    spec = importlib.util.spec_from_file_location(f"site_{name}", DOCS / "site" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def test_every_public_name_has_its_entry_in_the_reference():
    entries = re.findall(r"^::: (\S+)$", (DOCS / "reference.md").read_text(), re.MULTILINE)
    kinds = (getattr(torchdpcate, name) for name in torchdpcate.__all__)
    assert {f"{kind.__module__}.{kind.__name__}" for kind in kinds} <= set(entries)
    assert len(set(entries)) == len(entries)


def test_every_page_is_reached_from_the_navigation():
    reached = set(re.findall(r": (\S+\.md)$", SITE.read_text(), re.MULTILINE))
    new = {page for page in reached if (DOCS / page).exists()}
    while new:
        folder_links = ((DOCS / page).parent / link for page in new for link in LINK.findall((DOCS / page).read_text()))
        found = {link.resolve() for link in folder_links}
        pages = {path.relative_to(DOCS).as_posix() for path in found if path.is_relative_to(DOCS)}
        new = pages - reached
        reached |= pages
    every = {path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.md")}
    assert every - reached == set()


def test_every_name_that_a_page_imports_is_there():
    text = "".join(page.read_text() for page in [*DOCS.rglob("*.md"), PROJECT / "README.md"])
    lines = re.findall(r"^from torchdpcate.* import [\w, ]+", text, re.MULTILINE)
    assert len(lines) > 10
    exec("\n".join(lines), {})


def test_nothing_is_said_to_be_on_an_index_that_is_not():
    """The package is on none: pages and messages name a wheel, a checkout, or the library that is missing."""
    places = [*DOCS.rglob("*.md"), *(PROJECT / "torchdpcate").rglob("*.py"), *(PROJECT / "conf").rglob("*.yaml")]
    wrong = re.compile(r"pip install '?\"?torchdpcate(?![-*])")
    found = [path.name for path in places if wrong.search(path.read_text())]
    assert found == ["install.md"]  # which says that nothing is found


class Files:
    """Files of a site."""

    def __init__(self, *places: str) -> None:
        self.places = places

    def get_file_from_path(self, place: str) -> str | None:
        return place if place in self.places else None


@pytest.mark.parametrize(
    ("source", "written", "shown"),
    [
        ("effects.md", "[a](../experiments/x/README.md#b)", "[a](experiments/x/README.md#b)"),
        ("guarantees/a.md", "[t](../../tests/test_files.py)", "t (`tests/test_files.py`)"),
        ("guarantees/a.md", "[effects](../effects.md)", "[effects](../effects.md)"),
        ("experiments/x/README.md", "[e](../../docs/effects.md)", "[e](../../effects.md)"),
        ("experiments/x/README.md", "![p](y.png)", "![p](y.png)"),
        ("index.md", "[w](https://example.org/a.md)", "[w](https://example.org/a.md)"),
        ("index.md", "```\n[a](b.py)\n```", "```\n[a](b.py)\n```"),
    ],
)
def test_a_link_of_the_checkout_is_one_of_the_site(hooks, source, written, shown):
    files = Files("effects.md", "experiments/x/README.md", "experiments/x/y.png", "index.md")
    page = SimpleNamespace(file=SimpleNamespace(src_uri=source))
    assert hooks.on_page_markdown(written, page, None, files) == shown


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The built site."""
    pytest.importorskip("mkdocs")
    folder = tmp_path_factory.mktemp("site")
    words = [sys.executable, "-m", "mkdocs", "build", "-q", "-f", str(SITE), "-d", str(folder)]
    subprocess.run(words, check=True, env=os.environ | {"NO_MKDOCS_2_WARNING": "1"}, cwd=PROJECT)
    return folder


@pytest.mark.slow
def test_no_page_shows_source_of_a_formula(site):
    macro = re.compile(
        r"\\(?:frac|tfrac|mathbb|mathrm|sum|sqrt|hat|bar|Big|quad|tau|mu|sigma|epsilon|varepsilon|Delta)\b"
    )
    raw = re.compile(rf"{macro.pattern}|:math:|\.\. math|<p>\$\$|<m[ion]>\\")
    found = {page.name: raw.search(page.read_text()) for page in site.rglob("*.html")}
    assert not {name: match.group() for name, match in found.items() if match is not None}
    assert "<math" in (site / "reference.html").read_text()


@pytest.mark.slow
@pytest.mark.parametrize("name", torchdpcate.__all__)
def test_the_reference_shows_every_argument_and_method(name, site):
    public = getattr(torchdpcate, name)
    place = f"{public.__module__}.{public.__name__}"
    page = (site / "reference.html").read_text()
    entry = page.partition(f'<h2 id="{place}"')[2].partition("<h2 ")[0]
    told = set(re.findall(r'<tr class="doc-section-item">\s*<td>\s*<code>(?:<span[^>]*>)?(\w+)<', entry))
    if not isinstance(public, type):
        assert set(inspect.signature(public).parameters) <= told
        return
    assert set(constructor_arguments(public)) <= told
    shown = set(re.findall(r'<h3 id="[\w.]+\.(\w+)" class="doc', entry))
    assert {method for method, member in own_members(public).items() if inspect.isfunction(member)} <= shown


@pytest.mark.slow
def test_no_page_fetches_a_script(site):
    fetched = [page for page in site.rglob("*.html") if re.search(r'<script[^>]+src="https?:', page.read_text())]
    assert not fetched
