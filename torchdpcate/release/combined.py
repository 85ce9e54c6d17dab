"""Releases of several sites combined: post-processing of their released numbers, which a combined file holds whole."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from torchdpcate.data.domain import unit_grid
from torchdpcate.data.schema import TableSchema
from torchdpcate.errors import InputError
from torchdpcate.fit.weighted_basis import UNITS
from torchdpcate.release.average_effect import AverageEffectRelease
from torchdpcate.release.composed import ComposedRelease, ComposedRule
from torchdpcate.release.display import draw
from torchdpcate.release.effect_law import EffectLaw
from torchdpcate.release.estimate import noise_deviation
from torchdpcate.release.file import ReleaseFile
from torchdpcate.release.meta_analysis import BETWEEN, FIXED, Pooled, pool
from torchdpcate.release.parts import tensors_of
from torchdpcate.release.post_processing import quantile, reference_population
from torchdpcate.release.release import EffectRelease, Release
from torchdpcate.release.rule import DecisionRelease
from torchdpcate.release.statement import STATED_AS, PrivacyStatement
from torchdpcate.release.subgroups import LEVEL, SubgroupRelease
from torchdpcate.typing import Covariates

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

ALL_SITES = "all sites"
"""What the combination is called beside the sites."""
NUISANCES = "error"
"""Name of the number of an average effect that says what errors of both nuisances add, in outcome ranges."""
_ROWS = 256
_INDEPENDENT = "sites hold different records"
_SAMPLED = "sites differ as a sample of the sites that their mean is about"


class Combined(Release):
    """Releases of K sites and their meta-analysis; everything it answers follows from ``sites`` and ``between``.

    Attributes:
        sites: The sites' releases, as they were published.
        names: What the sites are called.
        between: ``fixed`` or ``random``: whether effects are taken to be the same at all sites.
        of: Kind of release that is combined.
    """

    of: ClassVar[type[Release]]
    sites: tuple[Release, ...]
    names: tuple[str, ...]
    between: str
    reading = "Estimates of the sites are weighted by their known variances, which uses released numbers alone."

    def tensors(self) -> dict[str, Tensor]:
        """Return those of all sites, under their positions."""
        return {f"{k}.{name}": part for k, site in enumerate(self.sites) for name, part in site.tensors().items()}

    def facts(self) -> dict[str, Any]:
        """Return what each site's file says beside its numbers, with its checksum, and how sites are combined."""
        return {"between": self.between, "sites": [{"name": file.path.name, **file.metadata} for file in self.files]}

    @property
    def files(self) -> list[ReleaseFile]:
        """What the sites' own files say, under the sites' names."""
        return [ReleaseFile.of(site, Path(name)) for name, site in zip(self.names, self.sites, strict=True)]

    @classmethod
    def build(
        cls, tensors: dict[str, Tensor], facts: Mapping[str, Any], schema: TableSchema, privacy: PrivacyStatement
    ) -> "Combined":
        """Rebuild a combination from ``tensors`` and ``facts``."""
        if facts["between"] not in BETWEEN:
            raise ValueError("between: no model")
        names, sites = [], []
        for k, entry in enumerate(facts["sites"]):
            metadata = {key: str(value) for key, value in entry.items()}
            names.append(metadata.pop("name"))
            file = ReleaseFile(Path(names[-1]), metadata, tensors_of(str(k), tensors))
            if file.fault is not None or not isinstance(site := file.build(), cls.of):
                raise ValueError(f"site {k}: {file.fault or 'a release of another kind'}")
            sites.append(site)
        return cls(tuple(sites), tuple(names), facts["between"], schema, privacy)  # type: ignore[call-arg]

    def parts(self, level: float = LEVEL) -> "pd.DataFrame":
        """Return one row a line and site, and a last one of all sites: what forest plots draw.

        Columns are ``partition`` (the line), ``cell`` (the site), ``estimate``, ``low``, ``high``, ``records`` and
        ``weight``, the site's share in the mean, zero where noise dominates its estimate.

        Args:
            level: Probability of the intervals, in (0, 1).
        """
        import pandas as pd

        estimates, variances, _ = self._known()
        found, rows = self.pooled, []
        weights = torch.where(variances.isfinite(), 1 / (variances + found.tau2), 0.0)
        shares, half = weights / weights.sum(0), quantile(level) * variances.sqrt()
        bound, wide = self.domain.outcome_range, found.half_width(level)
        for c, title in enumerate(self.lines):
            for k, name in enumerate(self.names):
                y, h = float(estimates[k, c]), float(half[k, c])
                rows.append((title, name, y, y - h, y + h, self.sites[k].privacy.n, float(shares[k, c])))
            y, h = float(found.mean[c]), float(wide[c])
            rows.append((title, ALL_SITES, y, y - h, y + h, self.privacy.n, 1.0))
        table = pd.DataFrame(rows, columns=["partition", "cell", "estimate", "low", "high", "records", "weight"])
        table[["low", "high"]] = table[["low", "high"]].clip(-bound, bound)
        return table

    @property
    def lines(self) -> list[str]:
        """What is compared between sites, a line each."""
        return ["average effect"]

    @cached_property
    def pooled(self) -> Pooled:
        """The meta-analysis of each line, [lines]."""
        return pool(*self._known(), self.between)

    def _known(self) -> tuple[Tensor, Tensor, Tensor]:
        """Return the sites' estimates of each line, their variances, and deviations by nuisances, [K, lines] each."""
        raise NotImplementedError

    def heterogeneity(self) -> list[dict[str, Any]]:
        """Return how far sites differ, their noise and sampling taken out, a mapping a line.

        ``between_sd`` is tau, in outcome units; ``i_squared`` the share of the variance that is between sites; ``q``
        Cochran's Q, which is about ``q_if_equal`` where all sites have one effect.
        """
        found = self.pooled
        numbers = zip(found.tau2.sqrt().tolist(), found.i2.tolist(), found.q.tolist(), found.sites.tolist(), strict=True)
        return [
            {"line": title, "between_sd": tau, "i_squared": i2, "q": q, "q_if_equal": max(sites - 1, 0)}
            for title, (tau, i2, q, sites) in zip(self.lines, numbers, strict=True)
        ]

    @property
    def assumptions(self) -> str:
        """When intervals hold, beside noise and sampling, which they count; one sentence."""
        words = [str(getattr(site, STATED_AS)) for site in self.sites]
        sampled = [] if self.between == FIXED else [_SAMPLED]
        return "; ".join(dict.fromkeys([_INDEPENDENT, *sampled, *words]))

    def _shown(self) -> dict[str, Any]:
        """Return what every summary has of the sites."""
        spent = [(site.privacy.epsilon, site.privacy.delta) for site in self.sites]
        sites = [
            {"site": name, "records": site.privacy.n, "claim": site.privacy.claim}
            | ({} if epsilon is None else {"epsilon": epsilon, "delta": delta})
            for name, site, (epsilon, delta) in zip(self.names, self.sites, spent, strict=True)
        ]
        return {"between": self.between, "sites": sites, "heterogeneity": self.heterogeneity()}

    def forest(self, *, level: float = LEVEL, ax: "Axes | None" = None) -> "Figure":
        """Return the forest plot by site, with the combination below each line's sites.

        Args:
            level: Probability of the intervals, in (0, 1).
            ax: Axes to draw on; None makes a figure.
        """
        return draw("plot_sites", self, level=level, ax=ax)

    def _position(self, k: int) -> list[int]:
        """Return the positions among all encoded columns of those of site k."""
        return columns_of(self.sites[k].schema, self.schema)


def _columns(numbers: list[list[float]]) -> tuple[Tensor, Tensor, Tensor]:
    """Return three numbers a site as columns, [K, 1] each."""
    first, second, third = torch.tensor(numbers, dtype=torch.float64).unbind(1)
    return first[:, None], second[:, None], third[:, None]


def columns_of(own: TableSchema, union: TableSchema) -> list[int]:
    """Return the positions, among the encoded columns of a union of schemas, of those of one of them."""
    return [place for name in own.columns for place in union.places[name]]


def law_of(site: ComposedRelease) -> EffectLaw:
    """Return what the intervals of a site's effect rest on.

    Raises:
        InputError: It has none, and why.
    """
    if site.law is None:
        raise InputError(f"no intervals, hence no known error: {site.without}")
    return site.law


class _Part(NamedTuple):
    """What one covariate, or two together, have of the combined effect: site by site features, weight and coefficients.

    Attributes:
        sites: Positions of the sites that have it.
        features: Positions of its features, of each such site.
        weights: Of these sites, which sum to one.
        kept: Share of it that shrinkage leaves.
        centre: Mean over the reference population.
    """

    sites: list[int]
    features: list[list[int]]
    weights: list[float]
    kept: float
    centre: float


@dataclass(frozen=True, eq=False, repr=False)
class CombinedEffect(Combined, EffectRelease):
    r"""The mean effect function over sites.

    At every x the sites' unshrunk estimates :math:`\tau_k(x)` with their known variances :math:`v_k(x)`, noise and
    sampling together, are combined by ``pool``: that makes the intervals. What a site's effects are expected to have
    beyond its features counts in v_k(x) as far as it is more than at the other sites; the least of these is common to
    all and is added to the pooled variance.

    The effect itself is shrunk once, after pooling: the pooled average, plus for each covariate (or pair) S its pooled
    part :math:`d_S(x)`, about its mean over a reference population, times

    .. math:: b_S = \Big(1 - \frac{\sum_x \mathrm{var}\, d_S(x)}{\sum_x d_S(x)^2}\Big)_+ .

    Sites weigh in a part by the inverse of its mean variance. Where no part is left the effect is one number, the
    average, and its interval is the average's.

    Attributes:
        sites: The sites' releases, each with intervals.
        names: What the sites are called.
        between: ``fixed`` or ``random``.
        schema: Columns and public bounds of all sites.
        privacy: What is guaranteed by site.
    """

    kind = "combined_effect"
    of = ComposedRelease
    subject = "Estimated effect of {contrast} on {outcome} as a function of the covariates, combined over sites"
    product = "Machine learning model"

    sites: tuple[ComposedRelease, ...]
    names: tuple[str, ...]
    between: str
    schema: TableSchema
    privacy: PrivacyStatement

    def _known(self) -> tuple[Tensor, Tensor, Tensor]:
        numbers = []
        for law in (law_of(site) for site in self.sites):
            *_, nuisances = law.moments(law.centre[None])
            numbers.append([law.average, law.average_variance, nuisances.sqrt().item()])
        return _columns(numbers)

    @cached_property
    def reference(self) -> Tensor:
        """Rows whose covariates have the released means and spreads of the sites that have them, [256, q].

        Covariates are independent of each other; see ``reference_population``.
        """
        total, each = self.privacy.n, []
        for site in self.sites:
            each.append(reference_population(site, max(1, round(_ROWS * site.privacy.n / total))))
        found = torch.empty(_ROWS, self.domain.dimension, dtype=torch.float64)
        for name, places in self.schema.places.items():
            own = [rows[:, list(s.schema.places[name])] for s, rows in zip(self.sites, each, strict=True) if name in s.schema.places]
            rows = torch.cat(own)
            order = unit_grid(_ROWS, 1)[:, 0].argsort()
            found[:, list(places)] = rows.repeat(-(-_ROWS // len(rows)), 1)[order]
        return found

    @cached_property
    def _parts(self) -> list[_Part]:
        """The parts that shrinkage leaves."""
        groups: dict[frozenset[str], list[tuple[int, list[int]]]] = {}
        psi = [site.features(self.reference[:, self._position(k)]) for k, site in enumerate(self.sites)]
        for k, site in enumerate(self.sites):
            if law_of(site).directions.shape[1] > 1:
                for key, own in _by_covariates(site).items():
                    groups.setdefault(key, []).append((k, own))
        found = [self._part(members, psi) for members in groups.values()]
        return [part for part in found if part.kept > 0]

    def _part(self, members: list[tuple[int, list[int]]], psi: list[Tensor]) -> _Part:
        values, variances = [], []
        for k, own in members:
            law, rows = law_of(self.sites[k]), psi[k][:, own]
            off = rows - rows.mean(0)
            v = law.covariance if law.nuisances is None else law.covariance + law.nuisances
            values.append(rows @ law.estimates[own])
            variances.append(float(((off @ v[own][:, own]) * off).sum(1).mean()))
        v = torch.tensor(variances, dtype=torch.float64).clamp_min(1e-300)
        weights = (1 / v) / (1 / v).sum()
        value = weights @ torch.stack(values)
        noise, size = float(weights.square() @ v), float(value.var(correction=0))
        kept = max(0.0, 1 - noise / size) if size > 0 else 0.0
        sites, features = ([member[i] for member in members] for i in (0, 1))
        return _Part(sites, features, weights.tolist(), kept, float(value.mean()))

    @property
    def form(self) -> str:
        """What the effect is: ``constant`` or ``additive``."""
        return "additive" if self._parts else "constant"

    @property
    def average_effect(self) -> float:
        """Mean of the sites' average effects, in outcome units."""
        return float(self.pooled.mean[0])

    def average(self, level: float = LEVEL) -> np.ndarray:
        """Return the confidence interval of the mean of the sites' average effects, (low, high), in outcome units.

        Raises:
            InputError: A level outside (0, 1).
        """
        return self._about(self.pooled, self.pooled.mean, level)[0]

    def effect_tensor(self, x: Tensor) -> Tensor:
        """Return the combined effects at encoded covariates x [m, q], [m]."""
        found = torch.full((len(x),), self.average_effect, dtype=torch.float64)
        psi: dict[int, Tensor] = {}
        for part in self._parts:
            value = torch.full_like(found, -part.centre)
            for k, own, weight in zip(part.sites, part.features, part.weights, strict=True):
                psi[k] = psi[k] if k in psi else self.sites[k].features(x[:, self._position(k)])
                value += weight * (psi[k][:, own] @ law_of(self.sites[k]).estimates[own])
            found += part.kept * value
        return found.clamp(-self.domain.outcome_range, self.domain.outcome_range)

    def pooled_at(self, x: Tensor, rows: int = 1) -> Pooled:
        """Return the meta-analysis of the sites' unshrunk estimates at each row of x [m, q], or of means of rows.

        Args:
            x: Encoded covariates.
            rows: How many rows in turn make a mean.
        """
        found = []
        for k, site in enumerate(self.sites):
            law, psi = law_of(site), site.features(x[:, self._position(k)])
            middle, variance, nuisances = law.moments(psi.view(-1, rows, psi.shape[1]).mean(1))
            missed = law.missed if rows == 1 else 0.0
            found.append(torch.stack([middle, variance + nuisances + missed, (nuisances + missed).sqrt()]))
        return pool(*torch.stack(found, 1), self.between)

    def interval(self, X: Covariates, level: float = LEVEL) -> np.ndarray:
        """Return intervals of the mean effect over sites for a person like each of X, [m, 2], in outcome units.

        They hold sampling, all privacy noise, how sites differ (``between=random``), and what effects are expected to
        have beyond the released features. The effect, which is shrunk, is in them: where it lies beyond an end, that
        end is moved to it. Of a constant effect they are the average's. They hold if what ``assumptions`` says is so.

        Args:
            X: Covariates, as for ``effect``.
            level: Probability in (0, 1).

        Raises:
            InputError: A level outside (0, 1).
        """
        x = self._covariates(X)
        if self.form == "constant":
            return np.tile(self.average(level), (len(x), 1))
        return self._about(self.pooled_at(x), self.effect_tensor(x), level)

    def mean_interval(self, X: Covariates, level: float = LEVEL, rows: int | None = None) -> np.ndarray:
        """Return confidence intervals of the means over public rows, [m, 2]; arguments as of a composed release."""
        x = self._covariates(X)
        rows = len(x) if rows is None else rows
        if rows < 1 or len(x) % rows:
            raise InputError(f"rows = {rows}: X has {len(x)} rows; give a number that divides it")
        if self.form == "constant":
            return np.tile(self.average(level), (len(x) // rows, 1))
        return self._about(self.pooled_at(x, rows), self.effect_tensor(x).view(-1, rows).mean(1), level)

    def effect_interval(self, X: Covariates, alpha: float = 0.05) -> tuple[np.ndarray, np.ndarray]:
        """Return lower and upper ends of ``interval(X, 1 - alpha)``, [m] each; see ``EffectRelease``."""
        low, high = self.interval(X, 1 - alpha).T
        return low, high

    def ate_interval(self, X: Covariates, alpha: float = 0.05) -> tuple[float, float]:
        """Return the ends of ``mean_interval(X, 1 - alpha)`` over all rows of X; see ``EffectRelease``."""
        low, high = self.mean_interval(X, 1 - alpha)[0]
        return float(low), float(high)

    def _about(self, pooled: Pooled, effect: Tensor, level: float) -> np.ndarray:
        half = pooled.half_width(level)
        low, high = torch.minimum(pooled.mean - half, effect), torch.maximum(pooled.mean + half, effect)
        return torch.stack([low, high], 1).clamp(-self.domain.outcome_range, self.domain.outcome_range).numpy()

    @property
    def target(self) -> str:
        """What intervals are about, in one sentence."""
        sites = "of the sites' average effects" if self.form == "constant" else "over sites of the effect at x"
        like = "which is the same at all of them" if self.between == FIXED else "each site counted once"
        return f"the mean {sites}, {like}"

    def module(self) -> nn.Module:
        """Refuse: a combination evaluates all sites' functions.

        Raises:
            InputError: Always.
        """
        raise InputError("module: a combination has none; export the module of each site's release")

    def _noise_scale(self, x: Tensor) -> Tensor:
        raise self._no_band()

    def _no_band(self) -> InputError:
        return InputError("noise_band: a combination has none; interval(X) holds all noise and sampling")

    def summary(self) -> dict[str, Any]:
        """Return the mean effect, its interval, how far sites differ, and what each site guarantees."""
        low, high = self.average().tolist()
        shown = {"form": self.form, "average": self.average_effect, "average_low": low, "average_high": high}
        return shown | self._shown() | {"intervals_of": self.target, "intervals_hold_if": self.assumptions}


def _by_covariates(site: ComposedRelease) -> dict[frozenset[str], list[int]]:
    """Return the positions of the features of each covariate, or pair, by their names."""
    columns = range(site.domain.dimension) if site.columns is None else site.columns
    owner = {place: name for name, places in site.schema.places.items() for place in places}
    found: dict[frozenset[str], list[int]] = {}
    for position, feature in enumerate(site.basis.features, 1):
        hidden = feature.kind == UNITS  # of all covariates
        key = frozenset(("",)) if hidden else frozenset(owner[columns[place]] for place in (feature.i, feature.j))
        found.setdefault(key, []).append(position)
    return found


@dataclass(frozen=True, eq=False, repr=False)
class CombinedRule(Combined, DecisionRelease):
    r"""The treatment rule by the sign of the combined effect, at the cost and threshold of the sites' rules.

    Attributes:
        sites: The sites' rules, each by an effect with intervals, without a budget of treatments.
        names: What the sites are called.
        between: ``fixed`` or ``random``.
        schema: Columns and public bounds of all sites.
        privacy: What is guaranteed by site.
    """

    kind = "combined_rule"
    of = ComposedRule

    sites: tuple[ComposedRule, ...]
    names: tuple[str, ...]
    between: str
    schema: TableSchema
    privacy: PrivacyStatement

    @cached_property
    def effect(self) -> CombinedEffect:
        """The combined effect."""
        effects = tuple(site.effect for site in self.sites)
        return CombinedEffect(effects, self.names, self.between, self.schema, self.privacy)

    @property
    def assumptions(self) -> str:
        """Those of the effect."""
        return self.effect.assumptions

    def _known(self) -> tuple[Tensor, Tensor, Tensor]:
        return self.effect._known()

    def score_tensor(self, x: Tensor) -> Tensor:
        """Return the gain beyond cost and threshold at encoded covariates x [m, q], [m], in outcome units."""
        first = self.sites[0]
        return self.domain.direction * self.effect.effect_tensor(x) - first.cost - first.threshold

    def module(self) -> nn.Module:
        """Refuse, as of the combined effect."""
        return self.effect.module()

    def summary(self) -> dict[str, Any]:
        """Return the rule's public choices, how far the sites' effects differ, and what each site guarantees."""
        first = self.sites[0]
        return {"form": self.effect.form, "cost": first.cost, "threshold": first.threshold} | self._shown()


class _Lines(Combined):
    """Numbers of several sites, a line each."""

    column = "effect"
    product = "Summary statistics"

    @property
    def estimate(self) -> np.ndarray:
        """The means over sites, float64 [lines], in outcome units."""
        return self.pooled.mean.numpy()

    def interval(self, level: float = LEVEL) -> np.ndarray:
        """Return confidence intervals of the means over sites, float64 [lines, 2], in outcome units.

        They hold sampling, all privacy noise, and how sites differ (``between=random``), if what ``assumptions`` says
        is so. A line that noise dominates at all sites has the full range of effects.

        Args:
            level: Probability in (0, 1).

        Raises:
            InputError: A level outside (0, 1).
        """
        bound, half = self.domain.outcome_range, self.pooled.half_width(level)
        ends = torch.stack([self.pooled.mean - half, self.pooled.mean + half], 1)
        unknown = torch.tensor([-bound, bound], dtype=torch.float64)
        return torch.where((self.pooled.sites > 0)[:, None], ends.clamp(-bound, bound), unknown).numpy()

    def plot(self, *, level: float = LEVEL, ax: "Axes | None" = None) -> "Figure":  # type: ignore[override]
        """Return ``forest``."""
        return self.forest(level=level, ax=ax)

    def summary(self) -> dict[str, Any]:
        """Return each line with its interval, how far sites differ, and what each site guarantees."""
        rows = zip(self.lines, self.estimate.tolist(), self.interval().tolist(), strict=True)
        lines = [{"line": title, "estimate": y, "low": low, "high": high} for title, y, (low, high) in rows]
        return {"estimates": lines, "interval_level": LEVEL} | self._shown() | {STATED_AS: self.assumptions}


@dataclass(frozen=True, eq=False, repr=False)
class CombinedAverage(_Lines):
    """The mean of the sites' average effects.

    Attributes:
        sites: The sites' releases, of one estimand.
        names: What the sites are called.
        between: ``fixed`` or ``random``.
        schema: Columns and public bounds of all sites.
        privacy: What is guaranteed by site.
    """

    kind = "combined_average"
    of = AverageEffectRelease
    subject = "Estimated average effect of {contrast} on {outcome}, combined over sites"

    sites: tuple[AverageEffectRelease, ...]
    names: tuple[str, ...]
    between: str
    schema: TableSchema
    privacy: PrivacyStatement

    @property
    def lines(self) -> list[str]:
        """The estimand."""
        return [self.sites[0].estimand]

    def _known(self) -> tuple[Tensor, Tensor, Tensor]:
        unit = self.domain.outcome_range
        numbers = [
            [*site.main.moments(site.privacy.protected.records), unit * site.numbers.get(NUISANCES, 0.0)]
            for site in self.sites
        ]
        return _columns(numbers)

    def answer(self, x: Tensor) -> Tensor:
        """Refuse: there is nothing to say row by row.

        Raises:
            InputError: Always.
        """
        return self.sites[0].answer(x)


@dataclass(frozen=True, eq=False, repr=False)
class CombinedSubgroups(_Lines):
    """The means over sites of the effects in the same public cells.

    Attributes:
        sites: The sites' releases, of the same cells.
        names: What the sites are called.
        between: ``fixed`` or ``random``.
        schema: Columns and public bounds of all sites.
        privacy: What is guaranteed by site.
    """

    kind = "combined_subgroups"
    of = SubgroupRelease
    subject = "Estimated average effects of {contrast} on {outcome} in subgroups, combined over sites"

    sites: tuple[SubgroupRelease, ...]
    names: tuple[str, ...]
    between: str
    schema: TableSchema
    privacy: PrivacyStatement

    @property
    def lines(self) -> list[str]:
        """The cells, and of more than two arms what is compared."""
        return self.sites[0].titles

    def _known(self) -> tuple[Tensor, Tensor, Tensor]:
        effects = [site.effects for site in self.sites]
        variances = [e.gaussian.square() + noise_deviation(e.laplace).square() for e in effects]
        known = [torch.where(e.noise_dominated, torch.inf, v) for e, v in zip(effects, variances, strict=True)]
        return torch.stack([e.estimate for e in effects]), torch.stack(known), torch.stack([e.nuisances for e in effects])

    def answer(self, x: Tensor) -> Tensor:
        """Return the mean over sites of the effect of each row's cell, [m]; of K > 2 arms [m, K - 1].

        Raises:
            InputError: Several partitions, in which a row has several cells.
        """
        return self._of_rows(self.pooled.mean, x)

    def interval_at(self, x: Tensor, level: float = LEVEL) -> np.ndarray:
        """Return the interval of the cell of each row of encoded covariates x [m, q], [m, 2].

        Raises:
            InputError: As ``answer``, or a level outside (0, 1).
        """
        low, high = torch.from_numpy(self.interval(level)).unbind(1)
        return torch.stack([self._of_rows(low, x), self._of_rows(high, x)], -1).numpy()

    def _of_rows(self, values: Tensor, x: Tensor) -> Tensor:
        arms = len(self.arms)
        return (values.view(-1, arms) if arms else values)[self.sites[0].cells(x[:, self._position(0)])]
