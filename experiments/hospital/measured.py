"""What a method is measured by: a metric of the study, and its value in one case."""

from dataclasses import dataclass

DELTA, LEVEL = 1e-5, 0.95
CERTIFIED, CONDITIONAL, HEURISTIC, NOT_PRIVATE = "certified", "conditional", "heuristic", "not private"
ERROR, BIAS, COVERAGE, WIDTH = "error", "bias", "coverage", "width"
PLANNED, STATED = "planned over realised", "stated over realised"


@dataclass(frozen=True)
class Measured:
    """One number.

    Attributes:
        method: Name of the method.
        level: What its guarantee is.
        metric: What is measured.
        value: The number.
    """

    method: str
    level: str
    metric: str
    value: float
