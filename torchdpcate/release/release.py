"""What a reader holds: effects with a privacy statement, and nothing of the curator's."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from torchdpcate.data._arrays import as_frame
from torchdpcate.data.domain import Domain
from torchdpcate.data.schema import TableSchema
from torchdpcate.errors import InputError
from torchdpcate.fit.feature_maps import FeatureMap
from torchdpcate.fit.nuisances import NuisanceModel
from torchdpcate.fit.user_maps import to_config
from torchdpcate.privacy.guarantee import Level
from torchdpcate.release.display import draw, line, table
from torchdpcate.release.parts import load_features, load_nuisances, named_tensors
from torchdpcate.release.statement import PrivacyStatement
from torchdpcate.typing import Covariates

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


RELEASES: dict[str, type["Release"]] = {}
"""Classes of releases by their kind, of the modules imported so far."""


class Release(ABC):
    """What was released about the records, with its privacy statement.

    Attributes:
        kind: Kind under which a file knows it.
        column: What its answers are called in tables.
        subject: What it is about, with the names of treatment and outcome to be filled in.
        privacy: The privacy statement.
        schema: Columns and public bounds of the covariates.
    """

    kind: ClassVar[str]
    column: ClassVar[str]
    subject: ClassVar[str]
    privacy: PrivacyStatement
    schema: TableSchema

    def __init_subclass__(cls, **given: Any) -> None:
        """Make the class known by its kind."""
        super().__init_subclass__(**given)
        kind = cls.__dict__.get("kind")
        known = RELEASES.setdefault(kind, cls) if isinstance(kind, str) else cls
        if (known.__module__, known.__qualname__) != (cls.__module__, cls.__qualname__):
            raise InputError(f"kind = {kind}: there is a release of this kind already ({known.__module__})")

    @property
    def domain(self) -> Domain:
        """Public bounds of covariates and outcome."""
        return self.schema.domain

    @abstractmethod
    def answer(self, x: Tensor) -> Tensor:
        """Return the release's answers at encoded covariates x [m, q], [m]: what ``torchdpcate predict`` writes."""

    @abstractmethod
    def tensors(self) -> dict[str, Tensor]:
        """Return everything numeric that the release holds."""

    @abstractmethod
    def facts(self) -> dict[str, Any]:
        """Return everything public that is needed to rebuild the release, as plain types."""

    @classmethod
    @abstractmethod
    def build(
        cls, tensors: dict[str, Tensor], facts: dict[str, Any], schema: TableSchema, privacy: PrivacyStatement
    ) -> "Release":
        """Rebuild a release from ``tensors`` and ``facts``."""

    @abstractmethod
    def summary(self) -> dict[str, Any]:
        """Return what cards and ``torchdpcate verify`` state beside the statement, as plain types."""

    @abstractmethod
    def plot(self, *given: Any, **settings: Any) -> "Figure":
        """Return a matplotlib figure of what was released, from released numbers alone; each kind has its arguments."""

    def module(self) -> nn.Module:
        """Return the effect, or of a rule the score by whose sign it decides, as a module to serve or export.

        Its outputs are those of ``effect`` (or ``score``) at encoded covariates; see ``ReleaseModule`` for what it
        takes. It has neither statement nor signature: hand the release on beside it.

        Raises:
            InputError: This kind of release is no function of covariates.
        """
        raise InputError(
            f"module: a release of kind {self.kind} is no function of covariates; a function release (release=function "
            "on the command line) or a rule has a module"
        )

    def save(self, path: str | Path, overwrite: bool = False) -> Path:
        """Write the release to a safetensors file, completely or not at all, and return its path.

        Args:
            path: File to write; its folder must exist.
            overwrite: Whether it may take the place of a file that is there.

        Raises:
            InputError: The file is there, or its folder is not.
        """
        from torchdpcate.release.file import save_release

        return save_release(self, path, overwrite)

    @property
    def arms(self) -> tuple[str, ...]:
        """Names of the arms that effects compare with the reference, where there are more than two; else empty."""
        return self.schema.compared

    @property
    def arm_titles(self) -> tuple[str, ...]:
        """What the effect of each of ``arms`` is, in words."""
        return tuple(f"{arm} instead of {self.schema.reference}" for arm in self.arms)

    def as_columns(self, answers: Tensor, name: str = "") -> dict[str, Tensor]:
        """Return answers as columns of a table: [m] as one, [m, K - 1] of more than two arms as one an arm.

        Args:
            answers: As ``answer`` returns them, or something else of the same shape.
            name: What the columns are called, and of several what stands before the arm; empty for ``column``.
        """
        name = name or self.column
        if not self.arms or answers.ndim == 1:
            return {name: answers}
        return {f"{name}_{arm}": column for arm, column in zip(self.arms, answers.unbind(1), strict=True)}

    def __repr__(self) -> str:
        """Return what it is about and what it claims, in one line."""
        return line(self)

    def _repr_html_(self) -> str:
        return table(self)

    def _covariates(self, X: Any) -> Tensor:
        X = as_frame(X)
        if isinstance(X, np.ndarray) and X.dtype == np.float64 and X.flags.carray:
            X = torch.from_numpy(X)  # answers only read it, so it need not be copied
        return self.schema.within(self.schema.matrix(X, "query"), "query")


class EffectRelease(Release):
    """Released treatment effects."""

    column = "effect"

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
        if not 0 < level < 1:
            raise InputError(f"level = {level}: give a probability strictly between 0 and 1")
        if self.privacy.level != Level.CERTIFIED.value or not self.privacy.claims:
            raise self._no_band()
        x = self._covariates(X)
        half = torch.special.ndtri(torch.tensor((1 + level) / 2, dtype=torch.float64)) * self._noise_scale(x)
        effect, bound = self.effect_tensor(x), self.domain.outcome_range
        return torch.stack([effect - half, effect + half], 1).clamp(-bound, bound).numpy()

    def plot(
        self,
        covariate: str | Sequence[str] | None = None,
        *,
        profile: Mapping[str, Any] | None = None,
        level: float = 0.95,
        ax: "Axes | None" = None,
    ) -> "Figure":
        """Return the figure of the effect against a covariate, with its interval or noise band if there is one.

        Of a release of one composition the effect is averaged over ``reference_population``; of another the other
        covariates are at the middle of their bounds.

        Args:
            covariate: The one that varies, or several, a panel each; None takes the first.
            profile: Public values of others, by column; what it leaves open stays as above.
            level: Probability of the interval or band, in (0, 1).
            ax: Axes to draw one panel on; None makes a figure.

        Raises:
            InputError: No such covariate, a value outside its bounds, several panels for ``ax``, or a level outside
                (0, 1).

        Example:
            >>> from torchdpcate.release.composed import _example
            >>> figure = _example().effect.plot("x0")
            >>> figure.axes[0].get_xlabel(), figure.axes[0].get_ylabel()
            ('x0', 'effect on y (higher is better)')
        """
        return draw("plot_effect", self, covariate, profile=profile, level=level, ax=ax)

    @abstractmethod
    def effect_tensor(self, x: Tensor) -> Tensor:
        """Return the released effects at encoded covariates x [m, q], float64 [m]."""

    @abstractmethod
    def _noise_scale(self, x: Tensor) -> Tensor:
        """Return the public noise scale of each answer, [m]."""

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

    def _noise_scale(self, x: Tensor) -> Tensor:
        if self.noise_scale is None:
            raise self._no_band()
        return self.noise_scale * self.features.norm(x)

    def module(self) -> nn.Module:
        """Return the effect as a module to serve or export; see ``Release.module``."""
        from torchdpcate.release.module import FunctionValues, ReleaseModule

        bound = self.domain.outcome_range
        return ReleaseModule(self.domain, FunctionValues(self.theta, self.features, self.nuisances, bound))

    def summary(self) -> dict[str, Any]:
        """Return the number of features, and the kind of nuisances.

        Example:
            >>> from torchdpcate.release.release import _example
            >>> _example().summary()
            {'features': 2, 'nuisances': 'convex'}
        """
        return {"features": self.theta.numel(), "nuisances": self.nuisances.kind}

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

    def _noise_scale(self, x: Tensor) -> Tensor:
        if self.noise_scales is None:
            raise self._no_band()
        return self.noise_scales[self._locate(x)]

    def plot(  # type: ignore[override]
        self, covariate: str | None = None, *, level: float = 0.95, ax: "Axes | None" = None
    ) -> "Figure":
        """Return the figure of the effects at the queries, with their noise bands where there are any.

        Args:
            covariate: What they are drawn against; None orders them, the smallest effect first.
            level: Probability of the bands, in (0, 1).
            ax: Axes to draw on; None makes a figure.

        Raises:
            InputError: No such covariate, or a level outside (0, 1).

        Example:
            >>> from torchdpcate.release.post_processing import _example
            >>> _example().plot().axes[0].lines[0].get_ydata().tolist()
            [-0.2, 0.8]
        """
        return draw("plot_answers", self, covariate, level=level, ax=ax)

    def summary(self) -> dict[str, Any]:
        """Return the number of queries, and the smallest, mean and largest released effect at them.

        Example:
            >>> from torchdpcate.release.post_processing import _example
            >>> _example().summary()
            {'queries': 2, 'smallest': -0.2, 'mean': 0.3, 'largest': 0.8}
        """
        answers = self.answers
        ends = {"smallest": answers.min(), "mean": answers.mean(), "largest": answers.max()}
        return {"queries": len(answers)} | {name: round(value.item(), 12) for name, value in ends.items()}

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
    from torchdpcate.fit.nuisance_kinds import ConvexNuisances

    domain = Domain([0.0], [1.0], -1.0, 1.0)
    features = Identity().setup(domain)
    theta = torch.tensor([0.0, 2**0.5], dtype=torch.float64)
    privacy = PrivacyStatement("output", "", "certified", "(1, 1e-05)", 1.0, 1e-5, 100, ())
    return FunctionRelease(theta, features, ConvexNuisances(domain), TableSchema.from_domain(domain), privacy, 0.1)
