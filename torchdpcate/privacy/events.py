"""What was done to the records, as an accountant sees it; replace-one adjacency throughout."""

from dataclasses import asdict, dataclass, fields
from typing import Any, ClassVar

from torchdpcate.errors import InputError
from torchdpcate.privacy.budget import positive, some_delta


@dataclass(frozen=True)
class Event:
    """One use of the records; a leaf holds the numbers that its privacy cost depends on."""

    kind: ClassVar[str]

    def __post_init__(self) -> None:
        """Refuse numbers that are not positive."""
        for field in fields(self):
            object.__setattr__(self, field.name, positive(field.name, getattr(self, field.name)))

    def to_dict(self) -> dict[str, Any]:
        """Plain dictionary: ``kind`` and the fields."""
        return {"kind": self.kind, **asdict(self)}


@dataclass(frozen=True)
class DPSGDEvent(Event):
    r"""One step of DP-SGD with Poisson sampling.

    Dominating pair for replace-one: :math:`(1-q) N(0, \sigma^2) + q N(\pm 1, \sigma^2)`, the sign + against
    the sign -.

    Attributes:
        noise_multiplier: sigma = noise standard deviation / clip norm.
        sampling_rate: q in (0, 1], the probability of each record to be in the batch.

    Raises:
        InputError: If a value is outside its range.
    """

    noise_multiplier: float
    sampling_rate: float
    kind: ClassVar[str] = "dp_sgd"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.sampling_rate > 1:
            raise InputError(f"sampling_rate = {self.sampling_rate:g}: give a number in (0, 1]")


@dataclass(frozen=True)
class GaussianEvent(Event):
    """One Gaussian mechanism.

    Attributes:
        noise_multiplier: Noise standard deviation s over the replace-one sensitivity Delta.

    Raises:
        InputError: If the multiplier is not positive.
    """

    noise_multiplier: float
    kind: ClassVar[str] = "gaussian"


@dataclass(frozen=True)
class PureEvent(Event):
    """Any epsilon-differentially private mechanism.

    Attributes:
        epsilon: Its epsilon, for replace-one.

    Raises:
        InputError: If epsilon is not positive.
    """

    epsilon: float
    kind: ClassVar[str] = "pure"


@dataclass(frozen=True)
class BoundedRangeEvent(PureEvent):
    r"""A mechanism whose privacy losses of two outputs differ by at most ``epsilon``: the exponential mechanism.

    It is epsilon-private, hence pure, and costs less than others beside further events: the logistic laws at distance
    epsilon dominate it, whatever was seen before (docs/guarantees/policy_selection.md).

    Attributes:
        epsilon: eta, the range of its losses, for replace-one.

    Raises:
        InputError: If epsilon is not positive.
    """

    kind: ClassVar[str] = "bounded_range"


@dataclass(frozen=True)
class ApproximateEvent(Event):
    """Any (epsilon, delta)-differentially private mechanism.

    Attributes:
        epsilon: Its epsilon, for replace-one.
        delta: Its delta, 0 or in [1e-30, 1).

    Raises:
        InputError: If a value is outside its range.
    """

    epsilon: float
    delta: float
    kind: ClassVar[str] = "approximate"

    def __post_init__(self) -> None:
        object.__setattr__(self, "epsilon", positive("epsilon", self.epsilon))
        object.__setattr__(self, "delta", some_delta("delta", self.delta))


_KINDS: dict[str, type[Event]] = {
    leaf.kind: leaf for leaf in (DPSGDEvent, GaussianEvent, PureEvent, BoundedRangeEvent, ApproximateEvent)
}


def event_from_dict(values: dict[str, Any]) -> Event:
    """Inverse of ``Event.to_dict``.

    Raises:
        InputError: If the kind is unknown, or fields are missing or superfluous.

    Example:
        >>> event_from_dict({"kind": "pure", "epsilon": 0.5})
        PureEvent(epsilon=0.5)
    """
    try:
        fields = dict(values)
        return _KINDS[fields.pop("kind")](**fields)
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(f"event = {values!r}: not an event ({error}); kinds are {', '.join(_KINDS)}") from error
