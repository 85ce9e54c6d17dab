"""The R- and DR-learner: private nuisances, a second stage, and releases from them."""

from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from torch import Tensor

from torchdpcate.causal.score import DRScore, RegressionScore, RScore
from torchdpcate.composition.settings import AdaptiveSecondStage
from torchdpcate.data.domain import Domain
from torchdpcate.data.records import CausalData
from torchdpcate.data.schema import TableSchema
from torchdpcate.data.streams import RecordStream
from torchdpcate.data.subgroups import Subgroups
from torchdpcate.errors import InputError
from torchdpcate.estimators.answers import AnswersEffects
from torchdpcate.estimators.average.balance import Comparability
from torchdpcate.estimators.base import PrivateEstimator
from torchdpcate.estimators.cate.blocks import Blocks, FittedBlocks
from torchdpcate.estimators.cate.composition import Composition, FittedComposition
from torchdpcate.estimators.cate.mechanisms.base import Mechanism
from torchdpcate.estimators.cate.online.service import OnlineService
from torchdpcate.estimators.planned_noise import PlannedNoise
from torchdpcate.fit.nuisance_config import NuisanceConfig
from torchdpcate.fit.nuisances import NuisanceRecipe
from torchdpcate.fit.trainer import default_trainer
from torchdpcate.heads.recipes import LinearSecondStage, SecondStage
from torchdpcate.heads.stage import FittedStage
from torchdpcate.privacy.budget import PrivacyBudget
from torchdpcate.privacy.guarantee import Condition, user_code
from torchdpcate.privacy.noise import NoiseSource
from torchdpcate.release.average_effect import BalanceTable
from torchdpcate.release.composed import ComposedRelease
from torchdpcate.release.release import FunctionRelease, QueryRelease

if TYPE_CHECKING:
    from lightning.pytorch import Trainer


@dataclass(eq=False, repr=False)
class CATELearner(AnswersEffects, PrivateEstimator):
    """Two-stage learner of E[Y(1) - Y(0) | x]; of K arms, each against the first, by one composition.

    By default an ``RLearner`` is one composition on all records (``AdaptiveSecondStage``), of Gaussian events or, with
    delta = 0, of pure ones: ``fit`` spends the budget, and ``release_function`` hands out what it paid for. With
    another second stage, or with settings of nuisances or ``filter``, and in a ``DRLearner``, records are
    divided instead of the budget:

    The records are put into a secret random order and then split by position and public seed. One part trains
    (pi, mu0, mu1) and the Huber threshold with privacy; the other fits g = g0 + f with g0 = mu1 - mu0. A record lies in
    one block, so a release costs (max epsilon, max delta) over the blocks.

    Guarantee:
        ``fit`` spends the nuisances' budget (certified); each release spends from the blocks that fitted the
        second stage, at the mechanism's level. Conditions: records are rows, adjacency is replace-one, n, bounds
        and settings are public. Source: theory note ``dp_cate``, sections 2 and 3.1.

    Args:
        domain: Public bounds (``Domain``), or a ``TableSchema`` to keep a table's columns in releases.
        budget: Privacy budget of each block, hence of the fit. None trains without privacy; such a learner
            releases nothing.
        nuisance: Settings of the nuisances.
        second_stage: Settings of the second stage; None takes ``AdaptiveSecondStage`` where the learner composes, and
            nothing that only blocks have is set.
        seed: Public seed of the split, initial weights and (without privacy) batches.
        trainer: Makes a Lightning Trainer from keyword arguments.
        noise: Privacy noise; None takes the operating system's entropy.
        ledger_path: File of the ledger, which must not exist; None keeps the ledger in memory.
        filter: How releases after ``fit`` are counted, which nothing that was seen may decide: ``sums`` of epsilons and
            deltas, by any mechanism; or ``gaussian``, for Gaussian mechanisms alone (``gaussian_process``, ``output``,
            ``answer_online``), which then have less noise.

    Attributes:
        nuisances_: Trained nuisances (private if ``budget`` is given).
        ledger_: What has been spent.
        threshold_: Private Huber threshold, in outcome units; None if none was needed.
        stage_: The fitted second stage. The curator's, never to be published.
        plan_: Public plan of a composition.
        composed_: What a composition found. The curator's, never to be published.
        blocks_: Positions of the records of each block, public: they follow from n and ``seed``. With
            privacy they are positions in a secret order.

    Example:
        >>> from torchdpcate import Dataset1
        >>> study = Dataset1(n=600).load()
        >>> learner = RLearner(study.domain, PrivacyBudget(4.0, 1e-5))
        >>> release = learner.fit(study.records.x, study.records.a, study.records.y).release_function()
        >>> release.privacy.level, release.effect(study.queries).shape
        ('certified', (60,))
    """

    domain: Domain | TableSchema
    budget: PrivacyBudget | None
    _: KW_ONLY
    nuisance: NuisanceRecipe | None = None
    second_stage: SecondStage | AdaptiveSecondStage | None = None
    seed: int = 0
    trainer: "Callable[..., Trainer] | None" = None
    noise: NoiseSource | None = None
    ledger_path: str | Path | None = None
    filter: str = "sums"

    regression_score: ClassVar[RegressionScore]

    composes: ClassVar[bool] = False
    """Whether it has a composition on all records."""

    def _schema(self) -> TableSchema:
        return TableSchema.of(self.domain)  # blocks refuse more than two arms

    def _arms(self) -> Sequence[int]:
        return self.schema_.actions

    @property
    def needs_all_records(self) -> str | None:
        """See ``PrivateEstimator``: of a composition, which has nuisances that are additive over a stream, little."""
        return self._procedure().needs_all_records

    @property
    def needs_equal_records(self) -> str | None:
        return self._procedure().needs_equal_records

    @property
    def takes_censored(self) -> bool:
        return self._procedure().takes_censored

    def _prepare(self, records: CausalData | RecordStream) -> None:
        self._settings = self._procedure()
        self.blocks_ = self._settings.blocks(records.n)

    def _learn(self, records: CausalData | RecordStream) -> None:
        self._fitted: FittedBlocks | FittedComposition
        if isinstance(self._settings, Blocks):
            assert isinstance(records, CausalData)
            blocks = self._fitted = self._settings.fit(records, self._session, self._statement_of)
            self.nuisances_, self.threshold_, self.stage_ = blocks.nuisances, blocks.threshold, blocks.stage
        else:
            fitted = self._fitted = self._settings.fit(records, self._session, self._statement_of)
            self.plan_, self.composed_ = fitted.plan, fitted.found

    def _filter(self) -> str:
        return self.filter

    def check(self, n: int, mechanism: "str | Mechanism | None" = None) -> None:
        """Refuse, before anything is trained or spent, a release that could not be made.

        Args:
            n: Number of records.
            mechanism: The mechanism of the release; None takes the default one.

        Raises:
            InputError: delta = 0 where blocks are requested, too few records, or a mechanism without a guarantee for
                these settings.
        """
        self._procedure().check(n, mechanism)

    def release(
        self, kind: str = "function", *args: Any, **settings: Any
    ) -> "FunctionRelease | QueryRelease | OnlineService":
        """Release effects in one of three ways.

        Args:
            kind: ``function``, ``queries``, ``online``: ``release_function`` and so on.
            args: Of that method: queries, or a folder.
            settings: Its other arguments.

        Raises:
            InputError: No such kind; and see the way.
        """
        ways = {"function": self.release_function, "queries": self.release_queries, "online": self.answer_online}
        if kind not in ways:
            raise InputError(f"kind = {kind!r}: choose one of {', '.join(ways)}")
        return ways[kind](*args, **settings)  # type: ignore[operator]

    def release_function(
        self, mechanism: "str | Mechanism | None" = None, budget: PrivacyBudget | None = None
    ) -> "FunctionRelease | ComposedRelease":
        """Release the effect function g.

        Args:
            mechanism: Of blocks: ``objective`` (default, least noise), ``output``, or a ``FunctionMechanism``.
            budget: What to spend of the second-stage block; None spends all that is left. With neither the release is
                the same one each time.

        Raises:
            InputError: A mechanism for queries, or one that has no guarantee for this second stage.
            BudgetError: The block cannot pay.
        """
        self._ready()
        make = partial(self._fitted.release_function, mechanism, budget)
        return self._once(make) if mechanism is None and budget is None else self._keep(make())

    def release_queries(
        self,
        X_query: Any,
        mechanism: "str | Mechanism | None" = None,
        budget: PrivacyBudget | None = None,
        include_nuisances: bool = False,
    ) -> QueryRelease:
        """Release effects at finitely many public queries.

        Args:
            X_query: Covariates [d, q] within the domain. They become public.
            mechanism: ``smooth_sensitivity``, ``influence``, or a function mechanism's name, whose function
                is then released at the queries alone.
            budget: What to spend of the second-stage block; None spends all that is left.
            include_nuisances: Whether the DP-trained nuisances are part of the release.

        Raises:
            InputError: Queries outside the domain; a mechanism without a bound for this second stage.
            BudgetError: The block cannot pay.
        """
        self._ready()
        queries = self.schema_.within(self.schema_.matrix(X_query, "query"), "query")
        return self._keep(self._fitted.release_queries(queries, mechanism, budget, include_nuisances))

    def answer_online(
        self,
        folder: str | Path,
        mechanism: "str | Mechanism" = "gaussian_process",
        budget: PrivacyBudget | None = None,
    ) -> OnlineService:
        """Set up a service of the curator's that answers any number of queries for one charge.

        Args:
            folder: Folder of the service, made here; it holds secrets and must never be published.
            mechanism: A mechanism that can: ``gaussian_process``.
            budget: What to spend of the second-stage block; None spends all that is left.

        Raises:
            InputError: A mechanism that cannot, a second stage without a bound, or a folder that is there.
            BudgetError: The block cannot pay.
        """
        self._ready()
        if not isinstance(self._fitted, FittedBlocks):
            raise InputError(
                "second_stage = adaptive: its function answers any query already, by release_function(); an online "
                "service needs second_stage=linear or kernel_ridge"
            )
        return self._fitted.answer_online(folder, mechanism, budget)

    def expected_noise(
        self,
        n: int,
        mechanism: "str | Mechanism | None" = None,
        queries: Tensor | None = None,
        residual_scale: float | None = None,
    ) -> PlannedNoise:
        """See ``PrivateEstimator``: the noise of the effect for an average person.

        Of a composition it is the error that all its noise and its priors leave; of a second stage on a block of its
        own the noise of that stage alone, with a planned Huber threshold.

        Args:
            n: Number of records.
            mechanism: That of the release; None takes the default one.
            queries: Encoded public queries [d, q], for mechanisms that answer at queries alone.
            residual_scale: Of a composition: what public knowledge says of the scale of y - m(x), in outcome units,
                about its standard deviation; None takes a fourteenth of the outcome's range.

        Raises:
            InputError: No budget, settings that could not be released, or a residual scale where there is none.
        """
        self._planned(n)
        settings = self._procedure()
        if isinstance(settings, Composition):
            return settings.expected_noise(n, mechanism, residual_scale)
        if residual_scale is not None:
            raise InputError(f"residual_scale = {residual_scale}: is for second_stage=adaptive alone; leave it out")
        return settings.expected_noise(n, mechanism, queries)

    def nonprivate_balance(self) -> BalanceTable | None:
        """Return the balance of all covariates before and after weighting by the propensity; the curator's.

        None of blocks, of streams, and of more than two arms.

        Raises:
            NotFittedError: Before ``fit``.
        """
        self._require_fitted("nonprivate_balance")
        return self._fitted.balance if isinstance(self._fitted, FittedComposition) else None

    def nonprivate_comparability(self) -> Comparability | None:
        """Return whether treated and controls can be compared, without privacy; the curator's.

        None of blocks, of streams, and of more than two arms.

        Raises:
            NotFittedError: Before ``fit``.
        """
        self._require_fitted("nonprivate_comparability")
        found = self._fitted.comparable if isinstance(self._fitted, FittedComposition) else None
        return None if found is None else found()

    def nonprivate_effect(self, X: Any, stage: FittedStage | None = None) -> np.ndarray:
        """Return the effects without second-stage noise, [m]. The curator's, never to be published.

        Args:
            X: Covariates.
            stage: The second stage; None takes ``stage_``.
        """
        self._require_fitted("nonprivate_effect")
        x = self.schema_.matrix(X)
        if stage is None:
            return self._fitted.effect(x).numpy()
        return self._blocks("nonprivate_effect with a stage").effect(x, stage).numpy()

    def plug_in_effect(self, X: Any) -> np.ndarray:
        """Return mu1 - mu0 of the nuisances, [m]: free post-processing of what their block paid for.

        Raises:
            InputError: Not fitted by blocks.
        """
        fitted = self._blocks("plug_in_effect")
        return fitted.plug_in_effect(self.schema_.matrix(X)).numpy()

    def planned_error(self) -> float:
        """Return the root mean squared error to expect of a composed release, in outcome units; public.

        The plan's, at the released residual scale.

        Raises:
            InputError: Not fitted, or fitted by blocks.
        """
        self._require_fitted("planned_error")
        if not isinstance(self._fitted, FittedComposition):
            raise InputError("planned_error: only second_stage = adaptive has a plan of all stages")
        return self._fitted.planned_error()

    def _blocks(self, what: str) -> FittedBlocks:
        """Return a fit by blocks.

        Raises:
            InputError: Not fitted, or one composition.
        """
        self._require_fitted(what)
        if not isinstance(self._fitted, FittedBlocks):
            raise InputError(f"{what}: is for blocks of records; use second_stage=linear, kernel_ridge or plug_in")
        return self._fitted

    def _procedure(self) -> Blocks | Composition:
        """Return what the settings request: one composition, or blocks of records."""
        second, schema = self._second_stage(), TableSchema.of(self.domain)
        trainer, name = self.trainer or default_trainer, type(self).__name__
        if isinstance(second, AdaptiveSecondStage):
            if second.cells is not None:
                second = replace(second, cells=Subgroups.of(second.cells, schema))
            return Composition(second, schema, self.budget, self.composes, name, self._block_settings(), trainer)
        schema.two_arms(f"a second stage on a block of its own ({name})")
        return Blocks(
            score=self.regression_score,
            schema=schema,
            budget=self.budget,
            nuisance=self.nuisance or NuisanceConfig(),
            second_stage=second,
            seed=self.seed,
            trainer=trainer,
            learner=name,
            own=self._own_learner(),
        )

    def _second_stage(self) -> SecondStage | AdaptiveSecondStage:
        """Return the settings of the second stage, given or not."""
        if self.second_stage is not None:
            return self.second_stage
        return LinearSecondStage() if not self.composes or self._block_settings() else AdaptiveSecondStage()

    def _block_settings(self) -> list[str]:
        """Return the names of given settings that only blocks have."""
        return ["nuisance"] * (self.nuisance is not None) + ["filter"] * (self.filter != "sums")

    def _own_learner(self) -> tuple[Condition, ...]:
        """Return the conditions of a learner, and of a score with its bounds, that are no classes of the library."""
        return super()._own_learner() + user_code("score", self.regression_score)


class RLearner(CATELearner):
    r"""R-learner (Nie & Wager 2021): overlap weights, no inverse propensity.

    .. math:: \min_g \frac1n \sum_i \big(y_i - m(x_i) - (a_i - \pi(x_i))\, g(x_i)\big)^2

    See ``CATELearner``.
    """

    regression_score = RScore()
    composes = True


class DRLearner(CATELearner):
    r"""DR-learner (Kennedy 2023): doubly robust pseudo-outcomes.

    .. math:: \min_g \frac1n \sum_i (\phi_i - g(x_i))^2, \qquad
        \phi = \mu_1 - \mu_0 + \frac{a - \pi}{\pi (1 - \pi)} (y - \mu_a)

    See ``CATELearner``.

    Example:
        >>> from torchdpcate import Dataset1
        >>> study = Dataset1(n=600).load()
        >>> learner = DRLearner(study.domain, PrivacyBudget(4.0, 1e-5))
        >>> release = learner.fit(study.records.x, study.records.a, study.records.y).release_function()
        >>> release.privacy.level, release.effect(study.queries).shape
        ('certified', (60,))
    """

    regression_score = DRScore()
