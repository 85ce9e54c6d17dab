"""What recomputations of releases share: stated numbers against those worked out anew, released ones on their grid."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from torchdpcate.composition.division import ORDER
from torchdpcate.composition.shares import squared_mu
from torchdpcate.errors import InputError
from torchdpcate.privacy.budget import PrivacyBudget, as_number
from torchdpcate.privacy.events import Event, GaussianEvent
from torchdpcate.privacy.mechanisms import GaussianMechanism

if TYPE_CHECKING:
    from torchdpcate.release.blocks import Block, StatedCharge

UNFIT = (InputError, ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError)
"""What public facts that are not those of one release make a recomputation raise."""

CLOSE = 1e-9
"""How well numbers must agree that follow from each other without a search, relatively."""

_FAR_BUDGET = 1e6  # of what a block cost over what one of the releases from it was to cost
_SHARES = 1e-6  # how well shares of mu^2 must agree, relatively: events are a little less than their share


def charged_gaussian(event: Event, sensitivity: float) -> GaussianMechanism:
    """Return the Gaussian mechanism that a charge was for: its multiplier, at a sensitivity.

    Args:
        event: The charge's.
        sensitivity: Of what got the noise.

    Raises:
        TypeError: The event is no Gaussian.
    """
    if not isinstance(event, GaussianEvent):
        raise TypeError(f"{event} is no Gaussian")
    return GaussianMechanism.of_event(event, sensitivity)


def share_problems(
    charges: Iterable["StatedCharge"], needed: Mapping[str, float], cost: Callable[[Event], float] = squared_mu
) -> Iterator[str]:
    """Return problems of what the steps of a composition were charged against their shares of its budget.

    Args:
        charges: Each of the step that its part names.
        needed: What each step costs by the plan: mu^2.
        cost: Of an event, in the same measure.

    Raises:
        TypeError: A charge of another kind of event.
    """
    spent: dict[str, float] = {}
    for charge in charges:
        assert charge.event is not None
        assert charge.count is not None
        part = charge.charge.part
        spent[part] = spent.get(part, 0.0) + charge.count * cost(charge.event)
    if spent.keys() != needed.keys():
        yield "the steps that it was charged for are not those of its plan"
    order = [step for step in ORDER if step in spent]
    if [step for step in spent if step in ORDER] != order:
        yield "its steps were not charged in their order"
    for step in spent.keys() & needed.keys():
        if not math.isclose(spent[step], needed[step], rel_tol=_SHARES):
            yield f"the step {step!r} was not charged its share of the budget"


def shown(value: Any, most: int = 80) -> str:
    """Return a value of a file in at most so many letters."""
    text = str(value)
    return text if len(text) <= most else f"{text[: most - 3]}..."


def requested_budget(block: "Block", epsilon: Any, delta: Any) -> PrivacyBudget:
    """Return the budget that a plan divided, as its statement has it, before anything is made of it.

    What it cost is near it, unless other releases from the same records cost more; so no plan takes long.

    Args:
        block: The records that paid.
        epsilon: As stated.
        delta: As stated.

    Raises:
        ValueError: It is far from what it cost.
    """
    budget = PrivacyBudget(as_number(epsilon), as_number(delta))
    cost, most = as_number(block.epsilon), as_number(block.delta)
    if not cost / _FAR_BUDGET <= budget.epsilon <= cost * _FAR_BUDGET:
        raise ValueError(f"requested epsilon = {budget.epsilon:g}, far from {cost:g}")
    if budget.delta and not most / _FAR_BUDGET <= budget.delta <= most * (1 + CLOSE):
        raise ValueError(f"requested delta = {budget.delta:g}, far from {most:g}")
    return budget


def scale_problems(name: str, stated: float, needed: float, close: float, least: bool = False) -> Iterator[str]:
    """Return what is wrong with a public constant that follows from others.

    Args:
        name: Of the constant.
        stated: Its value, as the file has it.
        needed: What bounds, records, settings and charge make it.
        close: How well they must agree, relatively.
        least: Whether it may be larger.
    """
    if not (stated >= needed * (1 - close) and (least or stated <= needed * (1 + close))):
        yield f"{name} = {stated:.6g} is stated, but bounds, records, settings and charge make it {needed:.6g}"


def batch_problems(what: str, rate: float, n: int) -> Iterator[str]:
    """Return problems of a sampling rate: rate times n must be an integer."""
    batch = rate * n
    if not (round(batch) >= 1 and abs(batch - round(batch)) <= 1e-6 * batch):
        yield f"the sampling rate of {what} is not that of a batch of its {n} records"


def compared(what: str, stated: float, needed: float, least: bool = False, close: float = CLOSE) -> Iterator[str]:
    """Return problems of a stated scale of noise.

    Args:
        what: What gets the noise.
        stated: Its scale.
        needed: What the charge asks for.
        least: Whether it may be larger.
        close: How well they must agree, relatively.
    """
    if not stated >= needed * (1 - close):
        yield f"the noise of {what} is too little for what was paid"
    elif not least and stated > needed * (1 + close):
        yield f"the noise of {what} is more than what was paid asks for"


def same(one: float, other: float, unit: float = 0.0) -> bool:
    """Return whether two numbers agree, up to rounding of numbers as large as ``unit``."""
    return math.isclose(one, other, rel_tol=CLOSE, abs_tol=1e-12 * unit)
