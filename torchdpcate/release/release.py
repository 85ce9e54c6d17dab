"""Released effects: a function of the covariates, or answers at public queries."""

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from torchdpcate.data.domain import Domain
from torchdpcate.data.schema import TableSchema
from torchdpcate.errors import InputError
from torchdpcate.fit.feature_maps import FeatureMap, to_config
from torchdpcate.fit.nuisances import NuisanceModel
from torchdpcate.privacy.guarantee import Level
from torchdpcate.release.estimate import quantile
from torchdpcate.release.file import Release, draw
from torchdpcate.release.lines import QUERIES, Lines
from torchdpcate.release.module import FunctionValues, ReleaseModule
from torchdpcate.release.parts import load_features, load_nuisances, named_tensors
from torchdpcate.release.statement import PrivacyStatement
from torchdpcate.typing import Covariates

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class EffectRelease(Release):
    """Released treatment effects; where ``has_intervals``, they have ``interval`` and ``mean_interval``."""

    column = "effect"
    interval: Any
    mean_interval: Any

    @property
    def function(self) -> "EffectRelease":
        """Itself."""
        return self

    @property
    def has_intervals(self) -> bool:
        """Whether there are confidence intervals of the effect."""
        return False

    @property
    def reference(self) -> Tensor | None:
        """Encoded rows with released means and spreads, over which it is shown; None without those."""
        return None

    def answer(self, x: Tensor) -> Tensor:
        """Return the released effects, [m]."""
        return self.effect_tensor(x)

    def effect(self, X: Covariates) -> np.ndarray:
        """Return the released effects mu1 - mu0 at X, float64 [m], in outcome units.

        Of K > 2 arms [m, K - 1], those of ``arms`` against the reference.

        Args:
            X: Covariates [m, q]: a table with the schema's columns (pandas, polars, Arrow, or a dict of columns or of
                one row), or an array or tensor of encoded columns in the order of ``schema.domain.names``.

        Raises:
            InputError: Wrong columns, a point outside the domain, unless the schema clips, or one this release has no
                answer for.
        """
        return self.effect_tensor(self._covariates(X)).numpy()

    def predict(self, X: Covariates) -> np.ndarray:
        """Return ``effect(X)``, [m]: the name that scikit-learn has for it."""
        return self.effect(X)

    def ate(self, X: Covariates) -> float:
        """Return the mean of the released effects at X, in outcome units: a number about these rows.

        Of K > 2 arms it is one an arm, [K - 1].

        Args:
            X: Covariates, as for ``effect``.

        Raises:
            InputError: As ``effect``, or no rows.
        """
        effects = self.effect(X)
        if not len(effects):
            raise InputError("X: has no rows, and so no mean effect")
        return float(effects.mean()) if effects.ndim == 1 else effects.mean(0)  # type: ignore[return-value]

    def effect_interval(self, X: Covariates, alpha: float = 0.05) -> tuple[np.ndarray, np.ndarray]:
        """Return lower and upper ends of ``interval(X, 1 - alpha)``, [m] each, as EconML has it.

        Args:
            X: Covariates, as for ``effect``.
            alpha: One minus the level, in (0, 1).

        Raises:
            InputError: This release has no confidence intervals of the effect, or alpha is outside (0, 1).
        """
        if self.has_intervals:
            low, high = self.interval(X, 1 - alpha).T
            return low, high
        raise InputError(
            f"effect_interval: a release by {self.privacy.mechanism} has no confidence intervals of the effect; "
            "noise_band(X) has the noise of its second stage, where that is public"
        )

    def ate_interval(self, X: Covariates, alpha: float = 0.05) -> tuple[float, float]:
        """Return lower and upper end of the confidence interval of the mean effect over X, as EconML has it.

        Args:
            X: Covariates, as for ``effect``; public rows.
            alpha: One minus the level, in (0, 1).

        Raises:
            InputError: This release has no confidence intervals of the effect, no rows, or alpha outside (0, 1).
        """
        if self.has_intervals:
            low, high = map(float, self.mean_interval(X, 1 - alpha)[0])
            return low, high
        raise InputError(
            f"ate_interval: a release by {self.privacy.mechanism} has no confidence intervals of the effect; fit with "
            "second_stage=adaptive and a known propensity, or use task=average_effect"
        )

    def noise_band(self, X: Covariates, level: float = 0.95) -> np.ndarray:
        """Return the noise band of the second stage [m, 2] about the released effects, in outcome units.

        With probability of at least ``level`` over the noise of the second stage, the band holds the median of what its
        mechanism answers on these records with these nuisances (for output perturbation: the answer without noise). It
        holds that noise alone: not the noise that the nuisances were trained with, which is often the larger part, and
        no sampling error. It is no confidence interval of the effect.

        Args:
            X: Covariates, as for ``effect``.
            level: Probability in (0, 1).

        Raises:
            InputError: No public noise scale, hence no band; or a level outside (0, 1).
        """
        x = self._covariates(X)
        scales = self.known_noise(x)
        if scales is None:
            raise self._no_band()
        half = quantile(level) * scales
        effect, bound = self.effect_tensor(x), self.domain.outcome_range
        return torch.stack([effect - half, effect + half], 1).clamp(-bound, bound).numpy()

    def plot(
        self,
        covariate: str | Sequence[str] | None = None,
        *,
        profile: Mapping[str, Any] | None = None,
        level: float = 0.95,
    ) -> "Figure":
        """Return the figure of the effect against a covariate, with its interval or noise band if there is one.

        Of a release of one composition the effect is averaged over ``reference``; of another the other
        covariates are at the middle of their bounds.

        Args:
            covariate: The one that varies, or several, a panel each; None takes the first.
            profile: Public values of others, by column; what it leaves open stays as above.
            level: Probability of the interval or band, in (0, 1).

        Raises:
            InputError: No such covariate, a value outside its bounds, or a level outside (0, 1).

        Example:
            >>> from torchdpcate.release.composed import _example
            >>> figure = _example().effect.plot("x0")
            >>> figure.axes[0].get_xlabel(), figure.axes[0].get_ylabel()
            ('x0', 'effect on y (higher is better)')
        """
        return draw("plot_effect", self, covariate, profile=profile, level=level)

    @abstractmethod
    def effect_tensor(self, x: Tensor) -> Tensor:
        """Return the released effects at encoded covariates x [m, q], float64 [m]."""

    def known_noise(self, x: Tensor) -> Tensor | None:
        """Return the public noise scale of each effect at encoded covariates x [m, q], in outcome units.

        Returns:
            [m], or None where there is none to speak of: the scale is secret or unknown, or the release is not
            certified.
        """
        certified = self.privacy.level == Level.CERTIFIED.value and self.privacy.claims
        return self._noise_scale(x) if certified else None

    def _noise_scale(self, x: Tensor) -> Tensor | None:
        """Return the noise scale of each answer, [m], where it is public."""
        return None

    def _no_band(self) -> InputError:
        return InputError(
            f"noise_band: mechanism = {self.privacy.mechanism} ({self.privacy.headline}) has no public noise scale "
            "that one may rely on, so there is no honest band; release with mechanism=output for one"
        )


@dataclass(frozen=True, eq=False, repr=False)
class FunctionRelease(EffectRelease):
    """A CATE function: g(x) = mu1(x) - mu0(x) + psi(x)'theta, clipped to [-R, R].

    Attributes:
        theta: Coefficients that a function mechanism released, float64 [p].
        features: Public feature map.
        nuisances: DP-trained nuisances, charged to their own block.
        schema: Columns and public bounds.
        privacy: The privacy statement.
        noise_scale: Public bound of the noise per unit of ||psi(x)||, in outcome units; None where none is public.
    """

    kind = "function"
    subject = "Estimated effect of {contrast} on {outcome} as a function of the covariates"

    theta: Tensor
    features: FeatureMap
    nuisances: NuisanceModel
    schema: TableSchema
    privacy: PrivacyStatement
    noise_scale: float | None

    def effect_tensor(self, x: Tensor) -> Tensor:
        """Return g(x), [m]."""
        bound = self.domain.outcome_range
        with torch.no_grad():
            return (self.nuisances.effect(x) + self.features.product(self.theta, x)).clamp(-bound, bound)

    def _noise_scale(self, x: Tensor) -> Tensor | None:
        return None if self.noise_scale is None else self.noise_scale * self.features.norm(x)

    def module(self) -> nn.Module:
        """Return the effect as a module to serve or export; see ``Release.module``."""
        bound = self.domain.outcome_range
        return ReleaseModule(self.domain, FunctionValues(self.theta, self.features, self.nuisances, bound))

    def summary(self) -> dict[str, Any]:
        """Return the number of features.

        Example:
            >>> from torchdpcate.release.release import _example
            >>> _example().summary()
            {'features': 2}
        """
        return {"features": self.theta.numel()}

    def tensors(self) -> dict[str, Tensor]:
        """Return theta, the feature map's buffers and the nuisances' weights."""
        return {
            "theta": self.theta,
            **named_tensors("features", self.features),
            **named_tensors("nuisances", self.nuisances),
        }

    def facts(self) -> dict[str, Any]:
        """Return the feature map and the nuisances' shapes."""
        return {
            "features": to_config(self.features),
            "nuisances": self.nuisances.config(),
            "noise_scale": self.noise_scale,
        }

    @classmethod
    def build(
        cls, tensors: dict[str, Tensor], facts: dict[str, Any], schema: TableSchema, privacy: PrivacyStatement
    ) -> "FunctionRelease":
        """Rebuild a release from ``tensors`` and ``facts``."""
        nuisances = load_nuisances(tensors, facts["nuisances"])
        features = load_features(tensors, facts["features"], schema.domain, nuisances)
        require_tensor(tensors["theta"], (features.dimension,), "theta")
        return cls(tensors["theta"], features, nuisances, schema, privacy, _scale(facts["noise_scale"]))


@dataclass(frozen=True, eq=False, repr=False)
class QueryRelease(EffectRelease):
    """Effects at finitely many public queries; answers these and no others.

    Attributes:
        queries: Encoded covariates of the queries, float64 [d, q], public.
        answers: Released effects, float64 [d].
        schema: Columns and public bounds.
        privacy: The privacy statement.
        noise_scales: Public noise scale of each answer, [d], or None where the scale is secret.
        nuisances: DP-trained nuisances, if they were requested.
        head: What is public of the second stage (feature map or kernel), as plain types:
            noise scales follow from it. None where there is no such thing.
    """

    kind = "queries"
    subject = "Estimated effect of {contrast} on {outcome} at a fixed list of public queries"

    queries: Tensor
    answers: Tensor
    schema: TableSchema
    privacy: PrivacyStatement
    noise_scales: Tensor | None = None
    nuisances: NuisanceModel | None = None
    head: dict[str, Any] | None = None

    def effect_tensor(self, x: Tensor) -> Tensor:
        """Return the stored answers of the rows of x, [m]."""
        return self.answers[self._locate(x)]

    def _noise_scale(self, x: Tensor) -> Tensor | None:
        return None if self.noise_scales is None else self.noise_scales[self._locate(x)]

    def plot(  # type: ignore[override]
        self, covariate: str | None = None, *, level: float = 0.95
    ) -> "Figure":
        """Return the figure of the effects at the queries, with their noise bands where there are any.

        Args:
            covariate: What they are drawn against; None orders them, the smallest effect first.
            level: Probability of the bands, in (0, 1).

        Raises:
            InputError: No such covariate, or a level outside (0, 1).

        Example:
            >>> from torchdpcate.release.release import _answered_example
            >>> _answered_example().plot().axes[0].lines[0].get_ydata().tolist()
            [-0.2, 0.8]
        """
        return draw("plot_answers", self, covariate, level=level)

    def summary(self) -> dict[str, Any]:
        """Return the number of queries, and the smallest, mean and largest released effect at them.

        Example:
            >>> from torchdpcate.release.release import _answered_example
            >>> _answered_example().summary()
            {'queries': 2, 'smallest': -0.2, 'mean': 0.3, 'largest': 0.8}
        """
        answers = self.answers
        ends = {"smallest": answers.min(), "mean": answers.mean(), "largest": answers.max()}
        return {"queries": len(answers)} | {name: round(value.item(), 12) for name, value in ends.items()}

    @property
    def named(self) -> Lines:
        """The answers as lines, whose errors are not known."""
        count, scale = len(self.queries), self.known_noise(self.queries)
        names, unknown = tuple(f"query {k + 1}" for k in range(count)), torch.full((count,), torch.nan).double()
        noise, groups = unknown if scale is None else scale, (QUERIES,) * count
        parts, ends = (self.answers, unknown, noise, unknown), torch.stack([unknown, unknown], 1)
        return Lines(names, names, groups, *parts, ends=lambda _: ends, assumptions="")

    def _locate(self, x: Tensor) -> Tensor:
        """Return the index of each row of x among the queries."""
        d = self.queries.shape[0]
        rows, inverse = np.unique(torch.cat([self.queries, x]).numpy(), axis=0, return_inverse=True)
        index = np.full(len(rows), -1)
        index[inverse[:d]] = np.arange(d)
        found = index[inverse[d:]]
        missing = int((found < 0).sum())
        if missing:
            raise InputError(
                f"X: {missing} of {x.shape[0]} rows are not among the {d} released queries; a query release answers "
                "its own queries alone: request them before releasing, or use release=function"
            )
        return torch.from_numpy(found)

    def tensors(self) -> dict[str, Tensor]:
        """Return queries, answers and, where there are any, public scales and nuisances."""
        optional = {} if self.noise_scales is None else {"noise_scales": self.noise_scales}
        if self.nuisances is not None:
            optional |= named_tensors("nuisances", self.nuisances)
        return {"queries": self.queries, "answers": self.answers, **optional}

    def facts(self) -> dict[str, Any]:
        """Return what is public of the second stage, and the nuisances' shapes if they are part of the release."""
        head = {} if self.head is None else {"head": self.head}
        return head if self.nuisances is None else {**head, "nuisances": self.nuisances.config()}

    @classmethod
    def build(
        cls, tensors: dict[str, Tensor], facts: dict[str, Any], schema: TableSchema, privacy: PrivacyStatement
    ) -> "QueryRelease":
        """Rebuild a release from ``tensors`` and ``facts``."""
        nuisances = load_nuisances(tensors, facts["nuisances"]) if "nuisances" in facts else None
        d = tensors["answers"].shape[0]
        require_tensor(tensors["answers"], (d,), "answers")
        require_tensor(tensors["queries"], (d, schema.domain.dimension), "queries")
        if "noise_scales" in tensors:
            require_tensor(tensors["noise_scales"], (d,), "noise_scales")
        scales, head = tensors.get("noise_scales"), facts.get("head")
        return cls(tensors["queries"], tensors["answers"], schema, privacy, scales, nuisances, head)


def require_tensor(tensor: Tensor, shape: tuple[int, ...], name: str) -> None:
    """Refuse a tensor of a release file that cannot be what its name says."""
    if tuple(tensor.shape) != shape or tensor.dtype != torch.float64 or not bool(torch.isfinite(tensor).all()):
        raise ValueError(f"{name} is {tuple(tensor.shape)} {tensor.dtype}, not finite float64 {shape}")


def _scale(value: Any) -> float | None:
    """A public noise scale of a release file, or None."""
    if value is None:
        return None
    scale = torch.tensor(value, dtype=torch.float64)
    require_tensor(scale, (), "noise_scale")
    return scale.item()


def _example() -> FunctionRelease:
    """An effect of 2x - 1 on one covariate in [0, 1], for examples."""
    from torchdpcate.fit.feature_maps import Identity
    from torchdpcate.fit.nuisance_kinds import Nuisances

    domain = Domain([0.0], [1.0], -1.0, 1.0)
    features = Identity().setup(domain)
    theta = torch.tensor([0.0, 2**0.5], dtype=torch.float64)
    privacy = PrivacyStatement("output", "", "certified", "(1, 1e-05)", 1.0, 1e-5, 100, ())
    return FunctionRelease(
        theta, features, Nuisances(domain, width=0).double(), TableSchema.from_domain(domain), privacy, 0.1
    )


def _answered_example() -> QueryRelease:
    """Two queries on one covariate in [0, 1], for examples."""
    domain, x = Domain([0.0], [1.0], -1.0, 1.0), torch.tensor([[0.0], [1.0]], dtype=torch.float64)
    answers = torch.tensor([-0.2, 0.8], dtype=torch.float64)
    return QueryRelease(x, answers, TableSchema.from_domain(domain), _example().privacy, torch.full_like(answers, 0.1))
