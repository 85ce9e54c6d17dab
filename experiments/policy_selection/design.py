"""Where records come from, the policies to choose from with their true regrets, and the nuisances that are compared."""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy.stats import norm
from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor
from sklearn.neighbors import KNeighborsClassifier, KNeighborsRegressor
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import FunctionTransformer
from sklearn.tree import DecisionTreeClassifier, DecisionTreeRegressor
from torch import Tensor

from experiments.spillover.learned import LearnedNuisances
from torchdpcate.candidates.library import PolicyLibrary
from torchdpcate.candidates.on_domain import threshold_grid
from torchdpcate.data.records import CausalData
from torchdpcate.data.schema import TableSchema
from torchdpcate.data.selection_generators import RareRegion, RareRegionStudy, RealRareRegion
from torchdpcate.data.split import public_permutation
from torchdpcate.estimators.selection.utilities import utilities
from torchdpcate.nuisance.arms.base import FittedNuisances, ScoreNuisances, SelectionFacts
from torchdpcate.nuisance.arms.fixed import FixedNuisances
from torchdpcate.nuisance.arms.frozen import FrozenNuisances
from torchdpcate.nuisance.arms.stable import StableNuisances

M = N = 1500  # records that train and that score
ROWS = 4802  # of ACIC 2016
FLOOR = 0.1
RADIUS = 21**0.5  # of the paper's features: intercept and twenty covariates in [-1, 1]
CONTROL = 50.0  # the paper's ridge, for features of that radius
NAMES = {"acic": "ACIC 2016 covariates", "gaussian": "Gaussian covariates"}


@dataclass(frozen=True, eq=False)
class Draw:
    """One repetition: blocks that train and that score, and records of other people (public, for frozen nuisances)."""

    seed: int
    train: CausalData
    score: CausalData
    public: CausalData

    @property
    def both(self) -> CausalData:
        """Training and scoring records together."""
        pairs = [(getattr(self.train, key), getattr(self.score, key)) for key in ("x", "a", "y")]
        return CausalData(*(torch.cat(pair) for pair in pairs))


@dataclass(frozen=True, eq=False)
class Population:
    """A law of records.

    Attributes:
        name: ``acic`` or ``gaussian``.
        acic: The file of ACIC 2016 covariates.
    """

    name: str
    acic: Path | None = None

    def study(self, seed: int) -> RareRegionStudy:
        """The generator; all rows but one are records."""
        share = 1 - 1 / ROWS
        if self.name == "gaussian":
            return RareRegion(n=ROWS, train_fraction=share, seed=seed)
        assert self.acic is not None
        return RealRareRegion(self.acic, n=ROWS, train_fraction=share, seed=seed)

    def draw(self, seed: int) -> Draw:
        """Fresh outcomes and treatments, and blocks, of this seed."""
        records = self.study(seed).load().records
        order = public_permutation(records.n, seed, "policy selection study")
        return Draw(seed, *(records.subset(part) for part in (order[:M], order[M : M + N], order[M + N :])))

    @cached_property
    def library(self) -> PolicyLibrary:
        """The 160 threshold policies."""
        domain = self.study(0).domain()
        return PolicyLibrary.of(threshold_grid(TableSchema.from_domain(domain))).setup(domain, (0, 1))

    def facts(self, scoring: int = N, training: int = M) -> SelectionFacts:
        """Public facts."""
        return SelectionFacts(self.study(0).domain(), (0, 1), FLOOR, training, scoring)

    @cached_property
    def regrets(self) -> Tensor:
        """True regret of each policy against the library's best, [160]: exact, no simulation."""
        study = self.study(0)
        if self.name == "gaussian":
            values = torch.tensor([_gain(study, key) for key in self.library.families[0].keys()])  # noqa: SIM118
        else:
            x = study.draw_covariates()
            values = utilities(study.outcome(x), self.library, x) / len(x)
        return values.max() - values

    @cached_property
    def truth(self) -> FrozenNuisances:
        """The true nuisances."""
        study = self.study(0)

        def propensity(x: np.ndarray) -> np.ndarray:
            return study.propensity(torch.from_numpy(x)).numpy()

        def outcome(x: np.ndarray) -> np.ndarray:
            return study.outcome(torch.from_numpy(x)).numpy()

        return FrozenNuisances(propensity, outcome)

    @cached_property
    def true_nuisances(self) -> FittedNuisances:
        """The same as functions of tensors."""
        return self.truth.fit(None, self.facts()).nuisances

    def learners(self, draw: Draw) -> dict[str, ScoreNuisances]:
        """Nuisances of table 1, by name, from those that learn nothing to those without a guarantee."""
        return {
            "truth": self.truth,
            "constants": FixedNuisances(),
            "frozen trees": frozen_trees(draw.public),
            "ridge 50": ridge(CONTROL),
            "ridge, smallest": StableNuisances(target=None),
            "ridge 1": ridge(1.0),
            "ridge 0.01": ridge(0.01),
            "boosted trees": boosted_trees(),
            "deep tree": deep_tree(),
            "10 neighbours": self.neighbours(10),
            "1 neighbour": self.neighbours(1),
        }

    def neighbours(self, k: int) -> LearnedNuisances:
        """Means of the k nearest records, covariates scaled by their public bounds."""
        return LearnedNuisances(self._scaled(KNeighborsRegressor(k)), self._scaled(KNeighborsClassifier(k)))

    def _scaled(self, learner: Any) -> Pipeline:
        domain = self.study(0).domain()
        low, high = domain.covariate_low.numpy(), domain.covariate_high.numpy()
        return make_pipeline(FunctionTransformer(lambda x: 2 * (x - low) / (high - low) - 1), learner)


def ridge(strength: float) -> StableNuisances:
    """Ridge outcome models and logistic propensity of one strength, in the units of the paper's features, about 1/2."""
    return StableNuisances(strength / RADIUS**2, strength / RADIUS**2, target=None)


def boosted_trees() -> LearnedNuisances:
    """Gradient boosting of scikit-learn, deterministic."""
    settings = {"max_iter": 50, "max_leaf_nodes": 8, "random_state": 0}
    return LearnedNuisances(HistGradientBoostingRegressor(**settings), HistGradientBoostingClassifier(**settings))


def deep_tree() -> LearnedNuisances:
    """One tree, grown until its leaves are pure."""
    return LearnedNuisances(DecisionTreeRegressor(random_state=0), DecisionTreeClassifier(random_state=0))


def frozen_trees(public: CausalData) -> FrozenNuisances:
    """The same, fitted to other people's records."""
    trees = boosted_trees()
    x, a, y = public.x.numpy(), public.a.numpy(), public.y.numpy()
    outcomes = [trees.outcome.__class__(**trees.outcome.get_params()).fit(x[a == arm], y[a == arm]) for arm in (0, 1)]
    return FrozenNuisances(trees.propensity.fit(x, a), outcomes)


def _gain(study: RareRegionStudy, key: Any) -> float:
    """E[1{policy treats} tau(x)] of one threshold on independent normal covariates."""
    covariate, cut, labels = key
    rare = {name: norm.sf(threshold) for name, threshold in study.region.items()}
    region = float(np.prod(list(rare.values())))
    above = norm.sf(cut)
    if covariate in rare:
        both = region / rare[covariate] * norm.sf(max(cut, study.region[covariate]))
    else:
        both = region * above
    step = study.gain + study.cost
    treated = step * both - study.cost * above
    return treated if labels == (1, 0) else step * region - study.cost - treated
