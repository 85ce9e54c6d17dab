"""Average effects as lines of one composition: of everybody, of weighted people, and in subgroups of public cuts."""

from pathlib import Path
from typing import Any

from torchdpcate.composition.line_laws import lines_of
from torchdpcate.composition.planned import planned_line
from torchdpcate.composition.settings import AdaptiveSecondStage
from torchdpcate.data.assignment import NO_INTERVALS
from torchdpcate.data.domain import Domain
from torchdpcate.data.schema import TableSchema
from torchdpcate.data.subgroups import Subgroups
from torchdpcate.errors import InputError
from torchdpcate.estimators.answers import AnswersAverage
from torchdpcate.estimators.cate.composition import Composition
from torchdpcate.estimators.cate.composition_plan import curve_part, stated_scale
from torchdpcate.estimators.cate.learner import RLearner
from torchdpcate.estimators.planned_noise import PlannedNoise, shown, told
from torchdpcate.privacy.budget import PrivacyBudget
from torchdpcate.privacy.noise import NoiseSource
from torchdpcate.release.averages import AVERAGE, TILTS, Averages, powers
from torchdpcate.release.composed import ComposedRelease

ATE = "ATE"


class AverageEffect(AnswersAverage, RLearner):
    r"""An average effect with its interval, in trials and cohorts, by one composition on all records.

    .. math:: \tau_h = \frac{E[h(x) (\mu_1(x) - \mu_0(x))]}{E[h(x)]}, \quad
        h = 1,\; \pi,\; 1 - \pi,\; \pi (1 - \pi) \text{ for ATE, ATT, ATC, ATO}

    Outcome, propensity and effect are learnt with three quarters of :math:`\mu^2`, as of ``RLearner``; sums of the
    doubly robust scores that they make cost the rest (``Averages``). In subgroups of public cuts each cell has a line
    too.

    Guarantee:
        Certified, by ``fit``, which spends all of the budget (docs/guarantees/composed_effect.md). That effects are
        causal rests on what a release says under ``line_assumptions``. Source: theory note ``answers_of_one_fit``.

    Args:
        domain: Public bounds (``Domain``), or a ``TableSchema`` to keep a table's columns in releases.
        budget: Privacy budget with delta > 0. None fits without privacy; such a learner releases nothing.
        estimand: ``ATE``: everybody; ``ATT`` the treated, ``ATC`` the controls, ``ATO`` where both are likely;
            ``beta:a:b``: people weighted by :math:`\pi^a (1 - \pi)^b`, a and b from 0 to 1.
        subgroups: Public partitions, a yaml file of them, or None; see ``Subgroups.of``.

    Raises:
        InputError: An estimand that is none of these.

    Example:
        >>> import torch
        >>> X, A = torch.rand(4000, 2), torch.arange(4000) % 2
        >>> Y = (0.3 + 0.4 * A) * torch.ones(4000)
        >>> trial = Domain([0, 0], [1, 1], 0.0, 1.0, propensity=0.5)
        >>> learner = AverageEffect(trial, PrivacyBudget(4.0, 1e-5)).fit(X, A, Y)
        >>> low, high = learner.ate_interval(alpha=1e-6)
        >>> low < 0.4 < high
        True
    """

    def __init__(
        self,
        domain: Domain | TableSchema,
        budget: PrivacyBudget | None,
        *,
        estimand: str = ATE,
        subgroups: Any = None,
        noise: NoiseSource | None = None,
        ledger_path: str | Path | None = None,
    ) -> None:
        super().__init__(domain, budget, noise=noise, ledger_path=ledger_path)
        self.estimand = estimand
        self.subgroups = subgroups

    @property
    def line(self) -> str:
        """Name of the estimand's line.

        Raises:
            InputError: No such estimand.
        """
        if self.estimand != ATE and powers(self.estimand) is None:
            known = ", ".join((ATE, *TILTS))
            raise InputError(f"estimand = {self.estimand!r}: choose one of {known}, beta:a:b (a and b from 0 to 1)")
        return AVERAGE if self.estimand == ATE else self.estimand

    def _second_stage(self) -> AdaptiveSecondStage:
        if TableSchema.of(self.domain).cluster is not None:
            raise InputError(f"{type(self).__name__}: {NO_INTERVALS}, of everybody with subgroups=everybody")
        if self.budget is not None and self.budget.delta == 0:
            pure = ", or take effect=covariate_balancing, which is pure"
            if self._known:
                pure = ", or take SubgroupEffects, which is pure, as task=average_effect and task=subgroups do"
            elif TableSchema.of(self.domain).domain.censoring is not None:
                pure = ""
            raise InputError(
                "delta = 0: lines of one composition have Gaussian noise, which is only (epsilon, delta)-private; give "
                f"privacy.delta above 0, for instance 1e-5{pure}"
            )
        lines = () if self.line == AVERAGE else (self.line,)
        if TableSchema.of(self.domain).compared and (lines or self.subgroups is not None):
            given = f"estimand = {self.estimand!r}" if lines else f"subgroups = {self.subgroups!r}"
            raise InputError(
                f"{given}: of more than two arms there is the average of each over everybody alone; leave it out, or "
                "put the records of two arms into a file of their own"
            )
        return AdaptiveSecondStage(intervals=False, lines=lines, cells=self.subgroups)

    @property
    def cells(self) -> Subgroups:
        """The public cells that have lines.

        Raises:
            InputError: None were given, or ones that are none; see ``Subgroups.of``.
        """
        return Subgroups.of(self.subgroups, TableSchema.of(self.domain))

    def nonprivate_lines(self) -> Averages:
        """Return the lines of a fit without privacy; the curator's, never to be published.

        Raises:
            InputError: Not fitted, or fitted with privacy, whose lines are released.
        """
        self._require_fitted("nonprivate_lines")
        if self.budget is not None or self.composed_.lines is None:
            raise InputError("nonprivate_lines: this learner was fitted with a budget; see release().lines()")
        return lines_of(self.composed_.lines, self.plan_, self.schema_.domain)

    @property
    def _known(self) -> bool:
        return TableSchema.of(self.domain).domain.known_propensity is not None

    def release(self) -> ComposedRelease:  # type: ignore[override]
        """Return what the fit has paid for: the lines, and the effect by which records were scored.

        Raises:
            InputError: Not fitted, or fitted without privacy.
        """
        found: Any = self.release_function()
        return found  # type: ignore[no-any-return]

    def expected_noise(self, n: int, *_: Any, residual_scale: float | None = None) -> PlannedNoise:
        """See ``PrivateEstimator``: the standard error to expect of the line, by its parts.

        With subgroups it is that of a cell of the finest partition, if its cells are all as large.

        Args:
            n: Number of records.
            residual_scale: What public knowledge says of the scale of y - m(x), in outcome units.
        """
        budget, schema = self._planned(n), TableSchema.of(self.domain)
        domain = schema.domain
        planner = self._procedure()
        assert isinstance(planner, Composition)
        planner.check(n, None)
        plan = planner.plan(n)
        scale = stated_scale(residual_scale, plan, schema)
        of, cells = f"the average effect ({self.estimand})" + (" of an arm" if schema.compared else ""), None
        if plan.cells is not None:
            finest = max(plan.cells.partitions, key=lambda partition: partition.size)
            cells = finest.size
            of = f"the effect in a cell by {finest.name}, one of {cells} if they are all as large"
        residuals = "of a binary outcome" if plan.binary else "of 1/14 of the outcome's range"
        if scale is not None:
            residuals = f"of {shown(scale)}{told(schema) if residual_scale is None else ' (residual_scale, as given)'}"
        return PlannedNoise.of_parts(
            planned_line(plan, domain.outcome_range, scale, cells) | curve_part(plan, domain),
            of,
            domain.outcome_range,
            n,
            budget,
            assumes=(f"scores are as wide as residuals {residuals} and the share of the treated make them",),
        )
