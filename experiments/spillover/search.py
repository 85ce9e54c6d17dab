"""The spillover audit: how far one replaced training record moves the utilities that learned nuisances give."""

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import count

import torch

from experiments.spillover.ascent import ascend
from experiments.spillover.diagnostics import diagnostics
from experiments.spillover.likelihood import MECHANISMS, log_likelihood_ratio
from experiments.spillover.refits import Refits
from experiments.spillover.replacements import any_neighbours, random_neighbours, targeted_neighbours
from experiments.spillover.report import LearnerReport, SpilloverReport
from experiments.spillover.trials import Trials
from torchdpcate.candidates.library import PolicyLibrary
from torchdpcate.data.records import CausalData
from torchdpcate.errors import InputError
from torchdpcate.fit.arms.base import FittedNuisances, ScoreNuisances, SelectionFacts
from torchdpcate.fit.arms.stable import StableNuisances
from torchdpcate.privacy.budget import integer, positive

Progress = Callable[[str, int, int], None]
"""Called with the learner's name, the refits done and the refits in all."""


def spillover_audit(
    train: CausalData,
    score: CausalData,
    facts: SelectionFacts,
    library: PolicyLibrary,
    nuisances: Mapping[str, ScoreNuisances],
    *,
    epsilon: float = 1.0,
    neighbours: int = 64,
    rare: Mapping[str, tuple[float, float]] | None = None,
    truth: FittedNuisances | None = None,
    seed: int = 0,
    on_progress: Progress = lambda name, done, total: None,
) -> SpilloverReport:
    r"""Replace single training records, refit, and see how far the utilities of all policies move apart.

    .. math:: \Delta U(\pi) = U'(\pi) - U(\pi), \qquad \text{spread} = \max_\pi \Delta U - \min_\pi \Delta U

    A choice of a policy depends on the spread alone. Scoring records spread it by at most 2 S = 2 R / zeta; what a
    training record does goes through the nuisances to all n scores, and no double robustness bounds it. Three searches,
    each by exact refits: *random* neighbours, what chance brings; *targeted* ones, rare records turned and common ones
    moved to rare places (`targeted_neighbours`); *guided* ones: gradient ascent where the learner is differentiable
    (`ascend`), and coordinate ascent from the worst of all.

    Guarantee:
        None, nor is one lost: everything found is the curator's. A movement found is a fact about these records, so a
        lower bound of the sensitivity: it refutes a calibration, and proves none. Source: theory note
        ``policy_learning``, section 6; an anonymous submission to TMLR (8879, 2026) for the phenomenon.

    Args:
        train: The training block, its actions as positions 0 to K - 1.
        score: The scoring block, alike.
        facts: Public facts, of both blocks.
        library: The policies, set up on the domain.
        nuisances: Learners by name.
        epsilon: Budget of the log-likelihood ratios.
        neighbours: Refits of each search.
        rare: Interval of each covariate that makes a rare region, by name; None looks for rare records itself.
        truth: True propensities and mean outcomes, where known.
        seed: Of the searches and the learners.
        on_progress: See `Progress`.

    Returns:
        The report.

    Raises:
        InputError: No learner, blocks that do not fit the facts, a learner that is paid for or not deterministic, or an
            unknown or empty rare region.

    Example:
        >>> from torchdpcate.candidates import Thresholds
        >>> from torchdpcate.data import Domain
        >>> from torchdpcate.fit.arms.fixed import FixedNuisances
        >>> domain, x = Domain([0.0], [1.0], 0.0, 1.0), torch.rand(100, 1, dtype=torch.float64)
        >>> block = CausalData(x, (torch.arange(100) % 2).double(), x[:, 0])
        >>> library = PolicyLibrary.of(Thresholds("x0", [0.25, 0.5])).setup(domain, (0, 1))
        >>> facts = SelectionFacts(domain, (0, 1), 0.1, training=100, scoring=100)
        >>> report = spillover_audit(block, block, facts, library, {"fixed": FixedNuisances(0.5)}, neighbours=4)
        >>> report["fixed"].movement
        0.0
    """
    epsilon, neighbours = positive("epsilon", epsilon), integer("neighbours", neighbours, least=1)
    if (train.n, score.n) != (facts.training, facts.scoring):
        raise InputError(
            f"facts: {facts.training} training and {facts.scoring} scoring records, but the blocks have {train.n} and "
            f"{score.n}"
        )
    if not nuisances:
        raise InputError("nuisances is empty: no learner to audit")
    for name, recipe in nuisances.items():
        if recipe.guarantee == "private_nuisances":
            raise InputError(
                f"nuisances: {name} is private, so its movement is paid for and not repeatable; audit it by "
                "torchdpcate audit --all"
            )
    learners = []
    for name, recipe in nuisances.items():
        refits = Refits(name, recipe, train, score, facts, library, seed)
        trials = _search(refits, neighbours, rare, seed, _counting(name, 3 * neighbours, on_progress))
        learners.append(_learner_report(name, refits, trials, epsilon, truth))
    return SpilloverReport(tuple(learners), train.n, score.n, len(library), facts.overlap, epsilon)


def _counting(name: str, total: int, on_progress: Progress) -> Callable[[], None]:
    """Return what to call after each refit."""
    done = count(1)
    return lambda: on_progress(name, next(done), total)


def _search(
    refits: Refits,
    neighbours: int,
    rare: Mapping[str, tuple[float, float]] | None,
    seed: int,
    on_refit: Callable[[], None],
) -> list[Trials]:
    """Try random, targeted and guided neighbours."""
    train, score, generator = refits.train, refits.score, torch.Generator().manual_seed(seed)
    chance, targeted, guided = (Trials(name, refits, on_refit) for name in ("random", "targeted", "guided"))
    chance.add(random_neighbours(train, score, neighbours, generator))
    propensity = refits.certified.nuisances.propensity(train.x)
    targeted.add(targeted_neighbours(train, score, refits.facts, propensity, neighbours, rare))
    if refits.batched and neighbours > 1:
        start = any_neighbours(train, score, refits.facts, neighbours // 2, generator)
        guided.add(ascend(refits, start, max(chance, targeted, key=_width).delta))
    guided.climb(max(chance, targeted, guided, key=_width), neighbours - guided.count, generator)
    return [chance, targeted, guided]


def _learner_report(
    name: str, refits: Refits, trials: list[Trials], epsilon: float, truth: FittedNuisances | None
) -> LearnerReport:
    """What the searches found, beside what each calibration allows."""
    facts, certified = refits.facts, refits.certified
    outcome_range, worst = facts.domain.outcome_range, max(trials, key=_width)
    frozen = 2 * outcome_range / facts.overlap
    spread = certified.range_sensitivity if math.isfinite(certified.range_sensitivity) else None

    def losses(calibrated: float) -> dict[str, float]:
        after = refits.base + worst.delta
        return {name: log_likelihood_ratio(name, epsilon, calibrated, refits.base, after) for name in MECHANISMS}

    return LearnerReport(
        name,
        refits.recipe.guarantee,
        tuple(tried.found() for tried in trials),
        2 * outcome_range * (1 + 1 / facts.overlap),
        frozen,
        _paper(refits),
        spread,
        diagnostics(refits, truth),
        epsilon,
        losses(frozen),
        {} if spread is None else losses(spread),
    )


def _paper(refits: Refits) -> float | None:
    """The paper's bound with its printed constants, at the ridges that were used."""
    recipe, facts = refits.recipe, refits.facts
    if not isinstance(recipe, StableNuisances):
        return None
    return replace(recipe, constants="paper").bound(facts).paper(facts.scoring)


def _width(trials: Trials) -> float:
    return trials.width
