"""Audits of whole trainings in one run: canary records chosen by coins that the attack guesses."""

from torchdpcate.audit.one_run.bounds import best_guesses, one_run_epsilon, one_run_fdp, one_run_refutes
from torchdpcate.audit.one_run.canaries import OneRunAudit, audit_nuisances
from torchdpcate.audit.one_run.game import OneRunGame

__all__ = [
    "OneRunAudit",
    "OneRunGame",
    "audit_nuisances",
    "best_guesses",
    "one_run_epsilon",
    "one_run_fdp",
    "one_run_refutes",
]
