"""The R- and DR-learner: private nuisances, a second stage, and releases from them."""

import math
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from sklearn.base import BaseEstimator
from torch import Tensor

from torchdpcate.data import CausalData, Domain, TableSchema, public_split
from torchdpcate.errors import InputError
from torchdpcate.nuisance import DPSGDPlan, NuisanceConfig, Nuisances, default_trainer, train
from torchdpcate.orthogonal import DRScore, RegressionScore, RScore
from torchdpcate.privacy import Event, Ledger, Level, NoiseSource, PrivacyBudget, PureEvent, private_quantile
from torchdpcate.release import (
    FunctionMechanism,
    FunctionRelease,
    InfluencePerturbation,
    Mechanism,
    ObjectivePerturbation,
    OutputPerturbation,
    PrivateAnswers,
    PrivateHead,
    QueryMechanism,
    QueryRelease,
    SmoothSensitivity,
    make_statement,
)
from torchdpcate.second_stage import FeatureMap, LinearSecondStage, SecondStage, SecondStageBlock

if TYPE_CHECKING:
    from lightning.pytorch import Trainer

NUISANCE, SECOND_STAGE = "nuisance", "second_stage"
# Composition leaves crumbs of a spent budget; a release from less than this share would be noise alone.
_SMALLEST_SHARE = 1e-3

MECHANISMS: dict[str, type[Mechanism]] = {
    cls.name: cls for cls in (ObjectivePerturbation, OutputPerturbation, SmoothSensitivity, InfluencePerturbation)
}
"""Mechanisms by the name that ``release_queries`` and ``release_function`` take."""


class CATELearner(BaseEstimator):
    """Two-stage learner of E[Y(1) - Y(0) | x] on two disjoint blocks of records.

    The records are split by position with a public seed. The nuisance block trains (pi, mu0, mu1) by
    DP-SGD and sells the Huber threshold; the second-stage block fits g = g0 + f with g0 = mu1 - mu0. A
    record lies in one block, so a release costs (max epsilon, max delta) over the blocks.

    Guarantee:
        ``fit`` spends the nuisance block's budget (certified); each release spends from the second-stage
        block's, at the mechanism's level. Conditions: records are rows, adjacency is replace-one, n, bounds
        and settings are public. Source: theory note ``dp_cate``, sections 2 and 3.1.

    Args:
        domain: Public bounds (``Domain``), or a ``TableSchema`` to keep a table's columns in releases.
        budget: Privacy budget of each block, hence of the whole. None trains without privacy; such a learner
            releases nothing.
        nuisance: Settings of the nuisance networks.
        second_stage: Settings of the second stage.
        split: Share of the records that trains the nuisances.
        seed: Public seed of split, initial weights and (without privacy) batches.
        trainer: Makes a Lightning Trainer from keyword arguments.
        noise: Privacy noise; None takes the operating system's entropy.
        ledger_path: File of the ledger, which must not exist; None keeps the ledger in memory.

    Attributes:
        nuisances_: Trained nuisances (private if ``budget`` is given).
        ledger_: What has been spent.
        threshold_: Huber threshold that was bought, in outcome units; None if none was.
        stage_: The fitted second stage. The curator's, never to be published.
        blocks_: Indices of the records of each block, public: they follow from n, ``split`` and ``seed``.

    Example:
        >>> from torchdpcate import Dataset1
        >>> study = Dataset1(n=600).load()
        >>> learner = RLearner(study.domain, PrivacyBudget(4.0, 1e-5))
        >>> release = learner.fit(study.records.x, study.records.a, study.records.y).release_function()
        >>> release.privacy.level, release.effect(study.queries).shape
        ('certified', (60,))
    """

    score: RegressionScore

    def __init__(
        self,
        domain: Domain | TableSchema,
        budget: PrivacyBudget | None,
        nuisance: NuisanceConfig | None = None,
        second_stage: SecondStage | None = None,
        split: float = 0.5,
        seed: int = 0,
        trainer: "Callable[..., Trainer] | None" = None,
        noise: NoiseSource | None = None,
        ledger_path: str | Path | None = None,
    ) -> None:
        self.domain = domain
        self.budget = budget
        self.nuisance = nuisance
        self.second_stage = second_stage
        self.split = split
        self.seed = seed
        self.trainer = trainer
        self.noise = noise
        self.ledger_path = ledger_path

    def fit(self, X: Any, A: Any, Y: Any) -> "CATELearner":
        """Train the nuisances, buy the threshold and set up the second stage.

        Args:
            X: Covariates within the domain: a frame with the schema's columns, or encoded columns [n, q] as NumPy
                or torch.
            A: Treatment [n] in {0, 1}.
            Y: Outcome [n] within the domain.

        Returns:
            The learner itself.

        Raises:
            InputError: Values outside the domain, one arm only, too few records, delta = 0.
        """
        self.schema_ = TableSchema.of(self.domain)
        domain = self.schema_.domain
        self._public = {"learner": type(self).__name__, "split": self.split, "seed": self.seed}
        records = CausalData.from_arrays(self.schema_.matrix(X), A, Y, domain)
        domain.check_covariates(records.x)
        domain.check_outcome(records.y)
        first, second = public_split(records.n, self.split, self.seed)
        self.blocks_ = {NUISANCE: first, SECOND_STAGE: second}
        self._noise = self.noise or NoiseSource.system()
        self._check_budget()
        self.ledger_ = self._open_ledger()
        nuisance_block = records.subset(first)
        self.nuisances_ = self._train_nuisances(nuisance_block)
        self.threshold_ = self._buy_threshold(nuisance_block)
        device = self._trainer()().strategy.root_device
        on_device = _on(device, self.nuisances_)
        self.stage_ = self._stage().fit(
            self._block(records.subset(second).to(device), on_device),
            on_device,
            threshold=math.inf if self.threshold_ is None else self.threshold_,
            budget=self.budget,
            trainer=self._trainer(),
            seed=self.seed,
        )
        return self

    def check(self, n: int, mechanism: "str | Mechanism") -> None:
        """Refuse, before anything is trained or spent, a release that could not be made.

        Args:
            n: Number of records.
            mechanism: The mechanism of the release.

        Raises:
            InputError: delta = 0, too few records, or a mechanism without a guarantee for these settings.
        """
        self._check_budget()
        domain = TableSchema.of(self.domain).domain
        first, second = public_split(n, self.split, self.seed)
        self._trainer()()
        self._untrained(domain)
        self._plan(len(first))
        if self.budget is not None:
            bound = self.score.bounds(domain).weight * FeatureMap.bound
            make_mechanism(mechanism).check(self._stage(), bound, len(second), self.budget)

    def release_function(
        self, mechanism: "str | Mechanism" = "objective", budget: PrivacyBudget | None = None
    ) -> FunctionRelease:
        """Release the whole effect function g.

        Args:
            mechanism: ``objective`` (default, least noise), ``output``, or a ``FunctionMechanism``.
            budget: What to spend of the second-stage block; None spends all that is left.

        Raises:
            InputError: A mechanism for queries, or one that has no guarantee for this second stage.
            BudgetError: The block cannot pay.
        """
        chosen = self._ready(mechanism)
        if not isinstance(chosen, FunctionMechanism):
            raise InputError(
                f"mechanism = {chosen.name}: answers finitely many queries; use release=queries (release_queries), "
                "or mechanism=objective"
            )
        head, own = self._spend(chosen.name, partial(chosen.privatize, self.stage_), budget)
        return chosen.make_release(
            head,
            features=chosen.features(self.stage_).twin(self.nuisances_),
            nuisances=self.nuisances_,
            schema=self.schema_,
            privacy=self._statement(chosen, head, own),
        )

    def release_queries(
        self,
        X_query: Any,
        mechanism: "str | Mechanism" = "objective",
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
        chosen = self._ready(mechanism)
        queries = self.schema_.matrix(X_query, "query")
        self.schema_.domain.check_covariates(queries, "query")
        if isinstance(chosen, FunctionMechanism):
            function = self.release_function(chosen, budget)
            answers = function.effect_tensor(queries)
            scales = None if function.noise_scale is None else function._noise_scale(queries)
            privacy = function.privacy
        elif isinstance(chosen, QueryMechanism):
            run = partial(chosen.answer, self.stage_, queries)
            private, own = self._spend(chosen.name, run, budget)
            bound = self.schema_.domain.outcome_range
            answers = (self._offset(queries) + private.values).clamp(-bound, bound)
            scales, privacy = private.noise_scales, self._statement(chosen, private, own)
        nuisances = self.nuisances_ if include_nuisances else None
        return QueryRelease(queries, answers, self.schema_, privacy, scales, nuisances)

    @property
    def sizes_(self) -> dict[str, int]:
        """Records per block, public."""
        return {name: len(block) for name, block in self.blocks_.items()}

    def curator_effect(self, X: Any) -> np.ndarray:
        """Return the effects without second-stage noise, [m]. The curator's, never to be published."""
        x = self.schema_.matrix(X)
        bound = self.schema_.domain.outcome_range
        return (self._offset(x) + self.stage_.correction(x).cpu()).clamp(-bound, bound).numpy()

    def plug_in_effect(self, X: Any) -> np.ndarray:
        """Return mu1 - mu0 of the nuisances, [m]: free post-processing of what their block paid for."""
        return self._offset(self.schema_.matrix(X)).numpy()

    def _offset(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            values = self.nuisances_.predict(x)
        return values.mu1 - values.mu0

    def _check_budget(self) -> None:
        if self.budget is not None and self.budget.delta == 0:
            raise InputError(
                "delta = 0: the nuisance networks (DP-SGD) are only (epsilon, delta)-private; "
                "give privacy.delta above 0, for instance 1e-5"
            )

    def _open_ledger(self) -> Ledger | None:
        if self.budget is None:
            return None
        if self.ledger_path is not None and Path(self.ledger_path).exists():
            raise InputError(f"ledger_path = {self.ledger_path}: exists already; give each fit a ledger of its own")
        path = None if self.ledger_path is None else Path(self.ledger_path)
        blocks = {NUISANCE: self.budget, SECOND_STAGE: self.budget}
        return Ledger(blocks, path, private=self._noise.private)

    def _trainer(self) -> "Callable[..., Trainer]":
        return self.trainer or default_trainer

    def _stage(self) -> SecondStage:
        return self.second_stage or LinearSecondStage()

    def _threshold_event(self) -> PureEvent | None:
        purchase = self._stage().purchase
        if purchase is None or self.budget is None:
            return None
        return PureEvent(self.budget.epsilon * purchase.share)

    def _untrained(self, domain: Domain) -> Nuisances:
        with torch.random.fork_rng():
            torch.manual_seed(self.seed)
            return (self.nuisance or NuisanceConfig()).module(domain)

    def _plan(self, n: int) -> DPSGDPlan | None:
        """Return the DP-SGD run on n records that leaves enough for the threshold; None without privacy."""
        config = self.nuisance or NuisanceConfig()
        config.steps(n)
        if self.budget is None:
            return None
        event = self._threshold_event()
        return config.plan(n, self.budget, also=() if event is None else ((event, 1),))

    def _train_nuisances(self, block: CausalData) -> Nuisances:
        config = self.nuisance or NuisanceConfig()
        trained = train(
            self._untrained(self.schema_.domain),
            block,
            self._trainer(),
            batch_size=config.batch_size,
            epochs=config.epochs,
            average=config.average,
            seed=self.seed,
            plan=self._plan(block.n),
            noise=self._noise,
            ledger=self.ledger_,
            block=NUISANCE,
        )
        return trained.cpu().double().eval().requires_grad_(False)

    def _buy_threshold(self, block: CausalData) -> float | None:
        purchase = self._stage().purchase
        if purchase is None:
            return None
        s, _ = self._regression(self.nuisances_)(block.x, block.a, block.y)
        bound = self.score.bounds(self.schema_.domain).target
        event = self._threshold_event()
        if event is None or self.ledger_ is None:
            return torch.quantile(s.abs(), purchase.quantile).item()
        grid = torch.logspace(-3, 0, purchase.points, dtype=torch.float64) * bound
        self.ledger_.charge(NUISANCE, "Huber threshold: private quantile of |s|", event)
        return private_quantile(s.abs(), grid, purchase.quantile, event.epsilon, self._noise)

    def _block(self, records: CausalData, nuisances: Nuisances) -> SecondStageBlock:
        regression = self._regression(nuisances)
        with torch.no_grad():
            s, w = regression(records.x, records.a, records.y)
        domain = self.schema_.domain
        return SecondStageBlock(records.x, s, w, regression, domain, self.score.bounds(domain))

    def _regression(self, nuisances: Nuisances) -> Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]:
        def regression(x: Tensor, a: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
            values = nuisances.predict(x)
            return self.score.regression(a, y, values, values.mu1 - values.mu0)

        return regression

    def _ready(self, mechanism: "str | Mechanism") -> Mechanism:
        """Return the mechanism if this learner can release by it."""
        if not hasattr(self, "stage_"):
            raise InputError("release: the learner is not fitted; call fit(X, A, Y) first")
        if self.ledger_ is None:
            raise InputError("budget = None: this learner was trained without privacy and releases nothing")
        self.check(sum(self.sizes_.values()), mechanism)
        return make_mechanism(mechanism)

    def _spend(self, name: str, run: Callable[..., Any], budget: PrivacyBudget | None) -> tuple[Any, set[int]]:
        """Run a mechanism on the second-stage block's budget; return its result and ledger entries."""
        ledger = self.ledger_
        assert ledger is not None
        own: set[int] = set()

        def charge(event: Event, level: Level, count: int) -> None:
            own.add(ledger.charge(SECOND_STAGE, f"release by {name}", event, count, level=level))

        left = ledger.remaining(SECOND_STAGE)
        if left is None or left.epsilon < _SMALLEST_SHARE * ledger.blocks[SECOND_STAGE].epsilon:
            raise InputError("budget: nothing to speak of is left in the second-stage block; fit anew on new records")
        budget = budget or left
        return run(budget, charge, self._noise), own

    def _statement(self, mechanism: Mechanism, result: PrivateHead | PrivateAnswers, own: set[int]) -> Any:
        assert self.ledger_ is not None
        public: Mapping[str, Any] = {**self._public, "ridge": self.stage_.ridge, **result.public}
        return make_statement(
            result.guarantee,
            self.ledger_,
            self.sizes_,
            own=own,
            mechanism=mechanism.name,
            formula=mechanism.formula,
            public=public,
            private_noise=self._noise.private,
            bounds_origin=self.schema_.domain.origin,
        )


class RLearner(CATELearner):
    """R-learner (Nie & Wager 2021): overlap weights, no inverse propensity. See ``CATELearner``."""

    score = RScore()


class DRLearner(CATELearner):
    """DR-learner (Kennedy 2023): doubly robust pseudo-outcomes. See ``CATELearner``."""

    score = DRScore()


def make_mechanism(mechanism: "str | Mechanism") -> Mechanism:
    """Return the mechanism of this name, or the mechanism itself.

    Raises:
        InputError: No mechanism of this name.
    """
    if isinstance(mechanism, Mechanism):
        return mechanism
    if mechanism not in MECHANISMS:
        raise InputError(f"mechanism = {mechanism}: choose one of {', '.join(sorted(MECHANISMS))}")
    return MECHANISMS[mechanism]()


def _on(device: torch.device, nuisances: Nuisances) -> Nuisances:
    if device.type == "cpu":
        return nuisances
    copy = Nuisances.from_config(nuisances.config()).double()
    copy.load_state_dict(nuisances.state_dict())
    return copy.to(device).eval().requires_grad_(False)
