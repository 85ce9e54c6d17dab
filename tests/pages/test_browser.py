import re
import shutil
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from experiments.pages import RELEASES
from tests.pages.releases import cohort
from tests.pages.test_offline import rich
from torchdpcate.pages.reader import write_page
from torchdpcate.release import rule
from torchdpcate.release.file import Release

playwright = pytest.importorskip("playwright.sync_api", reason="Playwright drives the browser")

_OPEN = "document.querySelectorAll('details').forEach((node) => { node.open = true; })"
_FAINT = """() => {
  const parts = (text) => text.match(/[0-9.]+/g).map(Number), light = ([r, g, b]) => [r, g, b]
    .map((one) => one / 255).map((one) => (one <= .03928 ? one / 12.92 : ((one + .055) / 1.055) ** 2.4))
    .reduce((sum, one, i) => sum + one * [.2126, .7152, .0722][i], 0);
  const behind = (node) => {
    if (!node) return [255, 255, 255];
    const found = parts(getComputedStyle(node).backgroundColor);
    return found.length === 4 && found[3] === 0 ? behind(node.parentElement) : found;
  };
  return [...document.querySelectorAll("body *:not(script):not(svg *)")].filter((node) =>
    [...node.childNodes].some((child) => child.nodeType === 3 && child.textContent.trim())).filter((node) => {
    const two = [parts(getComputedStyle(node).color), behind(node)].map(light).sort();
    return (two[1] + .05) / (two[0] + .05) < 4.5;
  }).map((node) => node.outerHTML.slice(0, 80));
}"""
_STOPS = "button, input, select, summary, [tabindex='0']"


@pytest.fixture(scope="module")
def browser():
    path = shutil.which("chromium")
    if path is None:
        pytest.skip("chromium is not installed")
    with playwright.sync_playwright() as driver:
        found = driver.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield found
        found.close()


def written(release: Release, folder: Path) -> str:
    return write_page(release.save(folder / "release.safetensors")).as_uri()


def opened(browser, release: Release, folder: Path, width: int = 1280):
    """Return the page of a release, and what it says of faults and asks the network for."""
    page = browser.new_page(viewport={"width": width, "height": 900}, bypass_csp=True)
    said: list[str] = []
    page.on("console", lambda message: said.append(message.text))
    page.on("pageerror", lambda error: said.append(str(error)))
    page.on("request", lambda request: said.extend([request.url] * (not request.url.startswith(("file:", "data:")))))
    page.goto(written(release, folder))
    return page, said


@pytest.mark.parametrize("name", RELEASES)
def test_anybody_can_read_the_page(browser, name: str, tmp_path: Path) -> None:
    """Headings in order, names of controls, contrast, focus that is seen, nothing wider than the screen, print."""
    page, said = opened(browser, RELEASES[name](), tmp_path)
    page.evaluate(_OPEN)
    for width in (1280, 390):
        page.set_viewport_size({"width": width, "height": 900})
        assert page.evaluate("document.documentElement.scrollWidth") <= width
    levels = [int(tag[1]) for tag in page.eval_on_selector_all("h1, h2, h3, h4", "all => all.map((n) => n.tagName)")]
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(after <= before + 1 for before, after in pairwise(levels))
    assert page.evaluate(_FAINT) == []
    assert page.locator("th:not([scope])").count() == 0
    assert all(len(text) > 20 for text in page.eval_on_selector_all("img", "all => all.map((n) => n.alt)"))
    assert page.locator("[aria-live=polite]").count() == page.locator("#ask").count()
    stops = page.locator(_STOPS).filter(visible=True)
    for _ in range(stops.count()):
        page.keyboard.press("Tab")
        page.evaluate("document.activeElement.dataset.seen = getComputedStyle(document.activeElement).outlineStyle")
    assert {stops.nth(k).get_attribute("data-seen") for k in range(stops.count())} == {"solid"}
    named = "all => all.map((n) => n.labels?.length || n.ariaLabel || n.tagName === 'SUMMARY')"
    assert all(page.eval_on_selector_all(_STOPS, named))
    page.evaluate(_OPEN.replace("true", "false"))
    page.emulate_media(media="print")
    assert page.get_by_text("Adjacency").is_visible()
    assert not page.locator("#asked input:visible").count()
    assert not said


@pytest.mark.parametrize("name", RELEASES)
def test_axe_finds_nothing(browser, name: str, tmp_path: Path) -> None:
    axe = pytest.importorskip("axe_core_python", reason="axe-core-python has the rules")
    page, _ = opened(browser, RELEASES[name](), tmp_path, 390)
    page.evaluate(_OPEN)
    page.add_script_tag(path=Path(axe.__file__).parent / "axe.min.js")
    assert [(rule["id"], rule["nodes"][0]["html"]) for rule in page.evaluate("axe.run()")["violations"]] == []


def test_a_slider_moves_the_answer_and_its_interval(browser, tmp_path: Path) -> None:
    release = replace(rich(False), privacy=rule._example().privacy)
    page, said = opened(browser, release, tmp_path)
    page.locator("#asked input").first.evaluate("node => { node.value = 25; node.dispatchEvent(new Event('input')); }")
    page.locator("#asked select").nth(0).select_option(label="m")
    page.locator("#asked select").nth(1).select_option(label="c")
    row = {"age": 25.0, "sex": "m", "site": "c"}
    words = " ".join(page.locator(where).inner_text() for where in ("#number", "#ends")).replace("\N{MINUS SIGN}", "-")
    shown = [float(text) for text in re.findall(r"[-+][0-9.]+", words)]
    assert shown == pytest.approx([release.effect(row)[0], *release.interval(row)[0]], abs=6e-3)
    assert not said


def test_a_curve_has_a_band_or_is_not_drawn(browser, tmp_path: Path) -> None:
    (banded, alone) = (tmp_path / name for name in ("banded", "alone"))
    banded.mkdir()
    alone.mkdir()
    page, _ = opened(browser, cohort(), banded)
    assert page.locator("#chart polygon.band").count() == 1
    assert "no confidence interval" in page.locator("#ends").inner_text()
    bare = replace(rich(False), law=None, privacy=rule._example().privacy)
    page, _ = opened(browser, bare, alone)
    assert page.locator("#chart svg").count() == 0
    assert not page.locator("#against").is_visible()


def test_a_rule_says_whom_it_treats_and_what_that_may_lose(browser, tmp_path: Path) -> None:
    (bare, known) = (tmp_path / name for name in ("bare", "known"))
    bare.mkdir()
    known.mkdir()
    page, _ = opened(browser, rule._example(), bare)
    slider = page.locator("#asked input")
    for value, words in ((0.9, "a = 1"), (0.1, "a = 0")):
        slider.evaluate(f"node => {{ node.value = {value}; node.dispatchEvent(new Event('input')); }}")
        assert page.locator("#answer").inner_text() == f"Advice: {words}"
        assert page.locator("#loss").inner_text() == "What this advice loses if it is wrong is not known."
    found = RELEASES["trial"]().rule(cost=2.0, threshold=0.5)
    page, _ = opened(browser, found, known)
    person = {"alter": 60.0, "sx": 1, "vas0": 6.0}
    for name, value in (("age, years", 60), ("pain at entry, points", 6)):
        page.get_by_label(name).first.evaluate(
            f"node => {{ node.value = {value}; node.dispatchEvent(new Event('input')); }}"
        )
    page.get_by_label("sex").first.select_option(label="men")
    low, high = sorted(-1 * found.effect.interval(person)[0] - 2.0)
    assert page.locator("#answer").inner_text() == "Advice: placebo"
    assert f"{high:.2f}" in page.locator("#loss").inner_text()
    assert low < 0 < high
