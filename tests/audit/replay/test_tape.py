"""Tapes: what is recorded, what a replay hands out, and where it finds a run or its outcome to depart."""

import math

import pytest
import torch

from tests.tools.replay.check import compare
from tests.tools.replay.tape import RecordingNoise, ReplayingNoise

THIS = f"{__file__}:"


def test_a_secret_scale_is_free_where_the_step_is_given_and_the_step_is_not():
    recording = RecordingNoise()

    def draw(noise, scale, step):
        return noise.gaussian(2, scale, step)

    first = draw(recording, 1.0, 2.0**-10)
    replaying = ReplayingNoise(recording.tape)
    assert torch.equal(draw(replaying, 3.0, 2.0**-10), first)
    assert replaying.differences == []
    replaying = ReplayingNoise(recording.tape)
    draw(replaying, 3.0, 2.0**-9)
    assert [d.kind for d in replaying.differences] == ["step of gaussian"]


@pytest.mark.parametrize(
    ("method", "arguments", "others", "fact"),
    [
        ("gaussian", (2, 1.0), (3, 1.0), "size"),
        ("gaussian", (2, 1.0), (2, 1.5), "scale"),
        ("k_norm", (1, 2, 1.0), (1, 2, 1.5), "scale"),
        ("k_norm", (1, 2, 1.0), (1, 3, 1.0), "dimension"),
        ("select", (torch.zeros(3), 1.0), (torch.zeros(4), 1.0), "candidates"),
        ("select", (torch.zeros(3), 1.0), (torch.zeros(3), 2.0), "epsilon"),
        ("select", (torch.zeros(3), 1.0, 1.0), (torch.zeros(3), 1.0, 2.0), "sensitivity"),
        ("released", ([torch.zeros(2)],), ([torch.zeros(3)],), "form"),
        ("released", (1.0,), ((1.0, 2.0),), "form"),
    ],
)
def test_every_fact_of_a_call_is_compared(method, arguments, others, fact):
    def run(noise, given):
        return getattr(noise, method)(*given)

    recording = RecordingNoise()
    run(recording, arguments)
    same, other = ReplayingNoise(recording.tape), ReplayingNoise(recording.tape)
    run(same, arguments)
    run(other, others)
    assert same.differences == []
    assert [d.kind for d in other.differences] == [f"{fact} of {method}"]
    assert other.differences[0].place.startswith(THIS)


def test_selections_streams_and_outputs_are_those_of_the_tape():
    recording = RecordingNoise()

    def run(noise, shift):
        stream = noise.generator()
        index = noise.select(shift * torch.arange(50.0), 20.0)
        kept = noise.released({"sum": torch.rand(3, generator=stream) + shift, "index": [index]})
        kept["sum"] += 1  # what the run does to its copy does not reach the tape
        return kept, torch.rand(2, generator=stream)

    first, tail = run(recording, 1.0)
    for _ in range(2):
        replaying = ReplayingNoise(recording.tape)
        again, same_tail = run(replaying, -1.0)
        replaying.finish()
        assert replaying.differences == []
        assert torch.equal(first["sum"], again["sum"])
        assert first["index"] == again["index"]
        assert torch.equal(tail, same_tail)


def test_a_missing_and_a_further_call_are_found_and_the_rest_goes_on():
    recording = RecordingNoise()

    def run(noise, first, second):
        if first:
            noise.gaussian(1, 1.0)
        if second:
            noise.laplace(1, 1.0)
        return noise.gaussian(2, 5.0)

    last = run(recording, True, False)
    replaying = ReplayingNoise(recording.tape)
    assert torch.equal(run(replaying, False, True), last)
    replaying.finish()
    shown = [(d.kind, d.on_d, d.on_neighbour) for d in replaying.differences]
    assert shown == [("call of laplace", "not made", "made"), ("call of gaussian", "made", "not made")]


@pytest.mark.parametrize(
    ("before", "after", "same"),
    [
        (1.0, 1.0, True),
        (1.0, math.nextafter(1.0, 2.0), False),
        (math.nan, math.nan, True),
        (1, True, False),
        (1, 1.0, False),
        (torch.zeros(2), torch.zeros(2), True),
        (torch.zeros(2), -torch.zeros(2), False),
        (torch.zeros(2), torch.zeros(2).double(), False),
        (torch.zeros(2), torch.zeros(1, 2), False),
        (torch.tensor([math.nan]), torch.tensor([math.nan]), True),
        (torch.zeros(0), torch.zeros(0), True),
        (torch.zeros(1), 0.0, False),
    ],
)
def test_values_are_the_same_bit_for_bit_or_not(before, after, same):
    assert (compare({"v": before}, {"v": after}, "result") == []) is same
