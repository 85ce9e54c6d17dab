"""The one-run audit of nuisance training, as an entry of the registry."""

from dataclasses import dataclass

from torchdpcate.audit.attack import AuditResult, Terms, play
from torchdpcate.audit.one_run.canaries import audit_nuisances
from torchdpcate.nuisance.nuisances import Nuisances
from torchdpcate.privacy.budget import PrivacyBudget
from torchdpcate.privacy.guarantee import Level
from torchdpcate.privacy.worst_case import WorstCase, worst_case

_RUNS = 4  # one run can prove little at 95 %: see `bounds.confidence_of_each`
_FEWEST, _MOST = 100, 1_000  # canaries of a run


@dataclass(frozen=True)
class OneRunGame:
    """Coins that choose each of many canary records in one training, guessed from its outputs."""

    budget: PrivacyBudget


@play.register
def _(game: OneRunGame, case: WorstCase, terms: Terms) -> AuditResult:
    canaries = _MOST if terms.trials is None else min(max(2 * terms.trials // _RUNS, _FEWEST), _MOST)
    terms.progress(0, 1)
    found = audit_nuisances(game.budget, canaries=canaries, runs=_RUNS, confidence=terms.confidence, noise=terms.noise)
    right = sum(found.correct) / (_RUNS * found.guesses)
    terms.progress(1, 1)
    return AuditResult(
        mechanism=case.name,
        attack=case.attack,
        pair=case.pair,
        level=Level.CERTIFIED.value,
        claimed=found.claim,
        nominal=game.budget.epsilon,
        delta=game.budget.delta,
        bound=found.epsilon_bound,
        confidence=found.confidence,
        trials=_RUNS * canaries,
        false_rate=1 - right,
        true_rate=right,
    )


@worst_case(
    "nuisances",
    Nuisances,
    attack="one run",
    pair="canary records that fill the data, their outcomes at either end by secret coins; four trainings",
)
def _nuisances(budget: PrivacyBudget) -> OneRunGame:
    return OneRunGame(budget)
