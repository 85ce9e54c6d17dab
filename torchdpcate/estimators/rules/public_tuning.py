"""Choice of a rule's ridge by trial, for the number of records and the budget that it is meant for."""

import math
from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from torchdpcate.data.records import CausalData
from torchdpcate.data.schema import TableSchema
from torchdpcate.data.split import public_generator
from torchdpcate.errors import InputError
from torchdpcate.estimators.answers import clone
from torchdpcate.estimators.rules.learner import RuleLearner
from torchdpcate.estimators.rules.weighted_erm import WeightedERM
from torchdpcate.privacy.budget import integer
from torchdpcate.privacy.noise import NoiseSource

if TYPE_CHECKING:
    import pandas as pd

_HELD_OUT = 0.3  # of the public records, in every repeat


@dataclass(frozen=True, eq=False)
class RidgeChoice:
    """A ridge chosen by trial.

    Attributes:
        ridge: The one with the highest mean value.
        table: One row a candidate: ``gamma``, mean ``value`` over the repeats in outcome units, and its ``error``
            (standard error); missing where the budget allows no release with this ridge.
    """

    ridge: float
    table: "pd.DataFrame"


def tune_on_public(
    learner: RuleLearner,
    X: Any,
    A: Any,
    Y: Any,
    ridges: Sequence[float],
    n: int,
    repeats: int = 50,
    seed: int = 0,
) -> RidgeChoice:
    r"""Choose ridge on **public** records: simulated, published, or of people who agreed. Free of any budget.

    The best ridge depends on n and epsilon, for it trades noise for bias. So each repeat keeps 30 % of the public
    records aside, draws n of the others with replacement, fits the learner with its weights, its budget and its noise
    for every ridge, and estimates the value of the noisy rules on the records kept aside:

    .. math:: \hat V(d) = \sum_i \frac{1\{d(x_i) = a_i\} y_i}{\pi(a_i|x_i)} \Big/
              \sum_i \frac{1\{d(x_i) = a_i\}}{\pi(a_i|x_i)}

    Nothing here protects these records: never give it the private ones. The result is a public number; hand it to the
    learner as ``gamma``. Source: Giddens et al. (2023), Algorithm 2.

    Args:
        learner: The rule with the settings and budget that it is meant for; not changed.
        X: Public covariates [N, q].
        A: Their treatments [N].
        Y: Their outcomes [N].
        ridges: Candidates.
        n: Number of private records that the rule is meant for.
        repeats: How often to draw.
        seed: Public seed; the noise of the trials comes from it, for they protect no record.

    Raises:
        InputError: No candidates, or none with which the budget allows a release.

    Example:
        >>> from torchdpcate.data import Domain
        >>> from torchdpcate.estimators.rules.learner import OutcomeWeightedLearner
        >>> from torchdpcate.privacy import PrivacyBudget
        >>> X, A = torch.rand(500, 2, dtype=torch.float64), torch.arange(500) % 2
        >>> Y = (2 * A - 1) * (X[:, 0] - X[:, 1])
        >>> learner = OutcomeWeightedLearner(Domain([0, 0], [1, 1], -1, 1, better="higher"), PrivacyBudget(1.0, 0.0))
        >>> choice = tune_on_public(learner, X, A, Y, ridges=[0.1, 10.0, 1000.0], n=200, repeats=5)
        >>> choice.table["value"].isna().tolist()
        [True, False, False]
    """
    records = TableSchema.of(learner.domain).two_arms(type(learner).__name__).records(X, A, Y)
    generator = public_generator(seed, "public tuning")
    kept = max(1, int(_HELD_OUT * records.n))
    drawn, held = [], []
    for _ in range(integer("repeats", repeats, least=1)):
        order = torch.randperm(records.n, generator=generator)
        rest = order[kept:]
        drawn.append(rest[torch.randint(len(rest), (integer("n", n, least=2),), generator=generator)])
        held.append(order[:kept])
    return choose_ridge(learner, records, drawn, held, ridges, seed)


def choose_ridge(
    learner: RuleLearner,
    records: CausalData,
    drawn: Sequence[Tensor],
    held: Sequence[Tensor],
    ridges: Sequence[float],
    seed: int,
) -> RidgeChoice:
    """Choose the ridge with the best value of noisy rules on held-out records; without any privacy.

    Args:
        learner: The rule and its budget; None trains without noise.
        records: All records.
        drawn: Positions of the records that a repeat fits to, as many in each.
        held: Positions of those on which it estimates the value.
        ridges: Candidates.
        seed: Of the noise.

    Raises:
        InputError: No candidates, or none with which the budget allows a release.
    """
    import pandas as pd

    if not ridges:
        raise InputError("ridges is empty: give candidates")
    noise, schema = NoiseSource.fixed(seed), TableSchema.of(learner.domain)
    fresh = [clone(learner).set_params(noise=noise, ledger_path=None, ridge=None) for _ in drawn]
    trials = [
        trial.fit(part.x, part.a, part.y, schema.own_propensity(part))
        for trial, part in zip(fresh, (records.subset(index) for index in drawn), strict=True)
    ]
    problems = Resamples.of([trial.problem_ for trial in trials])
    kept = torch.zeros(len(held), records.n, dtype=torch.bool)
    for row, index in zip(kept, held, strict=True):
        row[index] = True
    propensity = torch.stack([_propensity(trial, records) for trial in trials])
    psi, rows = trials[0].features_(trials[0].view(records.x)), []
    for ridge in ridges:
        try:
            theta = _noisy(trials[0], problems.with_ridge(ridge), noise)
        except InputError as refusal:  # the determinants would take all of epsilon
            rows.append({"ridge": float(ridge), "value": math.nan, "error": math.nan})
            why = refusal
            continue
        values = _values(theta @ psi.T > 0, kept, records, propensity)
        error = values.std().item() / math.sqrt(len(values)) if len(values) > 1 else math.nan
        rows.append({"ridge": float(ridge), "value": values.mean().item(), "error": error})
    table, possible = pd.DataFrame(rows), [row for row in rows if not math.isnan(row["value"])]
    if not possible:
        raise InputError(f"ridges = {list(ridges)}: none of them allows a release: {why}")
    return RidgeChoice(max(possible, key=lambda row: schema.domain.direction * row["value"])["ridge"], table)


@dataclass(frozen=True, eq=False)
class Resamples(WeightedERM):
    """The same weighted ERM on many data sets at once: psi [runs, n, p], target and weights [runs, n]."""

    @classmethod
    def of(cls, problems: Sequence[WeightedERM]) -> "Resamples":
        """Join problems of one shape; their bounds are the loosest among them."""
        first = max(problems, key=lambda problem: problem.bounds.first)
        return cls(
            torch.stack([problem.psi for problem in problems]),
            torch.stack([problem.target for problem in problems]),
            torch.stack([problem.weights for problem in problems]),
            first.loss,
            first.ridge,
            first.bounds,
            first.largest_entry,
            first.domain,
            first.conditions,
        )

    @property
    def n(self) -> int:
        """Number of terms of each."""
        return self.psi.shape[1]

    @property
    def size(self) -> int:
        """Number of coefficients p."""
        return self.psi.shape[2]

    @cached_property
    def minimiser(self) -> Tensor:
        """The rules without noise, [runs, p]."""
        return self.solve(self.psi.new_zeros(len(self.psi), self.size), self.public.stop)

    def with_ridge(self, ridge: float) -> "Resamples":
        """Return the same problems with another ridge."""
        return replace(self, ridge=ridge)


def _noisy(trial: RuleLearner, problems: Resamples, noise: NoiseSource) -> Tensor:
    """One run of the learner's mechanism on every data set, [runs, p]."""
    if trial.budget is None:
        return problems.minimiser
    learner = copy(trial).set_params(ridge=problems.ridge)
    law = learner._mechanism(problems.public).law(problems.public, trial._rule_budget(trial.budget))
    return law.draw(noise, len(problems.psi), problems.exact(law))


def _propensity(trial: RuleLearner, records: CausalData) -> Tensor:
    """P(A = 1 | x) [n] as the trial knows it; where it does not, the share of the treated."""
    known = trial.propensity_of(records)
    return records.a.mean().expand(records.n) if known is None else known


def _values(treated: Tensor, kept: Tensor, records: CausalData, propensity: Tensor) -> Tensor:
    """Self-normalised inverse-propensity value of each row's decisions [runs, n] on the records that it kept aside."""
    followed = kept & (treated == (records.a > 0))
    weight = followed / torch.where(records.a > 0, propensity, 1 - propensity)
    # a rule that no record's treatment follows has no estimate: take the mean outcome
    return torch.where(followed.any(1), (weight * records.y).sum(1) / weight.sum(1).clamp_min(1e-300), records.y.mean())
