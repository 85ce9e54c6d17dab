"""Attacks on our own claims: empirical bounds, neighbour searches, replay, leak scans."""

from torchdpcate.audit.attack import AuditResult, audit
from torchdpcate.audit.bounds import Rates, clopper_pearson, epsilon_bound
from torchdpcate.audit.registry import find, registry
from torchdpcate.audit.report import AuditSettings, audit_all, make_folder, shipped_results, write_report

__all__ = [
    "AuditResult",
    "AuditSettings",
    "Rates",
    "audit",
    "audit_all",
    "clopper_pearson",
    "epsilon_bound",
    "find",
    "make_folder",
    "registry",
    "shipped_results",
    "write_report",
]
