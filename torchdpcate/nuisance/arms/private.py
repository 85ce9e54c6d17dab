"""Nuisances that a private mechanism pays for: what they say is public, so one training record moves no scores."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor

from torchdpcate.causal.score import project_to_floor, score_spread
from torchdpcate.data.domain import Domain
from torchdpcate.data.records import CausalData
from torchdpcate.errors import InputError
from torchdpcate.nuisance.arms.base import FittedNuisances, GuaranteedNuisances, ScoreNuisances, SelectionFacts
from torchdpcate.nuisance.convex import ConvexNuisanceConfig
from torchdpcate.nuisance.kinds import nuisance_range
from torchdpcate.nuisance.model import NuisanceModel, NuisanceRecipe
from torchdpcate.nuisance.trainer import default_trainer
from torchdpcate.privacy.budget import PrivacyBudget, number
from torchdpcate.privacy.charge import DP_SGD, JOINT, MEDIAN, Charge
from torchdpcate.privacy.noise import NoiseSource
from torchdpcate.privacy.session import FitSession

if TYPE_CHECKING:
    from lightning.pytorch import Trainer

_MOST_OVERLAP = 0.499  # a domain's; the overlap of a selection may be a half
_ROUNDING = 1e-9  # of a share, so that their sum never exceeds the budget
_PARTS = {ConvexNuisanceConfig.__name__: (MEDIAN, JOINT), "NuisanceConfig": (DP_SGD,)}  # what a fit pays


@dataclass(frozen=True)
class PrivateNuisances(ScoreNuisances):
    r"""Nuisances of the core, trained with differential privacy on the training block.

    Released, they are public functions for the scoring block, where a replaced record moves one score: the range
    sensitivity is 2 S with S the supremum over the domain for these very functions (`score_spread`). Each block may
    spend the full budget. With K > 2 actions each is held against all others by a fit of its own, to an even share of
    the training block's budget; the K propensities are projected to the simplex with the overlap.

    Guarantee:
        Certified (epsilon, delta) for the nuisances, with delta > 0; the choice itself adds no delta. Source: theory
        note ``policy_learning``, section 6.3; docs/guarantees/objective_perturbation.md or dp_sgd.md.

    Args:
        recipe: How nuisances are trained; None takes ``ConvexNuisanceConfig()``, ``NuisanceConfig`` trains networks by
            DP-SGD.
        trainer: Makes a Lightning Trainer from keyword arguments; None takes ``default_trainer``.

    Example:
        >>> PrivateNuisances().guarantee, PrivateNuisances().trains
        ('private_nuisances', True)
    """

    guarantee: ClassVar[str] = "private_nuisances"
    trains: ClassVar[bool] = True
    moves_all_scores: ClassVar[bool] = False

    recipe: NuisanceRecipe | None = None
    trainer: "Callable[..., Trainer] | None" = None

    def check(self, facts: SelectionFacts, budget: PrivacyBudget | None) -> None:
        """See ``ScoreNuisances.check``; also refuses delta = 0 and what the recipe refuses."""
        super().check(facts, budget)
        if budget is not None and budget.delta == 0:
            raise InputError(
                "delta = 0: private nuisances are only (epsilon, delta)-private; give a delta above 0, for instance "
                "1e-5, or take nuisance_guarantee=stability, which is pure"
            )
        self._recipe.check(facts.training, _with_overlap(facts), _share(budget, _fits(facts)), ())

    def fit(
        self, records: CausalData | None, facts: SelectionFacts, *, session: FitSession | None = None
    ) -> GuaranteedNuisances:
        """See ``ScoreNuisances.fit``; without a budget the functions are not private."""
        assert records is not None
        session = session or FitSession(NoiseSource.system())
        fits, domain, models = _fits(facts), _with_overlap(facts), []
        for position in range(fits):
            # the only fit of two arms is that of the second against the first
            own = records.a if fits == 1 else (records.a == position).double()
            models.append(
                self._recipe.fit(
                    replace(records, a=own),
                    domain,
                    budget=_share(session.budget, fits),
                    also=(),
                    session=session,
                    trainer=self.trainer or default_trainer,
                    seed=facts.seed,
                )
            )
        nuisances = TrainedNuisances(facts, tuple(models))
        own_spread = score_spread(facts.domain, *nuisances.ranges())
        return GuaranteedNuisances(
            nuisances,
            2 * own_spread,
            public={"nuisance": type(self._recipe).__name__, "score_spread": own_spread, **_requested(session.budget)},
            conditions=self._recipe.conditions(self.trainer),
        )

    @classmethod
    def followed(cls, stated: Mapping[str, Any], facts: SelectionFacts) -> tuple[dict[str, Any], float | None]:
        """See ``ScoreSource``: the spread is that of functions that no file holds, at most what public bounds allow."""
        spread = number("score_spread", stated["score_spread"])
        most = score_spread(facts.domain, facts.propensity_range(), facts.outcome_range())
        if not 0 < spread <= most * (1 + _ROUNDING):
            raise InputError(f"score_spread = {spread:g}: public bounds allow {most:g}")
        names = ("nuisance", "score_spread", "requested_epsilon", "requested_delta")
        return {name: stated[name] for name in names}, 2 * spread

    @classmethod
    def parts(cls, stated: Mapping[str, Any], facts: SelectionFacts) -> tuple[Charge, ...] | None:
        """See ``ScoreSource``; by the name of the recipe."""
        own = _PARTS.get(stated["nuisance"])
        return None if own is None else own * _fits(facts)

    @property
    def _recipe(self) -> NuisanceRecipe:
        return self.recipe or ConvexNuisanceConfig()


@dataclass(frozen=True, eq=False)
class TrainedNuisances(FittedNuisances):
    """Fitted `PrivateNuisances`.

    Attributes:
        facts: Public facts.
        models: One for two arms; else one an arm, that arm against all others.
    """

    facts: SelectionFacts
    models: tuple[NuisanceModel, ...]

    def propensity(self, x: Tensor) -> Tensor:
        """See ``FittedNuisances.propensity``."""
        return self._simplex([self._predict(model, x).pi for model in self.models])

    def outcome(self, x: Tensor) -> Tensor:
        """See ``FittedNuisances.outcome``."""
        values = [self._predict(model, x) for model in self.models]
        return torch.stack([values[0].mu0, values[0].mu1] if len(values) == 1 else [v.mu1 for v in values], 1)

    def ranges(self) -> tuple[Tensor, Tensor]:
        """Return intervals over the domain: propensities and outcome models, [K, 2] each."""
        pairs = [nuisance_range(model, _with_overlap(self.facts)) for model in self.models]
        if self.facts.known is not None:
            _, means = pairs[0]
            several = len(pairs) > 1
            return self.facts.known.of_arms, torch.stack([m[1] for _, m in pairs]) if several else means
        if len(pairs) == 1:
            pi, means = pairs[0]
            ends = self._simplex([pi])
            return torch.stack([ends[:, 0].flip(0), ends[:, 1]]), means
        low, high = torch.stack([pi for pi, _ in pairs]).T
        # a projected propensity rises with its own value and falls with the others'
        own, overlap = torch.eye(len(pairs), dtype=torch.bool), self.facts.overlap
        least = project_to_floor(torch.where(own, low, high), overlap).diagonal()
        most = project_to_floor(torch.where(own, high, low), overlap).diagonal()
        return torch.stack([least, most], 1), torch.stack([means[1] for _, means in pairs])

    def _simplex(self, values: list[Tensor]) -> Tensor:
        rows = torch.stack([1 - values[0], values[0]] if len(values) == 1 else values, 1)
        return project_to_floor(rows, self.facts.overlap)

    @staticmethod
    def _predict(model: NuisanceModel, x: Tensor) -> Any:
        with torch.no_grad():
            return model.predict(x)


def _fits(facts: SelectionFacts) -> int:
    return 1 if facts.arms == 2 else facts.arms


def _requested(budget: PrivacyBudget | None) -> dict[str, float]:
    return {} if budget is None else {"requested_epsilon": budget.epsilon, "requested_delta": budget.delta}


def _share(budget: PrivacyBudget | None, fits: int) -> PrivacyBudget | None:
    if budget is None or fits == 1:
        return budget
    part = (1 - _ROUNDING) / fits
    return PrivacyBudget(budget.epsilon * part, budget.delta * part)


def _with_overlap(facts: SelectionFacts) -> Domain:
    """Return the domain with the selection's overlap as its overlap bound."""
    given = {**facts.domain.to_dict(), "overlap": min(facts.overlap, _MOST_OVERLAP)}
    # of more than two arms each is fitted against all others, which is another treatment
    return Domain.from_dict(given if facts.arms == 2 else given | {"propensity": None})
