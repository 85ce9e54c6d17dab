"""What a user chooses of a composition: how its nuisances and its effect are learnt."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor

from torchdpcate.composition.builder import plan_within, rebuilt
from torchdpcate.composition.constants import PlanConstants, RuleConstants
from torchdpcate.composition.linear_fit import (
    FitPlan,
    Learnt,
    LinearFit,
    NewtonPoints,
    NoisyNewton,
    Solution,
    Solver,
    exact_solution,
)
from torchdpcate.composition.plan import ComposedPlan
from torchdpcate.composition.planned import (
    NO_LINES_OF_PURE,
    hardly_adjusted,
    require_little_noise,
)
from torchdpcate.composition.pure_fits import PerturbedObjectiveSolver
from torchdpcate.composition.sites import Site
from torchdpcate.composition.steps import NoisySteps, propensity_of
from torchdpcate.data.domain import Domain
from torchdpcate.data.records import CausalData
from torchdpcate.errors import InputError
from torchdpcate.fit.nuisance_config import NuisanceConfig
from torchdpcate.fit.trainer import default_trainer
from torchdpcate.privacy.budget import PrivacyBudget, integer, positive
from torchdpcate.release.averages import GROUPS, REQUESTS, RULE, tilts_of
from torchdpcate.release.composed import Choices

if TYPE_CHECKING:
    from lightning.pytorch import Trainer

_ALONE = 0.8  # a hidden layer's part of a squared gradient beside a constant
Shrink = Callable[[Tensor], Tensor]
"""From released coefficients [p] to those that are used, [p]."""


MOST_AT_SITES = 50
"""Encoded covariates at most where several sites have the records: all are retained, as none is chosen."""
BY_SUMS = (NoisyNewton, PerturbedObjectiveSolver)
"""Solvers that request sums over records alone."""


def as_they_are(theta: Tensor) -> Tensor:
    """Return coefficients as they were released."""
    return theta


def linear_scores(theta: Tensor, features: Tensor, z: Tensor) -> Tensor:
    """Return scores, [n], of features [n, 1 + p] by their coefficients [1 + p], whatever the covariates."""
    return features @ theta.to(features.device)


@dataclass(frozen=True)
class LightningFit(Solver):
    r"""DP-SGD of one linear layer at sampling rate 1, by Opacus inside ``Trainer.fit``.

    Every step is on all records, in float64. Losses are divided by their slope, so that a record's gradient has norm
    at most 1 by its weight, and that is the clip norm: it binds by rounding alone, and what is learnt is what
    ``NoisyNewton`` learns of the same draws, from the same charges.

    Guarantee:
        Certified: the step's mu, as one composition of Gaussian events on all records. A replaced record moves the sum
        of gradients by two clip norms at most, which are one sensitivity; docs/guarantees/dp_sgd.md at q = 1.

    Args:
        trainer: Makes a Trainer from keyword arguments.

    Example:
        >>> import torch
        >>> from torchdpcate.composition.linear_fit import HuberFit
        >>> from torchdpcate.composition.steps import Shares
        >>> from torchdpcate.privacy.noise import NoiseSource
        >>> from torchdpcate.privacy.session import FitSession
        >>> one = torch.ones(500, dtype=torch.float64)
        >>> fit = HuberFit(one[:, None], one, 0.3 * one, 1.0)
        >>> plan = FitPlan("outcome", one[:1] * 500, one[:1] * 0, steps=40, burn_in=8, burn_in_share=0.2, size=0.25)
        >>> steps = NoisySteps(FitSession(NoiseSource.system()), Shares(1e6, {"outcome": 1.0}))
        >>> round(LightningFit().solve(fit, plan, steps).item(), 3)
        0.3
    """

    trainer: "Callable[..., Trainer]" = default_trainer

    def solution(self, fit: LinearFit, plan: FitPlan, steps: NoisySteps) -> Solution:
        """See ``Solver``.

        Raises:
            InputError: Settings of the Trainer that break the analysis.
        """
        if not steps.private:
            return exact_solution(fit, plan.ridge)
        from torchdpcate.composition.networks import LinearLayer, full_batches, train

        fit, points = fit.at_once(), NewtonPoints(plan)
        module = LinearLayer(fit, points)
        n, p = fit.predictors.shape
        plans = [full_batches(event, count, n, p) for event, count in plan.pay(steps)]
        records, noise = (fit.predictors, fit.weights, fit.targets), steps.session.noise
        train(module, records, plans, noise, self.trainer)
        return points.solution


class ComposedNuisance(ABC):
    """How the outcome regression and the propensity of a composition are learnt, from the same charges each."""

    @abstractmethod
    def learn(
        self, fit: LinearFit, plan: FitPlan, z: Tensor, steps: NoisySteps, shrink: Shrink = as_they_are
    ) -> Learnt:
        """Return what was learnt, as a function of features of the records; its steps are paid for.

        Args:
            fit: Features, loss and targets.
            plan: How the fit is set up.
            z: Standardised covariates [n, k].
            steps: Pays, and draws noise.
            shrink: Post-processing of the features' coefficients.

        Raises:
            BudgetError: The budget does not cover the steps.
        """

    def chosen(self, step: str, plan: ComposedPlan) -> "ComposedNuisance":
        """Return what learns a step's regression, by public facts alone.

        Args:
            step: ``outcome`` or ``propensity``.
            plan: The public plan, with its n and N mu.
        """
        return self

    @property
    def trains(self) -> bool:
        """Whether it trains under a Trainer, and so on its device."""
        return False

    def trained_by(self, trainer: "Callable[..., Trainer]") -> "ComposedNuisance":
        """Return the same with another maker of Trainers, where it has one."""
        return self

    @property
    def by_features(self) -> "Additive | None":
        """What learns both regressions by the plan's features alone, whose noise follows from released numbers."""
        return None

    @property
    def by_sums(self) -> "Additive | None":
        """What learns both regressions by sums over records alone, as over a stream; None where nothing does."""
        return None

    @property
    def network(self) -> "WideAndDeep | None":
        """What trains hidden units for the effect; None where nothing does."""
        return None

    @property
    def parts(self) -> tuple[object, ...]:
        """What it is made of, itself among it: guarantees rest on the classes of all of it."""
        return (self,)


@dataclass(frozen=True)
class Additive(ComposedNuisance):
    """A linear layer of the plan's features: squares, products and waves of the covariates, as far as n mu carries.

    Args:
        solver: How it is trained: by DP-SGD in Lightning, or by plain noisy steps, which take the same charges
            and learn the same of the same draws (``NoisyNewton``).
    """

    solver: Solver = field(default_factory=LightningFit)

    def learn(
        self, fit: LinearFit, plan: FitPlan, z: Tensor, steps: NoisySteps, shrink: Shrink = as_they_are
    ) -> Learnt:
        found = self.solver.solve(fit, plan, steps)
        theta = shrink(found)
        return Learnt(partial(linear_scores, theta), theta, found)

    @property
    def by_features(self) -> "Additive | None":
        """See ``ComposedNuisance``; not of subclasses, which may learn otherwise."""
        return self if type(self) is Additive else None

    @property
    def by_sums(self) -> "Additive | None":
        """See ``ComposedNuisance``: of Lightning's fit the plain steps that learn the same."""
        found = Additive(NoisyNewton()) if type(self.solver) is LightningFit else self
        return found if type(self) is Additive and type(found.solver) in BY_SUMS else None

    @property
    def trains(self) -> bool:
        return type(self.solver) is LightningFit

    def trained_by(self, trainer: "Callable[..., Trainer]") -> "Additive":
        solver = self.solver
        return replace(self, solver=replace(solver, trainer=trainer)) if type(solver) is LightningFit else self

    @property
    def parts(self) -> tuple[object, ...]:
        return self, self.solver


@dataclass(frozen=True)
class WideAndDeep(ComposedNuisance):
    r"""The plan's features and one hidden layer of the standardised covariates, trained together by DP-SGD at rate 1.

    .. math:: f(x) = \psi(z)^\top\theta + s \sum_h v_h \tanh(w_h^\top z + b_h)

    Each record's loss is divided by the norm of the gradient of f at it, which public weights and the record give, and
    by the slope: gradients have norm at most 1, which is the clip norm. Steps are scaled by the curvature that a
    public sample of standard normal covariates has; the answer is the mean of the weights after the later half of the
    steps. Without privacy it is the features' exact fit.

    Guarantee:
        Certified: the step's mu; see ``LightningFit``.

    Args:
        width: Hidden units.
        share: The hidden layer's part of a squared gradient, in (0, 1).
        features: Whether all features of the plan are part of f; else their constant alone.
        trainer: Makes a Trainer from keyword arguments.

    Raises:
        InputError: A value out of its range.
    """

    width: int = 16
    share: float = 0.3
    features: bool = True
    trainer: "Callable[..., Trainer]" = default_trainer

    def __post_init__(self) -> None:
        integer("width", self.width, least=1)
        if not 0 < self.share < 1:
            raise InputError(f"share = {self.share}: give the hidden layer's part of a gradient, between 0 and 1")

    @classmethod
    def alone(cls, config: NuisanceConfig) -> "WideAndDeep":
        """Return a hidden layer of the width of networks for blocks of records, without the plan's features.

        Raises:
            InputError: Settings that steps on all records do not have.

        Example:
            >>> WideAndDeep.alone(NuisanceConfig(width=8)).width
            8
        """
        if config != NuisanceConfig(width=config.width):
            raise InputError(
                "nuisance: with second_stage=adaptive networks take the steps of its plan; give their width alone, or "
                "use second_stage=linear"
            )
        return cls(config.width, share=_ALONE, features=False)

    def learn(
        self, fit: LinearFit, plan: FitPlan, z: Tensor, steps: NoisySteps, shrink: Shrink = as_they_are
    ) -> Learnt:
        """See ``ComposedNuisance``; ``shrink`` is for features alone."""
        if not steps.private:
            return Additive(NoisyNewton()).learn(fit, plan, z, steps)
        from torchdpcate.composition.networks import Network, trained

        fit = fit.at_once()
        features = fit.predictors.shape[1] if self.features else 1
        fit = replace(fit, predictors=fit.predictors[:, :features].contiguous())  # once in memory, not twice
        network = Network(fit, z.shape[1], self.width, self.share, features)
        return trained(network, plan, z, steps, self.trainer)

    def hidden_units(
        self, fit: LinearFit, plan: FitPlan, records: CausalData, steps: NoisySteps
    ) -> tuple[Tensor, Tensor]:
        """Return weights [width, k] and biases [width] of hidden units that were trained for the effect.

        Args:
            fit: Features, residuals as targets, and their clip.
            plan: How the fit is set up.
            records: Standardised covariates, a - pi, and propensities.
            steps: Pays, and draws noise.
        """
        from torchdpcate.composition.networks import EffectNetwork, trained

        z, pi = records.x, propensity_of(records)
        network = EffectNetwork(fit, z.shape[1], self.width, self.share, fit.predictors.shape[1])
        learnt = trained(network, plan, z, steps, self.trainer, (records.a, torch.maximum(pi, 1 - pi)))
        assert learnt.hidden is not None
        return learnt.hidden

    @property
    def network(self) -> "WideAndDeep":
        return self

    @property
    def trains(self) -> bool:
        return True

    def trained_by(self, trainer: "Callable[..., Trainer]") -> "WideAndDeep":
        return replace(self, trainer=trainer)


@dataclass(frozen=True)
class Auto(ComposedNuisance):
    """Features alone; for the outcome a hidden layer beside them, from that N mu on at which it is worth its noise.

    The number is that of generated data, see ``experiments/defaults/README.md``; the effect's plan has the same
    for hidden units, which ``deep`` trains. A mu above 2.5 counts as 2.5, so that there are 20,000 records at least: of
    fewer a layer with little noise learns the sample.

    Args:
        outcome_from: Least N mu of an outcome regression with a hidden layer.
        additive: What learns all others.
        deep: What learns that one, and trains hidden units for the effect.

    Raises:
        InputError: ``outcome_from`` is not positive.

    Example:
        >>> from torchdpcate import Domain
        >>> plan = AdaptiveSecondStage().plan(9_000, PrivacyBudget(500.0, 1e-6), Domain([0.0], [1.0], 0.0, 10.0))
        >>> type(Auto().chosen("outcome", plan)).__name__
        'Additive'
    """

    outcome_from: float = 5e4
    additive: ComposedNuisance = field(default_factory=lambda: Additive(NoisyNewton()))
    deep: ComposedNuisance = field(default_factory=WideAndDeep)

    def __post_init__(self) -> None:
        positive("outcome_from", self.outcome_from)

    def chosen(self, step: str, plan: ComposedPlan) -> ComposedNuisance:
        size = min(plan.size, 2.5 * plan.n)
        return self.deep if step == "outcome" and size >= self.outcome_from else self.additive

    def trained_by(self, trainer: "Callable[..., Trainer]") -> "Auto":
        return replace(self, additive=self.additive.trained_by(trainer), deep=self.deep.trained_by(trainer))

    @property
    def by_features(self) -> "Additive | None":
        return self.additive.by_features

    @property
    def by_sums(self) -> "Additive | None":
        """See ``ComposedNuisance``: without its hidden layer."""
        return self.additive.by_sums

    @property
    def network(self) -> WideAndDeep | None:
        return self.deep.network

    @property
    def parts(self) -> tuple[object, ...]:
        return self, *self.additive.parts, *self.deep.parts

    def learn(
        self, fit: LinearFit, plan: FitPlan, z: Tensor, steps: NoisySteps, shrink: Shrink = as_they_are
    ) -> Learnt:
        """See ``ComposedNuisance``: by features alone, where nobody requested which."""
        return self.additive.learn(fit, plan, z, steps, shrink)


@dataclass(frozen=True)
class AdaptiveSecondStage:
    """The richest effect that n and the budget can carry, by one composition on all records.

    Nuisances and effect are steps of one public plan, which says how rich the effect is: one number, linear, or with
    squares, products and waves; see ``ComposedPlan``.

    Args:
        constant_only: Whether the effect is one number in any case.
        constants: Constants of the plan.
        solver: How its effect is solved.
        nuisance: How its outcome regression and propensity are learnt.
        intervals: Whether to request the numbers that intervals rest on, about a fifth of mu^2: true, false, or
            ``auto``, which asks where the domain knows the propensity. With an estimated one, true is refused where
            its planned noise is too large for intervals to hold.
        lines: Lines that are requested beside the average, of ``REQUESTS``: a quarter of mu^2 for all. ``auto`` takes
            groups by effect; false requests none.
        cells: Public partitions whose cells have lines, in the forms of ``Subgroups.of``.
        rule: Public choices of the rule whose values lines are about; None: treat whom the effect favours. With
            ``lines=auto`` its values are requested in the place of groups.
        site: Which of several sites holds the records, all of which run this plan (``Site``); None: there is one.

    Raises:
        InputError: ``intervals`` is none of these; or a site beside what requests more than sums over records.

    Example:
        >>> from torchdpcate import Domain
        >>> domain = Domain([0.0] * 3, [1.0] * 3, 0.0, 10.0)
        >>> AdaptiveSecondStage().plan(300, PrivacyBudget(0.5, 1e-6), domain).form
        'constant'
    """

    choice: ClassVar[str] = "adaptive"

    constant_only: bool = False
    constants: PlanConstants = field(default_factory=PlanConstants)
    solver: Solver = field(default_factory=NoisyNewton)
    nuisance: ComposedNuisance = field(default_factory=Auto)
    intervals: bool | str = "auto"
    lines: bool | str | Sequence[str] = "auto"
    cells: Any = None
    rule: Choices | None = None
    site: Site | None = None

    def __post_init__(self) -> None:
        if self.intervals not in (True, False, "auto"):
            raise InputError(f"intervals = {self.intervals!r}: give true, false or auto")
        if self.lines not in (False, "auto"):
            known = {*REQUESTS, *tilts_of(self._requested)}
            if not set(self._requested) <= known or len(set(self._requested)) < len(self._requested):
                raise InputError(
                    f"lines = {self.lines!r}: give false, auto, or a list of {', '.join(REQUESTS)}, beta:a:b (a and b "
                    "from 0 to 1), each once"
                )
        if self.lines is False and self.cells is not None:
            raise InputError(f"cells = {self.cells!r}: lines=false requests no line of theirs; leave lines=auto")
        if self.site is not None and self.needs_all_records is not None:
            raise InputError(f"sites: add up sums over their records alone; {self.needs_all_records}")

    def plan(self, n: int, budget: PrivacyBudget | None, domain: Domain, arms: int = 2) -> ComposedPlan:
        """Return the public plan for n records of a domain.

        Args:
            n: Number of records.
            budget: Of all that the composition spends; None without privacy.
            domain: Public bounds.
            arms: Number of arms.

        Raises:
            InputError: Intervals where they would not hold, or settings that delta = 0, or more than two arms, do not
                have.
        """
        if self.site is not None:
            n = self.site.total_of(n)
            _check_sites(budget, domain)
        known, constants = domain.known_propensity is not None, self.constants
        if budget is not None and budget.delta == 0:
            solver, _ = self.learnt_by(budget)
            if isinstance(constants, RuleConstants) and type(solver) is not PerturbedObjectiveSolver:
                constants = replace(constants, sums_below=0.0)  # the effect is what the user's solver finds
        may = arms == 2 and (budget is None or budget.delta > 0)
        plan = plan_within(
            n,
            budget,
            domain,
            constant_only=self.constant_only,
            constants=constants,
            intervals=known and may if self.intervals == "auto" else bool(self.intervals),
            arms=arms,
            hidden=self.nuisance.network is not None and self.site is None,
            sites=1 if self.site is None else len(self.site.sizes),
            lines=self._lines_of(budget, arms),
            cells=self.cells,
            **({} if self.rule is None else {"cost": self.rule.cost, "cutoff": self.rule.planned_cutoff}),
        )
        require_little_noise(plan, self.nuisance.by_features is not None)
        return self._adjusted(plan)

    @property
    def _requested(self) -> tuple[str, ...]:
        """Lines beside the average, in their order."""
        if self.lines == "auto":
            return (GROUPS if self.rule is None else RULE,)
        given = (self.lines,) if isinstance(self.lines, str | bool) else tuple(self.lines)
        return tuple(str(name) for name in given)

    def _lines_of(self, budget: PrivacyBudget | None, arms: int) -> tuple[str, ...] | None:
        """Return what is requested beside the average; None where there are no lines.

        Raises:
            InputError: They were requested where they cannot be.
        """
        reason = None
        if budget is not None and budget.delta == 0:
            reason = NO_LINES_OF_PURE
        elif arms > 2 and (self.cells is not None or (self.lines not in (False, "auto") and self._requested)):
            reason = "of more than two arms they are the averages of each"
        if reason is None and self.lines is not False:
            return () if arms > 2 else self._requested
        if reason is not None and (self.lines not in (False, "auto") or self.cells is not None):
            raise InputError(f"lines = {self.lines!r}: {reason}; leave lines=auto, without cells")
        return None

    def _adjusted(self, plan: ComposedPlan) -> ComposedPlan:
        """Return the plan without lines where covariates are hardly adjusted for.

        Raises:
            InputError: Lines were requested.
        """
        reason = hardly_adjusted(plan)
        if reason is None:
            return plan
        if self.lines != "auto" or self.cells is not None:
            raise InputError(f"lines = {self.lines!r}: {reason}" if self.lines else reason)
        return rebuilt(plan, lines=None)

    @property
    def needs_all_records(self) -> str | None:
        """What of it a stream does not allow, in words; None where sums over records are all that it requests."""
        if self.nuisance.by_sums is None:
            return f"nuisance {type(self.nuisance).__name__} trains a network or has its own solver; use nuisance=auto"
        if type(self.solver) not in BY_SUMS:
            return f"solver {type(self.solver).__name__} requests more than sums; leave it out"
        return None

    def learnt_by(self, budget: PrivacyBudget | None, streamed: bool = False) -> tuple[Solver, ComposedNuisance]:
        """Return how the effect is solved and the nuisances are learnt: with delta = 0 by one pure event each.

        Args:
            budget: As of ``plan``.
            streamed: Whether by sums over records alone.

        Raises:
            InputError: A network, or a solver of Gaussian steps, with delta = 0.
        """
        if streamed:
            assert self.nuisance.by_sums is not None  # see needs_all_records
            return replace(self, nuisance=self.nuisance.by_sums).learnt_by(budget)
        if budget is None or budget.delta > 0:
            return self.solver, self.nuisance
        if not isinstance(self.nuisance, Additive | Auto):
            raise InputError(
                f"delta = 0: nuisance {type(self.nuisance).__name__} is trained by DP-SGD, which is only (epsilon, "
                "delta)-private; use nuisance=auto, or give privacy.delta above 0, for instance 1e-6"
            )
        if isinstance(self.solver, LightningFit):
            raise InputError("delta = 0: solver = LightningFit takes Gaussian steps; leave the solver out")
        solver = PerturbedObjectiveSolver() if type(self.solver) is NoisyNewton else self.solver
        return solver, Additive(PerturbedObjectiveSolver())


def _check_sites(budget: PrivacyBudget | None, domain: Domain) -> None:
    """Refuse what sites cannot do by noisy sums."""
    if budget is None:
        raise InputError("sites: send each other noisy sums alone; give a budget (privacy.epsilon, privacy.delta)")
    if budget.delta == 0:
        raise InputError("delta = 0: sites add up Gaussian noise; give privacy.delta above 0, for instance 1e-6")
    if domain.dimension > MOST_AT_SITES:
        raise InputError(
            f"covariates = {domain.dimension}: sites choose none by private scores, which are no sums; name at most "
            f"{MOST_AT_SITES} columns in the domain"
        )


def known_propensities(records: CausalData, domain: Domain, arms: int = 2) -> Tensor | None:
    """Return the known propensities of records, [n], or of K > 2 arms each, [n, K]; None where none are known."""
    known = domain.known_propensity
    if known is None:
        return None
    return known.of(records) if arms == 2 else known.arms_of(records)
