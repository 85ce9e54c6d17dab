"""Sensitivity of the squared head: `python -m experiments.less_noise.squared_head` prints its page."""

import math

from torchdpcate.heads.linear import squared_sensitivity, worst_pair

B, S, N, RIDGES = 0.9, 1.0, 10_000, (0.001, 0.01, 0.05, 0.1, 0.5, 1.0, 10.0)


def main() -> None:
    """Print the page."""
    print("# Squared loss: less noise\n")
    print("Printed by `python -m experiments.less_noise.squared_head`. The proof is on the page of")
    print(
        "[output perturbation](../../docs/guarantees/output_perturbation.md); noise of `output`, `gaussian_process` and"
    )
    print(f"`smooth_sensitivity` is proportional to it where the loss is squared. B = {B}, S = {S:g}, n = {N:,}.\n")
    print("| ridge | sensitivity before | after | change | share of it that the worst pair known moves |")
    print("| --- | --- | --- | --- | --- |")
    for ridge in RIDGES:
        before = 2 * B * S / (ridge * N) * (1 + B / (4 * math.sqrt(ridge)))
        after = squared_sensitivity(B, S, ridge, N)
        share = worst_pair(B, S, ridge, N).share
        print(f"| {ridge:g} | {before:.4g} | {after:.4g} | {100 * (after / before - 1):.1f} % | {share:.3f} |")


if __name__ == "__main__":
    main()
