"""Nuisances of K arms that a private mechanism pays for, and scores of a trial about a private centre."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor

from torchdpcate.causal.score import project_to_floor, score_spread
from torchdpcate.data.domain import Domain
from torchdpcate.data.records import CausalData
from torchdpcate.errors import InputError
from torchdpcate.fit.arms.base import FittedNuisances, GuaranteedNuisances, ScoreNuisances, SelectionFacts
from torchdpcate.fit.arms.fixed import FrozenFunctions
from torchdpcate.fit.convex import ConvexNuisanceConfig
from torchdpcate.fit.nuisance_kinds import nuisance_range
from torchdpcate.fit.nuisances import NuisanceModel, NuisanceRecipe
from torchdpcate.fit.trainer import default_trainer
from torchdpcate.privacy.budget import PrivacyBudget, number
from torchdpcate.privacy.charge import DP_SGD, JOINT, MEDIAN, OUTCOME, Charge
from torchdpcate.privacy.events import Event, PureEvent
from torchdpcate.privacy.noise import NoiseSource
from torchdpcate.privacy.selection import chosen_quantile
from torchdpcate.privacy.session import FitSession

if TYPE_CHECKING:
    from lightning.pytorch import Trainer


CENTRES = 1_024
"""Public candidates of the centre, evenly spaced over the outcome's range."""
_HALVINGS = 16  # of the largest clip, by roots of two: the public candidates
_COUNTS = 60.0  # n epsilon of the centre, where its share allows
_SHARES = 0.01, 0.1  # of epsilon, that the centre has
_CLIP_SHARE = 0.1
_FEW = 1_500.0  # n epsilon below which a clip is requested
_BEYOND = 100.0  # over epsilon: records that lie beyond that clip


@dataclass(frozen=True)
class CentrePlan:
    r"""What the centre and the clip of the outcome cost, by public numbers alone.

    The centre has :math:`\epsilon_c = \min(\max(60/n, .01 \epsilon), .1 \epsilon)`. A clip is requested, with a tenth
    of epsilon, where :math:`n \epsilon < 1500`: there the noise of scores that keep half of the outcome's range would
    hide effects of usual size. Elsewhere residuals are clipped at that half, so that effects of few records count.

    Attributes:
        n: Number of records.
        epsilon: Of all that the choice spends.

    Example:
        >>> plan = CentrePlan(4_000, 1.0)
        >>> round(plan.centre, 9), plan.clip, CentrePlan(1_000, 1.0).clip
        (0.015, 0.0, 0.1)
    """

    n: int
    epsilon: float

    @property
    def centre(self) -> float:
        """Epsilon of the centre."""
        least, most = (share * self.epsilon for share in _SHARES)
        return min(max(_COUNTS / self.n, least), most)

    @property
    def clip(self) -> float:
        """Epsilon of the clip; zero where none is requested."""
        return _CLIP_SHARE * self.epsilon if self.n * self.epsilon < _FEW else 0.0

    @property
    def cost(self) -> float:
        """Epsilon of both."""
        return self.centre + self.clip

    @property
    def quantile(self) -> float:
        """Share of the records that the clip leaves alone, at least a half."""
        return max(1 - _BEYOND / (self.epsilon * self.n), 0.5)


def clips(domain: Domain) -> torch.Tensor:
    """Return the public candidates of the clip, the largest first: half of the outcome's range, and less.

    Example:
        >>> clips(Domain([0.0], [1.0], 0.0, 8.0))[:5:2].tolist()
        [4.0, 2.0, 1.0]
    """
    halvings = torch.arange(_HALVINGS + 1, dtype=torch.float64) / 2
    return domain.outcome_range / 2 * 2.0**-halvings


def centres(domain: Domain) -> torch.Tensor:
    """Return the public candidates of the centre, [1024]."""
    places = (torch.arange(CENTRES, dtype=torch.float64) + 0.5) / CENTRES
    return domain.outcome_low + domain.outcome_range * places


@dataclass(frozen=True)
class CentredNuisances(ScoreNuisances):
    r"""The known propensity of a trial, and a private median of the outcome as the outcome model of all actions.

    .. math::
        \phi_i(a) = c + \frac{1\{a_i = a\}}{e_a(x_i)} \max(-B, \min(B, y_i - c))

    Outcomes often use a small part of a wide public range, far from its middle: scores about the middle then vary by
    that distance, whatever the treatment does. The clip B is half of the outcome's range, as about the middle; where
    records are few (``CentrePlan``) it is a private quantile of :math:`|y - c|`. One record's scores of two actions lie
    at most S = B / e apart, e the least propensity: a range sensitivity of 2 S, never more than that of
    ``FixedNuisances``.

    Guarantee:
        Certified, pure epsilon for centre and clip, charged before their noise is drawn; given both, a score is a
        function of its own record. Source: docs/guarantees/policy_selection.md, private_choices.md.

    Example:
        >>> domain = Domain([0.0], [1.0], 0.0, 10.0, propensity=0.5)
        >>> facts = SelectionFacts(domain, (0, 1), overlap=0.05, training=0, scoring=4_000)
        >>> CentredNuisances().planned_range(facts, PrivacyBudget(1.0, 0.0))
        20.0
    """

    guarantee: ClassVar[str] = "centred"
    trains: ClassVar[bool] = False
    moves_all_scores: ClassVar[bool] = False

    def check(self, facts: SelectionFacts, budget: PrivacyBudget | None) -> None:
        """See ``ScoreNuisances.check``; also refuses a domain that knows no propensity."""
        super().check(facts, budget)
        if facts.known is None:
            raise InputError(
                "nuisance_guarantee = centred: the domain knows no propensity; write propensity: into the domain, or "
                "use nuisance_guarantee=composed"
            )

    def fit(
        self, records: CausalData | None, facts: SelectionFacts, *, session: FitSession | None = None
    ) -> GuaranteedNuisances:
        """See ``ScoreNuisances.fit``; records are those that score, and pay for centre and clip.

        Without privacy the centre is the median, and nothing is clipped.
        """
        assert records is not None
        domain, span = facts.domain, facts.propensity_range()
        budget = None if session is None else session.budget
        if session is None or budget is None:
            centre, clip, public = records.y.median().item(), domain.outcome_range, {}
        else:
            plan, clip = CentrePlan(facts.scoring, budget.epsilon), domain.outcome_range / 2
            session.pay(PureEvent(plan.cost), charge=OUTCOME)
            centre = chosen_quantile(records.y, centres(domain), 0.5, plan.centre, session.noise)
            if plan.clip:
                sizes = (records.y - centre).abs()
                clip = chosen_quantile(sizes, clips(domain), plan.quantile, plan.clip, session.noise)
            centre, clip = session.noise.released((centre, clip))
            public = {"requested_epsilon": budget.epsilon}
        means = torch.full((facts.arms,), centre, dtype=torch.float64)
        return GuaranteedNuisances(
            FrozenFunctions(facts, None, None, (span[:, 0], means)),
            centred_range(clip, span.min().item()),
            public={**public, "centre": centre, "clip": clip},
            clip=clip,
        )

    @classmethod
    def followed(cls, stated: Mapping[str, Any], facts: SelectionFacts) -> tuple[dict[str, Any], float | None]:
        """See ``ScoreSource``: centre and clip are released numbers."""
        if facts.known is None:
            raise InputError("its domain knows no propensity")
        least = facts.known.of_arms.min().item()
        return {name: stated[name] for name in ("requested_epsilon", "centre", "clip")}, centred_range(
            stated["clip"], least
        )

    @classmethod
    def costs(cls, stated: Mapping[str, Any], facts: SelectionFacts) -> Mapping[Charge, Event]:
        """See ``ScoreSource``: both cost what n and epsilon make them cost."""
        return {OUTCOME: PureEvent(CentrePlan(facts.scoring, stated["requested_epsilon"]).cost)}

    def planned_range(self, facts: SelectionFacts, budget: PrivacyBudget) -> float:
        """See ``ScoreSource``; a clip that is requested is expected to be a quarter of the outcome's range."""
        requested = CentrePlan(facts.scoring, budget.epsilon).clip > 0
        clip = facts.domain.outcome_range / (4 if requested else 2)
        return centred_range(clip, facts.propensity_range().min().item())

    def planned_epsilon(self, facts: SelectionFacts, budget: PrivacyBudget) -> float:
        """See ``ScoreSource``: less what centre and clip cost."""
        return budget.epsilon - CentrePlan(facts.scoring, budget.epsilon).cost


def centred_range(clip: float, least: float) -> float:
    """Return the range sensitivity 2 B / e of scores about a centre.

    Args:
        clip: B.
        least: e, the least propensity.
    """
    return 2 * clip / least


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
