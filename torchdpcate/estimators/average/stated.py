"""What a released average effect states in numbers, and what its mechanism says of itself to those who check it."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from torchdpcate.causal.estimand import Estimand, make_estimand
from torchdpcate.estimators.average.noisy_estimate import NoisyEstimate
from torchdpcate.estimators.mechanism import Stated
from torchdpcate.estimators.recompute import as_number
from torchdpcate.privacy.guarantee import Level
from torchdpcate.release.average_effect import AverageEffectRelease

RECORDS, NUISANCE = "records", "nuisance"
"""The block that is released from, and one that trains nuisances alone."""

ON_WEIGHTS = (
    *("loss", "basis", "noise_per_record", "slope_bound"),
    *(f"epsilon_{part}" for part in ("stage_one", "outcome_model", "balance", "difference_in_means")),
)
"""Public constants of estimates on weights that were fitted before."""

FIT_CONSTANTS = (
    *("fitter", "share", "ridge", "perturbation", "tilt_scale", "epsilon_jacobian", "solver_scale"),
    *("steps", "length", "momentum", "gradient_scale"),
    *("order", "gamma", "radius", "gradient_sensitivity", "dry_run_acceptance"),
)
"""What statements say of a private linear fit, after the name of what was fitted."""


class ContradictionError(ValueError):
    """Public constants that contradict each other; the text says how."""


@dataclass(frozen=True, eq=False)
class StatedEffect:
    """A released average effect that claims something, with its estimand.

    Attributes:
        release: The release, as read from its file.
        estimand: Estimand and overlap, as its statement has them.
    """

    release: AverageEffectRelease
    estimand: Estimand

    @classmethod
    def of(cls, release: AverageEffectRelease) -> "StatedEffect":
        """Return what this release states.

        Raises:
            TypeError: Its overlap is no number.
            InputError: Its overlap is out of range.
        """
        return cls(release, make_estimand(release.estimand, as_number(release.privacy.public["eta"])))

    @property
    def public(self) -> Mapping[str, Any]:
        """Public constants of the statement."""
        return self.release.privacy.public

    @property
    def n(self) -> int:
        """Number of records that are released from."""
        return next(int(block["n"]) for block in self.release.privacy.blocks if block["name"] == RECORDS)

    @property
    def balancing(self) -> bool:
        """Whether the weights are fitted by the balancing loss."""
        return self.public.get("loss") == "balancing"

    def number(self, name: str) -> float:
        """Return a public constant.

        Raises:
            KeyError: There is none of that name.
            TypeError: It is no number.
        """
        return as_number(self.public[name])

    def sums(self) -> dict[str, Tensor]:
        """Return the released numbers by name, one run each, [1]."""
        return {name: torch.tensor([as_number(x)], dtype=torch.float64) for name, x in self.release.numbers.items()}

    def charges(self, start: str = "", exactly: str = "") -> list[dict[str, Any]]:
        """Return the charges of the blocks whose labels start so, or are exactly so."""
        return [
            charge
            for block in self.release.privacy.blocks
            for charge in block["charges"]
            if (charge["label"] == exactly if exactly else charge["label"].startswith(start))
        ]

    def own(self, part: str) -> str:
        """Return the label of the charge for a part of the release itself."""
        return f"release by {self.release.privacy.mechanism}: {part}"

    def epsilon(self, part: str) -> float:
        """Return the epsilon charged for a part of the release itself.

        Raises:
            ValueError: Nothing was charged for it, or not a pure epsilon.
        """
        paid = self.charges(exactly=self.own(part))
        if not paid or any(charge["event"]["kind"] != "pure" for charge in paid):
            raise ValueError(f"{part} was not charged at a pure epsilon")
        return sum(charge["event"]["epsilon"] * charge["count"] for charge in paid)


@dataclass(frozen=True, eq=False)
class Recomputed:
    """What a released average effect must be, by its numbers, its public constants and its charges.

    Attributes:
        estimate: What follows from its numbers, one run.
        constants: Least and largest value of public constants.
        reaches: Of its numbers, the largest absolute value without noise, and the scale of the noise.
        gaussian: Least and largest Gaussian deviation of the estimate's error; None where it is the estimate's own.
    """

    estimate: NoisyEstimate
    constants: Mapping[str, tuple[float, float]]
    reaches: Mapping[str, tuple[float, float]]
    gaussian: tuple[float, float] | None = None


def exactly(constants: Mapping[str, float]) -> dict[str, tuple[float, float]]:
    """Return constants that may have no other value, as `Recomputed` has them."""
    return {name: (value, value) for name, value in constants.items()}


def at_least(constants: Mapping[str, float]) -> dict[str, tuple[float, float]]:
    """Return constants that may be larger, because not all is public that they depend on."""
    return {name: (value, math.inf) for name, value in constants.items()}


def states(*constants: str, fits: tuple[str, ...] = ()) -> Stated:
    """Return what statements of an average effect may say.

    Args:
        constants: Names of public constants beside learner, estimand, eta and what the estimate rests on.
        fits: What was fitted privately before, of which `FIT_CONSTANTS` are stated.
    """
    fitted = (f"{what}_{name}" for what in fits for name in FIT_CONSTANTS)
    may = frozenset(("holds_if", *constants, *fitted))
    needs = frozenset(("learner", "estimand", "eta"))
    return Stated(Level.CERTIFIED, (AverageEffectRelease.kind,), needs, may, conditions=None)


class AverageMechanism:
    """What releases an average effect: how verification sees it.

    Attributes:
        name: What statements call it.
        formula: Its noise scales in words, with their source.
        numbers: Numbers that its releases hold, with the part of the budget that paid for each.
        states: What its statements may say.
        on_weights: Whether it works on released weights, beside which a balance table and a difference in means may be.
        on_nuisances: Whether a block of its own trains nuisances.
        intervals: Whether an interval that counts sampling is known.
    """

    name: ClassVar[str]
    formula: ClassVar[str]
    numbers: ClassVar[Mapping[str, str]]
    states: ClassVar[Stated]
    on_weights: ClassVar[bool] = False
    on_nuisances: ClassVar[bool] = False
    intervals: ClassVar[bool] = True

    @classmethod
    def numbers_of(cls, estimand: Estimand) -> Mapping[str, str | None]:
        """Return the numbers of a release for this estimand, with what paid for each; None for one that is public."""
        return cls.numbers

    @classmethod
    def work_out(cls, stated: StatedEffect) -> Recomputed:
        """Return what a release must be, by the functions that make releases.

        Args:
            stated: A release by this mechanism; every value in it may be forged.

        Raises:
            ContradictionError: Constants that contradict each other.
        """
        raise NotImplementedError

    @classmethod
    def recompute(cls, release: AverageEffectRelease) -> Iterator[str]:
        """Return what of a release does not follow from its public facts; see `estimators.mechanism`."""
        from torchdpcate.estimators.average.recompute import problems  # which knows the mechanisms

        yield from problems(cls, release)
