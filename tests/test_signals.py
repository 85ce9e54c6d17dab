import os
import signal

import pytest

from torchdpcate._process import HeldSignals, Terminated, terminable


@pytest.fixture
def ignoring():
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("ignoring")
def test_ctrl_c_that_is_ignored_stays_ignored():
    with HeldSignals() as held:
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
        signal.raise_signal(signal.SIGINT)
        held.deliver()
    assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN


@pytest.mark.usefixtures("ignoring")
def test_sigterm_still_ends_what_ignores_ctrl_c():
    with terminable(), HeldSignals() as held:
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGTERM)
        with pytest.raises(Terminated):
            held.deliver()


def test_a_signal_that_the_curator_handles_is_the_curators():
    """A handler that is there stays, and is called."""
    seen = []
    before = signal.signal(signal.SIGTERM, lambda *_: seen.append(1))
    try:
        with terminable():
            os.kill(os.getpid(), signal.SIGTERM)
        assert seen == [1]
    finally:
        signal.signal(signal.SIGTERM, before)
    with pytest.raises(Terminated), terminable():
        os.kill(os.getpid(), signal.SIGTERM)
    assert signal.getsignal(signal.SIGTERM) == before
