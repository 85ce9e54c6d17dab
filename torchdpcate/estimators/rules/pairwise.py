"""Matched learning in its certified form: every record compared with those of the other arm, by a public normaliser."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from torchdpcate.data.domain import Domain
from torchdpcate.data.records import CausalData
from torchdpcate.data.schema import TableSchema
from torchdpcate.erm.bounds import WeightBounds
from torchdpcate.erm.losses import Squared
from torchdpcate.errors import InputError
from torchdpcate.estimators.cate.mechanisms.worst_pairs import DOMAIN, NEAR
from torchdpcate.estimators.rules.learner import RuleLearner
from torchdpcate.estimators.rules.matching import MATCHINGS, Matching, make_matching, pair_bounds
from torchdpcate.estimators.rules.mechanisms import ObjectiveRule
from torchdpcate.estimators.rules.outcome import OUTCOMES, Outcome, SignedResidual, magnitudes
from torchdpcate.estimators.rules.weighted_erm import WeightedERM
from torchdpcate.nuisance.weights.known import ConstantWeights
from torchdpcate.nuisance.weights.scheme import WeightScheme
from torchdpcate.privacy.budget import PrivacyBudget
from torchdpcate.privacy.guarantee import Condition, of_library
from torchdpcate.privacy.worst_case import Game, k_norm_evidence, worst_case

_POINTS, _ALIKE = 32, 1e-6  # public points at which a model is tried, and ranges of the outcome that rounding may add


@dataclass(eq=False, repr=False, kw_only=True)
class PairwiseRule(RuleLearner):
    r"""Matched learning with a public kernel and normaliser.

    .. math::
        \min_\theta \sum_i \sum_j \frac{\kappa(x_i, x_j)}{n - 1} 1\{a_i \ne a_j\}\, g(|r_i - r_j|)\,
        \ell\big(\psi_i^\top\theta,\ (2 a_i - 1)\,\mathrm{sign}(r_i - r_j)\big) + \tfrac\gamma2 \|\theta\|^2

    r is the outcome less a public residual model, clipped to a public range of width 2K. A pair says: of two similar
    records, the one that did better had the better arm. No propensity is needed, for kappa compares like with like.
    It is a weighted ERM with two terms a record, one for either label (`PairTotals`).

    Guarantee:
        Certified, as ``RuleLearner``, and conditional with a ``residual_model``, which is Python code; W_1 = 2 and
        W_2 = 2 with ``gap="difference"``, W_1 = 4 and W_2 = 2 with ``"sign"`` (theory note ``policy_learning``, section
        5.4, has 4 for both; see `pair_bounds`). Nearest-neighbour matching has no such bound and is not offered.

    Args:
        domain: See ``RuleLearner``.
        budget: See ``RuleLearner``, and for all other arguments; its losses are those of labels.
        matching: kappa: ``all``, ``gaussian``, or a ``Matching``.
        gap: g: ``difference`` (least noise) or ``sign``.
        residual_model: Public m(x) [B, q] -> [B], taken from the outcome before ``outcome`` centres and clips it; of
            each record by itself, which is tried at public points, and never fitted to these records. None takes
            nothing away.
        outcome: ``signed_residual``, or a ``SignedResidual`` with its clip K.

    Example:
        >>> generator = torch.Generator().manual_seed(0)
        >>> x = torch.rand(400, 1, generator=generator, dtype=torch.float64) * 2 - 1
        >>> a = (torch.rand(400, generator=generator) < 0.5).double()
        >>> y = (2 * a - 1) * x[:, 0]
        >>> rule = PairwiseRule(Domain([-1.0], [1.0], -1.0, 1.0), PrivacyBudget(4.0, 0.0), matching="gaussian")
        >>> rule.fit(x, a, y).release().decide([[-1.0], [1.0]]).tolist()
        [0, 1]
    """

    matching: str | Matching = "all"
    gap: str = "difference"
    residual_model: Callable[[Tensor], Tensor] | None = None
    outcome: str | Outcome = field(default="signed_residual", kw_only=True)

    def scheme(self) -> WeightScheme:
        """Return constant weights: the comparisons are the weights."""
        return ConstantWeights()

    def check(self, n: int) -> None:
        """Refuse, before anything is spent, what could not be released; see ``RuleLearner.check``."""
        make_matching(self.matching).check(TableSchema.of(self.domain).domain)
        pair_bounds(self.gap)
        if not isinstance(OUTCOMES.make(self.outcome, Outcome), SignedResidual):
            raise InputError(f"outcome = {self.outcome}: pairs compare residuals; use signed_residual")
        if self.loss == "squared" or isinstance(self.loss, Squared):
            raise InputError("loss = squared: pairs have labels; use huber_hinge or logistic")
        self._try_model(TableSchema.of(self.domain).domain)
        super().check(n)

    @property
    def conditions(self) -> tuple[Condition, ...]:
        """See ``RuleLearner.conditions``; also a matching and a residual model of the user's."""
        own = []
        if not of_library(make_matching(self.matching)):
            own.append(Condition("matching", "the matching compares two records by these two alone; not tried"))
        if self.residual_model is not None:
            text = (
                "the residual model looks at one record at a time and was not fitted to these; tried at public points"
            )
            own.append(Condition("residual model", text))
        return (*super().conditions, *own)

    def bounds(self, weights: WeightBounds) -> WeightBounds:
        """Return `pair_bounds`; the constant weights do not enter."""
        return pair_bounds(self.gap)

    @classmethod
    def restated_bounds(cls, public: Mapping[str, Any], n: int, domain: Domain) -> tuple[WeightBounds, dict[str, Any]]:
        """See ``RuleLearner.restated_bounds``."""
        own = MATCHINGS.get(public["matching"])
        known = [name for each in MATCHINGS.values() for name in each.states if name in public]
        names = ("matching", "gap", "residual_model", *(known if own is None else own.states))
        return pair_bounds(public["gap"]), {name: public[name] for name in names}

    def problem(self, records: CausalData) -> WeightedERM:
        """Return the weighted ERM of these records, two terms a record; the curator's.

        Args:
            records: Records of the rule's block, within the domain.

        Raises:
            InputError: A residual model that gives another shape than [n].
        """
        domain = self.schema_.domain
        matching = make_matching(self.matching)
        magnitude, sign = magnitudes(self.outcome_, records.y - self._modelled(records.x), domain)
        totals = matching.totals(records.x, records.a, magnitude * sign / 2, domain, self.gap == "difference")
        # no pair at all leaves the ridge alone, which has a minimiser like any other
        weights = (torch.cat([totals.treat, totals.leave]) / (records.n - 1)).clamp(0, 1)
        one = torch.ones_like(records.y)
        return self._weighted(records.x, torch.cat([one, -one]), weights)

    def _modelled(self, x: Tensor) -> Tensor:
        """Return m(x), [n]; where the model gives no number, nothing is taken from the outcome."""
        if self.residual_model is None:
            return x.new_zeros(len(x), dtype=torch.float64)
        found = torch.as_tensor(self.residual_model(x.clone()), dtype=torch.float64)
        if found.shape != (len(x),):
            raise InputError(f"residual_model: gave shape {tuple(found.shape)} for {len(x)} records; give [n]")
        return torch.nan_to_num(found, nan=0.0)

    def _try_model(self, domain: Domain) -> None:
        """Refuse a residual model that looks at more than one record at a time, as far as public points show it."""
        points = domain.grid(_POINTS)
        together, turned = self._modelled(points), self._modelled(points.flip(0)).flip(0)
        alone = torch.cat([self._modelled(point) for point in points.split(1)])
        for other in (turned, alone):
            if not torch.allclose(together, other, rtol=0.0, atol=_ALIKE * domain.outcome_range):
                raise InputError(
                    "residual_model: its value at a point changes with the points beside it, so that one record would "
                    "move the residuals of others; give a function of one record at a time"
                )

    def _facts(self, n: int, domain: Domain, bounds: WeightBounds) -> dict[str, Any]:
        # half of all pairs are of opposite arms, if the arms are equally large
        own = {"typical_weight": 0.5, "indirect_remedy": "gap=difference has none"}
        return super()._facts(n, domain, bounds) | own

    def _public(self) -> dict[str, Any]:
        model = "none" if self.residual_model is None else getattr(self.residual_model, "__name__", "given")
        own = {**make_matching(self.matching).public(), "gap": self.gap, "residual_model": model}
        return super()._public() | own


@worst_case(
    "pairwise",
    PairwiseRule,
    pair="one treated record among untreated ones alike, its outcome at either end of the interval",
)
def _pairwise(budget: PrivacyBudget) -> Game:
    # every comparison is with that record and turns round, and a large ridge keeps J small and the loss straight
    ridge = 400 / budget.epsilon
    learner = PairwiseRule(DOMAIN, None, ridge=ridge)
    pure = PrivacyBudget(budget.epsilon, 0.0)
    x, a = torch.full((3, 1), NEAR, dtype=torch.float64), torch.tensor([1.0, 0.0, 0.0], dtype=torch.float64)
    outcomes = ([end, 0.0, 0.0] for end in (DOMAIN.outcome_low, DOMAIN.outcome_high))
    problems = [learner.fit(x, a, torch.tensor(y, dtype=torch.float64)).problem_ for y in outcomes]
    start, shift = problems[0].minimiser, problems[1].minimiser - problems[0].minimiser
    mechanism = ObjectiveRule("gamma")
    weigh = k_norm_evidence(shift, mechanism.law(problems[0].public, pure).objective.scale / ridge)
    return mechanism.game(problems, pure, lambda theta: weigh(theta - start))
