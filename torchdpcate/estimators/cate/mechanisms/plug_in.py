"""The free competitor: the difference of the private outcome models, without a second stage."""

from collections.abc import Iterator

import torch

from torchdpcate.estimators.cate.mechanisms.base import FUNCTION, FunctionMechanism, effects_stated
from torchdpcate.estimators.cate.recompute import EffectFacts
from torchdpcate.estimators.mechanism import Prepared
from torchdpcate.features.maps import FeatureMap, Identity
from torchdpcate.privacy.budget import PrivacyBudget
from torchdpcate.privacy.guarantee import Guarantee, Level
from torchdpcate.second_stage.recipes import SecondStage
from torchdpcate.second_stage.stage import FittedStage


class PlugIn(FunctionMechanism):
    """mu1 - mu0 of the private nuisances: post-processing of what their block paid for.

    Guarantee:
        That of the nuisances; the second-stage block is not looked at and pays nothing. The release is a function
        release whose correction is zero.

    Example:
        >>> PlugIn().name, PlugIn().free
        ('plug_in', True)
    """

    name = "plug_in"
    formula = "none of its own: post-processing of the nuisances"
    states = effects_stated(formula, FUNCTION)
    accepts = (SecondStage,)
    free = True

    def prepare(self, stage: FittedStage, budget: PrivacyBudget) -> Prepared:
        """Return the zero correction, which costs nothing; arguments are the base class's."""
        zero = torch.zeros(self.features(stage).dimension, dtype=torch.float64)
        return Prepared(
            event=None,
            guarantee=Guarantee(Level.CERTIFIED, budget, source="post-processing of the nuisances"),
            draw=lambda noise, runs: zero.expand(runs, -1),
            public={},
        )

    @classmethod
    def problems(cls, facts: EffectFacts) -> Iterator[str]:
        """Return what does not follow from public facts; see the base class."""
        yield from facts.band(None)

    def features(self, stage: FittedStage) -> FeatureMap:
        """Return the intercept and the scaled covariates, whatever the second stage."""
        return Identity().setup(stage.block.domain)
