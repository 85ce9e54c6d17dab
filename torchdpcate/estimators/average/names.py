"""Names that average effects share: of blocks, of the choice among estimators, and of the readouts' registry."""

from torchdpcate.registry import Registry
from torchdpcate.release.average_effect import CHOICE

EFFECT_ESTIMATORS = Registry("effect/estimator")
"""Effect estimators on weighted records, by name."""

RECORDS, NUISANCE = "records", "nuisance"
"""The block that is released from, and one that trains nuisances alone."""

CHOSEN_BY, PLANNED_ERROR = CHOICE
AUTO = "auto"
"""What chose it."""
