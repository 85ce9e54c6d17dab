"""Which nuisance settings serve under privacy: the table behind conf/nuisance.

Dataset 2 of Oprescu et al. (2019).  Each row changes one setting of the base, each cell is the root mean
squared error of the plug-in effect mu1 - mu0 at fresh points (and of the propensity), over the seeds.

    python experiments/dp_cate/nuisance_defaults.py [--seeds 3] [--out FILE.md]
"""

from __future__ import annotations

import argparse
import time
from dataclasses import replace
from pathlib import Path

import torch
import yaml

from torchdpcate.fit.nuisance_config import NuisanceConfig
from torchdpcate.fit.trainer import default_trainer
from torchdpcate.fit.training import train
from torchdpcate.papers.oprescu import Dataset2
from torchdpcate.privacy.budget import PrivacyBudget
from torchdpcate.privacy.noise import NoiseSource

DELTA = 1e-5
BASE = NuisanceConfig()


def batch(config: NuisanceConfig, size: int) -> NuisanceConfig:
    """Another batch size; the rate follows it, so that the weights can travel as far."""
    return replace(config, batch_size=size, learning_rate=config.learning_rate * size / config.batch_size)


def rows(base: NuisanceConfig) -> dict[str, NuisanceConfig]:
    """One change a row; `base` may have another batch size than 128."""
    named = {f"base: sgd, rate {base.learning_rate:g}, batch {base.batch_size}, walk 0.1, width 32": base}
    for size in {128: (256, 512), 512: (1024, 2048)}[base.batch_size]:
        other = batch(base, size)
        named[f"batch {size}, rate {other.learning_rate:g}"] = other
    for walk in (0.025, 0.05, 0.2, 0.4):
        named[f"walk {walk:g}"] = replace(base, noise_walk=walk)
    for factor in (0.25, 4.0):
        named[f"rate x {factor:g}, same walk"] = replace(base, learning_rate=base.learning_rate * factor)
    for clip in (0.1, 0.3, 1.0):
        named[f"clip {clip:g} instead of a walk"] = replace(base, max_grad_norm=clip)
    for epochs in (10, 40):
        named[f"epochs {epochs}"] = replace(base, epochs=epochs)
    named["last weights, no averaging"] = replace(base, average=0.0)
    for share in (0.5, 0.8, 0.98):
        named[f"outcome share {share:g}"] = replace(base, outcome_share=share)
    for width in (0, 16, 64):
        named[f"width {width}"] = replace(base, width=width)
    adam = replace(base, optimizer="adam", max_grad_norm=0.1)
    for rate in (0.001, 0.003, 0.01, 0.03):
        named[f"adam {rate:g}, clip 0.1"] = replace(adam, learning_rate=rate)
    named["adam 0.01, clip 1, share 0.5, last weights (as in the paper)"] = replace(
        adam, learning_rate=0.01, max_grad_norm=1.0, outcome_share=0.5, average=0.0
    )
    return named


def errors(config: NuisanceConfig, n: int, epsilon: float | None, seed: int) -> tuple[float, float]:
    """Root mean squared errors of effect and propensity on 2,000 fresh points."""
    source = Dataset2(n=n + 2000, train_fraction=n / (n + 2000), queries=2000, seed=seed)
    study = source.load()
    assert study.records.n == n
    torch.manual_seed(seed)
    module = config.module(study.domain)
    private = {}
    if epsilon is not None:
        private = {"plan": config.plan(n, PrivacyBudget(epsilon, DELTA)), "noise": NoiseSource.system()}
    train(
        module,
        study.records,
        lambda **limits: default_trainer(accelerator="cpu", **limits),
        batch_size=config.batch_size,
        epochs=config.epochs,
        seed=seed,
        average=config.average,
        **private,
    )
    values = module.double().requires_grad_(False).predict(study.queries)
    effect = (values.mu1 - values.mu0 - study.effect).square().mean().sqrt()
    pi = (values.pi - source.propensity(study.queries)).square().mean().sqrt()
    return float(effect), float(pi)


def table(n: int, epsilons: tuple[float, ...], base: NuisanceConfig, seeds: int) -> str:
    """Markdown table of one block size."""
    heads = [f"effect, epsilon = {epsilon:g} | propensity" for epsilon in epsilons]
    lines = [f"## Block of {n:,} records", "", "| setting | " + " | ".join(heads) + " |"]
    lines.append("|---" * (1 + 2 * len(epsilons)) + "|")
    for name, config in rows(base).items():
        cells = []
        for epsilon in epsilons:
            found = torch.tensor([errors(config, n, epsilon, seed) for seed in range(seeds)])
            cells += [f"{found[:, 0].mean():.2f} ± {found[:, 0].std():.2f}", f"{found[:, 1].mean():.3f}"]
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
        print(lines[-1], flush=True)
    return "\n".join(lines)


def shipped(name: str) -> NuisanceConfig:
    """The settings in conf/nuisance."""
    settings = yaml.safe_load((Path(__file__).parents[2] / "conf" / "nuisance" / f"{name}.yaml").read_text())
    settings.pop("_target_")
    return NuisanceConfig(**settings)


def chosen(seeds: int) -> str:
    """The defaults themselves, at every block size and budget, and without privacy."""
    lines = [
        "## The defaults (conf/nuisance)",
        "",
        "| file | block | epsilon | effect | propensity |",
        "|---" * 5 + "|",
    ]
    for name in ("mlp", "narrow", "linear"):
        config = shipped(name)
        for n in (1350, 13500):
            for epsilon in (1.0, 4.0, None):
                found = torch.tensor([errors(config, n, epsilon, seed) for seed in range(seeds)])
                shown = "none" if epsilon is None else f"{epsilon:g}"
                effect = f"{found[:, 0].mean():.2f} ± {found[:, 0].std():.2f}"
                lines.append(f"| {name} | {n:,} | {shown} | {effect} | {found[:, 1].mean():.3f} |")
                print(lines[-1], flush=True)
    return "\n".join(lines)


def main() -> None:
    """Measure and write the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--out", type=Path, default=Path(__file__).with_suffix(".md"))
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    start = time.perf_counter()
    parts = [
        "# Nuisance settings under privacy",
        "Written by `nuisance_defaults.py`: Dataset 2, delta = 1e-5, replace-one, one jointly clipped run; "
        f"root mean squared error, mean and deviation over {arguments.seeds} seeds of data and weights. "
        "A constant effect has error 2.35. Each row changes one setting of the base row. The walk is the "
        "standard deviation of what noise alone adds to a weight over the run; it fixes the clip norm.",
        table(1350, (1.0, 4.0), BASE, arguments.seeds),
        table(13500, (1.0, 4.0), batch(BASE, 512), arguments.seeds),
        chosen(arguments.seeds),
    ]
    parts.append(f"Measured in {time.perf_counter() - start:.0f} s on one thread.")
    arguments.out.write_text("\n\n".join(parts) + "\n")


if __name__ == "__main__":
    main()
