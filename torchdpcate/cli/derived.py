"""Whether the folder ``release/`` of a run, or of a sweep's runs, holds what follows from its release file alone.

A release file verifies by itself, byte by byte. Whatever else is in the folder is made again from it and compared, so
that nothing of the curator's can be there: no number, word, name or picture, and no file of another kind.
"""

import io
from collections.abc import Callable, Collection, Iterator
from pathlib import Path

import numpy as np

from torchdpcate._text import plain
from torchdpcate.cli.curator import summary_path
from torchdpcate.data.study import read_queries
from torchdpcate.errors import InputError, TorchDPCateError
from torchdpcate.pages.figures import Made, figures_of
from torchdpcate.pages.reader import PAGE, reader_page
from torchdpcate.release.file import RELEASE_FILE, SUMS_FILE, Release, check_sums, load_release
from torchdpcate.release.signature import signature_path
from torchdpcate.verify.card import texts_beside
from torchdpcate.verify.file import verify_release

_AGAIN = "is not what its release makes: remove it, or write it anew (train, report, verify --card)"
_RARE = 1e-6
"""Probability that noise of the least scale is refused."""
_PIXEL = 8  # of 255: coordinates that differ in their last places move a pixel's shade


def leaks(folder: str | Path, reference: str | None = None) -> tuple[str, ...]:
    """Return what in ``release/`` of a run, or of the runs of a sweep, does not follow from release files.

    Refused are a release file that does not verify; any other file, but checksums and the signature, that is not what
    the release makes under that name (figures may differ by roundings of their coordinates); links and folders; names
    in ``SHA256SUMS`` of files that are not there; and coefficients with next to no noise, held against the curator's.

    Args:
        folder: Run folder, or a folder of runs.
        reference: Table of a public population that ``report`` was given, by which pages are made again.

    Returns:
        A sentence each, which begins with the file; empty where all is as it should be.

    Raises:
        InputError: No run, or one without its curator's files.
    """
    root = Path(folder)
    places = sorted(path.parent for path in root.glob("**/release") if (path.parent / "curator").is_dir())
    own = (root / "release").is_dir() or summary_path(root).exists()
    if not places or (own and root not in places):
        raise InputError(f"run = {folder}: has no folders release and curator; give a run's own, or a folder of runs")
    return tuple(
        f"{(place / 'release').relative_to(root) / name}: {why}"
        for place in places
        for name, why in _run(place, reference)
    )


def _run(run: Path, reference: str | None) -> Iterator[tuple[str, str]]:
    """Return what is wrong with a run's folder, with the name of each file."""
    folder = run / "release"
    path = folder / RELEASE_FILE
    try:
        verify_release(path)
        release = load_release(path)
        absent = check_sums(folder).absent if (folder / SUMS_FILE).is_file() else []
    except TorchDPCateError as error:
        yield RELEASE_FILE, str(error).removeprefix(f"{path}: ")
        return
    if absent:
        yield SUMS_FILE, f"lists {plain(absent[0])}, which is not there"
    rows = None if reference is None else read_queries(reference, release.schema)
    texts = texts_beside(release, path) | {PAGE: lambda: reader_page(release, path=path, reference=rows)}
    made = {name: _encoded(make) for name, make in texts.items()} | dict(figures_of(release))
    yield from _others(folder, made, {RELEASE_FILE, SUMS_FILE, signature_path(path).name})
    yield from _noiseless(run, release)


def _encoded(make: Callable[[], str]) -> Callable[[], bytes]:
    return lambda: make().encode()


def _others(folder: Path, made: Made, own: Collection[str]) -> Iterator[tuple[str, str]]:
    """Return the files of a folder that are not made of what they should be."""
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        if path.is_symlink() or not path.is_file():
            yield plain(name), "is no file of its own"
        elif name not in made and name not in own:
            yield plain(name), "is none that the library writes there"
        elif name in made:
            try:
                again = made[name]()
            except InputError as error:
                yield name, f"cannot be made again ({error})"
                continue
            if not _same(path.read_bytes(), again):
                yield name, _AGAIN


def _same(data: bytes, again: bytes) -> bool:
    """Whether two files are the same; figures also where their pixels are, with nothing beside the pixels."""
    if data == again or not again.startswith(_PNG):
        return data == again
    from PIL import Image

    try:
        one, other = (np.asarray(Image.open(io.BytesIO(each)).convert("RGBA")).astype(int) for each in (data, again))
        alike = one.shape == other.shape and bool((np.abs(one - other) <= _PIXEL).all())
        return alike and list(_chunks(data)) == list(_chunks(again))
    except Exception:  # whatever is no picture
        return False


_PNG = b"\x89PNG\r\n\x1a\n"


def _chunks(png: bytes) -> Iterator[bytes]:
    """Return the parts of a PNG that are no pixels, whatever is behind its end included."""
    start = len(_PNG)
    while start < len(png):
        end = start + 12 + int.from_bytes(png[start : start + 4])
        if png[start + 4 : start + 8] != b"IDAT":
            yield png[start:end]
        start = end


def _noiseless(run: Path, release: Release) -> Iterator[tuple[str, str]]:
    r"""Return whether released coefficients have far less noise than their statement allows.

    Of p numbers with noise of scale s, all are within t s of the exact ones with a probability of at most t^p.
    Objective perturbation by b moves the minimiser by at least b / L, L the largest curvature, which is the curator's.
    """
    from safetensors import SafetensorError
    from safetensors.numpy import load_file

    numbers = run / "curator" / "numbers.safetensors"
    try:
        exact = load_file(numbers)
        theta, public = exact["theta_without_noise"], release.privacy.public
        scale = public.get("noise_scale") or public["perturbation_scale"] / float(exact["hessian_bound"])
        moved = np.abs(release.tensors()["theta"].numpy() - theta).max()
    except SafetensorError as error:
        raise InputError(f"{numbers}: is damaged, and the released noise cannot be checked; train again") from error
    except (OSError, ValueError, LookupError, TypeError):
        return  # a kind without such coefficients
    if moved < _RARE ** (1 / theta.size) * scale:
        yield RELEASE_FILE, f"theta has far less noise than stated: {moved:.3g} where {scale:.3g} each is the least"
