"""What a page served on the loopback interface answers: its own origin alone, with headers that keep it so."""

from collections.abc import Awaitable, Callable, Iterator, MutableMapping
from typing import Any

Scope = MutableMapping[str, Any]
Send = Callable[[Scope], Awaitable[None]]
Receive = Callable[[], Awaitable[Scope]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

NAMES = ("127.0.0.1", "localhost")
_HEADERS = {
    "x-frame-options": "DENY",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
}
_REFUSED = b"this page answers its own origin alone\n"
# NiceGUI's page has scripts in its text, and compiles templates; nothing is fetched from elsewhere, as offline
_POLICY = (
    "default-src 'self'; script-src 'self' 'unsafe-inline' 'unsafe-eval'; style-src 'self' 'unsafe-inline'; "
    "img-src 'self' data: blob:; font-src 'self' data:; connect-src 'self' ws://{}; object-src 'none'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)


class OwnOrigin:
    """An ASGI application of which other sites' pages get nothing: no socket, no answer, no frame.

    A request has one ``Host``, a name of this machine with the port: another site's name that was pointed here is
    refused. An ``Origin`` is that host's; a WebSocket has one. Where a browser says that another site's page requests
    it, it is a page that the user goes to. Programs of this machine that send what they like are not kept out.

    Args:
        app: The application.
        port: That it is served at.

    Example:
        >>> import asyncio
        >>> async def app(scope, receive, send):
        ...     await send({"type": "http.response.start", "status": 200, "headers": []})
        >>> async def send(message):
        ...     if "status" in message:
        ...         print(message["status"])
        >>> for host in (b"localhost:8080", b"elsewhere.example"):
        ...     scope = {"type": "http", "headers": [(b"host", host)]}
        ...     asyncio.run(OwnOrigin(app, 8080)(scope, None, send))
        200
        403
    """

    def __init__(self, app: App, port: int) -> None:
        self.app = app
        self.hosts = {f"{name}:{port}" for name in NAMES} | (set(NAMES) if port == 80 else set())

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request of the own origin, refuse others."""
        if scope["type"] not in ("http", "websocket"):
            await self.app(scope, receive, send)
        elif self._own(scope):
            await self.app(scope, receive, _with_headers(send, _values(scope, b"host")[0]))
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008})
        else:
            await send({"type": "http.response.start", "status": 403, "headers": [(b"content-type", b"text/plain")]})
            await send({"type": "http.response.body", "body": _REFUSED})

    def _own(self, scope: Scope) -> bool:
        hosts, origins, sites = (_values(scope, name) for name in (b"host", b"origin", b"sec-fetch-site"))
        if len(hosts) != 1 or hosts[0] not in self.hosts:
            return False
        if scope["type"] == "websocket" or origins:
            return origins == [f"http://{hosts[0]}"]
        visited = _values(scope, b"sec-fetch-dest") == ["document"]
        return visited or set(sites) <= {"same-origin", "none"}


def _values(scope: Scope, name: bytes) -> list[str]:
    return [value.decode("latin-1") for key, value in scope["headers"] if key == name]


def _headers(host: str) -> Iterator[tuple[bytes, bytes]]:
    for name, value in (_HEADERS | {"content-security-policy": _POLICY.format(host)}).items():
        yield name.encode(), value.encode()


def _with_headers(send: Send, host: str) -> Send:
    """Return a function that sends what the application does, with the headers."""

    async def sent(message: Scope) -> None:
        if message["type"] == "http.response.start":
            message = {**message, "headers": [*message.get("headers", ()), *_headers(host)]}
        await send(message)

    return sent
