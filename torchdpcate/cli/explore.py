"""``torchdpcate explore``: a page on this machine that asks a release."""

from torchdpcate.errors import InputError
from torchdpcate.release.file import load_release, release_path
from torchdpcate.release.signature import read_signature


def explore(release: str, port: int = 8080, show: bool = True) -> None:
    """Serve a page on the loopback interface where covariates are moved and the release answers.

    Args:
        release: Release file, or the run folder that holds it.
        port: Port on the loopback interface.
        show: Whether to open a browser.

    Raises:
        InputError: A release without covariates, a port that is none or is taken, or the extra is not installed.
        ReleaseFileError: Not a release, changed, damaged, or of a newer format.
    """
    if not 1 <= port <= 65535:
        raise InputError(f"port = {port}: give a number from 1 to 65535")
    from torchdpcate.pages.questions import questions

    path = release_path(release)
    loaded, signature = load_release(path), read_signature(path)
    questions(loaded)
    try:
        from torchdpcate.pages.explore import serve
    except ModuleNotFoundError as error:
        if (error.name or "").split(".")[0] != "nicegui":
            raise
        raise InputError("explore: needs NiceGUI; pip install nicegui") from None
    _check_free(port)
    print(f"http://127.0.0.1:{port} (this machine alone; Ctrl-C ends it)", flush=True)
    serve(loaded, "unsigned" if signature is None else signature.words, port, show)


def _check_free(port: int) -> None:
    import socket

    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError as error:
            raise InputError(f"port = {port}: {error.strerror}; choose another with --port") from None
