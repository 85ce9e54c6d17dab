"""Scores of a trial about a private centre of the outcome."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from torchdpcate.data.domain import Domain
from torchdpcate.data.records import CausalData
from torchdpcate.errors import InputError
from torchdpcate.fit.arms.base import GuaranteedNuisances, ScoreNuisances, SelectionFacts
from torchdpcate.fit.arms.fixed import PublicNumbers
from torchdpcate.privacy.budget import PrivacyBudget
from torchdpcate.privacy.charge import OUTCOME, Charge
from torchdpcate.privacy.events import Event, PureEvent
from torchdpcate.privacy.selection import chosen_quantile
from torchdpcate.privacy.session import FitSession

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
        >>> facts = SelectionFacts(domain, (0, 1), overlap=0.05, n=4_000)
        >>> CentredNuisances().planned_range(facts, PrivacyBudget(1.0, 0.0))
        20.0
    """

    guarantee: ClassVar[str] = "centred"

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
            plan, clip = CentrePlan(facts.n, budget.epsilon), domain.outcome_range / 2
            session.pay(PureEvent(plan.cost), charge=OUTCOME)
            centre = chosen_quantile(records.y, centres(domain), 0.5, plan.centre, session.noise)
            if plan.clip:
                sizes = (records.y - centre).abs()
                clip = chosen_quantile(sizes, clips(domain), plan.quantile, plan.clip, session.noise)
            centre, clip = session.noise.released((centre, clip))
            public = {"requested_epsilon": budget.epsilon}
        means = torch.full((facts.arms,), centre, dtype=torch.float64)
        return GuaranteedNuisances(
            PublicNumbers(span[:, 0], means),
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
        found = {name: stated[name] for name in ("requested_epsilon", "centre", "clip")}
        return found, centred_range(stated["clip"], least)

    @classmethod
    def costs(cls, stated: Mapping[str, Any], facts: SelectionFacts) -> Mapping[Charge, Event]:
        """See ``ScoreSource``: both cost what n and epsilon make them cost."""
        return {OUTCOME: PureEvent(CentrePlan(facts.n, stated["requested_epsilon"]).cost)}

    def planned_range(self, facts: SelectionFacts, budget: PrivacyBudget) -> float:
        """See ``ScoreSource``; a clip that is requested is expected to be a quarter of the outcome's range."""
        requested = CentrePlan(facts.n, budget.epsilon).clip > 0
        clip = facts.domain.outcome_range / (4 if requested else 2)
        return centred_range(clip, facts.propensity_range().min().item())

    def planned_epsilon(self, facts: SelectionFacts, budget: PrivacyBudget) -> float:
        """See ``ScoreSource``: less what centre and clip cost."""
        return budget.epsilon - CentrePlan(facts.n, budget.epsilon).cost


def centred_range(clip: float, least: float) -> float:
    """Return the range sensitivity 2 B / e of scores about a centre.

    Args:
        clip: B.
        least: e, the least propensity.
    """
    return 2 * clip / least
