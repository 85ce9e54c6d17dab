"""Random bytes for noise in great number: the operating system's, stretched by a cipher where there are many."""

import os

_FEW = 1024
"""Bytes up to which the operating system is asked for all of them, which then takes no longer."""

_KEY = 32


def random_bytes(count: int) -> bytes:
    """Return so many random bytes, others at each call, which nobody can predict or replay.

    Few are the operating system's own. More are the ChaCha20 keystream (RFC 8439) of a key of 256 bits that the
    operating system gives for this one call and that is kept nowhere: so a fork, a thread or a checkpoint has no state
    to repeat, and what is drawn later says nothing of what was drawn before. Telling such bytes from uniform ones is
    telling ChaCha20 from a random function, as it is for Linux's own generator.

    Args:
        count: How many.

    Example:
        >>> len(random_bytes(5000)), random_bytes(5000) == random_bytes(5000)
        (5000, False)
    """
    return os.urandom(count) if count <= _FEW else keystream(os.urandom(_KEY), count)


def keystream(key: bytes, count: int) -> bytes:
    """Return the first bytes of the ChaCha20 keystream of a key of 32 bytes, counter and nonce 0."""
    # not at the top: it takes a twentieth of a second, and nobody who only predicts needs it
    from cryptography.hazmat.primitives.ciphers import Cipher, algorithms

    return Cipher(algorithms.ChaCha20(key, bytes(16)), None).encryptor().update(bytes(count))
