"""The library's own errors: what a user can mend, and what the numbers would not allow."""

from pathlib import Path
from traceback import extract_tb


class TorchDPCateError(Exception):
    """Base class of every error this library raises on purpose."""


class InputError(TorchDPCateError, ValueError):
    """A user's mistake; the message names the argument, its value and the remedy (exit code 2)."""


class MissingError(InputError, AttributeError):
    """An attribute that an object has not, and why; for ``hasattr`` and ``getattr`` with a default it is not there."""


class PrivacyWarning(UserWarning):
    """What a user is allowed to do and should think about: several fits to the same records, a large delta."""


class BudgetError(InputError):
    """A charge that the privacy budget does not cover; the message says what is left."""


class ReleaseFileError(InputError):
    """A file that is not a release, is damaged, or is of a format this version does not know."""


class VerificationError(TorchDPCateError):
    """A release that was changed, or whose statement does not agree with itself (exit code 1)."""


class NumericalError(TorchDPCateError, ArithmeticError):
    """A computation that missed its stated tolerance; nothing may be released from it."""


class ProcessError(TorchDPCateError):
    """A process that ended before its work did (exit code 1)."""


class AuditFailure(TorchDPCateError):
    """An audit that found a claim broken; the message says which, and by what (exit code 1)."""


def place_of(error: BaseException) -> str:
    """Return the innermost line of this package where an error arose, in words; empty where there is none."""
    frames = [frame for frame in extract_tb(error.__traceback__) if "torchdpcate" in Path(frame.filename).parts]
    return f" in {Path(frames[-1].filename).name}, line {frames[-1].lineno}" if frames else ""


def reason_of(error: BaseException) -> str:
    """Return why something failed, without what a library says of a value: it may be of a record's.

    Example:
        >>> reason_of(OSError(28, "No space left on device")), reason_of(MemoryError())
        ('No space left on device', 'MemoryError')
    """
    if isinstance(error, TorchDPCateError):
        return " ".join(str(error).split())
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return f"{type(error).__name__}{place_of(error)}"


def lacks_room(error: BaseException | None) -> bool:
    """Return whether an error came of too little memory, or of a disk: of the machine, and of no number.

    Example:
        >>> lacks_room(MemoryError()), lacks_room(ValueError())
        (True, False)
    """
    while error is not None:
        if isinstance(error, MemoryError | OSError) or "allocate memory" in str(error):  # as torch says it
            return True
        error = error.__cause__
    return False
