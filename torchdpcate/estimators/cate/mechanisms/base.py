"""What a mechanism is: something that turns a fitted second stage into numbers fit to leave."""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from typing import Any, ClassVar

import torch
from torch import Tensor

from torchdpcate.data.domain import Domain
from torchdpcate.data.propensity import KnownPropensity
from torchdpcate.errors import InputError
from torchdpcate.estimators.cate.planned_head import PlannedHead
from torchdpcate.estimators.cate.recompute import EffectFacts, effect_facts, is_learner
from torchdpcate.estimators.mechanism import Prepared, Stated
from torchdpcate.features.maps import FeatureMap
from torchdpcate.privacy.budget import PrivacyBudget
from torchdpcate.privacy.guarantee import Condition, Level, of_library, own_code
from torchdpcate.privacy.noise import NoiseSource
from torchdpcate.privacy.session import FitSession
from torchdpcate.privacy.worst_case import WORST_CASES
from torchdpcate.registry import Registry
from torchdpcate.release.release import FunctionRelease, QueryRelease, Release
from torchdpcate.second_stage.recipes import LinearSecondStage, SecondStage
from torchdpcate.second_stage.stage import FittedStage, LinearStage, RKHSStage

FUNCTION, QUERIES = (FunctionRelease.kind, QueryRelease.kind), (QueryRelease.kind,)
"""Kinds of release of a mechanism of functions, which may be released at queries alone; and of one of queries."""


SENSITIVITY = (
    "Delta = 2 B tau / (ridge n) for the Huber loss, "
    "(2 B S / (ridge n)) max_t sin t (1 + B cos t / (2 sqrt(ridge))) for the squared one"
)
"""Of one record, of ridge regressions; see ``second_stage.linear.sensitivity``."""


def effects_stated(
    formula: str,
    kinds: tuple[str, ...],
    *needs: str,
    may: tuple[str, ...] = (),
    highest: Level = Level.CERTIFIED,
    conditions: tuple[str, ...] = (),
) -> Stated:
    """Return what releases of effects by a mechanism may state.

    Args:
        formula: The noise scale.
        kinds: Of release.
        needs: Constants beside the learner's own.
        may: Further ones that some state.
        highest: The strongest level.
        conditions: Names of those that the guarantee may rest on.
    """
    constants = frozenset(("learner", "split", "seed", "ridge", *needs))
    return Stated(highest, kinds, constants, frozenset(may), conditions, formula)


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
        online: Whether it can answer any number of queries for one charge, at a trusted curator's service.
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

    def check_blocks(self, folds: int, known: KnownPropensity | None, counting: str) -> None:
        """Refuse a split, a known propensity or a counting of releases that the mechanism does not go with.

        Args:
            folds: Number of regressions, each of which it releases.
            known: The domain's propensity.
            counting: How releases after the fit are counted; see ``CATELearner.filter``.

        Raises:
            InputError: It goes with other ones.
        """
        if self.searches and folds > 1:
            raise InputError(
                f"mechanism = {self.name}: searches the domain for the worst record of one regression; with "
                "split=cross_fit there are two: use split=disjoint"
            )
        if self.searches and known is not None and known.column is not None:
            raise InputError(
                f"mechanism = {self.name}: searches the covariates for the worst record, and each record's propensity "
                f"is the column {known.column!r}, which they do not tell; use mechanism=objective"
            )
        if folds > 1 and counting == "gaussian" and not (self.gaussian or self.free):
            raise InputError(
                f"filter = gaussian: counts Gaussian mechanisms alone, and mechanism = {self.name} is none; fit with "
                "filter=sums, or release by mechanism=output or gaussian_process"
            )

    def planned(self, head: PlannedHead, budget: PrivacyBudget) -> float:
        """Return the standard deviation of the noise in a typical answer, in outcome units; NaN where it is not known.

        Args:
            head: The second stage as plans expect it; no record is looked at.
            budget: What the release may spend.

        Raises:
            InputError: A budget with which nothing could be released.
        """
        return math.nan

    def conditions(self, stage: FittedStage) -> tuple[Condition, ...]:
        """Return what the guarantee of a release rests on beside the mechanism's own: a user's mechanism, and map."""
        return (*own_code("mechanism", self), *(() if self.free else stage.conditions))

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
    """Releases the coefficients of a linear head, hence the function at every x."""

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

    def features(self, stage: FittedStage) -> FeatureMap:
        """Return the feature map that the released coefficients belong to."""
        return self.require_linear(stage).features

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
    def prepare(self, stage: FittedStage, queries: Tensor, budget: PrivacyBudget) -> Prepared:
        """Return the mechanism on f at the queries [d, q]; see ``FunctionMechanism.prepare``."""

    def answer(self, stage: FittedStage, queries: Tensor, budget: PrivacyBudget, session: FitSession) -> Prepared:
        """Return the mechanism with private values of f at the queries [d, q]; see ``FunctionMechanism.privatize``."""
        return self.prepare(stage, queries, budget).resting_on(self.conditions(stage)).run(session)


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
