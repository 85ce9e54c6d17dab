"""What a charge of a ledger is for: in types, from which the words follow that people read."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

from torchdpcate._text import is_plain
from torchdpcate.errors import InputError


class Purpose(StrEnum):
    """What a charge is for, in the order in which a block is charged."""

    NUISANCES = "nuisances"
    """Training of propensities and outcome models, or numbers that they start from."""
    THRESHOLD = "threshold"
    """The Huber threshold of a second stage."""
    WEIGHTS = "weights"
    """The weights of a rule or of an average effect."""
    OUTCOME = "outcome"
    """Constants of a rule's outcome map, or of the outcome in scores of policies."""
    OUTCOME_MODEL = "outcome_model"
    """The outcome model of an average effect."""
    RELEASE = "release"
    """A release, or one of its parts."""
    CHOICE = "choice"
    """The choice among candidates."""
    OTHER = "other"
    """A charge of code outside the library, in its own words."""


@dataclass(frozen=True)
class Charge:
    """What a charge is for.

    Attributes:
        purpose: What it is for.
        mechanism: Name of the mechanism; empty where the purpose has only one.
        part: Which part of it, where it is charged in parts.
        piece: Which number of the part.
        text: The caller's words, for ``Purpose.OTHER`` alone.

    Raises:
        InputError: A purpose that is none, names that are no plain words, or a text that another purpose has.

    Example:
        >>> Charge(Purpose.RELEASE, "balanced_difference", "balance", "sums").words
        'release by balanced_difference: balance (sums)'
    """

    purpose: Purpose
    mechanism: str = ""
    part: str = ""
    piece: str = ""
    text: str = ""

    def __post_init__(self) -> None:
        for name in ("mechanism", "part", "piece", "text"):
            value = getattr(self, name)
            if not (isinstance(value, str) and (name == "text" or is_plain(value))):
                raise InputError(f"charge: {name} = {value!r} is not words in one line")
        try:
            object.__setattr__(self, "purpose", Purpose(self.purpose))
        except ValueError:
            raise InputError(f"charge: purpose = {self.purpose!r} is none") from None
        if self.text and self.purpose is not Purpose.OTHER:
            raise InputError(f"charge: text = {self.text!r}, which only purpose = other has")

    @classmethod
    def of(cls, charge: "Charge | str") -> "Charge":
        """Return the charge; words that are none of the library's stay words."""
        return charge if isinstance(charge, Charge) else cls(Purpose.OTHER, text=str(charge))

    def with_part(self, part: str, piece: str = "") -> "Charge":
        """Return the charge of a part, or of a piece of the part that this is."""
        return replace(self, part=self.part, piece=part) if self.part else replace(self, part=part, piece=piece)

    @property
    def whole(self) -> "Charge":
        """What this is a part of."""
        return replace(self, part="", piece="")

    @property
    def words(self) -> str:
        """What it is for, in words for people to read; nothing parses them.

        All fields stand in them: nothing that a file says of a charge is hidden.
        """
        if self == Charge(Purpose.OTHER, text=self.text):
            return self.text
        what = self.purpose.value.replace("_", " ") + (f" {self.text}" if self.text else "")
        what += f" by {self.mechanism}" if self.mechanism else ""
        return what + (f": {self.part}" if self.part else "") + (f" ({self.piece})" if self.piece else "")

    def to_dict(self) -> dict[str, str]:
        """Return the charge as plain types; empty fields are left out."""
        more = {name: getattr(self, name) for name in ("mechanism", "part", "piece", "text")}
        return {"purpose": self.purpose.value, **{name: value for name, value in more.items() if value}}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "Charge":
        """Inverse of ``to_dict``; other keys are not looked at."""
        return cls(values["purpose"], *(values.get(name, "") for name in ("mechanism", "part", "piece", "text")))


def propensity_by(fitter: str) -> Charge:
    """Return the charge for the propensity of an average effect."""
    return Charge(Purpose.WEIGHTS, fitter, "propensity")


def fits_by(fitter: str) -> tuple[Charge, Charge]:
    """Return the charges for propensity and outcome model of an average effect, by a private linear fit."""
    return propensity_by(fitter), Charge(Purpose.OUTCOME_MODEL, fitter)


TRAINING = Charge(Purpose.NUISANCES)
"""Training of nuisances, whatever their kind."""
DP_SGD = Charge(Purpose.NUISANCES, "dp_sgd")
"""Networks trained by DP-SGD."""
COMPOSED_EFFECT = Charge(Purpose.RELEASE, "composed")
"""Steps of one composition that make an effect; each is a part of it."""
COMPOSED_SCORES = Charge(Purpose.NUISANCES, "composed")
"""The same whose nuisances score policies, or records for an average effect."""
COMPOSED = (COMPOSED_EFFECT, COMPOSED_SCORES)
"""Steps of one composition, whatever comes of them."""
THRESHOLD = Charge(Purpose.THRESHOLD, "quantile")
OUTCOME = Charge(Purpose.OUTCOME, "quantile")
