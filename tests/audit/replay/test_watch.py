"""What is noted around the noise source, and the rule that a charge comes before each output."""

import torch

from tests.tools.replay.tape import RecordingNoise, unpaid, watched
from torchdpcate.privacy.budget import PrivacyBudget
from torchdpcate.privacy.events import PureEvent
from torchdpcate.privacy.ledger import Ledger
from torchdpcate.privacy.mechanisms import GaussianMechanism


def test_noise_charged_but_settled_below_its_use_is_reported():
    noise = RecordingNoise()
    with watched(noise):
        ledger = Ledger({"all": PrivacyBudget(1.0, 0.0)})
        entry = ledger.charge("all", "sums", PureEvent(0.1), count=2, planned=5)
        for _ in range(2):
            noise.released(noise.laplace(1, 10.0))
        assert unpaid(noise.tape) == []
        ledger.advance(entry, 3)
        noise.released(noise.laplace(1, 10.0))
        assert unpaid(noise.tape) == []
        noise.released(noise.laplace(1, 10.0))
        assert [d.kind for d in unpaid(noise.tape)] == ["unpaid laplace", "unpaid output"]
        ledger.settle(entry, 2)
    assert unpaid(noise.tape)[-1].kind == "settled below use"
    ledger.settle(entry, 2)  # outside the block nothing is noted
    assert sum(call.kind == "settle" for call in noise.tape) == 1


def test_a_ledger_in_a_file_is_charged_before_the_noise_is_drawn(tmp_path):
    noise = RecordingNoise()
    with watched(noise):
        ledger = Ledger({"all": PrivacyBudget(1.0, 1e-5)}, tmp_path / "ledger.sqlite")
        mechanism = GaussianMechanism(PrivacyBudget(0.5, 1e-6), 1.0)
        ledger.charge("all", "mean", mechanism.event)
        mechanism.release(torch.zeros(3), noise)
    assert [call.kind for call in noise.tape] == ["charge", "gaussian", "released"]
    assert unpaid(noise.tape) == []


def test_draws_from_the_streams_handed_out_are_noted_with_their_scale_and_no_others():
    noise, other = RecordingNoise(), torch.Generator()
    with watched(noise):
        stream = noise.generator()
        torch.normal(0.0, 2.5, (3, 2), generator=stream)
        torch.empty(7).exponential_(0.5, generator=stream)
        torch.randn(4, generator=other)
        torch.randn(4)
    torch.randn(4, generator=stream)
    draws = [call.facts for call in noise.tape if call.kind == "draw"]
    assert draws == [
        {"function": "normal", "size": 6, "0": 0.0, "1": 2.5},
        {"function": "exponential_", "size": 7, "1": 0.5},
    ]


def test_coins_are_no_noise():
    noise = RecordingNoise()
    with watched(noise):
        Ledger({"all": PrivacyBudget(1.0, 0.0)}).charge("all", "batch", PureEvent(0.5))
        coins = torch.empty(9).uniform_(generator=noise.generator())
        noise.released(coins.sum())
    assert [d.kind for d in unpaid(noise.tape)] == ["output without noise"]
