"""Spreads for which a choice may be calibrated: public constants, by the names that the tables use."""

from dataclasses import replace

from experiments.policy_selection.design import CONTROL, FLOOR, RADIUS, M, N, ridge
from torchdpcate.nuisance.arms.base import SelectionFacts
from torchdpcate.nuisance.arms.gradients import logistic_gradient_bound
from torchdpcate.nuisance.arms.stability import IndirectBound, indirect_bound, outcome_stability
from torchdpcate.nuisance.arms.stable import StableNuisances

FROZEN = 2 / FLOOR
"""2 S of unit outcomes: the bounded range of a frozen score."""

NAIVE = 2 * 2 * (1 + 1 / FLOOR)
"""The two-sided sensitivity 2 B_psi of a frozen score, as the spread that it asks for."""

TWO_SIDED_RANGE = 2 * (2 / FLOOR - 1)
"""The two-sided sensitivity of a frozen score from its range, 2 / zeta - 1, as a spread."""

SAFETY = 1.3
"""By which sampled movements are multiplied in the calibration that the note calls heuristic."""


def printed(strength: float = CONTROL) -> IndirectBound:
    """The paper's constants at a ridge, in the units of its features."""
    return indirect_bound(M, radius=RADIUS, ridge=strength, propensity_ridge=strength, overlap=FLOOR, localised=False)


def localised_gradient(strength: float = CONTROL) -> IndirectBound:
    """The same with the note's localised logistic gradient, section 6.2."""
    gradient = logistic_gradient_bound(RADIUS, strength, localised=True)
    beta_mu = outcome_stability(RADIUS, strength, M, localised=False)
    return IndirectBound(beta_mu, RADIUS * gradient / (2 * M * strength), FLOOR)


def spreads(strength: float, facts: SelectionFacts) -> dict[str, float]:
    """Every certified spread of ridge nuisances, by name, the widest first."""
    return {
        "as printed": printed(strength).paper_range_sensitivity(N),
        "bounded range": printed(strength).range_sensitivity(N),
        "localised gradient": localised_gradient(strength).range_sensitivity(N),
        "localised fits": ridge(strength).bound(facts).range_sensitivity(N),
    }


def paper_certificate(recipe: StableNuisances, facts: SelectionFacts) -> float:
    """The paper's n rho* at the ridges of these nuisances."""
    ridge_mu, ridge_e = recipe.ridges(facts)
    paper = replace(recipe, ridge=ridge_mu, propensity_ridge=ridge_e, constants="paper")
    return paper.bound(facts).paper(facts.scoring)
