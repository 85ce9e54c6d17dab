"""Effects in subgroups of public cuts: checks, a fit session, one release with an interval for each cell."""

import math
from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from torchdpcate.causal.estimand import make_estimand
from torchdpcate.data.domain import Domain
from torchdpcate.data.propensity import StratumPropensity
from torchdpcate.data.records import CausalData
from torchdpcate.data.schema import TableSchema
from torchdpcate.data.subgroups import Subgroups
from torchdpcate.erm.losses import Logistic
from torchdpcate.erm.objective_fit import ObjectiveFit
from torchdpcate.erm.private_fit import PreparedFit
from torchdpcate.erm.records import StackedRecords, arm
from torchdpcate.estimators.answers import AnswersCells
from torchdpcate.estimators.average.plan import exact_fit
from torchdpcate.estimators.base import PrivateEstimator
from torchdpcate.estimators.planned_noise import PlannedNoise
from torchdpcate.estimators.subgroups.mechanism import SubgroupSums, numbers_of
from torchdpcate.estimators.subgroups.plan import SubgroupPlan, plan_subgroups
from torchdpcate.estimators.subgroups.sums import cell_sums, record_numbers
from torchdpcate.estimators.subgroups.weighting import ATE, EQUAL, FITTED, KNOWN, Weighting
from torchdpcate.features.maps import FeatureMap
from torchdpcate.features.user_maps import on_domain
from torchdpcate.privacy.budget import PrivacyBudget, probability
from torchdpcate.privacy.charge import Charge, Purpose, propensity_by
from torchdpcate.privacy.guarantee import Level
from torchdpcate.privacy.noise import NoiseSource
from torchdpcate.privacy.session import FitSession
from torchdpcate.release.cell_effects import LAPLACE, CellEffects, cell_effects
from torchdpcate.release.released_weights import ReleasedWeights
from torchdpcate.release.subgroups import SubgroupRelease

RECORDS = "records"
"""The one block: all of the records."""

_NONE = 1e-12  # scale of no noise
_KEPT = 1 - 1e-9  # of a share, so that parts never add up to more


@dataclass(eq=False, repr=False)
class SubgroupEffects(AnswersCells, PrivateEstimator):
    r"""Average effects in subgroups of public cuts, each with a confidence interval, for one charge.

    In each cell the difference of the arms' mean outcomes, weighted by the probability of the arm where that differs
    among its records,

    .. math:: \tau_c = \bar y_{c1} - \bar y_{c0}, \qquad
        \bar y_{cz} = \frac{\sum_{i \in c,\, a_i = z} w_i y_i}{\sum_{i \in c,\, a_i = z} w_i}

    Cells of one partition are disjoint: a record is in one of them, so that any number of cells cost as much as one.
    Several partitions share one noise vector, calibrated jointly. Which sums get noise, and of which law, follows from
    public facts as wins most (``plan``).

    Guarantee:
        Certified: pure, or (epsilon, delta) where the noise is Gaussian. n, cells, bounds and settings are public; that
        effects are causal rests on unconfoundedness and overlap, and intervals on what the release names under
        ``holds_if``. Proof: docs/guarantees/subgroups.md.

    Args:
        domain: Public bounds (``Domain``), or a ``TableSchema`` to keep a table's columns.
        budget: Privacy budget of fit and release. None fits without privacy; such a learner releases nothing.
        subgroups: Partitions, or a yaml file of them; see ``Subgroups.of``.
        propensity: ``auto``: known where the domain states it, else fitted; ``randomised``: one probability within each
            cell, which need not be known; ``known``; or ``fitted``: a private logistic regression.
        estimand: ``ATE``: the average effect of each cell; ``ATO``: weighted by e(x) (1 - e(x)), with e the propensity,
            hence of those who might be in either arm; ``auto``: ATE, but ATO where the propensity is fitted.
        overlap: Public clip of a fitted propensity, in (0, 0.5]; None takes the domain's. The noise of the ATE grows as
            its inverse, that of the ATO hardly.
        law: ``laplace`` (pure), ``gaussian`` (needs delta), or ``auto``, the one of less noise.
        released: ``separate``: sums of the cells of each partition; ``crossed``: of those of all partitions crossed,
            whose unions the cells are; ``auto`` takes the one of less noise.
        propensity_share: Share of epsilon that a fitted propensity costs.
        noise: Privacy noise; None takes the operating system's entropy.
        ledger_path: File of the ledger, which must not exist; None keeps the ledger in memory.

    Attributes:
        subgroups_: The cells.
        plan_: The public plan; None without privacy.
        settings_: Public settings of the fit, as statements have them.
        ledger_: What has been spent; None without privacy.
        sizes_: Records per block, public.

    Raises:
        InputError: Cells that are none, settings that do not fit each other, or Gaussian noise without delta.

    Example:
        >>> from torchdpcate import Domain, PrivacyBudget
        >>> X, A = torch.rand(4000, 1), torch.arange(4000) % 2
        >>> Y = 0.2 + 0.4 * A * (X[:, 0] > 0.5)
        >>> domain, cells = Domain([0.0], [1.0], 0.0, 1.0), [{"x0": [0.5]}]
        >>> learner = SubgroupEffects(domain, PrivacyBudget(4.0, 0.0), subgroups=cells, propensity="randomised")
        >>> release = learner.fit(X, A, Y).release()
        >>> [bool(low < truth < high) for truth, (low, high) in zip([0.0, 0.4], release.interval(1 - 1e-9))]
        [True, True]
    """

    domain: Domain | TableSchema
    budget: PrivacyBudget | None
    _: KW_ONLY
    subgroups: Any
    propensity: str = "auto"
    estimand: str = "auto"
    overlap: float | None = None
    law: str = "auto"
    released: str = "auto"
    propensity_share: float = 0.3
    noise: NoiseSource | None = None
    ledger_path: str | Path | None = None

    def check(self, n: int) -> None:
        """Refuse, before anything is learnt or spent, what could not be released.

        Args:
            n: Number of records.

        Raises:
            InputError: See the class.
        """
        if self.budget is None:
            self._cells()
            self._weighting()
        else:
            self.plan(n)

    def plan(self, n: int) -> SubgroupPlan:
        """Return the public plan for n records, with the noise to expect of each cell; nothing is spent.

        Args:
            n: Number of records.

        Raises:
            InputError: See the class; or a learner without a budget.
        """
        budget, cells, weighting = self._planned(n), self._cells(), self._weighting()
        if weighting.way == FITTED:
            share = probability("propensity_share", self.propensity_share, above_zero=True)
            budget = PrivacyBudget(budget.epsilon * (1 - share) * _KEPT, budget.delta)
        half = TableSchema.of(self.domain).domain.outcome_range / 2
        return plan_subgroups(n, cells, budget, weighting, half, self.law, self.released)

    def expected_noise(self, n: int) -> PlannedNoise:
        """See ``PrivateEstimator``: the standard deviation in the noisiest cell, if a partition's are all as large.

        Infinite where noise would dominate such a cell.
        """
        budget, plan = self._planned(n), self.plan(n)
        domain = TableSchema.of(self.domain).domain
        swamped = bool((plan.records < plan.least_records).any())
        level = Level.CONDITIONAL if self._own_learner() else Level.CERTIFIED
        fitted = ("the noise of the propensity",) if plan.weighting.way == FITTED else ()
        return PlannedNoise(
            math.inf if swamped else plan.expected_noise,
            "the effect in the noisiest cell",
            domain.outcome_range,
            n,
            budget,
            {f"effect by {name}": noise for name, noise in plan.of_partitions().items()},
            level,
            ("cells of a partition are all as large, mean outcomes at a quarter of their range",),
            ("sampling", *fitted),
            plan.remarks(),
        )

    def release(self) -> SubgroupRelease:
        """Pay for the sums of all cells and return the effects, the same ones each time.

        Raises:
            InputError: Not fitted, or fitted without privacy.
        """
        self._ready()
        return self._once(self._release)  # type: ignore[no-any-return]

    def _release(self) -> SubgroupRelease:
        session, plan = self._session, self.plan_
        assert plan is not None
        own = session.scope([RECORDS], Charge(Purpose.RELEASE, SubgroupSums.name))
        found = SubgroupSums.prepare(self._sums, plan, self._own_learner()).run(own)
        statement = self._statement_of(SubgroupSums, found.guarantee, self.settings_, own.entries)
        numbers = numbers_of(found.output, plan.strata.size)
        return SubgroupRelease(
            self.subgroups_,
            plan.released,
            numbers,
            plan.law,
            plan.scale,
            self.schema_,
            statement,
            self.weights_,
        )

    def nonprivate_effects(self) -> CellEffects:
        """Return the effects without noise in their sums. The curator's, never to be published.

        Raises:
            InputError: Not fitted.
        """
        self._require_fitted("nonprivate_effects")
        law, strata = (LAPLACE, self.subgroups_) if self.plan_ is None else (self.plan_.law, self.plan_.strata)
        half = self.schema_.domain.outcome_range / 2
        return cell_effects(self._sums, self.subgroups_.members(strata), law, _NONE, half, self.protected.records)

    def _cells(self) -> Subgroups:
        return Subgroups.of(self.subgroups, TableSchema.of(self.domain))

    def _weighting(self) -> Weighting:
        schema = TableSchema.of(self.domain)
        weighting = Weighting.of(self.propensity, schema, self.overlap, self.estimand)
        known = schema.domain.known_propensity
        if (
            weighting.way == KNOWN
            and isinstance(known, StratumPropensity)
            and self._cells().has_levels_of(known.covariate)
        ):
            return replace(weighting, way=EQUAL, estimand=ATE)  # one propensity within each cell
        return weighting

    def _prepare(self, records: CausalData) -> None:
        self.check(records.n)
        self.subgroups_ = self._cells()
        self.plan_ = None if self.budget is None else self.plan(records.n)

    def _sizes(self, n: int) -> dict[str, int]:
        return {RECORDS: n}

    def _learn(self, records: CausalData) -> None:
        """Pay for the propensity, if it is not known, and sum; the records themselves are not kept."""
        weighting, plan = self._weighting(), self.plan_
        weights = weighting.weights(records.a, self._propensity(records, weighting))
        law, strata = (LAPLACE, self.subgroups_) if plan is None else (plan.law, plan.strata)
        numbers = record_numbers(records.y, weights, law, self.schema_.domain)
        self._sums = cell_sums(numbers, records.a, strata.positions(records.x), strata.size)
        constants: Mapping[str, Any] = {} if plan is None else plan.public()
        self.settings_ = {"learner": type(self).__name__, **constants, **self._fit_public}

    def _propensity(self, records: CausalData, weighting: Weighting) -> Tensor | None:
        """Return the propensity of each record [n]; None where all weigh the same."""
        self._fit_public: dict[str, Any] = {}
        self.weights_: ReleasedWeights | None = None
        known = self.schema_.domain.known_propensity
        if weighting.way == KNOWN and known is not None:
            return known.of(records)
        if weighting.way != FITTED:
            return None
        features = on_domain(None, self.schema_.domain)
        fit = propensity_fit(records.n, features, self.budget, self.propensity_share)
        session = self._session.scope([RECORDS], Charge(Purpose.WEIGHTS))
        theta = learnt(StackedRecords.of(records, features, self.schema_.domain), fit, session)
        self.weights_ = ReleasedWeights(theta, features, make_estimand(weighting.estimand, weighting.low))
        self._fit_public = {"eta": weighting.low, **{f"weights_{name}": value for name, value in fit.public.items()}}
        return self.weights_.propensity(records.x)


def propensity_fit(n: int, features: FeatureMap, budget: PrivacyBudget | None, share: float) -> PreparedFit:
    """Return the private logistic regression of a propensity, prepared; without a budget that without noise.

    Args:
        n: Number of records.
        features: Its features, set up on the domain.
        budget: Of fit and release together.
        share: Of epsilon.
    """
    if budget is None:
        return exact_fit(Logistic(), n, features)
    return ObjectiveFit().prepare(Logistic(), n, features, PrivacyBudget(budget.epsilon * share, 0.0))


def learnt(records: StackedRecords, fit: PreparedFit, session: FitSession) -> Tensor:
    """Pay for the propensity's coefficients and return them, [p]."""
    session.pay(fit.event, fit.level, fit.count, charge=propensity_by(ObjectiveFit.name))
    drawn = session.noise.released(fit.draw(records, arm, session.noise, 1))
    return torch.as_tensor(drawn)[0]
