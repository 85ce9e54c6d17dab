"""The free competitor: the difference of the private outcome models, without a second stage."""

from collections.abc import Iterator

from torchdpcate.estimators.cate.head import Head
from torchdpcate.estimators.cate.mechanisms.base import FunctionMechanism
from torchdpcate.features.maps import FeatureMap, Identity
from torchdpcate.privacy.budget import PrivacyBudget
from torchdpcate.release.release import FunctionRelease, QueryRelease
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
    source = "post-processing of the nuisances"
    accepts = (SecondStage,)
    free = True

    def law(self, head: Head, budget: PrivacyBudget) -> None:
        """See ``Mechanism``: it is free."""

    def release_problems(self, head: Head, law: None, release: FunctionRelease | QueryRelease) -> Iterator[str]:
        """See ``Mechanism``."""
        if isinstance(release, FunctionRelease) and bool(release.theta.any()):
            yield "it is called a plug-in, which has no coefficients of its own, but holds some"

    def features(self, stage: FittedStage) -> FeatureMap:
        """Return the intercept and the scaled covariates, whatever the second stage."""
        return Identity().setup(stage.block.domain)
