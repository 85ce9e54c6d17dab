"""What a mechanism is: something that turns a fitted second stage into numbers fit to leave."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from torchdpcate.data.domain import Domain
from torchdpcate.errors import InputError
from torchdpcate.estimators.cate.recompute import EffectFacts, effect_facts, is_learner
from torchdpcate.estimators.mechanism import Stated
from torchdpcate.features.maps import FeatureMap
from torchdpcate.privacy.budget import PrivacyBudget
from torchdpcate.privacy.events import Event
from torchdpcate.privacy.guarantee import Condition, Guarantee, Level
from torchdpcate.privacy.noise import NoiseSource
from torchdpcate.privacy.session import FitSession
from torchdpcate.registry import Registry
from torchdpcate.release.release import FunctionRelease, QueryRelease, Release
from torchdpcate.second_stage.recipes import LinearSecondStage, SecondStage
from torchdpcate.second_stage.stage import FittedStage, LinearStage, RKHSStage

FUNCTION, QUERIES = (FunctionRelease.kind, QueryRelease.kind), (QueryRelease.kind,)
"""Kinds of release of a mechanism of functions, which may be released at queries alone; and of one of queries."""


def effects_stated(
    formula: str,
    kinds: tuple[str, ...],
    *needs: str,
    may: tuple[str, ...] = (),
    highest: Level = Level.CERTIFIED,
    conditions: tuple[str, ...] = (),
) -> Stated:
    """Return what releases of effects by a mechanism may state; ``needs`` are constants beside the learner's own."""
    return Stated(
        highest, kinds, frozenset(("learner", "split", "seed", "ridge", *needs)), frozenset(may), conditions, formula
    )


@dataclass(frozen=True, eq=False)
class Prepared:
    """A mechanism about to run on one fitted stage: the price, and then the draw. The curator's.

    Attributes:
        event: What one run costs, ``count`` times; None for what is free.
        guarantee: Level and conditions.
        draw: (noise, runs) -> outputs [runs, p], float64 on the CPU: independent runs of the mechanism. A release
            is one run; an audit asks for many.
        public: Public constants of the mechanism.
        noise_scale: See `PrivateHead`; None where no such bound is public.
        noise_scales: Public standard deviation of each answer, [d]; None where it is secret.
        count: How often the event happens in one run.
    """

    event: Event | None
    guarantee: Guarantee
    draw: Callable[[NoiseSource, int], Tensor]
    public: dict[str, Any]
    noise_scale: float | None = None
    noise_scales: Tensor | None = None
    count: int = 1

    @property
    def level(self) -> Level:
        """The level to charge at: a condition known to fail leaves nothing that a later total may rest on."""
        return self.guarantee.level if self.guarantee.holds_claim else Level.HEURISTIC

    def resting_on(self, conditions: tuple[Condition, ...]) -> "Prepared":
        """Return the same mechanism with further conditions of its guarantee."""
        return replace(self, guarantee=self.guarantee.resting_on(conditions)) if conditions else self

    def run(self, session: FitSession) -> Tensor:
        """Pay, then draw once, [p]."""
        if self.event is not None:
            session.pay(self.event, self.level, self.count)
        return session.noise.paid(self.draw(session.noise, 1)[0])


@dataclass(frozen=True, eq=False)
class PrivateHead:
    """Coefficients that a function mechanism paid for.

    Attributes:
        theta: Released coefficients, float64 [p] on the CPU.
        noise_scale: Public bound s: the mechanism's median answer at x lies within z s ||psi(x)|| of the
            released one with the two-sided normal probability of z; None where no such bound is public.
        guarantee: Level and conditions.
        public: Public constants of the mechanism.
    """

    theta: Tensor
    noise_scale: float | None
    guarantee: Guarantee
    public: dict[str, Any]


@dataclass(frozen=True, eq=False)
class PrivateAnswers:
    """Corrections f at the queries that a query mechanism paid for, float64 [d] on the CPU.

    Attributes:
        values: The corrections.
        guarantee: Level and conditions.
        public: Public constants of the mechanism.
        noise_scales: Public standard deviation of each answer, [d]; None where it is secret.
    """

    values: Tensor
    guarantee: Guarantee
    public: dict[str, Any]
    noise_scales: Tensor | None = None


class Mechanism(ABC):
    """Common facts of every mechanism.

    Attributes:
        name: The name users give.
        formula: The noise scale and its source, in one line.
        states: What its releases may state; nothing may be claimed where a mechanism does not say it.
        loss: The loss of a second stage it works with best, where the user has no wish.
        noise_ratio: The noise it works with best, see ``RidgeSecondStage``, where the user has no wish.
        accepts: Kinds of second stage it has a guarantee, or at least a scale, for.
        free: Whether it is post-processing of what the nuisances paid for and spends nothing.
        online: Whether it can answer any number of queries for one price, at a trusted curator's service.
        gaussian: Whether its event is a Gaussian, which composes more cheaply with others.
        searches: Whether it searches the domain for a worst record, which takes one regression for all records.
    """

    name: ClassVar[str]
    formula: ClassVar[str]
    states: ClassVar[Stated] = Stated(Level.HEURISTIC, FUNCTION)
    loss: ClassVar[str] = "huber"
    noise_ratio: ClassVar[float] = 0.5
    accepts: ClassVar[tuple[type[SecondStage], ...]] = (SecondStage,)
    free: ClassVar[bool] = False
    online: ClassVar[bool] = False
    gaussian: ClassVar[bool] = False
    searches: ClassVar[bool] = False

    def check(self, recipe: SecondStage, weight_bound: float, n: int, budget: PrivacyBudget) -> None:
        """Refuse, before anything is trained or spent, what could not be released afterwards.

        Args:
            recipe: Settings of the second stage.
            weight_bound: Public bound B of the weighted features.
            n: Records of the second-stage block.
            budget: What the release may spend.

        Raises:
            InputError: The mechanism has no guarantee for these.
        """
        if budget.delta == 0:
            raise InputError(
                f"delta = 0: mechanism = {self.name} is only (epsilon, delta)-private; "
                "give privacy.delta above 0, for instance 1e-5"
            )
        if not isinstance(recipe, self.accepts):
            raise InputError(self._no_bound())

    @classmethod
    def recompute(cls, release: Release) -> Iterator[str]:
        """Return what of a release does not follow from its public facts; see ``ReleaseMechanism``."""
        assert isinstance(release, FunctionRelease | QueryRelease)
        learner = release.privacy.public.get("learner")
        if not is_learner(learner):
            yield f"its learner is called {learner}, which is none of the library's"
            return
        facts = effect_facts(release, cls.free)
        if isinstance(release, QueryRelease) and not cls.free:
            yield from facts.head_problems()
        yield from cls.problems(facts)

    @classmethod
    def problems(cls, facts: EffectFacts) -> Iterator[str]:
        """Return what of constants, noise band and numbers does not follow from the public facts of a release."""
        yield f"mechanism {cls.name!r} does not say how its releases follow from public facts"

    def require_linear(self, stage: FittedStage) -> LinearStage:
        """Return the stage if it is linear.

        Raises:
            InputError: A head without a sensitivity bound.
        """
        if not isinstance(stage, LinearStage):
            raise InputError(self._no_bound())
        return stage

    def require_rkhs(self, stage: FittedStage) -> RKHSStage:
        """Return the stage if its f lies in a Hilbert space in which one record moves it by a known bound.

        Raises:
            InputError: A head without a sensitivity bound.
        """
        if not isinstance(stage, RKHSStage):
            raise InputError(self._no_bound())
        return stage

    def _no_bound(self) -> str:
        choices = " or ".join(recipe.choice for recipe in self.accepts)
        return (
            f"mechanism = {self.name}: has no sensitivity bound for this second stage; use second_stage={choices} "
            "(tangent keeps a network), or release=queries mechanism=influence"
        )


MECHANISMS = Registry("mechanism", "torchdpcate.estimators.cate")
"""Mechanisms by the name that ``release_queries`` and ``release_function`` take."""


class FunctionMechanism(Mechanism):
    """Releases the coefficients of a linear head, hence the whole function."""

    accepts: ClassVar[tuple[type[SecondStage], ...]] = (LinearSecondStage,)

    @abstractmethod
    def prepare(self, stage: FittedStage, budget: PrivacyBudget) -> Prepared:
        """Return the mechanism on this stage, with its public noise scale; nothing is drawn yet.

        Args:
            stage: The fitted second stage, the curator's.
            budget: What this release may spend of the second-stage block's budget.

        Raises:
            InputError: A stage or budget this mechanism has no guarantee for.
        """

    def privatize(self, stage: FittedStage, budget: PrivacyBudget, session: FitSession) -> PrivateHead:
        """Return private coefficients.

        Args:
            stage: The fitted second stage, the curator's.
            budget: What this release may spend.
            session: Pays before anything is drawn, and draws the noise.

        Raises:
            InputError: A stage or budget this mechanism has no guarantee for.
            BudgetError: The block cannot pay.
        """
        ready = self.prepare(stage, budget).resting_on(() if self.free else stage.conditions)
        return PrivateHead(ready.run(session), ready.noise_scale, ready.guarantee, ready.public)

    def features(self, stage: FittedStage) -> FeatureMap:
        """Return the feature map that the released coefficients belong to."""
        return self.require_linear(stage).features

    def make_release(self, head: PrivateHead, **parts: Any) -> FunctionRelease:
        """Return the release of what was paid for; parts are the other attributes of ``FunctionRelease``."""
        return FunctionRelease(theta=head.theta, noise_scale=head.noise_scale, **parts)


def public_step(domain: Domain) -> float:
    """Return the spacing of released answers: the largest power of two within 2^-36 of the outcome range."""
    return NoiseSource.grid(domain.outcome_range) * 2.0**-16


class QueryMechanism(Mechanism):
    """Releases f at finitely many public queries, on the grid of ``public_step``."""

    loss = "squared"

    @abstractmethod
    def prepare(self, stage: FittedStage, queries: Tensor, budget: PrivacyBudget) -> Prepared:
        """Return the mechanism on f at the queries [d, q]; see ``FunctionMechanism.prepare``."""

    def answer(self, stage: FittedStage, queries: Tensor, budget: PrivacyBudget, session: FitSession) -> PrivateAnswers:
        """Return private values of f at the queries [d, q]; see ``FunctionMechanism.privatize``."""
        ready = self.prepare(stage, queries, budget).resting_on(stage.conditions)
        return PrivateAnswers(ready.run(session), ready.guarantee, ready.public, ready.noise_scales)


def gaussian_answers(values: Tensor, scale: float, domain: Domain) -> Callable[[NoiseSource, int], Tensor]:
    """Return the draw of values [d], rounded to the public grid, plus N(0, scale^2) noise on it.

    Rounding moves the values by at most sqrt(d) steps between two data sets. The scale may be secret: the grid is
    not its own.
    """
    step = public_step(domain)
    rounded = torch.round(values.cpu() / step) * step

    def draw(noise: NoiseSource, runs: int) -> Tensor:
        return rounded + noise.gaussian(runs * rounded.numel(), scale, step).reshape(runs, -1)

    return draw
