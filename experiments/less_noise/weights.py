"""What two-stage rules have to hide before and after: `python -m experiments.less_noise.weights` prints weights.md."""

import math
from collections.abc import Iterator

import torch

from torchdpcate.data.domain import Domain
from torchdpcate.data.records import CausalData
from torchdpcate.estimators.rules.learner import TwoStageRule
from torchdpcate.estimators.rules.outcome import SignedResidual
from torchdpcate.fit.private_fit import WeightBounds
from torchdpcate.fit.weights.balancing import BalancingWeights, LogisticWeights, TiltingWeights, largest_inverse
from torchdpcate.fit.weights.mmd import MMDWeights
from torchdpcate.fit.weights.scheme import WeightScheme
from torchdpcate.privacy.budget import PrivacyBudget
from torchdpcate.privacy.noise import NoiseSource

OVERLAPS, RIDGES, N = (0.05, 0.1, 0.25), (0.1, 1.0), 1_000
EPSILONS, REPEATS, SIZE, FRESH = (0.5, 1.0, 2.0), 20, 2_000, 2_000


def first_bounds(scheme: BalancingWeights, n: int, domain: Domain) -> WeightBounds:
    """Return the bounds of the first certificate, without stationarity."""
    cap = largest_inverse(getattr(scheme, "cap", None), domain)
    if isinstance(scheme, MMDWeights):
        widest = max(w * w - 2 * scheme.alpha * w + 2 * scheme.alpha for w in (0.0, cap))
        indirect = math.sqrt((n - 1) / (n * scheme.ridge) * widest) / 2
    elif isinstance(scheme, TiltingWeights):
        indirect = math.hypot(1, cap - 1) * min(2 * cap / scheme.ridge, math.sqrt(cap / scheme.ridge)) / 2
    else:
        eta = domain.overlap
        indirect = min(2 * (1 / eta - 1) / scheme.ridge, math.sqrt((1 - eta) / (eta**3 * scheme.ridge))) / 2
    return WeightBounds.with_indirect(cap / 2, indirect)


class FirstLogistic(LogisticWeights):
    """`ipw` with the bounds of the first certificate."""

    def bounds(self, n: int, domain: Domain) -> WeightBounds:
        """Return the earlier bounds."""
        return first_bounds(self, n, domain)


class FirstTilting(TiltingWeights):
    """`entropy` likewise."""

    def bounds(self, n: int, domain: Domain) -> WeightBounds:
        """Return the earlier bounds."""
        return first_bounds(self, n, domain)


def scales() -> Iterator[str]:
    """Yield lines of the table of W_1."""
    yield "| weights | ridge | overlap | W_1 before | W_1 after | change |"
    yield "| --- | --- | --- | --- | --- | --- |"
    for kind in (LogisticWeights, TiltingWeights, MMDWeights):
        for ridge in RIDGES:
            for overlap in OVERLAPS:
                domain, scheme = Domain([0.0], [1.0], -1.0, 1.0, overlap=overlap), kind(ridge=ridge)
                before, after = (b.first for b in (first_bounds(scheme, N, domain), scheme.bounds(N, domain)))
                change = f"{100 * (after / before - 1):.0f} %"
                yield f"| {scheme.name} | {ridge:g} | {overlap:g} | {before:.1f} | {after:.1f} | {change} |"


def confounded(n: int, seed: int) -> tuple[CausalData, torch.Tensor]:
    """Return records whose treatment and best arm follow two of four covariates, and their effects."""
    generator = torch.Generator().manual_seed(seed)
    x = 2 * torch.rand(n, 4, generator=generator, dtype=torch.float64) - 1
    treated = torch.rand(n, generator=generator, dtype=torch.float64) < torch.sigmoid(1.5 * x[:, 0])
    effect = x[:, 0] + x[:, 1]
    a = treated.double()
    y = (a - 0.5) * effect + 0.3 * torch.randn(n, generator=generator, dtype=torch.float64)
    return CausalData(x, a, y.clamp(-2, 2)), effect


def accuracy(weights: WeightScheme | str, epsilon: float) -> torch.Tensor:
    """Return the share of right decisions of each repeat."""
    domain = Domain([-1.0] * 4, [1.0] * 4, -2.0, 2.0, overlap=0.05)
    found = []
    for seed in range(REPEATS):
        records, _ = confounded(SIZE, seed)
        fresh, effect = confounded(FRESH, 10_000 + seed)
        rule = TwoStageRule(
            domain,
            PrivacyBudget(epsilon, 0.0),
            weights=weights,
            outcome=SignedResidual(0.0, 1.0),
            noise=NoiseSource.fixed(seed),
        )
        release = rule.fit(records.x, records.a, records.y).release()
        found.append((release.decide(fresh.x) == (effect > 0)).double().mean())
    return torch.stack(found)


def decisions() -> Iterator[str]:
    """Yield lines of the table of accuracies, on the same records and the same seeds of noise."""
    yield "| weights | epsilon | accuracy before | after | difference | its standard error |"
    yield "| --- | --- | --- | --- | --- | --- |"
    for before, after in ((FirstLogistic(), LogisticWeights()), (FirstTilting(), TiltingWeights())):
        for epsilon in EPSILONS:
            old, new = accuracy(before, epsilon), accuracy(after, epsilon)
            gain = new - old
            numbers = f"{old.mean():.3f} | {new.mean():.3f} | {gain.mean():+.3f} | {gain.std() / len(gain) ** 0.5:.3f}"
            yield f"| {after.name} | {epsilon:g} | {numbers} |"


def main() -> None:
    """Print both tables."""
    print("# Weights of two-stage rules: less noise\n")
    print("Written by `python -m experiments.less_noise.weights`. Proofs: docs/guarantees/balancing_weights.md.\n")
    print(f"W_1 is what the noise of a rule is proportional to; n = {N:,}.\n")
    print("\n".join(scales()))
    print(
        f"\nAccuracy of linear rules in {REPEATS} repeats of n = {SIZE:,} records with four covariates, logit 1.5 x0,"
    )
    print("effect x0 + x1, overlap 0.05, ridges of the weights 0.1, other settings at their defaults, delta = 0. Noise")
    print("comes from fixed seeds, so nothing here is private.\n")
    print("\n".join(decisions()))


if __name__ == "__main__":
    main()
