"""Audits of trainings in one run: canary records chosen by coins that the attack guesses."""

from torchdpcate._lazy import exports

__getattr__, __dir__, __all__ = exports(
    __name__,
    {
        "bounds": ("best_guesses", "one_run_epsilon", "one_run_fdp", "one_run_refutes"),
        "canaries": ("OneRunAudit", "audit_nuisances"),
    },
)
