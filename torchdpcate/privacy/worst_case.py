"""Worst-case neighbours, declared beside each mechanism, for audits to attack."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from torchdpcate.errors import InputError
from torchdpcate.privacy.budget import PrivacyBudget
from torchdpcate.privacy.charge import Charge, Purpose
from torchdpcate.privacy.events import Event, PureEvent
from torchdpcate.privacy.guarantee import Guarantee, Level
from torchdpcate.privacy.noise import NoiseSource

Evidence = Callable[[Tensor], Tensor]
"""Outputs [runs, p] -> [runs]; larger speaks for the neighbour D'. Increasing in the log-likelihood ratio where the
law is known."""

Curve = Callable[[float, np.ndarray], np.ndarray]
"""(factor, epsilons [k]) -> deltas [k] of a mechanism whose noise is divided by the factor."""


@dataclass(frozen=True, eq=False)
class Game:
    """Two neighbouring data sets and a mechanism run on either: which of the two was it?

    Attributes:
        draw: (dataset, runs, noise) -> outputs [runs, p] of independent runs, by the mechanism's own code; dataset 0
            is D, dataset 1 its neighbour D'.
        event: What one run is charged.
        guarantee: What is claimed for it.
        evidence: How the adversary weighs outputs.
        count: How often the event happens in one run.
        most_runs: Most runs a dataset, where one takes long.
        curve: What is proved of the mechanism at every epsilon, where ``event`` charges a point of it; bounds are then
            measured along these curves.
    """

    draw: Callable[[int, int, NoiseSource], Tensor]
    event: Event
    guarantee: Guarantee
    evidence: Evidence
    count: int = 1
    most_runs: int = 1_000_000
    curve: Curve | None = None

    @classmethod
    def of_densities(
        cls,
        draw: Callable[[int, int, NoiseSource], Tensor],
        event: Event,
        budget: PrivacyBudget,
        log_density: Callable[[Tensor, int], Tensor],
        **settings: Any,
    ) -> "Game":
        """Return the game of a certified claim whose adversary has the exact likelihood ratio.

        Args:
            draw: See the class.
            event: What one run is charged.
            budget: What is claimed.
            log_density: (outputs, dataset) -> log densities [runs], but for what both data sets share.
            settings: Further fields.
        """
        guarantee = Guarantee(Level.CERTIFIED, budget)
        return cls(draw, event, guarantee, lambda seen: log_density(seen, 1) - log_density(seen, 0), **settings)


@dataclass(frozen=True)
class Target:
    """What an audit attacked, as the statements of releases have it.

    Attributes:
        charge: What was charged; one without a part stands for all its parts. None is whatever was charged.
        public: Constants that the release states, by name; None is any value.
        pure: Whether releases of delta = 0 alone, or those of delta > 0 alone; None is both.
        person: Whether releases by person alone.

    Example:
        >>> release = Charge(Purpose.RELEASE, "output")
        >>> Target(release, {"threshold": "squared loss"}).fits(release, {"threshold": 1.0}, pure=False, person=False)
        False
    """

    charge: Charge | None
    public: Mapping[str, Any] = field(default_factory=dict)
    pure: bool | None = None
    person: bool = False

    def fits(self, charge: Charge, public: Mapping[str, Any], *, pure: bool, person: bool) -> bool:
        """Return whether it is what a release was charged for.

        Args:
            charge: What for.
            public: Constants that the release states.
            pure: Whether its delta is 0.
            person: Whether it is by person.
        """
        own = self.charge
        charged = own is None or own in (charge.whole, replace(charge, piece=""))
        stated = all(name in public and value in (None, public[name]) for name, value in self.public.items())
        return charged and stated and self.pure in (None, pure) and self.person <= person

    def to_dict(self) -> dict[str, Any]:
        """Return the target as plain types; what stands for anything is left out."""
        return {
            **({} if self.charge is None else {"charge": self.charge.to_dict()}),
            **({"public": dict(self.public)} if self.public else {}),
            **({} if self.pure is None else {"pure": self.pure}),
            **({"person": True} if self.person else {}),
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "Target":
        """Inverse of ``to_dict``."""
        charge = Charge.from_dict(values["charge"]) if "charge" in values else None
        return cls(charge, values.get("public", {}), values.get("pure"), values.get("person", False))


@dataclass(frozen=True)
class WorstCase:
    """A mechanism's entry in the registry of audits.

    Attributes:
        name: The name that ``torchdpcate audit mechanism=`` takes.
        of: The class or function under attack.
        attack: Kind of attack: ``Neyman-Pearson`` or ``adaptive charges``.
        pair: The neighbours, in words.
        make: Sets up the game at a budget: a ``Game``, or another kind that ``audit.attack.play`` knows.
        attacks: What it attacks of releases.
    """

    name: str
    of: Any
    attack: str
    pair: str
    make: Callable[[PrivacyBudget], Any]
    attacks: tuple[Target, ...] = ()


WORST_CASES: dict[str, WorstCase] = {}
"""Every declaration of the modules imported so far; ``audit.registry`` imports them all."""


def worst_case(
    name: str,
    of: Any = None,
    *,
    attack: str = "Neyman-Pearson",
    pair: str,
    attacks: Sequence[Charge | Target] | None = None,
) -> Callable[[Callable[[PrivacyBudget], Any]], Any]:
    """Declare worst-case neighbours of a mechanism; the function below it sets up the game.

    In the body of a class the function becomes a static method, and the class is what is attacked.

    Args:
        name: The name that users give.
        of: The class or function under attack; not given in the body of a class.
        attack: Kind of attack.
        pair: The neighbours, in words.
        attacks: What of releases is attacked, so that their cards show what came out; None takes the releases of the
            mechanism of this name.

    Raises:
        InputError: The name is taken.

    Example:
        >>> sorted(name for name in WORST_CASES if name in ("gaussian", "laplace"))
        ['gaussian', 'laplace']
    """
    given = [Charge(Purpose.RELEASE, name)] if attacks is None else attacks
    targets = tuple(one if isinstance(one, Target) else Target(one) for one in given)

    def declare(make: Callable[[PrivacyBudget], Any]) -> Any:
        if of is None:
            return _Method(make, lambda owner: _add(WorstCase(name, owner, attack, pair, make, targets)))
        _add(WorstCase(name, of, attack, pair, make, targets))
        return make

    return declare


class _Method(staticmethod):  # type: ignore[type-arg]
    """A static method that is declared once the class it stands in is known."""

    def __init__(self, make: Callable[[PrivacyBudget], Any], add: Callable[[type], None]) -> None:
        super().__init__(make)
        self._add = add

    def __set_name__(self, owner: type, name: str) -> None:
        self._add(owner)


def _add(case: WorstCase) -> None:
    known = WORST_CASES.get(case.name)
    if known is not None and known.make.__module__ != case.make.__module__:
        raise InputError(f"name = {case.name}: a worst case of this name is declared already")
    WORST_CASES[case.name] = case


def choice_game(choose: Callable[[int, NoiseSource], float], budget: PrivacyBudget) -> Game:
    """Return the game on one choice by a pure event, after which it is asked whether the first candidate was chosen.

    Args:
        choose: (dataset, noise) -> the candidate that is chosen on D, 0, or on D', 1; the first one is 0.
        budget: Whose epsilon a choice costs.
    """

    def draw(dataset: int, runs: int, noise: NoiseSource) -> Tensor:
        return torch.tensor([[choose(dataset, noise)] for _ in range(runs)], dtype=torch.float64)

    pure = Guarantee(Level.CERTIFIED, PrivacyBudget(budget.epsilon, 0.0))
    return Game(draw, PureEvent(budget.epsilon), pure, lambda chosen: chosen[:, 0].sign(), most_runs=40_000)


def gaussian_evidence(means: tuple[Tensor, Tensor], scales: tuple[float, float]) -> Evidence:
    r"""Log-likelihood ratio of N(m_1, s_1^2 I) to N(m_0, s_0^2 I), up to a constant.

    .. math:: \|y - m_0\|^2 / (2 s_0^2) - \|y - m_1\|^2 / (2 s_1^2)

    Args:
        means: m_0 and m_1, each [p].
        scales: s_0 and s_1.
    """

    def evidence(outputs: Tensor) -> Tensor:
        terms = [(outputs - m).square().sum(1) / (2 * s**2) for m, s in zip(means, scales, strict=True)]
        return terms[0] - terms[1]

    return evidence


def function_evidence(shift: Tensor, covariance: Tensor) -> Evidence:
    r"""Log-likelihood ratio of Gaussian function noise at finite queries, up to constants: y' K^{-1} h.

    Args:
        shift: h, by how much the neighbours' functions differ at the queries, [d].
        covariance: K of the noise at the queries, [d, d].
    """
    direction = torch.linalg.solve(covariance, shift)
    return lambda outputs: outputs @ direction


def k_norm_evidence(shift: Tensor, scale: float, order: float = 2.0) -> Evidence:
    r"""Log-likelihood ratio of noise with density exp(-||z|| / s): (||y|| - ||y - h||) / s.

    Args:
        shift: h, [p].
        scale: s.
        order: The norm: 1 is Laplace noise, 2 the Euclidean K-norm, infinity that of the cube.
    """

    def evidence(outputs: Tensor) -> Tensor:
        near, far = (torch.linalg.vector_norm(y, order, dim=1) for y in (outputs - shift, outputs))
        # many outputs have the largest ratio: rounded, or their last places would tell them apart
        return ((far - near) / scale).round(decimals=9)

    return evidence
