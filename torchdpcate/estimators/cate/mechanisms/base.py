"""What a mechanism is: something that turns a fitted second stage into numbers fit to leave; some need no noise."""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from torchdpcate.data.domain import Domain
from torchdpcate.data.propensity import KnownPropensity
from torchdpcate.errors import InputError
from torchdpcate.estimators.cate.composition_plan import FORMULA, CompositionPlan
from torchdpcate.estimators.cate.head import Head, PlannedHead
from torchdpcate.fit.feature_maps import FeatureMap, Identity
from torchdpcate.heads.recipes import LinearSecondStage, PlugInSecondStage, SecondStage
from torchdpcate.heads.stage import FittedStage, LinearStage, RKHSStage
from torchdpcate.laws import Law
from torchdpcate.privacy.budget import PrivacyBudget
from torchdpcate.privacy.events import Event
from torchdpcate.privacy.guarantee import Condition, Guarantee, Level, of_library, user_code
from torchdpcate.privacy.noise import NoiseSource
from torchdpcate.privacy.session import FitSession
from torchdpcate.privacy.worst_case import WORST_CASES
from torchdpcate.registry import Registry
from torchdpcate.release.release import FunctionRelease, QueryRelease

FUNCTION, QUERIES = (FunctionRelease.kind, QueryRelease.kind), (QueryRelease.kind,)
"""Kinds of release of a mechanism of functions, which may be released at queries alone; and of one of queries."""

Exact = Callable[[Any], tuple[Any, ...]]
"""Law -> what it draws from."""

SENSITIVITY = (
    "Delta = 2 B tau / (ridge n) for the Huber loss, "
    "(2 B S / (ridge n)) max_t sin t (1 + B cos t / (2 sqrt(ridge))) for the squared one"
)
"""Of one record, of ridge regressions; see ``second_stage.linear.sensitivity``."""


@dataclass(frozen=True, eq=False)
class Prepared:
    """A mechanism on one fit: what it costs, what is public of it, and its draws. The curator's.

    Attributes:
        law: How its numbers leave the records; None where it is free.
        head: What is public of the second stage.
        budget: What the release may spend.
        guarantee: Level and conditions.
        public: Public constants of the mechanism.
        exact: What the law draws from.
        noise_scale: Public bound s: the mechanism's median answer at x lies within z s ||psi(x)|| of the released one
            with the two-sided normal probability of z; None where no such bound is public.
        noise_scales: Public standard deviation of each answer, [d]; None where it is secret.
        output: The one run that was charged, [p]; empty before ``run``, unless it is free.
    """

    law: Law | None
    head: Head
    budget: PrivacyBudget
    guarantee: Guarantee
    public: dict[str, Any]
    exact: tuple[Any, ...] = ()
    noise_scale: float | None = None
    noise_scales: Tensor | None = None
    output: Tensor = field(default_factory=lambda: torch.empty(0))

    @property
    def event(self) -> Event | None:
        """What one run costs, ``count`` times; None for what is free."""
        return None if self.law is None else self.law.event

    @property
    def count(self) -> int:
        """How often the event happens in one run."""
        return 1 if self.law is None else self.law.count

    def draw(self, noise: NoiseSource, runs: int) -> Tensor:
        """Return independent runs of the mechanism [runs, p]: a release is one, an audit requests many."""
        return self.output.expand(runs, -1) if self.law is None else self.law.draw(noise, runs, *self.exact)

    @property
    def level(self) -> Level:
        """The level to charge at: a condition known to fail leaves nothing that a later total may rest on."""
        return self.guarantee.level if self.guarantee.holds_claim else Level.HEURISTIC

    def resting_on(self, conditions: tuple[Condition, ...]) -> "Prepared":
        """Return the same mechanism with further conditions of its guarantee."""
        return replace(self, guarantee=self.guarantee.resting_on(conditions)) if conditions else self

    def run(self, session: FitSession) -> "Prepared":
        """Return the mechanism with its output: charge, then draw once."""
        if self.law is None:
            return self
        session.pay(self.law.event, self.level, self.law.count)
        output = self.draw(session.noise, 1)[0]
        return replace(self, output=output if self.law.hands_out else session.noise.released(output))


class Mechanism(ABC):
    """Common facts of every mechanism.

    Attributes:
        name: The name users give.
        formula: The noise scale and its source, in one line.
        source: Where the guarantee is proved.
        level: The strongest level of its releases.
        kinds: Kinds of release that it makes.
        jitter: Added to K(x, x), where it is the noise of a function.
        loss: The loss of a second stage it works with best, where the user has no wish.
        noise_ratio: The noise it works with best, see ``RidgeSecondStage``, where the user has no wish.
        accepts: Kinds of second stage it has a guarantee, or at least a scale, for.
        free: Whether it is post-processing of what the nuisances paid for and spends nothing.
        online: Whether it can answer any number of queries for one charge, at a trusted curator's service.
        gaussian: Whether its event is a Gaussian, which composes more cheaply with others.
        searches: Whether it searches the domain for a worst record.
    """

    name: ClassVar[str]
    formula: ClassVar[str]
    source: ClassVar[str] = ""
    level: ClassVar[Level] = Level.CERTIFIED
    kinds: ClassVar[tuple[str, ...]] = FUNCTION
    jitter: ClassVar[float] = 0.0
    loss: ClassVar[str] = "huber"
    # PEHE of objective perturbation, Legendre 2, Dataset 2, n = 30,000, epsilon = 1 (20 November 2026): 1.02, .97, .91,
    # .89 and .92 at .1, .25, .5, 1 and 2; n = 3,000: 2.67, 2.64, 2.72, 3.03 and 4.57
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

    def check_attacked(self) -> None:
        """Refuse a class of the library whose claim no audit can attack; one of a user's is conditional at most.

        Raises:
            InputError: The class declares no worst-case neighbours of its own.
        """
        if of_library(self) and not self.free and not any(case.of is type(self) for case in WORST_CASES.values()):
            raise InputError(
                f"mechanism = {self.name}: declares no worst-case neighbours, so that no audit could attack its claim; "
                f"give {type(self).__name__} a method under @worst_case, as docs/extend.md shows"
            )

    def check_propensity(self, known: KnownPropensity | None) -> None:
        """Refuse a known propensity that the mechanism does not go with.

        Args:
            known: The domain's propensity.

        Raises:
            InputError: Each record has its own, and the mechanism searches the covariates.
        """
        if self.searches and known is not None and known.column is not None:
            raise InputError(
                f"mechanism = {self.name}: searches the covariates for the worst record, and each record's propensity "
                f"is the column {known.column!r}, which they do not tell; use mechanism=objective"
            )

    def planned(self, head: PlannedHead, budget: PrivacyBudget) -> float:
        """Return the standard deviation of the noise in a typical answer, in outcome units; NaN where it is not known.

        It is that of the law of the planned head, where its band is public; a mechanism that knows more says more.

        Args:
            head: The second stage as plans expect it; no record is looked at.
            budget: What the release may spend.

        Raises:
            InputError: A budget with which nothing could be released.
        """
        if self.free:
            return math.nan
        band = self.band(self.law(head, budget))
        return math.nan if band is None else band * math.hypot(head.length, math.sqrt(self.jitter))

    def planned_level(self, recipe: SecondStage) -> Level:
        """Return the strongest level of its releases of a second stage that has not been fitted."""
        return self.level

    def conditions(self, stage: FittedStage) -> tuple[Condition, ...]:
        """Return what the guarantee of a release rests on beside the mechanism's own: a user's mechanism, and map."""
        return (*user_code("mechanism", self), *(() if self.free else stage.conditions))

    def law(self, head: Head, budget: PrivacyBudget) -> Law | None:
        """Return how its numbers leave the records: the one place where its sensitivity stands; None where it is free.

        Args:
            head: What is public of the second stage.
            budget: What this release may spend of the second-stage block's budget.

        Raises:
            InputError: A head or budget this mechanism has no guarantee for.
        """
        raise InputError(f"mechanism = {self.name}: does not say how its numbers leave the records")

    @classmethod
    def stated_law(cls, public: Mapping[str, Any], head: Head, budget: PrivacyBudget) -> Law | None:
        """Return the law of a release by the constants that its statement has; every value may be forged.

        Args:
            public: As stated.
            head: What is public of the second stage.
            budget: What the release was to spend.
        """
        return cls().law(head, budget)

    def public(self, head: Head, law: Any) -> dict[str, Any]:
        """Return the public constants of a release beside those of the learner.

        Args:
            head: What is public of the second stage.
            law: Of ``law``.
        """
        return {} if law is None else law.constants()

    def band(self, law: Any) -> float | None:
        """Return the public noise of an answer per unit of sqrt(K(x, x) + jitter); None where none is public."""
        return None

    def guarantee(self, stage: FittedStage, budget: PrivacyBudget, queries: int) -> Guarantee:
        """Return the level of a release with its conditions; everything in it is public.

        Args:
            stage: The second stage, of whose records nothing is looked at.
            budget: What the release may spend.
            queries: Number of answers; 0 of a function.
        """
        return Guarantee(self.level, budget, source=self.source)

    def release_problems(self, head: Head, law: Any, release: FunctionRelease | QueryRelease) -> Iterator[str]:
        """Return what else in a release by this mechanism does not follow from its public facts."""
        yield from ()

    def _prepared(self, stage: FittedStage, head: Head, budget: PrivacyBudget, exact: Exact) -> Prepared:
        """Return the mechanism on a stage, ready to run.

        Args:
            stage: The fitted second stage, the curator's.
            head: What is public of it.
            budget: What the release may spend.
            exact: Returns what the law draws from, of the law.
        """
        law = self.law(head, budget)
        guarantee = self.guarantee(stage, budget, head.answers or 0)
        found = Prepared(law, head, budget, guarantee, self.public(head, law))
        if law is None:
            return replace(found, output=torch.zeros(self.features(stage).dimension, dtype=torch.float64))
        return replace(found, exact=exact(law), noise_scale=self.band(law))

    def features(self, stage: FittedStage) -> FeatureMap:
        """Return the feature map that the released coefficients belong to."""
        return self.require_linear(stage).features

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
            f"mechanism = {self.name}: has no sensitivity bound for this second stage; use second_stage={choices}, or "
            "second_stage=neural release=queries mechanism=influence"
        )


MECHANISMS = Registry("mechanism", "torchdpcate.estimators.cate")
"""Mechanisms by the name that ``release_queries`` and ``release_function`` take."""


class FunctionMechanism(Mechanism):
    """Releases the coefficients of a linear head, hence the function at every x."""

    accepts: ClassVar[tuple[type[SecondStage], ...]] = (LinearSecondStage,)

    def exact(self, stage: FittedStage, law: Any) -> tuple[Any, ...]:
        """Return what the law draws from: the curator's."""
        return (self.require_linear(stage).theta.cpu(),)

    def prepare(self, stage: FittedStage, budget: PrivacyBudget) -> Prepared:
        """Return the mechanism on this stage, with its public noise scale; nothing is drawn yet.

        Args:
            stage: The fitted second stage, the curator's.
            budget: What this release may spend of the second-stage block's budget.

        Raises:
            InputError: A stage or budget this mechanism has no guarantee for.
        """
        if not self.free:
            self.require_linear(stage)
        return self._prepared(stage, Head.of(stage), budget, lambda law: self.exact(stage, law))

    def privatize(self, stage: FittedStage, budget: PrivacyBudget, session: FitSession) -> Prepared:
        """Return the mechanism with private coefficients, float64 [p] on the CPU.

        Args:
            stage: The fitted second stage, the curator's.
            budget: What this release may spend.
            session: Pays before anything is drawn, and draws the noise.

        Raises:
            InputError: A stage or budget this mechanism has no guarantee for.
            BudgetError: The block cannot pay.
        """
        return self.prepare(stage, budget).resting_on(self.conditions(stage)).run(session)

    def make_release(self, stage: FittedStage, private: Prepared, **parts: Any) -> FunctionRelease:
        """Return the release of what was charged; parts are the other attributes of ``FunctionRelease``."""
        return FunctionRelease(theta=private.output, noise_scale=private.noise_scale, **parts)


def public_step(domain: Domain) -> float:
    """Return the spacing of released answers: the largest power of two within 2^-36 of the outcome range."""
    return NoiseSource.grid(domain.outcome_range) * 2.0**-16


class QueryMechanism(Mechanism):
    """Releases f at finitely many public queries, on the grid of ``public_step``."""

    loss = "squared"

    @abstractmethod
    def exact(self, stage: FittedStage, queries: Tensor, law: Any) -> tuple[Any, ...]:
        """Return what the law draws from at the queries [d, q]: the curator's."""

    def fitted(self, stage: FittedStage) -> FittedStage:
        """Return the stage that is released; another loss may be requested of it."""
        return stage

    def prepare(self, stage: FittedStage, queries: Tensor, budget: PrivacyBudget) -> Prepared:
        """Return the mechanism on f at the queries [d, q]; see ``FunctionMechanism.prepare``."""
        stage = self.fitted(stage)
        found = self._prepared(stage, Head.of(stage, len(queries)), budget, lambda law: self.exact(stage, queries, law))
        if found.noise_scale is None:
            return found
        diagonal = torch.ones(len(queries), dtype=torch.float64)
        if isinstance(stage, LinearStage):
            diagonal = stage.features.norm(queries.to(stage.theta)).square().cpu()
        scales = found.noise_scale * (diagonal + self.jitter).sqrt()
        return replace(found, noise_scale=None, noise_scales=scales)

    def answer(self, stage: FittedStage, queries: Tensor, budget: PrivacyBudget, session: FitSession) -> Prepared:
        """Return the mechanism with private values of f at the queries [d, q]; see ``FunctionMechanism.privatize``."""
        return self.prepare(stage, queries, budget).resting_on(self.conditions(stage)).run(session)


class Composed(Mechanism):
    """Releases the effect of a composition, which its fit has paid for.

    Guarantee:
        Certified (epsilon, delta): Gaussian events whose shares of mu^2 are fixed before any output; with delta = 0
        pure events whose shares of epsilon are (docs/guarantees/composed_effect.md).

    Example:
        >>> Composed().name
        'composed'
    """

    name = CompositionPlan.name
    kinds = CompositionPlan.kinds
    formula = FORMULA
    accepts = ()
    gaussian = True
    free = True


def composed_mechanism(mechanism: "str | Mechanism | None") -> Composed:
    """Return the mechanism of a composition's release.

    Args:
        mechanism: The one that was requested; None takes ``composed``.

    Raises:
        InputError: Another one.
    """
    chosen: Mechanism = MECHANISMS.make(mechanism or Composed.name, Mechanism)
    if not isinstance(chosen, Composed):
        raise InputError(
            f"mechanism = {chosen.name}: second_stage = adaptive pays for its release while it is fitted; use "
            f"second_stage=linear with mechanism={chosen.name}, or leave the mechanism out"
        )
    return chosen


class PlugIn(FunctionMechanism):
    """mu1 - mu0 of the private nuisances: post-processing of what all records paid for.

    Guarantee:
        That of the nuisances. The release is a function release whose correction is zero.

    Example:
        >>> PlugIn().name, PlugIn().free
        ('plug_in', True)
    """

    name = "plug_in"
    formula = "none of its own: post-processing of the nuisances"
    source = "post-processing of the nuisances"
    accepts = (PlugInSecondStage,)
    free = True

    def law(self, head: Head, budget: PrivacyBudget) -> None:
        """See ``Mechanism``: it is free."""

    def release_problems(self, head: Head, law: None, release: FunctionRelease | QueryRelease) -> Iterator[str]:
        if isinstance(release, FunctionRelease) and bool(release.theta.any()):
            yield "it is called a plug-in, which has no coefficients of its own, but holds some"

    def features(self, stage: FittedStage) -> FeatureMap:
        """Return the intercept and the scaled covariates, whatever the second stage."""
        return Identity().setup(stage.block.domain)
