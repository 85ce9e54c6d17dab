"""The documentation site: every public name has its entry, every page is linked, links are those of the site."""

import importlib.util
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

import torchdpcate

PROJECT = Path(__file__).parents[2]
DOCS, SITE = PROJECT / "docs", PROJECT / ".mkdocs.yml"
LINK = re.compile(r"\]\(([^)\s#]+\.md)(?:#[^)]*)?\)")


@pytest.fixture(scope="module")
def hooks() -> ModuleType:
    pytest.importorskip("latex2mathml", reason="the extra docs is not installed")
    spec = importlib.util.spec_from_file_location("site_hooks", DOCS / "site" / "hooks.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def test_every_public_name_has_its_entry_in_the_reference():
    text = "\n".join(path.read_text() for path in (DOCS / "reference").glob("*.md"))
    entries = re.findall(r"^::: (\S+)$", text, re.MULTILINE)
    kinds = (getattr(torchdpcate, name) for name in torchdpcate.__all__)
    assert sorted(entries) == sorted(f"{kind.__module__}.{kind.__name__}" for kind in kinds)


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


def test_a_formula_is_mathml(hooks):
    shown = hooks.on_page_content(r'<span class="arithmatex">\(x &lt; 1\)</span>', None, None, None)
    assert shown.startswith("<math")
    assert "<mi>x</mi><mo>&#x0003C;</mo>" in shown


@pytest.mark.slow
def test_search_works_in_pages_opened_as_files_and_nothing_is_fetched(tmp_path):
    pytest.importorskip("mkdocs")
    words = [sys.executable, "-m", "mkdocs", "build", "-q", "-f", str(SITE), "-d", str(tmp_path)]
    subprocess.run(words, check=True, env=os.environ | {"NO_MKDOCS_2_WARNING": "1"}, cwd=PROJECT)
    fetched = [page for page in tmp_path.rglob("*.html") if re.search(r'<script[^>]+src="https?:', page.read_text())]
    assert not fetched
    playwright = pytest.importorskip("playwright.sync_api", reason="Playwright drives the browser")
    browser = shutil.which("chromium")
    if browser is None:
        pytest.skip("chromium is not installed")
    with playwright.sync_playwright() as driver:
        page = driver.chromium.launch(executable_path=browser, args=["--no-sandbox"]).new_page()
        requested = []
        page.on("request", lambda request: requested.append(request.url))
        page.goto((tmp_path / "index.html").as_uri())
        page.wait_for_timeout(500)
        page.keyboard.press("s")
        page.wait_for_timeout(300)
        page.keyboard.type("overlap")
        page.wait_for_selector(".md-search-result__item", timeout=30_000)
        assert not [url for url in requested if url.startswith("http")]
