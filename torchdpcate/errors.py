"""The library's own errors: what a user can mend, and what the numbers would not allow."""


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
