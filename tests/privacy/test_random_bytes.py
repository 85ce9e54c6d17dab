import multiprocessing
import os
import pickle
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from scipy.stats import chisquare

from torchdpcate.privacy import draws as module
from torchdpcate.privacy.draws import keystream, random_bytes
from torchdpcate.privacy.noise import NoiseSource

ALARM = 1e-6


def test_the_keystream_is_that_of_rfc_8439():
    """Appendix A.1, test vectors 1 and 2: key, nonce and counter 0, then 1."""
    expected = (
        "76b8e0ada0f13d90405d6ae55386bd28bdd219b8a08ded1aa836efcc8b770dc7"
        "da41597c5157488d7724e03fb8d84a376a43b8f41518a11cc387b669b2ee6586"
        "9f07e7be5551387a98ba977c732d080dcb0f29a048e3656912c6533e32ee7aed"
        "29b721769ce64e43d57133b074d839d531ed1f28510afb45ace10a1f4b794d6f"
    )
    assert keystream(bytes(32), 128).hex() == expected
    assert keystream(bytes(32), 5) == bytes.fromhex(expected)[:5]


def test_every_call_asks_the_operating_system_and_keeps_nothing(monkeypatch):
    requested, system = [], os.urandom
    monkeypatch.setattr(os, "urandom", lambda count: requested.append(count) or system(count))
    for count in (0, 10, 1024, 1025, 10**6):
        assert len(random_bytes(count)) == count
    assert requested == [0, 10, 1024, 32, 32]
    assert not [value for value in vars(module).values() if isinstance(value, bytes | bytearray)]


def test_few_and_many_are_the_systems_and_the_cipher_of_its_key(monkeypatch):
    monkeypatch.setattr(os, "urandom", lambda count: bytes(range(32)) if count == 32 else b"s" * count)
    assert random_bytes(7) == b"s" * 7
    assert random_bytes(2000) == keystream(bytes(range(32)), 2000)


def _drawn(_=None):
    return random_bytes(5000)


@pytest.mark.skipif("fork" not in multiprocessing.get_all_start_methods(), reason="no fork")
def test_forks_threads_and_calls_never_share_bytes():
    noise = NoiseSource.system()
    found = [random_bytes(5000), noise._bytes(5000)]
    with multiprocessing.get_context("fork").Pool(4) as pool:
        found += pool.map(_drawn, range(8))
    with ThreadPoolExecutor(4) as threads:
        found += list(threads.map(_drawn, range(8)))
    found += [random_bytes(5000), pickle.loads(pickle.dumps(noise))._bytes(5000)]
    pieces = {part[i : i + 16] for part in found for i in range(0, 4992, 16)}
    assert len(pieces) == len(found) * 312  # two of 2^13 pieces of 128 bits meet once in 2^103


@pytest.mark.parametrize("count", [1000, 2**20])
def test_bytes_pairs_and_bits_are_uniform(count):
    data = np.concatenate([np.frombuffer(random_bytes(count), np.uint8) for _ in range(2**20 // count)])
    assert chisquare(np.bincount(data, minlength=256)).pvalue > ALARM
    assert chisquare(np.bincount(data[: len(data) // 2 * 2].view(np.uint16) >> 4, minlength=4096)).pvalue > ALARM
    flips = np.unpackbits(data[1:] ^ data[:-1])
    assert chisquare(np.bincount(flips, minlength=2)).pvalue > ALARM


def test_fixed_noise_takes_no_fresh_bytes(monkeypatch):
    monkeypatch.setattr(os, "urandom", lambda count: pytest.fail("fresh bytes in a test's noise"))
    fixed = NoiseSource.fixed(3)
    assert not fixed.private
    assert len(fixed.fine_gaussian(5000, 1.0)) == 5000
