"""Released answers of a kernel head as observations of a Gaussian process, for whoever goes on in GPyTorch."""

import math
from copy import deepcopy
from typing import Any

import torch
from gpytorch.distributions import MultivariateNormal
from gpytorch.kernels import Kernel, MaternKernel, RBFKernel, ScaleKernel
from gpytorch.likelihoods import FixedNoiseGaussianLikelihood
from gpytorch.means import Mean
from gpytorch.models import ExactGP
from linear_operator import to_linear_operator
from torch import Tensor

from torchdpcate.errors import InputError
from torchdpcate.fit.kernels import SMOOTHNESS, UnitKernel
from torchdpcate.fit.nuisances import NuisanceModel
from torchdpcate.release.release import QueryRelease

_MECHANISM = "gaussian_process"
_PRIOR = 0.25  # of the outcome's range, a public fact: the default deviation of the prior


class ReleasedProcess(ExactGP):
    """See ``released_process``; inputs are encoded covariates [m, q] in the domain's units, float64."""

    def __init__(self, x: Tensor, y: Tensor, mean: Mean, kernel: Kernel, noise: "ReleasedNoise") -> None:
        super().__init__(x, y, noise)
        self.mean_module, self.covar_module = mean, kernel

    def forward(self, x: Tensor) -> MultivariateNormal:
        """Return the prior at x: plug-in effect, and the kernel of the scaled covariates that the head saw."""
        return MultivariateNormal(self.mean_module(x), self.covar_module(self.likelihood.scaled(x)))


class ReleasedNoise(FixedNoiseGaussianLikelihood):
    r"""Noise r U with U of covariance K + jitter I, as a mechanism drew it: public, fixed, and correlated.

    Args:
        x: Queries, [d, q].
        kernel: K, public.
        columns: Columns of the covariates that it sees; None for all.
        scale: r.
        jitter: Added to the diagonal of K.
    """

    def __init__(self, x: Tensor, kernel: UnitKernel, columns: list[int] | None, scale: float, jitter: float) -> None:
        super().__init__(torch.full((len(x),), scale**2 * (1 + jitter), dtype=torch.float64))
        self.x, self.kernel, self.columns = x, kernel, columns
        self.scale, self.jitter = scale, jitter

    def seen(self, x: Tensor) -> Tensor:
        """Return the columns that the head saw."""
        return x if self.columns is None else x[..., self.columns]

    def scaled(self, x: Tensor) -> Tensor:
        """Return them on [-1, 1]."""
        return self.kernel.domain.scale(self.seen(x))

    def marginal(self, function_dist: Any, *inputs: Any, **_: Any) -> MultivariateNormal:
        """Return what is observed of a function's values at ``inputs``; at the queries if none are given."""
        given = inputs[0] if inputs else self.x
        seen = self.seen(given[0] if isinstance(given, list | tuple) else given)
        if len(seen) != function_dist.event_shape[-1]:
            raise InputError("likelihood: the noise of other points than the queries needs these: likelihood(f, x)")
        covariance = self.kernel(seen, seen)
        covariance.diagonal().add_(self.jitter)
        noise = to_linear_operator(self.scale**2 * covariance)
        return MultivariateNormal(function_dist.mean, function_dist.lazy_covariance_matrix + noise)


class PlugInMean(Mean):
    """Released mu1 - mu0; zero where the release has no nuisances.

    Args:
        nuisances: The released nuisances, or None.
        columns: Columns that they see; None for all.
    """

    def __init__(self, nuisances: NuisanceModel | None, columns: list[int] | None) -> None:
        super().__init__()
        self.nuisances, self.columns = deepcopy(nuisances), columns

    def forward(self, x: Tensor) -> Tensor:
        """Return the mean at x [m, q], [m]."""
        if self.nuisances is None:
            return x.new_zeros(x.shape[:-1])
        return self.nuisances.effect(x if self.columns is None else x[:, self.columns])


def released_process(release: QueryRelease, prior_sd: float | None = None) -> ReleasedProcess:
    r"""Return a GPyTorch model whose observations are released answers of a kernel head.

    With queries Q, released answers y and plug-in effect m its posterior mean is

    .. math:: m(x) + s^2 K(x, Q)\,\big((s^2 + r^2) K(Q, Q) + r^2 j I\big)^{-1} (y - m(Q))

    for the prior deviation s, the head's unit kernel K and the noise r U, U ~ GP(0, K + j I), that the mechanism drew.
    That noise is a function as smooth as the head's: taking answers for independent would promise what no number of
    queries gives. Everything comes from the release, so the model and whatever is trained or drawn of it (the marginal
    likelihood tunes scale and length) are post-processing. It is the law of what the mechanism would have answered
    without noise: it knows no sampling error, and no noise of the nuisances. Answers that were clipped to the outcome's
    range are taken as they are.

    GPyTorch solves by Cholesky up to 800 queries; beyond, set ``gpytorch.settings.max_cholesky_size``.

    Args:
        release: Of ``second_stage=kernel_ridge`` by ``mechanism=gaussian_process``, from a file or a service;
            with its nuisances (``include_nuisances``), their effect is the prior's mean, else zero is.
        prior_sd: s, in outcome units, public; None takes a quarter of the outcome's range.

    Returns:
        The model in eval mode, float64, with its likelihood.

    Raises:
        InputError: Another release, or a deviation that is not positive.

    Example:
        >>> process = released_process(_example())
        >>> process(torch.tensor([[0.0], [0.5]], dtype=torch.float64)).mean.detach().round(decimals=2).tolist()
        [0.0, 0.5]
    """
    head, public = (release.head or {}) if isinstance(release, QueryRelease) else {}, release.privacy.public
    if "kernel" not in head or release.privacy.mechanism != _MECHANISM or "noise_scale" not in public:
        raise InputError(
            f"release: by mechanism {release.privacy.mechanism!r}; a process needs private answers of "
            f"second_stage=kernel_ridge by mechanism={_MECHANISM}, whose noise is public"
        )
    s = _PRIOR * release.domain.outcome_range if prior_sd is None else prior_sd
    if not 0 < s < math.inf:
        raise InputError(f"prior_sd = {prior_sd}: give a positive deviation, in outcome units")
    columns = None if head.get("columns") is None else [int(column) for column in head["columns"]]
    domain = release.domain if columns is None else release.domain.select(columns)
    unit = UnitKernel(head["kernel"]["name"], float(head["kernel"]["bandwidth"]), domain)
    x, place = torch.unique(release.queries, dim=0, return_inverse=True)  # equal queries have one noise
    y = release.answers.new_empty(len(x)).index_copy_(0, place, release.answers)
    noise = ReleasedNoise(x, unit, columns, float(public["noise_scale"]), float(public["jitter"]))
    nu = SMOOTHNESS[unit.name]
    kernel = ScaleKernel(RBFKernel() if nu is None else MaternKernel(nu)).double()
    kernel.base_kernel.lengthscale, kernel.outputscale = unit.bandwidth, s**2
    process = ReleasedProcess(x, y, PlugInMean(release.nuisances, columns), kernel, noise)
    return process.eval()


def _example() -> QueryRelease:
    """Answers 0 and .5 with little noise at 0 and .5."""
    from torchdpcate.data.domain import Domain
    from torchdpcate.data.schema import TableSchema
    from torchdpcate.release.statement import PrivacyStatement

    domain = Domain([0.0], [1.0], -1.0, 1.0)
    public = {"noise_scale": 0.01, "jitter": 1e-3}
    privacy = PrivacyStatement(_MECHANISM, "", "certified", "(1, 1e-05)", 1.0, 1e-5, 100, (), public=public)
    x = torch.tensor([[0.0], [0.5]], dtype=torch.float64)
    head = {"kernel": {"name": "gaussian", "bandwidth": 0.5}}
    return QueryRelease(x, x[:, 0], TableSchema.from_domain(domain), privacy, head=head)
