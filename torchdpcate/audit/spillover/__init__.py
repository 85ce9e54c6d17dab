"""How far one replaced training record moves learned utilities: what a reader never sees and a curator should know."""

from torchdpcate.audit.spillover.figure import spillover_figure
from torchdpcate.audit.spillover.likelihood import log_likelihood_ratio
from torchdpcate.audit.spillover.report import Diagnostics, Found, LearnerSpill, SpilloverReport
from torchdpcate.audit.spillover.search import spillover_audit

__all__ = [
    "Diagnostics",
    "Found",
    "LearnerSpill",
    "SpilloverReport",
    "log_likelihood_ratio",
    "spillover_audit",
    "spillover_figure",
]
