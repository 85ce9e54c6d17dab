"""Released treatment rules, and a released choice among public policies: whom to treat, and nothing of the records."""

from abc import abstractmethod
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from torchdpcate.candidates.kinds import PolicyFamily, check_actions
from torchdpcate.candidates.library import Function, FunctionPolicies, policy_family
from torchdpcate.data.schema import TableSchema
from torchdpcate.data.words import labelled
from torchdpcate.errors import InputError
from torchdpcate.fit.feature_maps import FeatureMap, to_config
from torchdpcate.release.file import Release, draw
from torchdpcate.release.module import FunctionValues, ReleaseModule
from torchdpcate.release.parts import load_features, named_tensors
from torchdpcate.release.release import require_tensor
from torchdpcate.release.statement import PrivacyStatement
from torchdpcate.typing import Covariates

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class DecisionRelease(Release):
    """A decision for each person: by the sign of a score, treat where it is positive, or by a policy of a library."""

    kind = "decision"
    column = "decision"
    subject = "Rule that says who should get {contrast}, so that {outcome} be {aim}"
    actions: tuple[int, ...]
    """Labels of the actions."""

    @property
    def decision(self) -> "DecisionRelease":
        """Itself."""
        return self

    def score(self, X: Covariates) -> np.ndarray:
        """Return the score s(x) at X, float64 [m]; its sign decides.

        Args:
            X: Covariates [m, q]: a pandas frame with the schema's columns, or an array or tensor of encoded columns
                in the order of ``schema.domain.names``.

        Raises:
            InputError: Wrong columns, a point outside the domain, or a policy, which has no score.
        """
        return self.score_tensor(self._covariates(X)).numpy()

    def decide(self, X: Covariates) -> np.ndarray:
        """Return the labels of the actions, int64 [m], of two arms 0 and 1.

        Args:
            X: As for ``score``.

        Raises:
            InputError: As ``score``, or a function that was not given by ``PolicyRelease.bind``.
        """
        return self.answer(self._covariates(X)).numpy()

    def predict(self, X: Covariates) -> np.ndarray:
        """Return ``decide(X)``, [m]: the name that scikit-learn has for it."""
        return self.decide(X)

    def plot(self, covariate: str | None = None) -> "Figure":  # type: ignore[override]
        """Return the figure of the decision: coefficients where it is linear in the covariates, else who gets what.

        Who gets what is a share of people against covariates, the others spread over their public bounds, or of a
        rule by the effect of one composition with their released means and spreads.

        Args:
            covariate: Draws who gets what against this one; None draws coefficients, or who gets what against the
                three that most depends on.

        Raises:
            InputError: No such covariate, or a function that was not given by ``PolicyRelease.bind``.

        Example:
            >>> from torchdpcate.release.rule import _example, _policy_example
            >>> [label.get_text() for label in _example().plot().axes[0].get_yticklabels()]
            ['x0', 'intercept']
            >>> _policy_example().plot().axes[0].get_xlabel()
            'x0'
        """
        return draw("plot_rule", self, covariate)

    @abstractmethod
    def score_tensor(self, x: Tensor) -> Tensor:
        """Return the score at encoded covariates x [m, q], [m]."""

    def answer(self, x: Tensor) -> Tensor:
        """Return the decisions at encoded covariates x [m, q], int64 [m]."""
        return (self.score_tensor(x) > 0).long()

    @classmethod
    def build(
        cls, tensors: dict[str, Tensor], facts: dict[str, Any], schema: TableSchema, privacy: PrivacyStatement
    ) -> "DecisionRelease":
        """Rebuild a rule from ``tensors`` and ``facts``, or the policy that these state; nothing is imported."""
        if "policy" not in facts:
            features = load_features(tensors, facts["features"], schema.domain)
            require_tensor(tensors["theta"], (features.dimension,), "theta")
            return RuleRelease(tensors["theta"], features, schema, privacy)
        actions, policy = check_actions(facts["actions"]), policy_family(facts["policy"])
        place = policy.unbound if isinstance(policy, FunctionPolicies) else policy.setup
        return PolicyRelease(place(schema.domain, actions), actions, schema, privacy)


@dataclass(frozen=True, eq=False, repr=False)
class RuleRelease(DecisionRelease):
    r"""A treatment rule: treat where the score is positive.

    .. math:: s(x) = \psi(x)^\top\theta, \quad d(x) = 1\{s(x) > 0\}

    Attributes:
        theta: Coefficients that a mechanism released, float64 [p].
        features: Public feature map.
        schema: Columns that the rule sees, and public bounds.
        privacy: The privacy statement.

    Example:
        >>> from torchdpcate.release.rule import _example
        >>> rule = _example()
        >>> rule.decide([[0.0], [1.0]]).tolist(), rule.score([[1.0]]).round(3).tolist()
        ([0, 1], [0.707])
    """

    actions = (0, 1)

    theta: Tensor
    features: FeatureMap
    schema: TableSchema
    privacy: PrivacyStatement

    def score_tensor(self, x: Tensor) -> Tensor:
        """Return the score at encoded covariates x [m, q], [m]."""
        with torch.no_grad():
            return self.features.product(self.theta, x)

    def module(self) -> nn.Module:
        """Return the score as a module to serve or export; see ``Release.module``."""
        return ReleaseModule(self.domain, FunctionValues(self.theta, self.features))

    def summary(self) -> dict[str, Any]:
        """Return the number of features.

        Example:
            >>> from torchdpcate.release.rule import _example
            >>> _example().summary()
            {'features': 2}
        """
        return {"features": self.theta.numel()}

    def tensors(self) -> dict[str, Tensor]:
        """Return theta and the feature map's buffers."""
        return {"theta": self.theta, **named_tensors("features", self.features)}

    def facts(self) -> dict[str, Any]:
        """Return the feature map."""
        return {"features": to_config(self.features)}


def _example() -> RuleRelease:
    """A rule on one covariate in [0, 1], for examples."""
    from torchdpcate.data.domain import Domain
    from torchdpcate.fit.feature_maps import Identity
    from torchdpcate.privacy.budget import PrivacyBudget
    from torchdpcate.privacy.guarantee import Guarantee, Level
    from torchdpcate.privacy.noise import NoiseSource
    from torchdpcate.privacy.session import FitSession
    from torchdpcate.release.statement import make_statement

    domain, budget = Domain([0.0], [1.0], -1.0, 1.0, better="higher"), PrivacyBudget(1.0, 0.0)
    statement = make_statement(
        FitSession.open({"records": 1}, budget, NoiseSource.system()),
        Guarantee(Level.HEURISTIC, budget, source="an example"),
        own=set(),
        mechanism="none",
        formula="none",
        public={},
    )
    theta = torch.tensor([0.0, 1.0], dtype=torch.float64)
    return RuleRelease(theta, Identity().setup(domain), TableSchema.from_domain(domain), statement)


SCORING = "scoring"
"""Blocks of records: the one that nuisances learn from, where they learn, and the one that scores policies."""


@dataclass(frozen=True, eq=False, repr=False)
class PolicyRelease(DecisionRelease):
    """The policy that a selection mechanism chose from a public library.

    Only the choice was made from records, by a private mechanism; the policy itself is public. A policy that is a
    Python function is stated by its import path, which loading a file never imports: give the function by ``bind``.

    Attributes:
        policy: A family of one policy, set up.
        actions: Labels of the actions.
        schema: Columns that the policy sees, and public bounds.
        privacy: The privacy statement.

    Example:
        >>> from torchdpcate.release.rule import _policy_example
        >>> release = _policy_example()
        >>> release.name, release.decide([[0.2], [0.8]]).tolist()
        ('x0 > 0.5', [0, 1])
    """

    subject = "Policy of a public library that says which {treatment} to choose for whom, so that {outcome} be {aim}"

    policy: PolicyFamily
    actions: tuple[int, ...]
    schema: TableSchema
    privacy: PrivacyStatement

    def __post_init__(self) -> None:
        if len(self.policy) != 1 or self.policy.actions != tuple(self.actions):
            raise InputError("policy: give one policy, set up on the actions of the release")

    @property
    def name(self) -> str:
        """The policy's name."""
        return self.policy.names[0]

    @property
    def title(self) -> str:
        """Its name with labels in the place of columns and arms."""
        return labelled(self.schema, self.policy.names)[0]

    def score_tensor(self, x: Tensor) -> Tensor:
        """Refuse.

        Raises:
            InputError: Always.
        """
        raise InputError(f"score: policy {self.name!r} has none; ask decide(X)")

    def answer(self, x: Tensor) -> Tensor:
        """Return the labels at encoded covariates x [m, q], int64 [m]."""
        return torch.tensor(self.actions)[self.policy.decide(x)[:, 0].long()]

    def bind(self, function: Function) -> "PolicyRelease":
        """Return this release with the function that its policy names.

        Args:
            function: From encoded covariates as NumPy [m, q] to labels [m]. Nothing can show that it is the one that
                was chosen; take it from the import path of ``policy``.

        Raises:
            InputError: The policy is no function, or the function does not decide row by row.
        """
        if not isinstance(self.policy, FunctionPolicies):
            raise InputError(f"bind: policy {self.name!r} is no function, and decides as it is")
        return replace(self, policy=self.policy.bind(function))

    def summary(self) -> dict[str, Any]:
        """Return the policy's name.

        Example:
            >>> from torchdpcate.release.rule import _policy_example
            >>> _policy_example().summary()
            {'policy': 'x0 > 0.5'}
        """
        return {"policy": self.title}

    def tensors(self) -> dict[str, Tensor]:
        """Return nothing: the policy is public, and stated by ``facts``."""
        return {}

    def facts(self) -> dict[str, Any]:
        """Return the policy and the labels of the actions."""
        # A fingerprint of records is never published, whatever the records.
        policy = {key: value for key, value in self.policy.config().items() if key != "fitted_on"}
        return {"policy": policy, "actions": list(self.actions)}


def _policy_example() -> PolicyRelease:
    """A threshold on one covariate in [0, 1], for examples."""
    from torchdpcate.candidates.kinds import Thresholds

    schema, privacy = _example().schema, _example().privacy
    return PolicyRelease(Thresholds("x0", [0.5]).setup(schema.domain, (0, 1)), (0, 1), schema, privacy)
