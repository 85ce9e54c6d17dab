"""What every learner of an average effect does: checks, a fit session, one estimate with its interval."""

import math
from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

from torch import Tensor

from torchdpcate.causal.estimand import Estimand, make_estimand
from torchdpcate.data.assignment import NO_INTERVALS
from torchdpcate.data.domain import Domain
from torchdpcate.data.records import CausalData
from torchdpcate.data.schema import TableSchema
from torchdpcate.data.streams import RecordStream
from torchdpcate.errors import InputError
from torchdpcate.estimators.answers import AnswersAverage
from torchdpcate.estimators.average.effect_plan import ErrorPrior, PlannedError
from torchdpcate.estimators.base import PrivateEstimator
from torchdpcate.estimators.planned_noise import PlannedNoise, planned_deviation, told
from torchdpcate.fit.feature_maps import FeatureMap, on_domain
from torchdpcate.fit.stacked_records import records_of
from torchdpcate.plan import RECORDS
from torchdpcate.privacy.budget import PrivacyBudget
from torchdpcate.privacy.charge import Charge, Purpose
from torchdpcate.privacy.guarantee import Condition, Guarantee, Level, user_code
from torchdpcate.privacy.noise import NoiseSource
from torchdpcate.release.average_effect import AverageEffectRelease
from torchdpcate.release.estimate import Estimate

DOMINATED = "noise dominates the estimate's denominator, so that any effect is possible"


@dataclass(eq=False, repr=False)
class AverageEffectLearner(AnswersAverage, PrivateEstimator):
    r"""Learner of a weighted average effect.

    .. math:: \tau_h = \frac{E[h(x) (\mu_1(x) - \mu_0(x))]}{E[h(x)]}, \quad
        h = 1,\; \pi,\; 1 - \pi,\; \pi (1 - \pi) \text{ for ATE, ATT, ATC, ATO}

    Guarantee:
        ``fit`` pays for what is learnt first, ``release`` for the estimate; see each learner. Conditions: records are
        rows, adjacency is replace-one; n, bounds and settings are public. That the effect is causal rests on
        unconfoundedness and overlap; that estimate and interval are right, on the models that each release names under
        ``assumptions``. Neither is part of the claim.

    Args:
        domain: Public bounds (``Domain``), or a ``TableSchema`` to keep a table's columns in releases.
        budget: Privacy budget of fit and release. None fits without privacy; such a learner releases nothing.
        estimand: ``ATE``, ``ATT``, ``ATC``, ``ATO`` or another of ``ESTIMANDS``.
        noise: Privacy noise; None takes the operating system's entropy.
        ledger_path: File of the ledger, which must not exist; None keeps the ledger in memory.

    Attributes:
        schema_: Columns and public bounds.
        settings_: Public settings of the fit, as statements have them.
        ledger_: What has been spent; None without privacy.
        sizes_: Records per block, public.
    """

    domain: Domain | TableSchema
    budget: PrivacyBudget | None
    _: KW_ONLY
    estimand: str = "ATE"
    noise: NoiseSource | None = None
    ledger_path: str | Path | None = None

    mechanism: ClassVar[Any]
    """The plan by which it releases the estimate, or its readout, with the name in statements."""

    def _of(self, records: CausalData | RecordStream) -> Any:
        """Return records of its own, for the caller's arrays may change, as ``_learn`` and others take them."""
        return records_of(records, self.features(), self.schema_.domain)

    @property
    def needs_all_records(self) -> str | None:
        """See ``PrivateEstimator``: most are sums over records."""
        return None

    def check(self, n: int) -> None:
        """Refuse, before anything is learnt or spent, what could not be released.

        Args:
            n: Number of records.

        Raises:
            InputError: Settings that do not fit each other, the domain or the budget.
        """
        self.plan(n).public()  # whose laws refuse noise that no number could carry

    def features(self) -> FeatureMap:
        """Return the feature map, set up on the domain: intercept and scaled covariates unless a learner has more."""
        return on_domain(None, TableSchema.of(self.domain).domain)

    def release(self) -> AverageEffectRelease:
        """Pay for the estimate with all that is left and return it, the same one each time.

        Raises:
            InputError: Not fitted, or fitted without privacy.
        """
        self._ready()
        return self._once(self._release)  # type: ignore[no-any-return]

    def _release(self) -> AverageEffectRelease:
        plan = self._plan
        session = self._session.charging([RECORDS], Charge(Purpose.RELEASE, plan.name))
        answers = plan.sums(self._records, session, self._learnt)
        guarantee = Guarantee(self.level, self._session.budget, self.conditions, source="covariate_balancing")
        public = self.settings_ | plan.following(answers)
        statement = self._statement_of(plan, guarantee, public, session.entries)
        return plan.conclude(answers, statement)  # type: ignore[no-any-return]

    def plan(self, n: int) -> Any:
        """Return the public plan for n records, with the scales of all noise; nothing is spent.

        Args:
            n: Number of records.

        Raises:
            InputError: See ``check``.
        """
        return self.mechanism(**self._facts(n))

    def planned_error(self, n: int, prior: ErrorPrior | None = None) -> PlannedError:
        """Return the error to expect for n records, from public facts and a stated prior; nothing is spent.

        Args:
            n: Number of records.
            prior: What to take for what only the records know; None takes ``ErrorPrior.of`` the domain.

        Returns:
            Its parts in outcome units.

        Raises:
            InputError: See ``check``.
        """
        domain = TableSchema.of(self.domain).domain
        found: PlannedError = self.plan(n).planned(ErrorPrior.of(domain) if prior is None else prior)
        return found.in_units(domain.outcome_range)

    def expected_noise(self, n: int) -> PlannedNoise:
        """See ``PrivateEstimator``: the noise in the sums, and what that of private fits moves the estimate by."""
        budget, name, schema = self._planned(n), f"the average effect ({self.target.name})", TableSchema.of(self.domain)
        domain, unit = schema.domain, schema.domain.outcome_range
        prior = replace(ErrorPrior.of(domain), deviation=planned_deviation(schema) / unit)
        planned = self.planned_error(n, prior)
        parts = {"sums": planned.noise, "private fits": planned.nuisances, "sampling": planned.sampling}
        own = self._user_conditions() or self._own_learner()
        return PlannedNoise.of_parts(
            {part: value for part, value in parts.items() if value},
            name,
            unit,
            n,
            budget,
            level=Level.CONDITIONAL if own else Level.CERTIFIED,
            assumes=(
                f"{prior.treated:.0%} of the records are treated; outcomes lie about the middle of their range, and "
                f"differ by {prior.deviation:.2g} of it from what is adjusted for{told(schema)}",
            ),
            left_out=() if planned.bias is None else (planned.bias,),
            remarks=(DOMINATED,) if math.isinf(planned.noise) else (),
        )

    def nonprivate_estimate(self) -> Estimate:
        """Return the estimate without noise in its last step. The curator's, never to be published.

        Raises:
            InputError: Not fitted.
        """
        self._require_fitted("nonprivate_estimate")
        return self._plan.without_noise(self._records, None if self.budget else self._learnt).in_units(
            self.schema_.domain.outcome_range, self._plan.intervals
        )

    @property
    def target(self) -> Estimand:
        """The estimand, with the domain's overlap as the public clip of the propensity."""
        return make_estimand(self.estimand, TableSchema.of(self.domain).domain.overlap)

    @property
    def level(self) -> Level:
        """Level of what is released after ``fit``."""
        return Level.CONDITIONAL if self.conditions else Level.CERTIFIED

    @property
    def conditions(self) -> tuple[Condition, ...]:
        """Conditions that the level rests on."""
        return self._own_conditions

    def _user_conditions(self) -> tuple[Condition, ...]:
        """Return those of a user's parts in place of the library's, on which every sum over the records rests."""
        return user_code("estimand", self.target)

    def _prepare(self, records: Any) -> None:
        self.check(records.n)
        self._own_conditions = self._user_conditions()

    def _conditional(self) -> bool:
        return bool(self._own_conditions) or super()._conditional()

    def _learn(self, records: Any) -> None:
        """Learn what comes before the estimate, paying for it."""
        self._plan = self.plan(records.n)
        self._learnt = self._learnt_first(records)
        # a release states the settings of the fit, even if they are changed in between
        self.settings_ = self._plan.public() | self._plan.following(self._learnt)
        self._records = records

    def _learnt_first(self, records: Any) -> Mapping[str, Tensor]:
        """Pay for, and return, what comes before the estimate."""
        session = self._session.charging([RECORDS], Charge(Purpose.WEIGHTS))
        return self._plan.learn(records, session)  # type: ignore[no-any-return]

    def _facts(self, n: int) -> dict[str, Any]:
        """Return what all plans of average effects are made of, for n records."""
        learner = type(self).__name__
        schema = TableSchema.of(self.domain).two_arms(learner)
        if schema.cluster is not None:
            raise InputError(f"{learner}: {NO_INTERVALS}, of everybody with subgroups=everybody")
        return {"n": n, "schema": schema, "estimand": self.target, "budget": self.budget, "learner": learner}
