"""Attacks on our own claims: empirical bounds."""

from torchdpcate._lazy import exports

__getattr__, __dir__, __all__ = exports(
    __name__,
    {
        "attack": (
            "AuditResult",
            "Rates",
            "audit",
            "clopper_pearson",
            "epsilon_bound",
        ),
        "report": (
            "AuditSettings",
            "audit_all",
            "find",
            "make_folder",
            "registry",
            "write_report",
        ),
    },
)
