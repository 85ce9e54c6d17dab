"""What one record costs D, N and Q together: closed forms, and no pair of records that costs more."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from torchdpcate.causal.estimand import ESTIMANDS, Estimand, make_estimand
from torchdpcate.estimators.average.weighted import (
    BalancedDifference,
    EffectFacts,
    Range,
    ReleasedRanges,
    Weighted,
    joint_cost,
    record_cost,
)

PARTS = ("difference", "size", "spread")
EPSILONS = {"difference": 0.40, "size": 0.05, "spread": 0.10}


def number(value: float) -> Tensor:
    return torch.tensor([value], dtype=torch.float64)


def of(*ends: float) -> Range:
    low, high = (number(end) for end in ends)
    return low, high


def drawn(g: torch.Generator, low: float, high: float) -> Range:
    return of(*(low + (high - low) * torch.rand(2, generator=g)).sort().values.tolist())


def _weights_within(estimand: Estimand, z: float, low: float, high: float) -> Range:
    """Least and largest weight of an arm for propensities in this range."""
    e = torch.tensor([low, high], dtype=torch.float64)
    if (low, high) == (0.1, 0.9) and not all(estimand.clips):  # and below or above what is not clipped
        e = torch.cat([e, number(float(estimand.clips[0]))])
    least, most = estimand.at(e, torch.full_like(e, z)).aminmax()
    return least[None], most[None]


def worst_pair(treated: Range, control: Range, model: Range, scales: dict[str, Tensor], g: torch.Generator) -> float:
    """The largest loss of two records, over a crowd of random ones, most with an outcome at an end."""

    def terms(z: float, weights: Range) -> Tensor:
        inner = torch.rand(500, generator=g, dtype=torch.float64)
        w = weights[0] + (weights[1] - weights[0]) * torch.cat([inner, number(0).expand(60), number(1).expand(60)])
        y = torch.rand(len(w), generator=g, dtype=torch.float64)
        y = torch.where(torch.rand(len(w), generator=g) < 0.7, y.round(), y)
        place = (1.6 * torch.rand(len(w), generator=g, dtype=torch.float64) - 0.3).clamp(0, 1)
        pull = w * (y - model[0] - (model[1] - model[0]) * place)
        return torch.stack([(2 * z - 1) * pull, w / 2, pull.square()])

    every = torch.cat([terms(0.0, control), terms(1.0, treated)], 1) / torch.stack([scales[p] for p in PARTS])
    return float(torch.cdist(every.T[None], every.T[None], p=1.0).max())


def test_no_pair_of_records_costs_more_and_some_pair_nearly_as_much():
    g = torch.Generator().manual_seed(0)

    tight = []
    for k in range(60):
        treated, control, model = drawn(g, 1, 12), drawn(g, 1, 12), drawn(g, 0, 1)
        model = (model[0], model[0]) if k % 3 == 0 else model
        sizes = torch.exp(1.5 * torch.randn(3, generator=g)) * torch.tensor([10.0, 3.0, 100.0])
        scales = {part: number(size) for part, size in zip(PARTS, sizes.tolist(), strict=True)}
        tight.append(
            worst_pair(treated, control, model, scales, g) / joint_cost(treated, control, model, scales).item()
        )
    assert max(tight) <= 1 + 1e-12
    assert min(tight) > 0.95


@pytest.mark.parametrize("counts", [(1.0, 0.0), (0.0, 1.0)])
def test_where_the_size_counts_an_arm_the_cost_is_that_of_the_worst_pair(counts):
    """A dense search of all terms of D, of every pair of arms: those of one arm do not differ by a count."""
    g, alone, apart = torch.Generator().manual_seed(1), 0, 0
    for k in range(60):
        treated, control, model = (drawn(g, 0, most) for most in (6, 1 if k % 4 else 6, 1))
        model = (model[0], model[0]) if k % 3 == 0 else model
        sizes = torch.exp(1.5 * torch.randn(3, generator=g, dtype=torch.float64)) * torch.tensor(
            [10.0, 3.0 + 97.0 * (k % 2), 30.0]
        )
        b_d, b_n, b_q = sizes.tolist()
        scales = {part: number(size) for part, size in zip(PARTS, sizes.tolist(), strict=True)}
        up, down = (
            (treated[1] * (1 - model[0]), control[1] * model[1]),
            (treated[1] * model[1], control[1] * (1 - model[0])),
        )
        terms = [
            torch.cat([torch.linspace(-d.item(), u.item(), 251, dtype=torch.float64), -d, u])
            for u, d in zip(up, down, strict=True)
        ]
        found = {}
        for one, other in ((0, 0), (0, 1), (1, 1)):
            a, b = terms[one][:, None], terms[other]
            loss = (a - b).abs() / b_d + (a.square() - b.square()).abs() / b_q
            found[one, other] = loss.max().item() + abs(counts[one] - counts[other]) / b_n
        cost = joint_cost(treated, control, model, scales, counts).item()
        assert cost >= max(found.values()) * (1 - 1e-12)
        assert cost == pytest.approx(max(found.values()), rel=1e-4)
        in_full = joint_cost(treated, control, model, {p: s for p, s in scales.items() if p != "size"}).item() + 1 / b_n
        assert cost <= in_full * (1 + 1e-12)
        alone += max(found, key=found.get) != (0, 1)
        apart += cost < 0.99 * in_full
    assert alone > 5  # of one arm, and then N costs nothing
    assert apart > 5


@pytest.mark.first(6)
@pytest.mark.parametrize("bounds", [(0.3, 0.7), (0.5, 0.5)])
@pytest.mark.parametrize("ranges", [False, True])
@pytest.mark.parametrize("estimand", ESTIMANDS)
def test_a_pair_of_records_attains_what_a_release_costs(estimand, ranges, bounds):
    """A dense search of weights and outcomes, in the sums as they are released; N of an arm is no sum apart."""
    of, (low, high) = make_estimand(estimand, 0.1), bounds
    facts = EffectFacts(5000, of, low, high)
    if ranges:
        model = number(low + 0.1 * (high - low)), number(high)
        facts = replace(facts, ranges=ReleasedRanges(*(_weights_within(of, z, 0.2, 0.7) for z in (1.0, 0.0)), model))
    readout, places = BalancedDifference(facts, EPSILONS), torch.linspace(0, 1, 201, dtype=torch.float64)
    every = []
    for z, index in ((1.0, 0), (0.0, 1)):
        weights = _weights_within(of, z, 0.1, 0.9)
        ends = weights if facts.ranges is None else (facts.ranges.treated, facts.ranges.control)[index]
        means = (number(low), number(high)) if facts.ranges is None else facts.ranges.model
        w, y, m = torch.meshgrid(
            torch.linspace(0, 1, 41, dtype=torch.float64) * (ends[1] - ends[0]) + ends[0],
            places,
            torch.cat(means),
            indexing="ij",
        )
        every.append(torch.stack([torch.full_like(w, z), y, w, m]).flatten(1))
    z, y, w, m = torch.cat(every, 1)[..., None]
    found = readout.without_noise(lambda exact: exact(Weighted(z, y, w, m))).released
    scales = readout.scales({})
    placed = torch.stack([found[part] / scale for part, scale in scales.items()], 1)
    corners = placed[(y[:, 0] == 0) | (y[:, 0] == 1)]  # one of the pair is there
    most = torch.cdist(corners[None], placed[None], p=1.0).max().item()
    assert most <= 0.55
    assert most == pytest.approx(0.55, rel=1e-3)


@pytest.mark.parametrize("share", [0.05, 0.1])
def test_squares_are_free_up_to_a_quarter_of_the_differences_share(share):
    weights, model, none = of(2.0, 2.0), of(0.5, 0.5), of(2.0, 2.0)
    scales = {"difference": number(2 / 0.4), "spread": number(1 / share)}  # P = 1
    assert joint_cost(weights, none, model, scales).item() == pytest.approx(0.4, rel=1e-12)
    more = {**scales, "spread": number(1 / 0.2)}
    assert joint_cost(weights, none, model, more).item() > 0.4


@pytest.mark.parametrize(("estimand", "most"), [("ATE", 0.75), ("ATO", 0.80), ("ATT", 0.85), ("ATC", 0.85)])
def test_together_they_cost_less_than_their_sum_and_the_scales_spend_all_of_it(estimand, most):
    facts = EffectFacts(5000, make_estimand(estimand, 0.1), 0.3, 0.7)
    apart = {part: moved / EPSILONS[part] for part, moved in BalancedDifference.moved(facts).items()}
    together = BalancedDifference(facts, EPSILONS).scales({})
    for part in PARTS:
        assert together[part].item() < most * apart[part].item()
    # the noise's own grid takes a millionth of it
    assert record_cost(facts, together).item() == pytest.approx(0.55, rel=1e-5)
    assert record_cost(facts, together).item() <= 0.55


def test_at_the_defaults_it_is_408_thousandths_where_550_are_charged():
    """eta = .1, m in [.3, .7]: the heavier record gives up a little of D for N."""
    weights, model = of(10 / 9, 10.0), of(0.3, 0.7)
    scales = {"difference": number(14 / 0.4), "size": number(40 / 9 / 0.05), "spread": number(49 / 0.1)}
    assert joint_cost(weights, weights, model, scales).item() == pytest.approx(0.4079, abs=5e-5)
