"""A released choice among public policies: which one, and what it decides."""

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from torchdpcate.candidates.family import PolicyFamily, check_actions
from torchdpcate.candidates.functions import Function, FunctionPolicies
from torchdpcate.candidates.library import policy_family
from torchdpcate.data.schema import TableSchema
from torchdpcate.errors import InputError
from torchdpcate.release.display import draw
from torchdpcate.release.release import Release
from torchdpcate.release.statement import PrivacyStatement
from torchdpcate.typing import Covariates

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

NUISANCE, SCORING = "nuisance", "scoring"
"""Blocks of records: the one that nuisances learn from, where they learn, and the one that scores policies."""


@dataclass(frozen=True, eq=False, repr=False)
class PolicyRelease(Release):
    """The policy that a selection mechanism chose from a public library.

    Only the choice was made from records, by a private mechanism; the policy itself is public. A policy that is a
    Python function is stated by its import path, which loading a file never imports: give the function by ``bind``.

    Attributes:
        policy: A family of one policy, set up.
        actions: Labels of the actions.
        schema: Columns that the policy sees, and public bounds.
        privacy: The privacy statement.

    Example:
        >>> from torchdpcate.release.policy import _example
        >>> release = _example()
        >>> release.name, release.decide([[0.2], [0.8]]).tolist()
        ('x0 > 0.5', [0, 1])
    """

    kind = "policy"
    column = "decision"
    subject = "Policy of a public library that says which {treatment} to choose for whom, so that {outcome} be large"
    product = "Machine learning model"
    reading = "The chosen policy is public; evaluating it uses the released choice alone."

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

    def decide(self, X: Covariates) -> np.ndarray:
        """Return the labels of the chosen actions, int64 [m].

        Args:
            X: Covariates [m, q]: a pandas frame with the schema's columns, or an array or tensor of encoded columns
                in the order of ``schema.domain.names``.

        Raises:
            InputError: Wrong columns, a point outside the domain, or a function that was not given by ``bind``.
        """
        return self.answer(self._covariates(X)).numpy()

    def predict(self, X: Covariates) -> np.ndarray:
        """Return ``decide(X)``, [m]: the name that scikit-learn has for it."""
        return self.decide(X)

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

    def plot(self, covariate: str | None = None, *, ax: "Axes | None" = None) -> "Figure":  # type: ignore[override]
        """Return the figure of what the policy decides: shares of actions, others spread over their public bounds.

        Args:
            covariate: What they are drawn against; None takes the three covariates that most depends on.
            ax: Axes to draw on, against one covariate; None makes a figure.

        Raises:
            InputError: No such covariate, or a function that was not given by ``bind``.

        Example:
            >>> from torchdpcate.release.policy import _example
            >>> _example().plot().axes[0].get_xlabel()
            'x0'
        """
        return draw("plot_decisions", self, covariate, ax=ax)

    def summary(self) -> dict[str, Any]:
        """Return the policy's name.

        Example:
            >>> from torchdpcate.release.policy import _example
            >>> _example().summary()
            {'policy': 'x0 > 0.5'}
        """
        return {"policy": self.name}

    def tensors(self) -> dict[str, Tensor]:
        """Return nothing: the policy is public, and stated by ``facts``."""
        return {}

    def facts(self) -> dict[str, Any]:
        """Return the policy and the labels of the actions."""
        # A fingerprint of records is never published, whatever the records.
        policy = {key: value for key, value in self.policy.config().items() if key != "fitted_on"}
        return {"policy": policy, "actions": list(self.actions)}

    @classmethod
    def build(
        cls, tensors: dict[str, Tensor], facts: dict[str, Any], schema: TableSchema, privacy: PrivacyStatement
    ) -> "PolicyRelease":
        """Rebuild a release from ``tensors`` and ``facts``; nothing is imported."""
        actions, policy = check_actions(facts["actions"]), policy_family(facts["policy"])
        place = policy.unbound if isinstance(policy, FunctionPolicies) else policy.setup
        return cls(place(schema.domain, actions), actions, schema, privacy)


def _example() -> PolicyRelease:
    """A threshold on one covariate in [0, 1], for examples."""
    from torchdpcate.candidates.kinds import Thresholds
    from torchdpcate.release.rule import _example as rule

    schema, privacy = rule().schema, rule().privacy
    return PolicyRelease(Thresholds("x0", [0.5]).setup(schema.domain, (0, 1)), (0, 1), schema, privacy)
