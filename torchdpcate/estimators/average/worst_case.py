"""Neighbouring records on which stage two, the balance statistics and the complete effect are attacked."""

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from torchdpcate.causal.estimand import ATE, ATT
from torchdpcate.data.domain import Domain
from torchdpcate.erm.losses import CrossEntropy, Logistic, Loss
from torchdpcate.erm.records import Batch, StackedRecords, Target, arm, outcome
from torchdpcate.estimators.average.balance import BalanceStatistics
from torchdpcate.estimators.average.balanced_difference import BalancedDifference
from torchdpcate.estimators.average.covariate_balancing import CovariateBalancingEffect
from torchdpcate.estimators.average.effect_estimator import EffectEstimator, EffectFacts, Weighted, released_ranges
from torchdpcate.estimators.average.outcome_table import CELLS, OutcomeTable
from torchdpcate.estimators.average.plan import OUTCOME_MODEL, make_plan
from torchdpcate.features.user_maps import on_domain
from torchdpcate.privacy.budget import PrivacyBudget
from torchdpcate.privacy.charge import Charge, Purpose
from torchdpcate.privacy.draws import root_norm
from torchdpcate.privacy.events import PureEvent
from torchdpcate.privacy.guarantee import Guarantee, Level
from torchdpcate.privacy.noise import NoiseSource
from torchdpcate.privacy.session import FitSession
from torchdpcate.privacy.worst_case import Game, worst_case

_ATE = ATE(0.1)
_RECORDS = 50
_AT_ONCE = 10_000  # runs whose terms of all records are in memory
_LEAST = 0.01  # of epsilon, for the parts that the pair does not move


def _weighted(high: float, treated: float = 1.0, largest: float = _ATE.largest) -> Weighted:
    """Records of least weight, and one of the largest with this outcome and treatment."""
    z = (torch.arange(_RECORDS) % 2).double()[None]
    y, w = torch.full_like(z, 0.5), torch.full_like(z, _ATE.smallest)
    z[0, 0], y[0, 0], w[0, 0] = treated, high, largest
    return Weighted(z, y, w, torch.full_like(z, 0.3))


def _exact(readout: EffectEstimator, batch: Weighted, facts: EffectFacts) -> Mapping[str, Tensor]:
    """Return the sums of these records, without noise."""

    def total(terms: Callable[[Weighted], Tensor]) -> Tensor:
        return terms(batch)

    return readout.without_noise(total, facts).released


@worst_case(
    "balanced_difference",
    BalancedDifference,
    pair="of the ATT, a treated record and a control of the largest weight that released coefficients leave, both with "
    "the outcome furthest below the outcome model: what all three sums cost together; they are shown",
)
def _balanced_difference(budget: PrivacyBudget) -> Game:
    features, readout = on_domain(None, Domain([0.0], [1.0], 0.0, 1.0)), BalancedDifference()
    theta = torch.tensor([[0.0, 1.0]], dtype=torch.float64)  # of both: weights up to 2.03, and means in [0.33, 0.67]
    facts = EffectFacts(_RECORDS, ATT(_ATE.overlap), 0.3, 0.7)
    facts = replace(facts, ranges=(ranges := released_ranges(facts, features, theta, theta)))
    shares = math.fsum(readout.parts.values())
    epsilons = {part: budget.epsilon * share / shares for part, share in readout.parts.items()}
    largest = ranges.treated[1].item(), ranges.control[1].item()
    worlds = [_weighted(0.0, 1.0 - world, largest[world]) for world in (0, 1)]
    worlds = [world._replace(m=ranges.model[1].expand_as(world.m)) for world in worlds]
    means = [_exact(readout, batch, facts) for batch in worlds]
    scales, laws = readout.scales(facts, epsilons), readout.laws(facts, epsilons)

    def draw(world: int, runs: int, noise: NoiseSource) -> Tensor:
        def ask(part: str, exact: Tensor) -> Tensor:
            return laws[part].draw(noise, runs, exact)

        answers = readout.ask(lambda terms: terms(worlds[world]), facts, epsilons, ask)
        found = readout.estimate(answers, facts, epsilons).released
        return torch.stack([found[part] for part in readout.parts], 1)

    def evidence(shown: Tensor) -> Tensor:
        """Return the exact log-likelihood ratio of all three sums."""
        each = zip(readout.parts, shown.T, strict=True)
        ratios = [((sums - means[0][p]).abs() - (sums - means[1][p]).abs()) / scales[p] for p, sums in each]
        return torch.stack(ratios).sum(0)

    pure = PrivacyBudget(budget.epsilon, 0.0)
    return Game(
        draw,
        PureEvent(budget.epsilon),
        Guarantee(Level.CERTIFIED, pure),
        evidence,
    )


@worst_case(
    "outcome_table",
    OutcomeTable,
    attacks=[
        *(Charge(Purpose.RELEASE, name) for name in (OutcomeTable.name, "difference_in_means")),
        Charge(Purpose.RELEASE, BalancedDifference.name, "difference_in_means"),
    ],
    pair="a treated record of the largest weight that released coefficients leave, its outcome at either end",
)
def _outcome_table(budget: PrivacyBudget) -> Game:
    features, readout = on_domain(None, Domain([0.0], [1.0], 0.0, 1.0)), OutcomeTable()
    theta = torch.tensor([[0.5, 1.0]], dtype=torch.float64)  # treated weights up to 2.42, those of controls to 3.89
    facts = EffectFacts(_RECORDS, _ATE)
    facts = replace(facts, ranges=(ranges := released_ranges(facts, features, theta, None)))
    epsilons = {"table": (1 - _LEAST) * budget.epsilon, "variance": _LEAST * budget.epsilon}
    largest = ranges.treated[1].item()
    worlds = [_weighted(1.0 - world, largest=largest) for world in (0, 1)]
    exact = [_exact(readout, batch, facts) for batch in worlds]
    tables = [torch.stack([found[name] for name in CELLS], 1) for found in exact]

    laws = readout.laws(facts, epsilons)

    def draw(world: int, runs: int, noise: NoiseSource) -> Tensor:
        def ask(part: str, exact: Tensor) -> Tensor:
            return laws[part].draw(noise, runs, exact)

        found = readout.ask(lambda terms: terms(worlds[world]), facts, epsilons, ask)
        released = readout.estimate(found, facts, epsilons).released
        return torch.stack([released[part] for part in CELLS], 1)

    def size(moved: Tensor) -> Tensor:
        return root_norm(moved / facts.weight_bounds.repeat_interleave(2, -1))

    return Game(
        draw,
        PureEvent(budget.epsilon),
        Guarantee(Level.CERTIFIED, PrivacyBudget(budget.epsilon, 0.0)),
        evidence=lambda shown: (size(shown - tables[0]) - size(shown - tables[1])) * epsilons["table"],
        most_runs=200_000,
    )


@worst_case(
    "balance_statistics",
    BalanceStatistics,
    attacks=[Charge(Purpose.RELEASE, name, "balance") for name in (BalancedDifference.name, OutcomeTable.name)],
    pair="half of the records are treated and all weights are the largest: a record at one end of the covariate is "
    "treated or not; the share of treated is shown too",
)
def _balance(budget: PrivacyBudget) -> Game:
    domain, pure = Domain([0.0], [1.0], 0.0, 1.0), PrivacyBudget(budget.epsilon, 0.0)
    features, theta = on_domain(None, domain), torch.zeros(1, 2, dtype=torch.float64)
    statistics = BalanceStatistics(budget.epsilon, ATE(0.5))  # whose weights are 2, whatever theta is
    x = torch.full((2 * _RECORDS, 1), 0.5, dtype=torch.float64)
    x[0], worlds = 1.0, []
    for treated in (1.0, 0.0):
        z = (torch.arange(2 * _RECORDS) % 2).double()
        z[0] = treated
        worlds.append(StackedRecords(Batch(x, features(x), z, torch.zeros_like(z))))
    n = worlds[0].n

    laws = statistics.laws(n, 1)

    def draw(world: int, runs: int, noise: NoiseSource) -> Tensor:
        def some(part: int) -> Tensor:
            def ask(name: str, exact: Tensor) -> Tensor:
                return laws[name].draw(noise, part, exact)

            return torch.cat(list(statistics.ask(worlds[world], theta, features, ask).values()), 1)

        return torch.cat([some(part) for part in _parts(runs)])  # each run has terms of all records by its own share

    def evidence(shown: Tensor) -> Tensor:
        """Return the exact log-likelihood ratio of the number of treated and the sums, whose means it decides."""
        share, ratio = statistics.share(shown[:, 0], n), torch.zeros(len(shown), dtype=torch.float64)
        for sign, records in zip((1, -1), worlds, strict=True):
            far = (shown[:, 0] - records.batch.z.sum()).abs() / laws["treated"].scale
            means = torch.cat([records.total(statistics.terms(theta, features, p, n)) for p in share.split(_AT_ONCE)])
            ratio += sign * (far + (shown[:, 1:] - means).abs().amax(1) / laws["sums"].scale)
        return ratio

    return Game(draw, PureEvent(budget.epsilon), Guarantee(Level.CERTIFIED, pure), evidence)


def _parts(runs: int) -> list[int]:
    """Return the sizes of parts of so many runs that fit into memory."""
    return [min(_AT_ONCE, runs - start) for start in range(0, runs, _AT_ONCE)]


@worst_case(
    "covariate_balancing_effect",
    CovariateBalancingEffect,
    attacks=[Charge(Purpose.RELEASE, BalancedDifference.name, "sums")],
    pair="a record apart from all others, treated or not; propensity, outcome model and all sums are shown",
)
def _effect(budget: PrivacyBudget) -> Game:
    domain, pure = Domain([0.0], [1.0], 0.0, 1.0), PrivacyBudget(budget.epsilon, 0.0)
    features, estimand = on_domain(None, domain), ATE(0.495)
    # little of the claim goes to what the pair moves by half, or not: propensity, outcome model, size and spread;
    # weights and outcome model have narrow ranges, whose ends are what noise in the difference must hide
    shares = {"stage_one": 0.1, "outcome_model": 0.02, "difference": 0.86, "size": _LEAST, "spread": _LEAST}
    settings: dict[str, Any] = {"loss": "logistic", "outcome_bounds": (0.495, 0.505), "shares": shares}
    plan = make_plan(_RECORDS, features, estimand, pure, **settings)
    x, z = torch.zeros(_RECORDS, 1, dtype=torch.float64), (torch.arange(_RECORDS) % 2).double()
    y, worlds = torch.full_like(z, 0.5), []
    x[0], y[0] = 1.0, 1.0
    for treated in (1.0, 0.0):
        own = z.clone()
        own[0] = treated
        worlds.append(StackedRecords(Batch(x, features(x), own, y)))
    readout = BalancedDifference()

    def draw(world: int, runs: int, noise: NoiseSource) -> Tensor:
        session = FitSession(noise)
        answers = plan.sums(worlds[world], session, plan.learn(worlds[world], session, runs))
        difference = plan.estimate(answers).released["difference"]
        return torch.cat([answers["weights"], answers[OUTCOME_MODEL], difference[:, None]], 1)

    def log_density(shown: Tensor, world: int) -> Tensor:
        """Log density of what is shown: two perturbed minimisers, then Laplace noise on D given both."""
        theta, model, difference = shown.split([2, 2, 1], 1)
        records, learnt = worlds[world], {"weights": theta, OUTCOME_MODEL: model}
        exact = readout.without_noise(plan.total(records, learnt), plan.facts).released["difference"]
        scale = readout.scales(plan.released(learnt), plan.epsilons)["difference"]
        fits = _perturbed(records, theta, Logistic(), arm, plan.propensity.public)
        fits = fits + _perturbed(records, model, CrossEntropy(), outcome, plan.outcome.public)  # type: ignore[union-attr]
        return fits - (difference[:, 0] - exact).abs() / scale

    return Game(
        draw,
        PureEvent(budget.epsilon),
        Guarantee(Level.CERTIFIED, pure),
        evidence=lambda shown: log_density(shown, 1) - log_density(shown, 0),
        most_runs=50_000,
    )


def _perturbed(records: StackedRecords, theta: Tensor, loss: Loss, target: Target, public: Mapping[str, Any]) -> Tensor:
    """Log density [runs], up to a constant, of the minimiser of a sum that box noise perturbs."""
    _, gradient, hessian = records.slopes(loss, target, theta)
    gamma = public["ridge"]
    hessian.diagonal(dim1=1, dim2=2).add_(gamma)
    return torch.logdet(hessian) - (gradient + gamma * theta).abs().amax(1) / public["tilt_scale"]
