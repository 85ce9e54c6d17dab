"""The page, served to this machine alone; with Chromium and Playwright, as a reader sees it."""

import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request

import pytest

from tests.pages.releases import average, composed
from torchdpcate.cli.main import main

pytest.importorskip("nicegui", reason="the extra explore is not installed")


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    """A served page's address."""
    path = composed().save(tmp_path_factory.mktemp("release") / "release.safetensors")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    words = [sys.executable, "-m", "torchdpcate.cli.main", "report", str(path), "--serve", str(port)]
    # NiceGUI serves otherwise where it finds itself under pytest
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST", "NICEGUI"))}
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=environment) as process:
        try:
            address = f"http://127.0.0.1:{port}/"
            _wait(address, process)
            yield address
        finally:
            process.kill()


def _wait(address: str, process: subprocess.Popen) -> None:
    for _ in range(600):
        if process.poll() is not None:
            pytest.fail(process.stdout.read().decode())
        try:
            urllib.request.urlopen(address, timeout=5).read()
            return
        except (urllib.error.URLError, ConnectionError, TimeoutError):
            time.sleep(0.1)
    pytest.fail("not served within a minute")


@pytest.mark.slow
def test_the_page_fetches_nothing_from_elsewhere(served):
    page = urllib.request.urlopen(served, timeout=30).read().decode()
    assert "Estimated effect of drug = 1 instead of 0 on days" in page
    for mark in ('src="http', 'href="http', "@import url(http"):
        assert mark not in page


@pytest.mark.slow
def test_a_name_that_is_not_this_machine_s_is_not_answered(served):
    request = urllib.request.Request(served, headers={"Host": "elsewhere.example"})
    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(request, timeout=30)
    assert refused.value.code == 403


def _socket(served: str, path: str, **headers: str) -> bytes:
    """Return the first line that is answered to a request, as a browser of another page could send it."""
    host = served.removeprefix("http://").rstrip("/")
    lines = {"Host": host, **{name.replace("_", "-"): value for name, value in headers.items()}}
    name, port = host.split(":")
    with socket.create_connection((name, int(port)), timeout=30) as line:
        words = "".join(f"{key}: {value}\r\n" for key, value in lines.items())
        line.sendall(f"GET {path} HTTP/1.1\r\n{words}\r\n".encode())
        return line.makefile("rb").readline()


@pytest.mark.slow
def test_the_socket_answers_its_own_origin_alone(served):
    own, path = served.rstrip("/"), "/_nicegui_ws/socket.io/?EIO=4&transport="
    upgrade = {
        "Upgrade": "websocket",
        "Connection": "Upgrade",
        "Sec_WebSocket_Key": "dGhlIHNhbXBsZSBub25jZQ==",
        "Sec_WebSocket_Version": "13",
    }
    other = "http://elsewhere.example"
    assert b" 101 " in _socket(served, f"{path}websocket", **upgrade, Origin=own)
    assert b" 200 " in _socket(served, f"{path}polling", Origin=own, Connection="close")
    for refused in ({"Origin": other}, {"Origin": "null"}, {}, {"Host": "elsewhere.example", "Origin": other}):
        assert b" 403 " in _socket(served, f"{path}websocket", **upgrade | refused)
    for refused in ({"Origin": other}, {"Sec_Fetch_Site": "cross-site"}):
        assert b" 403 " in _socket(served, f"{path}polling", Connection="close", **refused)


@pytest.mark.slow
def test_the_page_is_shown_in_no_frame_and_runs_nothing_from_elsewhere(served):
    with urllib.request.urlopen(served, timeout=30) as answer:
        headers = answer.headers
    assert headers["X-Frame-Options"] == "DENY"
    assert headers["X-Content-Type-Options"] == "nosniff"
    assert headers["Referrer-Policy"] == "no-referrer"
    assert {"default-src 'self'", "frame-ancestors 'none'"} <= {*headers["Content-Security-Policy"].split("; ")}


@pytest.mark.studies
@pytest.mark.parametrize("width", [1280, 390])
def test_a_reader_moves_a_slider_and_uploads_a_table(served, width, tmp_path):
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    browser = shutil.which("chromium")
    if browser is None:
        pytest.skip("chromium is not installed")
    table = tmp_path / "people.csv"
    table.write_text("age,site\n45,b\n70,a\n")
    with playwright.sync_playwright() as driver:
        page = driver.chromium.launch(executable_path=browser, args=["--no-sandbox"]).new_page(
            viewport={"width": width, "height": 900}
        )
        page.goto(served)
        headline = page.get_by_text("effect of drug = 1 instead of 0 on days: ")
        before = headline.inner_text()
        page.get_by_label("site").click()
        page.get_by_role("option", name="a", exact=True).click()
        page.wait_for_function("before => !document.body.innerText.includes(before)", arg=before)
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        with page.expect_download() as download:
            page.locator("input[type=file]").set_input_files(table)
        lines = download.value.path().read_text().splitlines()
        assert (lines[0], len(lines)) == ("effect", 3)


def test_a_release_without_covariates_and_a_port_that_is_none_are_refused(tmp_path, capsys):
    one = average().save(tmp_path / "one.safetensors")
    assert main(["report", str(one), "--serve"]) == 2
    assert "no covariates to move" in capsys.readouterr().err
    function = composed().save(tmp_path / "function.safetensors")
    assert main(["report", str(function), "--serve", "0"]) == 2
    assert "serve = 0" in capsys.readouterr().err
