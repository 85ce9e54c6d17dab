import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from tests.pages.releases import cohort
from tests.pages.test_offline import rich
from torchdpcate.pages.reader import write_page
from torchdpcate.release import rule
from torchdpcate.release.file import Release

playwright = pytest.importorskip("playwright.sync_api", reason="Playwright drives the browser")


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


@pytest.mark.parametrize("width", [1280, 390])
def test_a_slider_moves_the_answer_and_its_interval(browser, tmp_path: Path, width: int) -> None:
    release = replace(rich(False), privacy=rule._example().privacy)
    page = browser.new_page(viewport={"width": width, "height": 900})
    said, requested = [], []
    page.on("console", lambda message: said.append(message.text))
    page.on("pageerror", lambda error: said.append(str(error)))
    page.on("request", lambda request: requested.append(request.url))
    page.goto(written(release, tmp_path))
    page.locator("#asked input").first.evaluate("node => { node.value = 25; node.dispatchEvent(new Event('input')); }")
    page.locator("#asked select").nth(0).select_option(label="m")
    page.locator("#asked select").nth(1).select_option(label="c")
    row = {"age": 25.0, "sex": "m", "site": "c"}
    shown = float(page.locator("#number").inner_text().replace("\N{MINUS SIGN}", "-"))
    assert shown == pytest.approx(release.effect(row)[0], rel=6e-3)
    ends = page.locator("#ends").inner_text().replace("\N{MINUS SIGN}", "-").split("interval ")[1].split(" to ")
    assert list(map(float, ends)) == pytest.approx(release.interval(row)[0].tolist(), rel=6e-3)
    page.locator("#against").select_option(label="site")
    assert page.locator("#chart circle").count() == 3
    assert not said
    assert not [url for url in requested if not url.startswith(("file:", "data:"))]
    assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_a_curve_has_a_band_or_is_not_drawn(browser, tmp_path: Path) -> None:
    page, (banded, alone) = browser.new_page(), (tmp_path / name for name in ("banded", "alone"))
    banded.mkdir()
    alone.mkdir()
    page.goto(written(cohort(), banded))
    assert page.locator("#chart polygon.band").count() == 1
    assert "no confidence interval" in page.locator("#ends").inner_text()
    page.goto(written(replace(rich(False), law=None, privacy=rule._example().privacy), alone))
    assert page.locator("#chart svg").count() == 0
    assert not page.locator("#against").is_visible()
    assert "no curve is drawn" in page.locator("#ends").inner_text()


def test_a_rule_says_whom_it_treats(browser, tmp_path: Path) -> None:
    page = browser.new_page()
    page.goto(written(rule._example(), tmp_path))
    slider = page.locator("#asked input")
    for value, words in ((0.9, "a = 1"), (0.1, "a = 0")):
        slider.evaluate(f"node => {{ node.value = {value}; node.dispatchEvent(new Event('input')); }}")
        assert page.locator("#answer").inner_text() == words
