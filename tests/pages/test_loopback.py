"""Requests of other origins, as browsers send them, reach nothing that is served on the loopback interface."""

import asyncio

import pytest

from torchdpcate.pages.loopback import OwnOrigin

OWN, OTHER = "127.0.0.1:8080", "http://elsewhere.example"
VISIT = {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate", "sec-fetch-dest": "document"}


def asked(kind: str, headers: dict[str, str] | list[tuple[str, str]], port: int = 8080) -> list[dict]:
    """Return what is sent in answer to a request."""
    sent: list[dict] = []

    async def app(scope, receive, send):
        answer = {"type": "http.response.start", "status": 200, "headers": [(b"x-app", b"1")]}
        await send(answer if kind == "http" else {"type": "websocket.accept"})

    async def send(message):
        sent.append(message)

    pairs = headers.items() if isinstance(headers, dict) else headers
    scope = {"type": kind, "headers": [(name.encode(), value.encode()) for name, value in pairs]}
    asyncio.run(OwnOrigin(app, port)(scope, None, send))
    return sent


@pytest.mark.parametrize(
    "headers",
    [
        {"host": OWN},
        {"host": OWN, "origin": f"http://{OWN}"},
        {"host": "localhost:8080", "origin": "http://localhost:8080", "sec-fetch-site": "same-origin"},
        {"host": OWN, "sec-fetch-site": "none"},
        {"host": OWN} | VISIT,
    ],
)
def test_the_own_page_and_a_visit_are_answered_with_headers(headers):
    (start,) = asked("http", headers)
    found = {name.decode(): value.decode() for name, value in start["headers"]}
    assert (start["status"], found["x-app"]) == (200, "1")
    assert found["x-frame-options"] == "DENY"
    assert found["x-content-type-options"] == "nosniff"
    assert found["referrer-policy"] == "no-referrer"
    policy = found["content-security-policy"]
    for part in ("default-src 'self'", "frame-ancestors 'none'", "base-uri 'none'", "form-action 'none'"):
        assert part in policy.split("; ")
    assert f"connect-src 'self' ws://{headers['host']}" in policy.split("; ")


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"host": "elsewhere.example"},
        {"host": "elsewhere.example:8080", "origin": "http://elsewhere.example:8080"},  # its name pointed here
        {"host": "127.0.0.1"},
        {"host": "127.0.0.1:8081"},
        [("host", OWN), ("host", "elsewhere.example")],
        {"host": OWN, "origin": OTHER},
        {"host": OWN, "origin": "null"},
        {"host": OWN, "origin": "http://127.0.0.1:3000"},
        {"host": OWN, "origin": "http://localhost:8080"},
        {"host": OWN, "origin": f"https://{OWN}"},
        {"host": OWN, "origin": f"http://{OWN}.elsewhere.example"},
        [("host", OWN), ("origin", f"http://{OWN}"), ("origin", OTHER)],
        {"host": OWN, "sec-fetch-site": "cross-site"},
        {"host": OWN, "sec-fetch-site": "same-site", "sec-fetch-dest": "script"},
        {"host": OWN} | VISIT | {"sec-fetch-dest": "iframe"},
    ],
)
def test_another_origin_or_name_is_refused(headers):
    start, body = asked("http", headers)
    assert start["status"] == 403
    assert b"own origin" in body["body"]
    assert asked("websocket", headers) == [{"type": "websocket.close", "code": 1008}]


def test_a_socket_names_its_origin():
    assert asked("websocket", {"host": OWN, "origin": f"http://{OWN}"}) == [{"type": "websocket.accept"}]
    assert asked("websocket", {"host": OWN}) == [{"type": "websocket.close", "code": 1008}]


def test_the_port_of_http_itself_may_be_left_out():
    assert asked("http", {"host": "localhost"}, port=80)[0]["status"] == 200
