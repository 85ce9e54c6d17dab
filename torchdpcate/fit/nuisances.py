"""What trained nuisances offer, whatever made them, and how a user chooses them; propensities that are known."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn

from torchdpcate.errors import InputError
from torchdpcate.privacy.budget import PrivacyBudget
from torchdpcate.privacy.calibration import analytic_gaussian_sigma
from torchdpcate.privacy.guarantee import Condition, user_code

if TYPE_CHECKING:
    from lightning.pytorch import Trainer

    from torchdpcate.data.domain import Domain
    from torchdpcate.data.records import CausalData
    from torchdpcate.privacy.accounting import EventCount
    from torchdpcate.privacy.session import FitSession


class NuisanceValues(NamedTuple):
    """Nuisances at covariates `[B, q]`, clipped to the domain.

    Attributes:
        pi: propensity `[B]` in [overlap, 1 - overlap].
        mu0: mean outcome of the untreated `[B]`, in the outcome's units and bounds.
        mu1: mean outcome of the treated `[B]`, likewise.
    """

    pi: Tensor
    mu0: Tensor
    mu1: Tensor


class NuisanceModel(nn.Module, ABC):
    r"""The nuisances :math:`\eta = (\pi, \mu_0, \mu_1)` of one domain, as a module."""

    @abstractmethod
    def predict(self, x: Tensor) -> NuisanceValues:
        """Nuisances at raw covariates `x` `[B, q]`, clipped to the domain; differentiable.

        A propensity that the domain knows takes the place of a fitted one; of one that only records carry, which are
        requested by `values`, the middle of its bounds.
        """

    @abstractmethod
    def config(self) -> dict[str, Any]:
        """Plain types that say the module's shape, for release files (weights not included)."""

    def values(self, records: CausalData) -> NuisanceValues:
        """Nuisances at records: as `predict`, with the propensity that the records carry where it is known."""
        found = self.predict(records.x)
        return found if records.propensity is None else found._replace(pi=records.propensity.to(found.pi))

    def effect(self, x: Tensor) -> Tensor:
        """The plug-in effect mu1 - mu0 `[B]` at raw covariates `x` `[B, q]`."""
        values = self.predict(x)
        return values.mu1 - values.mu0

    def representation(self, x: Tensor) -> Tensor:
        """Hidden layer of the outcome model `[B, width]` at raw covariates.

        Raises:
            InputError: the model has none.
        """
        raise InputError(
            f"features = representation: {type(self).__name__} has no hidden layer; use nuisance=mlp, or other features"
        )


class NuisanceRecipe(ABC):
    """Public settings of the nuisances."""

    def conditions(self, trainer: Callable[..., Trainer] | None) -> tuple[Condition, ...]:
        """Return what a guarantee rests on where it rests on these nuisances: nothing but that of a user's own class.

        Args:
            trainer: makes a Lightning Trainer from keyword arguments; None is `default_trainer`.
        """
        return user_code("nuisances", self)

    @abstractmethod
    def check(self, n: int, domain: Domain, budget: PrivacyBudget | None, also: Sequence[EventCount]) -> None:
        """Refuse, before anything is trained or spent, what could not be trained on a block of `n` records.

        Args:
            n: records of the block, public.
            domain: public bounds.
            budget: what the block may spend on nuisances and `also`; None trains without privacy.
            also: other charges on the same block, composed jointly.

        Raises:
            InputError: settings that do not fit.
        """

    @abstractmethod
    def fit(
        self,
        records: CausalData,
        domain: Domain,
        *,
        budget: PrivacyBudget | None,
        also: Sequence[EventCount],
        session: FitSession,
        trainer: Callable[..., Trainer],
        seed: int,
    ) -> NuisanceModel:
        """Return nuisances trained on a block, in float64 on the CPU, frozen.

        Args:
            records: the block.
            domain: public bounds.
            budget: see `check`.
            also: see `check`.
            session: pays before any noise is drawn, and is where noise and sampling come from.
            trainer: makes a Lightning Trainer from keyword arguments.
            seed: public seed of initial weights and (without privacy) batches.

        Raises:
            BudgetError: the block cannot pay.
            NumericalError: training diverged.
        """


def network_error(n: int, dimension: int, budget: PrivacyBudget) -> float:
    r"""Return the error to expect of the effect of networks by DP-SGD, in outcome ranges.

    .. math:: e = 0.45\, (q^{3/4} / (n \mu))^{1/3}

    of effects that vary by more than that over people; see ``NetworkErrors`` for those that vary less. Source: on 22
    such generated laws and sizes, n mu from 360 to 13,300, the error was .99 times that, to a factor of 1.7 (one
    standard deviation); free powers were .25 of q and -.44 of n mu
    (``python -m experiments.dp_cate.neural_ridge --constants``, 29 November 2026).

    Args:
        n: records that train them.
        dimension: number of covariates q.
        budget: of these records; mu is that of the Gaussian mechanism at it.

    Example:
        >>> round(network_error(2_700, 2, PrivacyBudget(1.0, 1e-5)), 4)
        0.0596
    """
    mu = 1 / analytic_gaussian_sigma(budget.epsilon, budget.delta)
    return 0.45 * (dimension**0.75 / (n * mu)) ** (1 / 3)


class NetworkErrors(NamedTuple):
    r"""Errors to expect of the effect of networks over people, in outcome units, by ``network_error`` e.

    With :math:`v \wedge h = v h / (v^2 + h^2)^{1/2}` they are .15 e (.6 e of a binary outcome), .4 e and
    :math:`.9 e \wedge h` of effects that vary by h. Source: as of ``network_error``; on 54 laws and sizes the mean
    erred by .17 e (.48 e), and where effects do not vary the networks spread by .37 e.

    Attributes:
        mean: of the mean effect.
        noise: of how effects differ, by the networks' noise.
        missed: of how effects differ, by what is not learnt of it.
    """

    mean: float
    noise: float
    missed: float

    @classmethod
    def expected(cls, n: int, domain: Domain, budget: PrivacyBudget, deviation: float = math.inf) -> NetworkErrors:
        """Return the errors to expect.

        Args:
            n: records that train the networks.
            domain: public facts.
            budget: of these records.
            deviation: h, in outcome units.

        Example:
            >>> from torchdpcate.data.domain import Domain
            >>> domain, budget = Domain([0.0, 0.0], [1.0, 1.0], 0.0, 1.0), PrivacyBudget(1.0, 1e-5)
            >>> [round(error, 4) for error in NetworkErrors.expected(2_700, domain, budget, 0.05)]
            [0.0089, 0.0238, 0.0366]
        """
        e = network_error(n, domain.dimension, budget) * domain.outcome_range
        mean = 0.6 if domain.outcome_kind == "binary" else 0.15
        return cls(mean * e, 0.4 * e, smaller(0.9 * e, deviation))


def smaller(v: float, h: float) -> float:
    r"""Return :math:`v h / (v^2 + h^2)^{1/2}`, below both."""
    return v / math.hypot(1.0, v / h)


def shrunk(answers: Tensor, noise: float) -> Tensor:
    r"""Return answers shrunk toward their mean by what is known of their noise.

    .. math:: \bar g + \Big(1 - \frac{(d - 3)\, \sigma^2}{\sum_j (g_j - \bar g)^2}\Big)_+ (g_j - \bar g)

    It is a function of private answers and public facts (post-processing), and costs no privacy. Source: Lindley's form
    of the estimator of James & Stein (1961).

    Args:
        answers: g, [d].
        noise: sigma, public.

    Example:
        >>> shrunk(torch.tensor([0.0, 0.0, 0.0, 2.0, 4.0, 6.0]), noise=2.0)
        tensor([0.7500, 0.7500, 0.7500, 2.0000, 3.2500, 4.5000])
        >>> shrunk(torch.tensor([0.0, 0.0, 0.0, 1.0]), noise=9.0)
        tensor([0.2500, 0.2500, 0.2500, 0.2500])
    """
    apart = answers - answers.mean()
    total = float(apart.square().sum())
    share = max(1 - max(len(answers) - 3, 0) * noise**2 / total, 0.0) if total else 0.0
    return answers.mean() + share * apart


def propensity_at(x: Tensor, domain: Domain) -> Tensor | None:
    """Return the propensity that the domain knows, [n], at raw covariates x [n, q]; None if it knows none.

    Where it is known of records alone, this is the middle of its bounds, for points that are no records.

    Example:
        >>> from torchdpcate.data.domain import Domain
        >>> propensity_at(torch.zeros(2, 1), Domain([0.0], [1.0], -1.0, 1.0, propensity=0.3)).tolist()
        [0.3, 0.3]
    """
    known = domain.known_propensity
    if known is None:
        return None
    return known.at(x) if known.column is None else x.new_full((x.shape[0],), known.middle, dtype=torch.float64)
