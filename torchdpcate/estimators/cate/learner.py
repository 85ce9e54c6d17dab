"""The R- and DR-learner: private nuisances, a second stage, and releases from them."""

import math
from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np
import torch
from torch import Tensor

from torchdpcate._renamed import renamed
from torchdpcate.causal.score import DRScore, RegressionScore, RScore
from torchdpcate.composition.doubly_robust import DoublyRobustPlan
from torchdpcate.composition.plan import ComposedPlan
from torchdpcate.composition.planned_error import planned_error
from torchdpcate.composition.settings import AdaptiveSecondStage
from torchdpcate.data.domain import Domain
from torchdpcate.data.record_stream import RecordStream
from torchdpcate.data.records import CausalData
from torchdpcate.data.schema import TableSchema
from torchdpcate.errors import InputError
from torchdpcate.estimators.base import PrivateEstimator
from torchdpcate.estimators.cate.composition import Composition, composed_effect
from torchdpcate.estimators.cate.first_stage import FirstStage, on_device
from torchdpcate.estimators.cate.mechanisms.base import MECHANISMS, FunctionMechanism, Mechanism, QueryMechanism
from torchdpcate.estimators.cate.mechanisms.composed import Composed
from torchdpcate.estimators.cate.mechanisms.offer import noise_at_queries
from torchdpcate.estimators.cate.online.correction import head_of
from torchdpcate.estimators.cate.online.service import OnlineService, OnlineTerms
from torchdpcate.estimators.cate.planned import planned_composition, planned_head_noise
from torchdpcate.estimators.cate.planned_head import PlannedHead
from torchdpcate.estimators.cate.splits import DisjointSplit, Split
from torchdpcate.estimators.cate.tuning import Tuning
from torchdpcate.estimators.mechanism import Prepared
from torchdpcate.estimators.planned_noise import PlannedNoise
from torchdpcate.features.maps import FeatureMap
from torchdpcate.nuisance.config import NuisanceConfig
from torchdpcate.nuisance.recipe import NuisanceRecipe
from torchdpcate.nuisance.screening import Screening
from torchdpcate.nuisance.trainer import default_trainer
from torchdpcate.privacy.budget import PrivacyBudget
from torchdpcate.privacy.charge import TUNING, Charge, Purpose
from torchdpcate.privacy.events import PureEvent
from torchdpcate.privacy.guarantee import Condition, Level, own_code
from torchdpcate.privacy.noise import NoiseSource
from torchdpcate.privacy.session import FitSession
from torchdpcate.release.composed import ComposedRelease
from torchdpcate.release.release import FunctionRelease, QueryRelease
from torchdpcate.release.statement import PrivacyStatement
from torchdpcate.second_stage.recipes import LinearSecondStage, SecondStage
from torchdpcate.second_stage.stage import FittedStage, RKHSStage

if TYPE_CHECKING:
    from lightning.pytorch import Trainer

RECORDS = "records"
"""The one block of a composition."""
OBJECTIVE = "objective"
"""The mechanism of blocks where the user names none: the one of least noise."""


@renamed(compare_noise="plan", curator_effect="nonprivate_effect")
@dataclass(eq=False, repr=False)
class CATELearner(PrivateEstimator):
    """Two-stage learner of E[Y(1) - Y(0) | x].

    By default a learner is one composition on all records (``AdaptiveSecondStage``), of Gaussian events or, an
    ``RLearner`` with delta = 0, of pure ones: ``fit`` spends the budget, and ``release_function`` hands out what it
    paid for. With another second stage, or with settings of nuisances, ``split``, ``screen``, ``tune`` or ``filter``,
    records are divided instead of the budget:

    The records are put into a secret random order and then split by position (``DisjointSplit`` or
    ``CrossFit``). One part trains (pi, mu0, mu1) and the Huber threshold with privacy; the other fits g = g0 + f
    with g0 = mu1 - mu0. A record lies in one block, so a release costs (max epsilon, max delta) over the blocks.

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
        split: Which records train the nuisances; a number is the share of a ``DisjointSplit``.
        seed: Public seed of split, initial weights and (without privacy) batches.
        trainer: Makes a Lightning Trainer from keyword arguments.
        noise: Privacy noise; None takes the operating system's entropy.
        ledger_path: File of the ledger, which must not exist; None keeps the ledger in memory.
        screen: Private choice of a few covariates before anything else; None keeps all.
        tune: Private choice of the second stage's features and ridge; None keeps those given.
        filter: How releases after ``fit`` are counted, which nothing that was seen may decide: ``sums`` of epsilons and
            deltas, by any mechanism; or ``gaussian``, for Gaussian mechanisms alone (``gaussian_process``, ``output``,
            ``answer_online``), which then have less noise, above all with cross-fitting.

    Attributes:
        nuisances_: Trained nuisances (private if ``budget`` is given).
        ledger_: What has been spent.
        columns_: Columns that screening chose, paid for and public; None for all.
        second_stage_: Settings of the second stage, those that tuning chose.
        threshold_: Private Huber threshold, in outcome units; None if none was needed.
        stage_: The fitted second stage. The curator's, never to be published.
        plan_: Public plan of a composition.
        composed_: What a composition found. The curator's, never to be published.
        blocks_: Positions of the records of each block, public: they follow from n, ``split`` and ``seed``. With
            privacy they are positions in a secret order, see ``checked_records``.

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
    split: float | Split = 0.5
    seed: int = 0
    trainer: "Callable[..., Trainer] | None" = None
    noise: NoiseSource | None = None
    ledger_path: str | Path | None = None
    screen: Screening | None = None
    tune: Tuning | None = None
    filter: str = "sums"

    score: ClassVar[RegressionScore]

    plans: ClassVar[type[ComposedPlan] | None] = None
    """Plans of its composition on all records; None where it has none."""

    def fit_stream(self, stream: RecordStream) -> Self:
        """Learn from records that are read batch by batch, in constant memory, by the one composition.

        The charges and the result of ``fit``, with nuisances that are additive in the plan's features. The records are
        read some two hundred times: give a ``CachedStream`` of what is slow to read.

        Args:
            stream: Records with the domain's columns, for instance a ``TableStream``.

        Raises:
            InputError: As ``fit``; or settings that need all records at once: blocks, networks, delta = 0, no budget.
        """
        self._start()
        stream.check_schema(self.schema_, isinstance(self.domain, TableSchema))
        self.check_stream(stream.n)
        return self._fit(stream)

    def check_stream(self, n: int) -> None:
        """Refuse, before anything is read or spent, what a stream of records does not allow.

        Args:
            n: Number of records.

        Raises:
            InputError: As ``fit_stream``.
        """
        if self._adaptive is None:
            raise InputError(
                "stream: blocks of records need them all at once; use second_stage=adaptive, or fit(X, A, Y)"
            )
        self._composition().check_stream(n)

    def _prepare(self, records: CausalData | RecordStream) -> None:
        if self._adaptive is not None:
            composition = self._composition()
            self.blocks_ = {RECORDS: torch.arange(records.n)}
            self.plan_ = composition.plan(records.n)
            return
        self._public = {"learner": type(self).__name__, "split": self._split().fact, "seed": self.seed}
        self.blocks_ = dict(self._split().blocks(records.n, self.seed))
        self._check_budget()

    def _learn(self, records: CausalData | RecordStream) -> None:
        """Train the nuisances, pay for the threshold and set up the second stage."""
        if self._adaptive is not None:
            self._compose(records)
            return
        assert isinstance(records, CausalData)
        blocks = {name: records.subset(index) for name, index in self.blocks_.items()}
        first = self._first_stage().fit(blocks, self._session)
        self._first, self.nuisances_, self.columns_ = first, first.nuisances, first.columns
        self.threshold_ = first.private_threshold(blocks, self._session)
        self.second_stage_ = self._tuned(blocks)
        tried = () if self.tune is None else self.tune.conditions
        own = own_code("nuisances", self.nuisance) + own_code("second stage", self.second_stage)
        self._own = tried + own
        device = self._trainer()().strategy.root_device
        self.stage_ = self.second_stage_.fit(
            first.block(blocks, self._split().folds, device),
            on_device(self.nuisances_, device),
            threshold=math.inf if self.threshold_ is None else self.threshold_,
            budget=None if self.budget is None else self._split().release_budget(self.budget),
            trainer=self._trainer(),
            seed=self.seed,
        )

    def _compose(self, records: CausalData | RecordStream) -> None:
        """Run the steps of the one composition, which pay for the release too."""
        composition = self._composition()
        self._own = composition.conditions
        session = self._session.scope([RECORDS], Charge(Purpose.RELEASE, Composed.name), bool(self._own))
        if isinstance(records, RecordStream):
            self.composed_ = composition.fit_stream(records, self.plan_, session)
        else:
            self.composed_ = composition.fit(records, self.plan_, session, self._trainer())
        self._own_entries = session.entries

    def _filter(self) -> str:
        return self.filter

    def check(self, n: int, mechanism: "str | Mechanism") -> None:
        """Refuse, before anything is trained or spent, a release that could not be made.

        Args:
            n: Number of records.
            mechanism: The mechanism of the release.

        Raises:
            InputError: delta = 0 where blocks are asked for, too few records, or a mechanism without a guarantee for
                these settings.
        """
        if self._adaptive is not None:
            self._composition(mechanism).plan(n)
            return
        if self.tune is not None:
            self.tune.candidates(self._stage())
        self._check_budget()
        domain, split = TableSchema.of(self.domain).two_arms().domain, self._split()
        sizes = {name: len(index) for name, index in split.blocks(n, self.seed).items()}
        self._trainer()()
        self._first_stage().check(sizes)
        if self.budget is not None:
            bound = self.score.bounds(domain).weight * FeatureMap.bound
            chosen = MECHANISMS.make(mechanism, Mechanism)
            chosen.check(self._stage(), bound, split.fitted(sizes), split.release_budget(self.budget))
            chosen.check_blocks(len(split.folds), domain.known_propensity, self.filter)

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
            budget: What to spend of the second-stage block; None spends all that is left.

        Raises:
            InputError: A mechanism for queries, or one that has no guarantee for this second stage.
            BudgetError: The block cannot pay.
        """
        if self._adaptive is not None:
            return self._composed_release(mechanism, budget)
        chosen = self._able(mechanism or OBJECTIVE)
        if not isinstance(chosen, FunctionMechanism):
            raise InputError(
                f"mechanism = {chosen.name}: answers finitely many queries; use release=queries (release_queries), "
                f"{'an online service (answer_online), ' if chosen.online else ''}or mechanism=objective"
            )
        private, own = self._spend(chosen, partial(chosen.privatize, self.stage_), budget)
        return chosen.make_release(
            self.stage_,
            private,
            features=chosen.features(self.stage_).twin(self.nuisances_),
            nuisances=self.nuisances_,
            schema=self.schema_,
            privacy=self._statement(chosen, private, own),
            columns=self.columns_,
        )

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
        queries = self.schema_.within(self.schema_.matrix(X_query, "query"), "query")
        if self._adaptive is not None:
            composed = self._composed_release(mechanism, budget)
            return QueryRelease(queries, composed.effect_tensor(queries), self.schema_, composed.privacy)
        chosen = self._able(mechanism or OBJECTIVE)
        if isinstance(chosen, FunctionMechanism):
            function = self.release_function(chosen, budget)
            answers = function.effect_tensor(queries)
            assert isinstance(function, FunctionRelease)
            scales = None if function.noise_scale is None else function._noise_scale(queries)
            privacy = function.privacy
        elif isinstance(chosen, QueryMechanism):
            run = partial(chosen.answer, self.stage_, self._first.view(queries))
            private, own = self._spend(chosen, run, budget)
            bound = self.schema_.domain.outcome_range
            answers = (self._offset(queries) + private.output).clamp(-bound, bound)
            scales, privacy = private.noise_scales, self._statement(chosen, private, own)
        nuisances = self.nuisances_ if include_nuisances else None
        head = head_of(self.stage_, self.columns_)
        return QueryRelease(queries, answers, self.schema_, privacy, scales, nuisances, head)

    def answer_online(
        self,
        folder: str | Path,
        mechanism: "str | Mechanism" = "gaussian_process",
        budget: PrivacyBudget | None = None,
        counter: str | Path | None = None,
    ) -> OnlineService:
        """Set up a service of the curator's that answers any number of queries for one charge.

        Args:
            folder: Folder of the service, made here; it holds secrets and must never be published.
            mechanism: A mechanism that can: ``gaussian_process``.
            budget: What to spend of the second-stage block; None spends all that is left.
            counter: New file outside the folder, best where no backup reaches, by which a folder that was copied
                or put back is recognised: each would answer with new noise. With None nothing recognises it.

        Raises:
            InputError: A mechanism that cannot, a second stage without a bound, or a folder or counter that is there.
            BudgetError: The block cannot pay.
        """
        if self._adaptive is not None:
            raise InputError(
                "second_stage = adaptive: its function answers any query already, by release_function(); an online "
                "service needs second_stage=linear, tangent or kernel_ridge"
            )
        chosen = self._able(mechanism)
        if not chosen.online:
            raise InputError(f"mechanism = {chosen.name}: does not answer online; use mechanism=gaussian_process")

        def create(budget: PrivacyBudget, session: FitSession) -> OnlineService:
            return OnlineService.create(
                folder,
                self.stage_,
                self.nuisances_,
                self.schema_,
                budget=budget,
                session=session,
                statement=lambda terms: self._statement(chosen, terms, session.entries),
                columns=self.columns_,
                counter=counter,
            )

        return self._spend(chosen, create, budget)[0]

    def plan(self, X_query: Any, budget: PrivacyBudget | None = None) -> dict[str, float]:
        """Return the noise of an answer at these queries by mechanism, in outcome units; see ``noise_at_queries``.

        It is worked out from public facts and costs nothing: ask before releasing.

        Args:
            X_query: Covariates [d, q].
            budget: What the release would spend; None takes the block's budget.

        Raises:
            InputError: Not fitted, without privacy, or a second stage without a sensitivity bound.
        """
        self._require_fitted("plan")
        queries = self.schema_.matrix(X_query, "query")
        if self.budget is None or not isinstance(self.stage_, RKHSStage):
            raise InputError("plan: needs a budget and second_stage=linear, tangent or kernel_ridge")
        budget = budget or self._split().release_budget(self.budget)
        return noise_at_queries(self.stage_, self._first.view(queries), budget)

    def expected_noise(
        self,
        n: int,
        mechanism: "str | Mechanism | None" = None,
        queries: Tensor | None = None,
        residual_scale: float | None = None,
    ) -> PlannedNoise:
        """See ``PrivateEstimator``: the noise of the effect at a typical covariate.

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
        budget, schema = self._planned(n), TableSchema.of(self.domain).two_arms()
        if self._adaptive is not None:
            return planned_composition(self._composition(mechanism).plan(n), schema.domain, residual_scale)
        if residual_scale is not None:
            raise InputError(f"residual_scale = {residual_scale}: is for second_stage=adaptive alone; leave it out")
        chosen: Mechanism = MECHANISMS.make(mechanism or OBJECTIVE, Mechanism)
        sizes, split, first = self._split().sizes(n), self._split(), self._first_stage()
        release, own = split.release_budget(budget), split.fitted(sizes)
        kept = first.kept(sum(sizes[fold.train] for fold in split.folds))
        head = PlannedHead.of(self._stage(), self.score, schema, kept, own, release, queries)
        user = (
            own_code("mechanism", chosen)
            or own_code("nuisances", self.nuisance)
            or own_code("second stage", self.second_stage)
        )
        level = Level.CONDITIONAL if (user or self._own_learner()) else chosen.states.highest
        return planned_head_noise(chosen, head, release, schema.domain, n, budget, level)

    def nonprivate_effect(self, X: Any, stage: FittedStage | None = None) -> np.ndarray:
        """Return the effects without second-stage noise, [m]. The curator's, never to be published.

        Args:
            X: Covariates.
            stage: The second stage; None takes ``stage_``.
        """
        x, bound = self.schema_.matrix(X), self.schema_.domain.outcome_range
        if self._adaptive is not None:
            self._require_fitted("nonprivate_effect")
            return composed_effect(self.composed_, self.schema_.domain, x).numpy()
        correction = (stage or self.stage_).correction(self._first.view(x)).cpu()
        return (self._offset(x) + correction).clamp(-bound, bound).numpy()

    def plug_in_effect(self, X: Any) -> np.ndarray:
        """Return mu1 - mu0 of the nuisances, [m]: free post-processing of what their block paid for."""
        return self._offset(self.schema_.matrix(X)).numpy()

    def _offset(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            return self.nuisances_.effect(self._first.view(x))

    def _check_budget(self) -> None:
        if self.budget is not None and self.budget.delta == 0:
            raise InputError(
                "delta = 0: the nuisance networks (DP-SGD) are only (epsilon, delta)-private; "
                "give privacy.delta above 0, for instance 1e-5, or leave second_stage=adaptive, which is pure then"
            )

    def _trainer(self) -> "Callable[..., Trainer]":
        return self.trainer or default_trainer

    @property
    def _adaptive(self) -> AdaptiveSecondStage | None:
        """The settings of the one composition; None where records are split into blocks."""
        if self.second_stage is None:
            return AdaptiveSecondStage() if self.plans is not None and not self._block_settings() else None
        return self.second_stage if isinstance(self.second_stage, AdaptiveSecondStage) else None

    def _composition(self, mechanism: "str | Mechanism | None" = None) -> Composition:
        """Return the one composition; refuse settings, and mechanisms, that it does not have."""
        assert self._adaptive is not None
        learner, schema = type(self).__name__, TableSchema.of(self.domain).two_arms()
        found = Composition(self._adaptive, schema, self.budget, self.plans, learner)
        found.check(MECHANISMS.make(mechanism or Composed.name, Mechanism), self._block_settings())
        return found

    def _block_settings(self) -> list[str]:
        """Return the names of given settings that only blocks have."""
        given = {"nuisance": self.nuisance, "screen": self.screen, "tune": self.tune}
        found = [name for name, value in given.items() if value is not None]
        return found + ["split"] * (self.split not in (0.5, DisjointSplit())) + ["filter"] * (self.filter != "sums")

    def _stage(self) -> SecondStage:
        assert not isinstance(self.second_stage, AdaptiveSecondStage)
        return self.second_stage or LinearSecondStage()

    def _composed_release(self, mechanism: "str | Mechanism | None", budget: PrivacyBudget | None) -> ComposedRelease:
        """Return the release that the fit has paid for, the same one each time."""
        self._ready()
        composition, chosen = self._composition(mechanism), MECHANISMS.make(mechanism or Composed.name, Mechanism)
        assert isinstance(chosen, Composed)
        if budget is not None:
            raise InputError("budget: second_stage = adaptive has spent the learner's budget in fit; leave it out")
        public = {"learner": type(self).__name__, **self.plan_.facts()}
        guarantee = composition.guarantee.resting_on(self._own + own_code("mechanism", chosen))
        privacy = self._statement_of(chosen.of_events(self.plan_), guarantee, public, self._own_entries)
        return chosen.make_release(self.composed_, self.plan_, self.schema_, privacy)

    def planned_error(self) -> float:
        """Return the root mean squared error to expect of a composed release, in outcome units; public.

        The plan's, at the released residual scale.

        Raises:
            InputError: Not fitted, or fitted by blocks.
        """
        self._require_fitted("planned_error")
        if self._adaptive is None:
            raise InputError("planned_error: only second_stage = adaptive has a plan of all stages")
        return planned_error(self.plan_, self.schema_.domain.outcome_range, self.composed_.effect.scale)

    def _split(self) -> Split:
        return self.split if isinstance(self.split, Split) else DisjointSplit(self.split)

    def _first_stage(self) -> FirstStage:
        tuning = self._tuning_event()
        return FirstStage(
            score=self.score,
            domain=TableSchema.of(self.domain).domain,
            split=self._split(),
            recipe=self.nuisance or NuisanceConfig(),
            screening=self.screen,
            private_threshold=self._stage().private_threshold,
            also=() if tuning is None else ((tuning, 1),),
            budget=None if self.budget is None else self._split().nuisance_budget(self.budget),
            trainer=self._trainer(),
            seed=self.seed,
        )

    def _tuning_event(self) -> PureEvent | None:
        if self.tune is None or self.budget is None:
            return None
        return self.tune.event(self._split().nuisance_budget(self.budget))

    def _tuned(self, blocks: Mapping[str, CausalData]) -> SecondStage:
        """Return the second stage's settings, chosen by the nuisances' budget where they are to be tuned."""
        stage, event, folds = self._stage(), self._tuning_event(), self._split().choices
        if self.tune is None:
            return stage
        if event is not None:
            scope = self._session.scope([fold.apply for fold in folds], TUNING, conditional=bool(self.tune.conditions))
            scope.pay(event)
        return self.tune.choose(
            stage,
            self._first.block(blocks, folds, torch.device("cpu")),
            self.nuisances_,
            threshold=math.inf if self.threshold_ is None else self.threshold_,
            n=self._split().fitted(self.sizes_),
            budget=None if self.budget is None else self._split().release_budget(self.budget),
            epsilon=None if event is None else event.epsilon,
            noise=self._noise,
        )

    def _able(self, mechanism: "str | Mechanism") -> Mechanism:
        """Return the mechanism if this learner can release by it."""
        self._ready()
        self.check(sum(self.sizes_.values()), mechanism)
        chosen: Mechanism = MECHANISMS.make(mechanism, Mechanism)
        return chosen

    def _own_learner(self) -> tuple[Condition, ...]:
        """Return the conditions of a learner, and of a score with its bounds, that are no classes of the library."""
        return super()._own_learner() + own_code("score", self.score)

    def _spend(
        self, mechanism: Mechanism, run: Callable[..., Any], budget: PrivacyBudget | None
    ) -> tuple[Any, set[int]]:
        """Run a mechanism on what its blocks have left; return its result and ledger entries."""
        blocks = [fold.apply for fold in self._split().folds]
        budget = self._session.budget if mechanism.free else budget
        return self._session.spend(run, blocks, Charge(Purpose.RELEASE, mechanism.name), budget, mechanism.gaussian)

    def _statement(self, mechanism: Mechanism, result: Prepared | OnlineTerms, own: set[int]) -> PrivacyStatement:
        public = {**self._public, "ridge": self.stage_.ridge, **result.public}
        return self._statement_of(mechanism, result.guarantee.resting_on(self._own), public, own)


class RLearner(CATELearner):
    """R-learner (Nie & Wager 2021): overlap weights, no inverse propensity. See ``CATELearner``."""

    score = RScore()
    plans = ComposedPlan


class DRLearner(CATELearner):
    """DR-learner (Kennedy 2023): doubly robust pseudo-outcomes. See ``CATELearner``."""

    score = DRScore()
    plans = DoublyRobustPlan
