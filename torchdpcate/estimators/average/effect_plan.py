"""The plan of an average effect: what all of them state, and the release that their numbers make."""

import math
from abc import abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import KW_ONLY, dataclass
from typing import Any, ClassVar, Self

from torch import Tensor

from torchdpcate.causal.estimand import Estimand, make_estimand
from torchdpcate.data.schema import TableSchema
from torchdpcate.estimators.average.names import AUTO, CHOSEN_BY, PLANNED_ERROR, RECORDS
from torchdpcate.estimators.average.noisy_estimate import NoisyEstimate
from torchdpcate.laws import AddedNoise
from torchdpcate.plan import Plan, Query, requested_budget
from torchdpcate.privacy.budget import PrivacyBudget, as_number
from torchdpcate.privacy.charge import Charge, Purpose
from torchdpcate.privacy.exact_sums import on_grid
from torchdpcate.privacy.guarantee import Level, of_library
from torchdpcate.privacy.noise import NoiseSource
from torchdpcate.privacy.session import FitSession
from torchdpcate.release.average_effect import CHOICE, AverageEffectRelease
from torchdpcate.release.blocks import Block
from torchdpcate.release.release import Release
from torchdpcate.release.statement import UNSTATED, PrivacyStatement


@dataclass(frozen=True, eq=False)
class EffectPlan(Plan):
    """Everything public about an average effect.

    What is learnt first, and the sums, are answers of its queries, [runs, p] each: one run in a release, any number in
    simulations and audits. Sums are answers in units that follow from public facts and the answers before them, so
    that no law depends on an answer; a release holds them as ``estimate`` makes them.

    Attributes:
        schema: Columns and public bounds.
        estimand: Estimand and clip.
        learner: Name of the learner's class.
        chosen: Planned error by which the estimator was chosen, in outcome units; None where it was asked for.
        uses_delta: Whether delta of the budget pays for something.
        intervals: Whether an interval that counts sampling is known.
        assumption: Which models must follow the truth, in words; the full warning where a class does not say it.
    """

    kinds: ClassVar[tuple[str, ...]] = (AverageEffectRelease.kind,)
    uses_delta: ClassVar[bool] = False
    intervals: ClassVar[bool] = True
    assumption: ClassVar[str] = UNSTATED

    n: int
    schema: TableSchema
    estimand: Estimand
    budget: PrivacyBudget | None
    _: KW_ONLY
    learner: str = ""
    chosen: float | None = None

    @abstractmethod
    def sums(
        self, records: Any, session: FitSession, learnt: Mapping[str, Tensor], runs: int = 1
    ) -> Mapping[str, Tensor]:
        """Pay for the sums, draw them, and return all answers.

        Args:
            records: The records, or several data sets side by side.
            session: Pays, and draws the noise.
            learnt: Answers of ``learn``.
            runs: How many runs on one data set.
        """

    @abstractmethod
    def estimate(self, answers: Mapping[str, Tensor]) -> NoisyEstimate:
        """Return the estimate and the law of its error by the answers alone, for outcomes in [0, 1]."""

    @abstractmethod
    def without_noise(self, records: Any) -> NoisyEstimate:
        """Return the estimate without noise. The curator's, never to be published."""

    @abstractmethod
    def own_settings(self) -> dict[str, Any]:
        """Return the settings that statements have, besides those of all average effects."""

    @classmethod
    @abstractmethod
    def stated_settings(cls, release: AverageEffectRelease) -> dict[str, Any]:
        """Return its further fields by name, by the public facts of a release; each may be forged."""

    def learn(self, records: Any, session: FitSession, runs: int = 1) -> Mapping[str, Tensor]:
        """Pay for what is learnt before the sums, and return it."""
        return {}

    def extras(self, answers: Mapping[str, Tensor], found: NoisyEstimate) -> dict[str, Any]:
        """Return what else a release holds, by the names of its fields."""
        return {}

    def run(self, records: Any, noise: NoiseSource, runs: int = 1) -> NoisyEstimate:
        """Return the estimate of each data set, or of so many runs on one; for simulations and audits.

        Args:
            records: One data set, or several side by side.
            noise: Where the noise comes from.
            runs: How many runs on one data set.
        """
        session = FitSession(noise)
        return self.estimate(self.sums(records, session, self.learn(records, session, runs), runs))

    @property
    def assumptions(self) -> tuple[str, ...]:
        """See ``Plan``."""
        return (self.assumption,)

    def settings(self) -> dict[str, Any]:
        """See ``Plan``."""
        chosen = {} if self.chosen is None else {CHOSEN_BY: AUTO, PLANNED_ERROR: self.chosen}
        return {
            "learner": self.learner,
            "estimand": self.estimand.name,
            "eta": self.estimand.overlap,
            **({} if self.budget is None else self.stated_budget()),
            **self.own_settings(),
            **chosen,
        }

    def stated_budget(self) -> dict[str, Any]:
        """Return the budget as statements have it: of a pure mechanism, its epsilon."""
        assert self.budget is not None
        return {"epsilon": self.budget.epsilon, **({"delta": self.budget.delta} if self.uses_delta else {})}

    @classmethod
    def budget_of(cls, public: Mapping[str, Any], block: Block) -> PrivacyBudget:
        """Return the budget that a statement has; see ``requested_budget``."""
        return requested_budget(block, public["epsilon"], public["delta"] if cls.uses_delta else 0.0)

    @classmethod
    def restated(cls, release: Release) -> Self:
        """See ``Plan``."""
        assert isinstance(release, AverageEffectRelease)
        privacy, public = release.privacy, release.privacy.public
        return cls(
            n=privacy.n,
            schema=release.schema,
            estimand=make_estimand(str(public["estimand"]), as_number(public["eta"])),
            budget=cls.budget_of(public, next(block for block in privacy.blocks if block.name == RECORDS)),
            learner=str(public["learner"]),
            chosen=_chosen(public, release.domain.outcome_range),
            **cls.stated_settings(release),
        )

    def conclude(self, answers: Mapping[str, Tensor], privacy: PrivacyStatement) -> AverageEffectRelease:
        """See ``Plan``."""
        found = self.estimate(answers)
        main = found.in_units(self.schema.domain.outcome_range, self.intervals)
        numbers = {name: values[0].item() for name, values in found.released.items()}
        return AverageEffectRelease(
            self.estimand.name, main, numbers, self.schema, privacy, **self.extras(answers, found)
        )

    def problems(self, release: Release) -> Iterator[str]:
        """See ``Plan``."""
        yield from super().problems(release)
        if release.privacy.level == Level.CERTIFIED and not of_library(self.estimand):
            yield f"the {self.estimand.name} is no estimand of the library, but it is called certified"

    def part(self, name: str) -> Charge:
        """Return the charge of a part of the release."""
        return Charge(Purpose.RELEASE, self.name, name)

    def summed(self, parts: Mapping[str, AddedNoise]) -> dict[str, Query]:
        """Return the queries of sums, each a part of the release, by these laws."""
        return {name: Query(self.part(name), law, prefix=None) for name, law in parts.items()}

    def ask_each(self, session: FitSession, runs: int, name: str, exact: Tensor) -> Tensor:
        """Return the answers of so many runs on exact numbers [1, p], or one on each of several, [runs, p]."""
        return self.ask_runs(name, session, max(runs, len(exact)), exact)

    def scale(self, name: str) -> float:
        """Return the scale of the noise in each number of a query, in its unit."""
        return self._noise_of(name).scale

    def placed(self, name: str, numbers: Tensor, most: float = 0.0) -> Tensor:
        """Return released numbers [runs, p] of a query, over their units, on the grid of their noise; ``on_grid``."""
        return on_grid(numbers, self.scale(name), most)

    def _noise_of(self, name: str) -> AddedNoise:
        law = self.queries[name].law
        assert isinstance(law, AddedNoise)
        return law


def _chosen(public: Mapping[str, Any], most: float) -> float | None:
    """Return the planned error by which the estimator was chosen, as a statement has it.

    Raises:
        ValueError: It is none that the library states.
    """
    if not public.keys() & set(CHOICE):
        return None
    error = as_number(public[PLANNED_ERROR])
    if public[CHOSEN_BY] != AUTO or not (math.isfinite(error) and 0 < error <= most):
        raise ValueError(f"{CHOSEN_BY} = {public[CHOSEN_BY]}, {PLANNED_ERROR} = {error:g}")
    return error
