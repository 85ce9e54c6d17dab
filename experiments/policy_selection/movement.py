"""How far one replaced record moves the utilities, learner by learner: tables 1, 2 and 5."""

from collections.abc import Iterator
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from experiments.policy_selection.calibrations import FROZEN, NAIVE, SAFETY, paper_certificate, spreads
from experiments.policy_selection.design import CONTROL, Draw, Population, ridge
from experiments.spillover.diagnostics import diagnostics
from experiments.spillover.likelihood import MECHANISMS, log_likelihood_ratio
from experiments.spillover.refits import Refits
from experiments.spillover.replacements import Replacements, random_neighbours, targeted_neighbours
from experiments.spillover.report import LearnerReport
from experiments.spillover.search import spillover_audit
from torchdpcate.causal.arm_scores import dr_scores
from torchdpcate.nuisance.arms.base import ScoreNuisances
from torchdpcate.nuisance.arms.stable import StableNuisances
from torchdpcate.privacy.selection_mechanisms import PermuteAndFlip

Rows = Iterator[dict[str, Any]]
RANDOM, TARGETED, GUIDED = 4, 12, 24  # exact refits of each search
EPSILON = 1.0  # of the log-likelihood ratios
RIDGES = (0.1, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, CONTROL, 100.0, 200.0)


class Moves:
    """Utilities of one learner, and their movements by replaced training and scoring records.

    Args:
        name: Of the learner.
        recipe: The learner.
        population: Where records come from.
        draw: The records.
    """

    def __init__(self, name: str, recipe: ScoreNuisances, population: Population, draw: Draw) -> None:
        self.name, self.population, self.draw = name, population, draw
        self.refits = Refits(name, recipe, draw.train, draw.score, population.facts(), population.library, seed=0)

    @cached_property
    def own(self) -> Tensor:
        """DeltaU by targeted scoring records, [R, M]."""
        return self._own(self._targeted(self.draw.score))

    @cached_property
    def trained(self) -> Tensor:
        """DeltaU by targeted training records, [R, M]; none where nothing is trained."""
        return self._refitted(self._targeted(self.draw.train))

    @cached_property
    def chance(self) -> Tensor:
        """DeltaU by random records of either block, [R, M]."""
        generator = torch.Generator().manual_seed(self.draw.seed)
        random = random_neighbours(self.draw.train, self.draw.score, RANDOM, generator)
        return torch.cat([self._own(random), self._refitted(random)])

    def measures(self) -> dict[str, float]:
        """Movements and how good the nuisances are."""
        quality = diagnostics(self.refits, self.population.true_nuisances)
        return {
            "own": _largest(self.own),
            "own spread": float(_widths(self.own).max()),
            "movement": _largest(self.trained),
            "spread": float(_widths(self.trained).max()),
            "by chance": _largest(self.chance),
            "above floor": float(_largest(self.trained) > NAIVE / 2),
            "above range": float(_widths(self.trained).max() > FROZEN),
            "outcome error": quality.outcome,
            "propensity error": quality.propensity,
            "product": quality.product,
            "bias": quality.bias,
        }

    @property
    def sampled(self) -> float:
        """Spread of the calibration by what was sampled: 1.3 times the largest |DeltaU| by chance, two-sided."""
        return 2 * SAFETY * _largest(self.chance)

    def ranges(self) -> dict[str, float]:
        """Ends of the fitted nuisances on the scoring records."""
        nuisances, x = self.refits.certified.nuisances, self.draw.score.x
        e, mu = nuisances.propensity(x)[:, 1], nuisances.outcome(x)
        return {
            "least e": float(e.min()),
            "most e": float(e.max()),
            "least mu": float(mu.min()),
            "most mu": float(mu.max()),
        }

    def ratios(self) -> Rows:
        """Log-likelihood ratios at the widest neighbour of either block, per calibration and mechanism."""
        calibrations = {"naive, 2 B_psi": NAIVE, "frozen range, 2 S": FROZEN, "sampled x 1.3": self.sampled}
        if self.refits.certified.range_sensitivity < torch.inf:
            calibrations["certificate"] = self.refits.certified.range_sensitivity
        base = self.refits.base
        deltas = [moved[_widths(moved).argmax()] for moved in (self.trained, self.own)]
        for calibration, spread in calibrations.items():
            for mechanism in MECHANISMS:
                found = [log_likelihood_ratio(mechanism, EPSILON, spread, base, base + delta) for delta in deltas]
                yield {
                    "row": self.name,
                    "calibration": calibration,
                    "mechanism": mechanism,
                    "width": spread,
                    "ratio": max(found),
                    "ratio, training": found[0],
                    "ratio, scoring": found[1],
                    "exceeds": float(max(found) > EPSILON * (1 + 1e-9)),
                }

    def _targeted(self, block: Any) -> Replacements:
        propensity = self.refits.certified.nuisances.propensity(block.x)
        return targeted_neighbours(block, self.draw.score, self.refits.facts, propensity, TARGETED)

    def _refitted(self, replacements: Replacements) -> Tensor:
        if not self.refits.recipe.trains:
            return torch.zeros(1, len(self.population.library)).double()
        return self.refits.movements(replacements)

    def _own(self, replacements: Replacements) -> Tensor:
        """DeltaU [R, M] by replaced scoring records: only their own scores move."""
        nuisances, library, score = self.refits.certified.nuisances, self.population.library, self.draw.score

        def terms(x: Tensor, arm: Tensor, y: Tensor) -> Tensor:
            phi = dr_scores(arm.long(), y, nuisances.propensity(x), nuisances.outcome(x))
            return phi.gather(1, library.decide(x).long())

        old = score.subset(replacements.index)
        return terms(replacements.x, replacements.arm, replacements.y) - terms(old.x, old.a, old.y)


def movement(population: Population, draw: Draw) -> Rows:
    """Tables 1 and 5: every learner's movement, quality and likelihood ratios."""
    yield from _learners(population.learners(draw), population, draw)


def default_ridge(population: Population, draw: Draw) -> Rows:
    """The same of the library's default, ridge fits about a private target, which is without noise here."""
    yield from _learners({"ridge, private target": StableNuisances()}, population, draw)


def _learners(learners: dict[str, ScoreNuisances], population: Population, draw: Draw) -> Rows:
    for name, recipe in learners.items():
        moves = Moves(name, recipe, population, draw)
        certified = moves.refits.certified
        public: dict[str, Any] = {"level": recipe.guarantee}
        if certified.range_sensitivity < torch.inf:
            public["certified spread"] = certified.range_sensitivity
        if isinstance(recipe, StableNuisances) and recipe.target is None:
            public["paper"] = paper_certificate(recipe, population.facts())
        yield {"row": name} | public | moves.measures() | moves.ranges()
        yield from moves.ratios()


def sweep(population: Population, draw: Draw) -> Rows:
    """Table 2: ridge against movement, certificates, quality and regret."""
    facts = population.facts()
    for strength in RIDGES:
        moves = Moves(f"{strength:g}", ridge(strength), population, draw)
        base, regrets = moves.refits.base, population.regrets
        certified = spreads(strength, facts)
        chosen = {
            f"regret, {name}": float(PermuteAndFlip(EPSILON, width).probabilities(base) @ regrets)
            for name, width in certified.items()
        }
        yield (
            {"row": f"{strength:g}", "paper": certified["as printed"] / 2}
            | certified
            | {"regret, argmax": float(regrets[base.argmax()])}
            | chosen
            | moves.measures()
            | moves.ranges()
        )


def guided(population: Population, draw: Draw) -> Rows:
    """Table 5: the whole audit, guided searches included, on the learners that learn."""
    learners = {name: each for name, each in population.learners(draw).items() if each.trains}
    facts, truth = population.facts(), population.true_nuisances
    report = spillover_audit(
        draw.train, draw.score, facts, population.library, learners, neighbours=GUIDED, truth=truth, seed=draw.seed
    )
    for learner in report.learners:
        yield {
            "row": learner.name,
            "movement": learner.movement,
            "spread": learner.worst.spread,
            "refuted": float(learner.refuted),
            "naive ratio": _naive_ratio(learner, learners[learner.name], population, draw),
            "range ratio": max(learner.naive.values()),
            "certified ratio": max(learner.certified.values(), default=0.0),
            **{found.search: found.spread for found in learner.found},
        }


def _naive_ratio(learner: LearnerReport, recipe: ScoreNuisances, population: Population, draw: Draw) -> float:
    """Log-likelihood ratio at the widest neighbour that an audit found, by the two-sided naive calibration."""
    refits = Refits(
        learner.name, recipe, draw.train, draw.score, population.facts(), population.library, seed=draw.seed
    )
    found = learner.worst
    comer = torch.tensor([found.x], dtype=torch.float64), torch.tensor([found.action]), torch.tensor([found.y]).double()
    after = refits.base + refits.movements(Replacements(torch.tensor([found.record]), *comer))[0]
    return max(log_likelihood_ratio(name, EPSILON, NAIVE, refits.base, after) for name in MECHANISMS)


def _widths(moved: Tensor) -> Tensor:
    """Max - min over the policies, [R]."""
    return moved.amax(1) - moved.amin(1)


def _largest(moved: Tensor) -> float:
    return float(moved.abs().max())
