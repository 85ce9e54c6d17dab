"""What is noted around the noise source, and the rule that a charge comes before each output."""

import torch

from tests.tools.replay.tape import RecordingNoise, unpaid, watched
from torchdpcate.privacy.budget import PrivacyBudget
from torchdpcate.privacy.events import PureEvent
from torchdpcate.privacy.ledger import Ledger


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
