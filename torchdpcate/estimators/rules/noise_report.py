"""What the noise of a private rule will be, and what to change: from public facts alone, before anything is spent."""

import math
from contextlib import suppress
from dataclasses import dataclass, replace

from torchdpcate.erm.bounds import WeightBounds
from torchdpcate.erm.losses import Loss
from torchdpcate.errors import InputError
from torchdpcate.estimators.rules.loss import LossBounds
from torchdpcate.estimators.rules.mechanisms import RULE_MECHANISMS
from torchdpcate.estimators.rules.noise_law import expected_accuracy, noise_length, separable_pull, signal_for
from torchdpcate.estimators.rules.weighted_erm import PublicERM
from torchdpcate.laws import AddedNoise, Law, PerturbedObjective
from torchdpcate.privacy.budget import PrivacyBudget

_GOOD = 0.9  # accuracy for which the number of records is worked out
_WORTH = 1.15  # a factor below is not worth advice


@dataclass(frozen=True)
class NoiseReport:
    """What public facts say of a rule's noise. Lengths are in units of one record's largest pull.

    Attributes:
        mechanism: One of ``RULE_MECHANISMS``.
        perturbation: Kind of noise.
        n: Records that fit the rule.
        size: Coefficients of the rule.
        ridge: Ridge of the total sum.
        epsilon: Budget in all.
        rule_epsilon: What is left for the rule after its first stage.
        jacobian_fraction: Share of that which the determinants take; 0 for output perturbation.
        first: W_1, by how much one record moves the summed pull.
        indirect_fraction: Share of W_1 that comes from other records' weights.
        noise: Root mean square length of the noise.
        others: The same for every way that is possible here, by "mechanism perturbation".
        signal: Length of the summed pull that is hoped for.
        most_signal: The largest there could be: every record pulls the same way with the largest weight.
        accuracy: Decisions expected to agree with those of the rule without noise, see `expected_accuracy`.
        records_needed: Records for an accuracy of 0.9, all else equal.
        typical_pull: Length of the summed pull of as many records of the typical weight that go the same way.
        advice: What would help, the most helpful first.
    """

    mechanism: str
    perturbation: str
    n: int
    size: int
    ridge: float
    epsilon: float
    rule_epsilon: float
    jacobian_fraction: float
    first: float
    indirect_fraction: float
    noise: float
    others: dict[str, float]
    signal: float
    most_signal: float
    accuracy: float
    records_needed: int
    typical_pull: float
    advice: tuple[str, ...] = ()

    def __str__(self) -> str:
        best = ", ".join(f"{name} {value:.3g}" for name, value in sorted(self.others.items(), key=lambda o: o[1]))
        lines = [
            f"{self.mechanism} perturbation, {self.perturbation} noise: n = {self.n}, p = {self.size}, "
            f"ridge = {self.ridge:.4g}",
            f"epsilon: {self.epsilon:.4g} in all, {self.rule_epsilon:.4g} for the rule, of which "
            f"{self.jacobian_fraction:.0%} goes to the determinants",
            f"one record moves the summed pull by {self.first:.4g}, {self.indirect_fraction:.0%} of it through the "
            "weights of others",
            f"noise {self.noise:.4g} (possible: {best})",
            f"signal {self.signal:.4g} hoped for, {self.most_signal:.4g} at most",
            f"expected agreement with the rule without noise: {self.accuracy:.0%}; "
            f"{_GOOD:.0%} takes about {self.records_needed} records",
            *(f"- {line}" for line in self.advice),
        ]
        return "\n".join(lines)


def explain_noise(
    *,
    n: int,
    size: int,
    loss: Loss,
    bounds: WeightBounds,
    ridge: float,
    budget: PrivacyBudget,
    mechanism: str = "objective",
    perturbation: str = "gamma",
    largest_entry: float = 1.0,
    first_stage_fraction: float = 0.0,
    typical_weight: float = 1.0,
    shifted: bool = False,
    signal: float | None = None,
    indirect_remedy: str = "weights=private has none",
) -> NoiseReport:
    """Work out a rule's noise from public facts; nothing is drawn, nothing is spent.

    The accuracy is that of the noise-dominated regime (`expected_accuracy`). With many records or a large epsilon
    objective perturbation does better than it says, for the curvature of the data then holds the rule in place.

    Args:
        n: Records that fit the rule.
        size: Coefficients p.
        loss: The loss.
        bounds: Of the weights.
        ridge: Ridge of the total sum.
        budget: In all.
        mechanism: One of ``RULE_MECHANISMS``.
        perturbation: Kind of noise.
        largest_entry: Public bound of |psi_j|.
        first_stage_fraction: Fraction of the budget that a first stage spends on the same records.
        typical_weight: Public estimate of the mean weight; inverse propensities halved have mean one.
        shifted: Whether outcomes are made positive by a shift.
        signal: Public estimate of the summed pull as a share of the largest; None takes records that the best rule
            separates without error, their features of uniform direction and norm one.
        indirect_remedy: What has no indirect sensitivity, for the advice.

    Raises:
        InputError: Settings with which nothing could be released.

    Example:
        >>> from torchdpcate.erm import HuberHinge
        >>> facts = dict(size=5, loss=HuberHinge(), bounds=WeightBounds.per_record(1.0), ridge=50.0)
        >>> report = explain_noise(n=1000, budget=PrivacyBudget(1.0, 0.0), **facts)
        >>> round(report.noise, 2), round(report.signal, 1)
        (11.29, 375.0)
    """
    rule = replace(
        budget, epsilon=budget.epsilon * (1 - first_stage_fraction), delta=budget.delta * (1 - first_stage_fraction)
    )
    problem = PublicERM(n, size, LossBounds.of(loss), bounds, ridge, largest_entry)
    scale, jacobian = _pull_noise(RULE_MECHANISMS.find(mechanism)(perturbation).law(problem, rule), ridge)
    others = _possible(rule, problem)
    most_signal = n * bounds.most * loss.slope
    alone = n * min(typical_weight, bounds.most) * loss.slope
    pull = most_signal * signal if signal is not None else alone * separable_pull(size)
    report = NoiseReport(
        mechanism=mechanism,
        perturbation=perturbation,
        n=n,
        size=size,
        ridge=ridge,
        epsilon=budget.epsilon,
        rule_epsilon=rule.epsilon,
        jacobian_fraction=jacobian / rule.epsilon,
        first=bounds.first * loss.slope,
        indirect_fraction=max(0.0, 1 - 2 * bounds.most / bounds.first),
        noise=noise_length(perturbation, scale, size),
        others=others,
        signal=pull,
        most_signal=most_signal,
        accuracy=expected_accuracy(perturbation, scale, size, pull),
        typical_pull=alone,
        records_needed=math.ceil(n * signal_for(_GOOD, perturbation, scale, size) / pull),
    )
    return replace(report, advice=_advice(report, bounds.most, shifted, indirect_remedy))


def _possible(budget: PrivacyBudget, problem: PublicERM) -> dict[str, float]:
    """Length of the noise of every way that has a guarantee here."""
    lengths = {}
    for way, mechanism in RULE_MECHANISMS.items():
        for kind in mechanism.kinds:
            with suppress(InputError):  # delta = 0, or a ridge too small for objective noise
                scale, _ = _pull_noise(mechanism(kind).law(problem, budget), problem.ridge)
                lengths[f"{way} {kind}"] = noise_length(kind, scale, problem.size)
    return lengths


def _pull_noise(law: Law, ridge: float) -> tuple[float, float]:
    """Scale of the noise on the summed pull of the records, and epsilon that the change of the curvature takes."""
    if isinstance(law, PerturbedObjective):
        return law.objective.scale, law.objective.jacobian
    assert isinstance(law, AddedNoise)
    return ridge * law.mechanism.scale, 0.0


def _advice(report: NoiseReport, most: float, shifted: bool, indirect_remedy: str) -> tuple[str, ...]:
    """What to change, by the factor of noise to signal that it may save."""
    # between mechanisms lengths do not decide: the curvature of the data shortens objective noise, not output noise
    rivals = [name for name in report.others if name.split()[0] == report.mechanism]
    best = min(rivals, key=lambda name: report.others[name])
    factors = [
        (
            report.epsilon / report.rule_epsilon,
            f"the first stage takes {1 - report.rule_epsilon / report.epsilon:.0%} of epsilon: weights=known or "
            "constant need none of it, a block of their own spends none of the rule's",
        ),
        (
            1 / (1 - report.indirect_fraction),
            f"indirect sensitivity is {report.indirect_fraction:.0%} of what one record moves: {indirect_remedy}",
        ),
        (
            most,  # inverse propensities, halved, have mean one
            f"the largest weight is {most:.3g} times the mean of inverse propensities: clip these further from 0 "
            "and 1, or take weights=constant",
        ),
        (
            1 / (1 - report.jacobian_fraction),
            f"the determinants take {report.jacobian_fraction:.0%} of epsilon: raise the ridge",
        ),
        (
            report.noise / report.others[best],
            f"perturbation={best.split()[1]} has {report.noise / report.others[best]:.2g} times less noise",
        ),
        (2.0 if shifted else 1.0, "outcome=signed_residual halves the bound of the weights on the same range"),
        (
            report.noise / report.first * report.rule_epsilon if report.accuracy < _GOOD else 1.0,
            f"noise grows with the {report.size} coefficients: fewer features",
        ),
        (
            report.records_needed / report.n,
            f"too few records: about {report.records_needed} for an accuracy of {_GOOD:.0%}",
        ),
    ]
    return tuple(text for factor, text in sorted(factors, key=lambda f: -f[0]) if factor > _WORTH)
