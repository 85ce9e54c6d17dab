"""Laws: the ways in which numbers leave the records, with what each costs and how it is drawn.

The set is closed: a mechanism takes one of them, with its own sensitivity, and adds none of its own.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor

from torchdpcate.privacy.events import ApproximateEvent, Event, PureEvent
from torchdpcate.privacy.mechanisms import AdditiveMechanism, Spread
from torchdpcate.privacy.noise import NoiseSource
from torchdpcate.privacy.selection import SelectionMechanism, chosen_quantile
from torchdpcate.privacy.worst_case import Evidence, gaussian_evidence, k_norm_evidence
from torchdpcate.release.blocks import StatedCharge

if TYPE_CHECKING:
    from torchdpcate.fit.linear_fits import PreparedFit
    from torchdpcate.fit.private_fit import ObjectiveNoise

CLOSE = 1e-7
"""How well what a file states must agree with its plan, relatively: some scales and costs are found by a search."""
_SHARES = 1e-6  # how well shares must agree, relatively: events are a little less than their share


class Law(ABC):
    """One way in which numbers leave the records; the subclasses below are all that there are.

    Attributes:
        event: What it costs, ``count`` times.
        in_parts: Whether its parts are charged by their names.
        hands_out: Whether its draw tells the source of noise itself what it hands out, as steps do that see answers.
    """

    count: int = 1
    in_parts: ClassVar[bool] = False
    hands_out: ClassVar[bool] = False

    @property
    @abstractmethod
    def event(self) -> Event:
        """What one run costs, ``count`` times."""

    @abstractmethod
    def draw(self, noise: NoiseSource, runs: int, *exact: Any) -> Tensor:
        """Return independent runs, float64 [runs, p].

        Args:
            noise: Where the noise comes from.
            runs: How many.
            exact: What is computed from the records, the curator's.
        """

    def constants(self) -> dict[str, Any]:
        """Return its public constants by name."""
        return {}

    @property
    def spread(self) -> Spread | None:
        """How far the noise in an answer reaches, which records do not shorten; None where that is not known."""
        return None

    def charge_problems(self, name: str, charges: Sequence[StatedCharge]) -> Iterator[str]:
        """Return what is wrong with the charges that a file states for it."""
        if len(charges) != 1 or charges[0].count != self.count:
            yield f"{name}: its charges are not the one that its plan makes"
        elif not same_event(charges[0].event, self.event):
            yield f"{name}: what was charged is not what its plan costs"


class PaidElsewhere(Law):
    """What other code charges and draws: here is only what its charges must be."""

    @property
    def event(self) -> Event:
        """There is no single one.

        Raises:
            NotImplementedError: Always.
        """
        raise NotImplementedError(f"{type(self).__name__}: its parts are charged by the code that draws them")

    def draw(self, noise: NoiseSource, runs: int, *exact: Any) -> Tensor:
        """Other code draws it.

        Raises:
            NotImplementedError: Always.
        """
        raise NotImplementedError(f"{type(self).__name__}: its parts are drawn by the code that charges them")

    @abstractmethod
    def charge_problems(self, name: str, charges: Sequence[StatedCharge]) -> Iterator[str]:
        """See ``Law``."""


@dataclass(frozen=True, eq=False)
class AddedNoise(Law):
    """Numbers with noise added: of one scale, on its grid.

    Attributes:
        mechanism: Law of the noise, with the sensitivity of all numbers together.
        size: How many numbers there are.
    """

    mechanism: AdditiveMechanism
    size: int

    @property
    def event(self) -> Event:
        return self.mechanism.event

    @property
    def scale(self) -> float:
        """Scale of the noise in each number."""
        return self.mechanism.released_scale(self.size)

    @property
    def spread(self) -> Spread:
        return self.mechanism.spread(self.size)

    def draw(self, noise: NoiseSource, runs: int, *exact: Any) -> Tensor:
        """See ``Law``; of the exact numbers, in any shape of this size, or of those of each run."""
        (numbers,) = exact
        return self.mechanism.add_noise(numbers.reshape(-1, self.size).expand(runs, -1), noise)

    def constants(self) -> dict[str, Any]:
        return {"sensitivity": self.mechanism.sensitivity, "scale": self.scale}

    def log_density(self, answers: Tensor, exact: Tensor) -> Tensor:
        """Return that of answers [runs, p] given their exact numbers, up to a constant, [runs]; of noise e^(-|z|/s)."""
        return -self.mechanism.size(answers - exact) / self.scale

    def evidence(self, one: Tensor, other: Tensor) -> Evidence:
        """Return the exact log-likelihood ratio of the answers on two data sets, whose exact numbers are given."""
        one, other = one.flatten(), other.flatten()
        if self.mechanism.norm == 2 and hasattr(self.event, "noise_multiplier"):
            return gaussian_evidence((one, other), (self.scale, self.scale))
        shifted = k_norm_evidence(other - one, self.scale, self.mechanism.norm)
        return lambda shown: shifted(shown - one)


@dataclass(frozen=True, eq=False)
class LinearCoefficients(Law):
    """Coefficients of a private linear fit.

    Attributes:
        fit: The fit, calibrated.
    """

    fit: "PreparedFit"

    @property
    def event(self) -> Event:
        return self.fit.event

    def draw(self, noise: NoiseSource, runs: int, *exact: Any) -> Tensor:
        """See ``Law``; of the records and the target of each."""
        records, target = exact
        return self.fit.draw(records, target, noise, runs)

    def constants(self) -> dict[str, Any]:
        return self.fit.public


@dataclass(frozen=True, eq=False)
class Steps(PaidElsewhere):
    """Steps of one composition, each of one or more events, by the shares of its plan.

    Attributes:
        due: What each step costs, in the measure of ``cost``.
        cost: Of an event.
        order: In which steps are paid; those that are not named here may be paid at any time.
    """

    in_parts: ClassVar[bool] = True

    due: Mapping[str, float]
    cost: Callable[[Event], float]
    order: Sequence[str] = ()

    def charge_problems(self, name: str, charges: Sequence[StatedCharge]) -> Iterator[str]:
        """See ``Law``: the events of each step cost its share, and the steps are in their order."""
        spent: dict[str, float] = {}
        for charge in charges:
            if charge.event is None or charge.count is None:
                yield f"{name}: a charge without event or count"
                return
            part = charge.charge.part
            spent[part] = spent.get(part, 0.0) + charge.count * self.cost(charge.event)
        if spent.keys() != self.due.keys():
            yield f"{name}: the steps that it was charged for are not those of its plan"
        if [step for step in spent if step in self.order] != [step for step in self.order if step in spent]:
            yield f"{name}: its steps were not charged in their order"
        for step in spent.keys() & self.due.keys():
            if not math.isclose(spent[step], self.due[step], rel_tol=_SHARES):
                yield f"{name}: the step {step!r} was not charged its share of the budget"


def same_event(stated: Event | None, needed: Event) -> bool:
    """Return whether two events are of one kind and cost; the accountant is requested in steps of 1e-9."""
    if type(stated) is not type(needed) or stated is None:
        return False
    pairs = zip(asdict(stated).values(), asdict(needed).values(), strict=True)
    return all(math.isclose(one, other, rel_tol=CLOSE) for one, other in pairs)


@dataclass(frozen=True, eq=False)
class PerturbedObjective(Law):
    """The minimiser of an objective with a random linear term, and noise that hides the solver's stop.

    Attributes:
        objective: The calibrated noise of the objective.
    """

    objective: "ObjectiveNoise"

    @property
    def event(self) -> Event:
        return self.objective.event

    @property
    def spread(self) -> Spread:
        """See ``Law``: the ridge alone holds an answer."""
        noise = self.objective.spread
        return replace(noise, scale=noise.scale / self.objective.gamma)

    @property
    def band(self) -> float:
        """Public bound of the noise of an answer per unit of its features' norm: the objective's, and the solver's."""
        return math.hypot(self.objective.scale / self.objective.gamma, self.objective.solver_scale)

    def draw(self, noise: NoiseSource, runs: int, *exact: Any) -> Tensor:
        """See ``Law``; of the map from linear terms [runs, p] to minimisers [runs, p]."""
        (minimise,) = exact
        return self.objective.release(minimise, noise, runs)

    def constants(self) -> dict[str, Any]:
        return self.objective.public


@dataclass(frozen=True, eq=False)
class SecretScale(Law):
    """Numbers with Gaussian noise whose scale depends on the records, on a public grid that does not.

    Attributes:
        proved: What the calibration of the scale is proved to cost.
        step: Of the grid.
        smoothness: By which one record may change the logarithm of the scale; None where that is not public.
    """

    proved: ApproximateEvent
    step: float
    smoothness: float | None = None

    @property
    def event(self) -> ApproximateEvent:
        return self.proved

    def draw(self, noise: NoiseSource, runs: int, *exact: Any) -> Tensor:
        """See ``Law``; of the numbers [r] along axes [d, r], the scale, and the axes."""
        values, scale, axes = exact
        rounded = torch.round(values.cpu() / self.step) * self.step
        drawn = rounded + noise.gaussian(runs * rounded.numel(), scale, self.step).reshape(runs, -1)
        return drawn if axes is None else drawn @ axes.T

    def constants(self) -> dict[str, Any]:
        """See ``Law``: the scale is secret."""
        return {} if self.smoothness is None else {"smoothness": self.smoothness}


@dataclass(frozen=True, eq=False)
class FunctionNoise(Law):
    """Values of a function with the noise of a Gaussian process, by its public kernel.

    Attributes:
        mechanism: Of the function in the norm of the kernel's space.
        jitter: Added to the kernel's diagonal.
        lattice: Spacing of the standard normal numbers that noise is mixed from.
        excess: Share by which the variance is raised.
    """

    mechanism: AdditiveMechanism
    jitter: float
    lattice: float
    excess: float = 0.0

    @property
    def event(self) -> Event:
        return self.mechanism.event

    @property
    def scale(self) -> float:
        """Scale of the noise per unit of the kernel's root."""
        return self.mechanism.scale * (1 + self.excess) ** 0.5

    def draw(self, noise: NoiseSource, runs: int, *exact: Any) -> Tensor:
        """See ``Law``; of the values [d], the root of the kernel [d, d], the public grid, and each answer's place."""
        values, root, step, place = exact
        paths = noise.gaussian(runs * len(values), 1.0, self.lattice).reshape(runs, -1) @ root.T
        return (torch.round((values + self.scale * paths) / step) * step)[:, place]

    def constants(self) -> dict[str, Any]:
        return {"sensitivity": self.mechanism.sensitivity, "noise_scale": self.scale, "jitter": self.jitter}


@dataclass(frozen=True, eq=False)
class CentreAndWidth(Law):
    """A private quantile, and then one of the distances to it: each from a public grid, for half of the cost.

    Attributes:
        epsilon: Of both.
        centres: Candidates of the first, [k].
        widths: Candidates of the second, [k].
        quantiles: Which are requested.
    """

    epsilon: float
    centres: Tensor
    widths: Tensor
    quantiles: tuple[float, float]

    @property
    def event(self) -> Event:
        return PureEvent(self.epsilon)

    def draw(self, noise: NoiseSource, runs: int, *exact: Any) -> Tensor:
        """See ``Law``; of one number a record, [n]."""
        (values,) = exact
        return torch.tensor([self._drawn(values, noise) for _ in range(runs)], dtype=torch.float64)

    def _drawn(self, values: Tensor, noise: NoiseSource) -> tuple[float, float]:
        first, second = self.quantiles
        centre = chosen_quantile(values, self.centres, first, self.epsilon / 2, noise)
        return centre, chosen_quantile((values - centre).abs(), self.widths, second, self.epsilon / 2, noise)


@dataclass(frozen=True, eq=False)
class Choice(Law):
    """One of a public list of candidates, by utilities of which one record moves differences by a bounded range.

    Attributes:
        mechanism: Of the choice, with its epsilon and that range.
        size: Number of candidates.
        composed: Whether it is one event of a plan with others, beside which some choices cost less.
    """

    hands_out: ClassVar[bool] = True

    mechanism: SelectionMechanism
    size: int
    composed: bool = False

    @property
    def event(self) -> Event:
        return self.mechanism.beside if self.composed else self.mechanism.event

    def draw(self, noise: NoiseSource, runs: int, *exact: Any) -> Tensor:
        """See ``Law``; of the utilities, exact on a public grid; the answer is the position of a candidate."""
        (utilities,) = exact
        return self.mechanism.select(utilities, noise, runs).double()[:, None]

    def constants(self) -> dict[str, Any]:
        return {"range_sensitivity": self.mechanism.range_sensitivity}

    def evidence(self, one: Tensor, other: Tensor) -> Evidence:
        """Return the exact log-likelihood ratio of the answers on two data sets, whose utilities are given."""
        before, after = self.mechanism.probabilities(torch.stack([one, other])).log()
        ratio = (after - before).round(decimals=9)  # last places would tell equal utilities apart
        return lambda chosen: ratio[chosen[:, 0].long()]


@dataclass(frozen=True, eq=False)
class Charged(PaidElsewhere):
    """What is charged and drawn by other code, by one event.

    Attributes:
        cost: The event.
    """

    cost: Event

    @property
    def event(self) -> Event:
        return self.cost

    def charge_problems(self, name: str, charges: Sequence[StatedCharge]) -> Iterator[str]:
        return Law.charge_problems(self, name, charges)
