"""Releases of several sites combined: post-processing of their released numbers, which a combined file holds whole."""

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from torchdpcate.data.schema import TableSchema
from torchdpcate.errors import InputError
from torchdpcate.release.average_effect import AverageEffectRelease
from torchdpcate.release.composed import ComposedRelease
from torchdpcate.release.effect_law import EffectLaw
from torchdpcate.release.estimate import noise_deviation
from torchdpcate.release.file import Release, ReleaseFile, draw
from torchdpcate.release.lines import ABOUT, AVERAGE, PARTS, TILTS
from torchdpcate.release.meta_analysis import BETWEEN, FIXED, Pooled, pool
from torchdpcate.release.parts import tensors_of
from torchdpcate.release.population import ROWS
from torchdpcate.release.release import EffectRelease
from torchdpcate.release.statement import STATED_AS, PrivacyStatement
from torchdpcate.release.subgroups import LEVEL, SubgroupRelease
from torchdpcate.typing import Covariates

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure


ALL_SITES = "all sites"
"""What the combination is called beside the sites."""
_INDEPENDENT = "sites hold different records"
_SAMPLED = "sites differ as a sample of the sites that their mean is about"


@dataclass(frozen=True, eq=False, repr=False)
class Combined(Release):
    """Releases of K sites and their meta-analysis; everything it answers follows from ``sites`` and ``between``.

    Attributes:
        sites: The sites' releases, as they were published.
        names: What the sites are called.
        between: ``fixed`` or ``random``: whether effects are taken to be the same at all sites.
        schema: Columns and public bounds of all sites.
        privacy: What is guaranteed by site.
        of: Kind of release that is combined.
    """

    of: ClassVar[type[Release]]

    sites: tuple[Any, ...]
    names: tuple[str, ...]
    between: str
    schema: TableSchema
    privacy: PrivacyStatement

    def tensors(self) -> dict[str, Tensor]:
        """Return those of all sites, under their positions."""
        return {f"{k}.{name}": part for k, site in enumerate(self.sites) for name, part in site.tensors().items()}

    def facts(self) -> dict[str, Any]:
        """Return what each site's file says beside its numbers, with its checksum, and how sites are combined."""
        named = zip(self.names, self.files, strict=True)
        return {"between": self.between, "sites": [{"name": name, **file.metadata} for name, file in named]}

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
        return cls(tuple(sites), tuple(names), facts["between"], schema, privacy)

    def parts(self, level: float = LEVEL) -> "pd.DataFrame":
        """Return one row a line and site, and a last one of all sites: what forest plots draw.

        Columns are ``partition`` (the line), ``cell`` (the site), ``estimate``, ``low``, ``high``, ``records`` and
        ``weight``, the site's share in the mean, zero where noise dominates its estimate.

        Args:
            level: Probability of the intervals, in (0, 1).
        """
        import pandas as pd

        each, shares = self._released(level), self.shares
        rows = [
            (title, name, *each[k, c].tolist(), self.sites[k].privacy.n, float(shares[k, c]))
            for c, title in enumerate(self.lines)
            for k, name in enumerate(self.names)
        ]
        table = pd.DataFrame(rows, columns=["partition", "cell", "estimate", "low", "high", "records", "weight"])
        mean = self._mean(level)
        last = [(title, ALL_SITES, *mean[c].tolist(), self.privacy.n, 1.0) for c, title in enumerate(self.lines)]
        table = pd.concat([table, pd.DataFrame(last, columns=table.columns)])
        order = {title: c for c, title in enumerate(self.lines)}
        return table.sort_values("partition", key=lambda column: column.map(order), kind="stable", ignore_index=True)

    @property
    def shares(self) -> Tensor:
        """Share of each site in the mean of each line, [K, lines]; zero where noise dominates its estimate."""
        weights = self.pooled.weights
        return weights / weights.sum(0).clamp_min(torch.finfo(weights.dtype).tiny)

    @property
    def lines(self) -> list[str]:
        """What is compared between sites, a line each."""
        return ["average effect"]

    @cached_property
    def pooled(self) -> Pooled:
        """The meta-analysis of each line, [lines]."""
        return pool(*self._known(), self.between)

    @abstractmethod
    def _known(self) -> tuple[Tensor, Tensor, Tensor]:
        """Return the sites' estimates of each line, their variances, and deviations by nuisances, [K, lines] each."""

    @abstractmethod
    def _released(self, level: float) -> Tensor:
        """Return what each site itself says of each line: estimate and ends of its interval, [K, lines, 3]."""

    @abstractmethod
    def _mean(self, level: float) -> Tensor:
        """Return the mean over sites of each line and the ends of its interval, [lines, 3]."""

    def heterogeneity(self) -> list[dict[str, Any]]:
        """Return how far sites differ, their noise and sampling taken out, a mapping a line.

        ``between_sd`` is tau, in outcome units; ``i_squared`` the share of the variance that is between sites; ``q``
        Cochran's Q, which is about ``q_if_equal`` where all sites have one effect.
        """
        found = self.pooled
        numbers = zip(
            found.tau2.sqrt().tolist(), found.i2.tolist(), found.q.tolist(), found.sites.tolist(), strict=True
        )
        return [
            {"line": title, "between_sd": tau, "i_squared": i2, "q": q, "q_if_equal": max(sites - 1, 0)}
            for title, (tau, i2, q, sites) in zip(self.lines, numbers, strict=True)
        ]

    @property
    def assumptions(self) -> str:
        """When intervals hold, beside noise and sampling, which they count; one sentence."""
        words = [part for site in self.sites for part in str(getattr(site, STATED_AS)).split("; ")]
        sampled = [] if self.between == FIXED else [_SAMPLED]
        return "; ".join(dict.fromkeys([_INDEPENDENT, *sampled, *words]))

    def _shown(self) -> dict[str, Any]:
        """Return what every summary has of the sites."""
        sites = [
            {"site": name, "records": site.privacy.n, "claim": site.privacy.claim}
            for name, site in zip(self.names, self.sites, strict=True)
        ]
        return {"between": self.between, "sites": sites, "heterogeneity": self.heterogeneity()}

    def forest(self, *, level: float = LEVEL) -> "Figure":
        """Return the forest plot by site, with the combination below each line's sites.

        Args:
            level: Probability of the intervals, in (0, 1).
        """
        return draw("plot_sites", self, level=level)

    def _position(self, k: int) -> list[int]:
        """Return the positions among all encoded columns of those of site k."""
        return columns_of(self.sites[k].schema, self.schema)


def columns(numbers: list[list[float]]) -> tuple[Tensor, Tensor, Tensor]:
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
        why = site.without or "second_stage.intervals=true requests the numbers they rest on"
        raise InputError(f"no intervals, hence no known error: {why}")
    return site.law


class CombinedEffect(Combined, EffectRelease):
    r"""The mean effect function over sites.

    At every x the sites' unshrunk estimates :math:`\tau_k(x)` with their known variances :math:`v_k(x)`, noise and
    sampling together, are combined by ``pool``: that makes the intervals. The errors of estimated nuisances, and what
    effects are expected to have beyond the released features, may be the same at all sites: they do not average out.

    The effect itself is the weighted mean of what the sites released, each shrunk by its own release, with the weights
    of their average effects, of less error than what is shrunk after pooling (experiments/defaults/combine.csv). It
    need not be the middle of its interval. Where all sites' effects are one number so is it, and its interval is the
    average's.

    Attributes:
        sites: The sites' releases, each with intervals.
    """

    kind = "combined_effect"
    of = ComposedRelease
    subject = "Estimated effect of {contrast} on {outcome} as a function of the covariates, combined over sites"

    sites: tuple[ComposedRelease, ...]

    def _known(self) -> tuple[Tensor, Tensor, Tensor]:
        numbers = []
        for law in (law_of(site) for site in self.sites):
            *_, nuisances = law.moments(law.centre[None])
            numbers.append([law.average, law.average_variance, nuisances.sqrt().item()])
        return columns(numbers)

    def _released(self, level: float) -> Tensor:
        rows = [[site.average_effect, *site.average(level)] for site in self.sites]
        return torch.tensor(rows, dtype=torch.float64)[:, None]

    def _mean(self, level: float) -> Tensor:
        return torch.tensor([[self.average_effect, *self.average(level)]], dtype=torch.float64)

    @property
    def has_intervals(self) -> bool:
        """Whether there are confidence intervals of the effect."""
        return True

    @cached_property
    def reference(self) -> Tensor:
        """Rows whose covariates have the released means and spreads of the sites that have them, [256, q].

        Covariates are independent of each other; see ``ComposedRelease.population``.
        """
        total = self.privacy.n
        each = [site.population(max(1, round(ROWS * site.privacy.n / total))) for site in self.sites]
        found = torch.empty(ROWS, self.domain.dimension, dtype=torch.float64)
        for name, places in self.schema.places.items():
            own = [(site.schema.places, rows) for site, rows in zip(self.sites, each, strict=True)]
            rows = torch.cat([rows[:, list(columns[name])] for columns, rows in own if name in columns])
            found[:, list(places)] = rows.repeat(-(-ROWS // len(rows)), 1)[:ROWS]
        return found

    @property
    def features_used(self) -> set[int]:
        """Positions of the encoded columns that the effect may depend on."""
        return {self._position(k)[column] for k, site in enumerate(self.sites) for column in site.features_used}

    @property
    def form(self) -> str:
        """What the effect is: ``constant`` or ``additive``."""
        return "constant" if all(site.form == "constant" for site in self.sites) else "additive"

    @property
    def average_effect(self) -> float:
        """Weighted mean of the sites' released average effects, in outcome units."""
        return float(self._weights() @ self._released(LEVEL)[:, 0, 0])

    def average(self, level: float = LEVEL) -> np.ndarray:
        """Return the confidence interval of the mean of the sites' average effects, (low, high), in outcome units.

        Raises:
            InputError: A level outside (0, 1).
        """
        return self._about(self.pooled, torch.tensor([self.average_effect], dtype=torch.float64), level)[0]

    def effect_tensor(self, x: Tensor) -> Tensor:
        """Return the combined effects at encoded covariates x [m, q], [m]."""
        each = [site.effect_tensor(x[:, self._position(k)]) for k, site in enumerate(self.sites)]
        return self._weights() @ torch.stack(each)

    def _weights(self) -> Tensor:
        """Return the sites' shares, [K]: those of the meta-analysis of their average effects."""
        return self.shares[:, 0]

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
        estimates, variances, shared = torch.stack(found, 1)
        return pool(estimates, variances, shared, self.between)

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

    def _no_band(self) -> InputError:
        return InputError("noise_band: a combination has none; interval(X) holds all noise and sampling")

    def summary(self) -> dict[str, Any]:
        """Return the mean effect, its interval, how far sites differ, and what each site guarantees."""
        low, high = self.average().tolist()
        shown = {"form": self.form, "average": self.average_effect, "average_low": low, "average_high": high}
        return shown | self._shown() | {"intervals_of": self.target, "intervals_hold_if": self.assumptions}


class CombinedLines(Combined):
    """Numbers of several sites, a line each."""

    column = "effect"

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

    def _mean(self, level: float) -> Tensor:
        return torch.cat([self.pooled.mean[:, None], torch.from_numpy(self.interval(level))], 1)

    def plot(self, *, level: float = LEVEL) -> "Figure":  # type: ignore[override]
        """Return ``forest``."""
        return self.forest(level=level)

    def summary(self) -> dict[str, Any]:
        """Return each line with its interval, how far sites differ, and what each site guarantees."""
        rows = zip(self.lines, self.estimate.tolist(), self.interval().tolist(), strict=True)
        lines = [{"line": title, "estimate": y, "low": low, "high": high} for title, y, (low, high) in rows]
        return {"estimates": lines, "interval_level": LEVEL} | self._shown() | {STATED_AS: self.assumptions}


class CombinedAverage(CombinedLines):
    """The mean of the sites' average effects.

    Attributes:
        sites: The sites' releases, of one estimand.
    """

    kind = "combined_average"
    of = AverageEffectRelease
    subject = "Estimated average effect of {contrast} on {outcome}, combined over sites"

    sites: tuple[AverageEffectRelease, ...]

    @property
    def lines(self) -> list[str]:
        """The estimand."""
        return [self.sites[0].estimand]

    def _known(self) -> tuple[Tensor, Tensor, Tensor]:
        return columns([[*site.main.moments(site.privacy.protected.records), 0.0] for site in self.sites])

    def _released(self, level: float) -> Tensor:
        bound = self.domain.outcome_range
        rows = [[s.estimate, *s.main.range(level, bound, s.privacy.protected.records)] for s in self.sites]
        return torch.tensor(rows, dtype=torch.float64)[:, None]

    def answer(self, x: Tensor) -> Tensor:
        """Refuse: there is nothing to say row by row.

        Raises:
            InputError: Always.
        """
        return self.sites[0].answer(x)


class CombinedCells(CombinedLines):
    """The means over sites of lines of compositions without intervals of the effect: of everybody, and of public cells.

    Groups by effect are each site's own, and are no lines of all sites.

    Attributes:
        sites: The sites' releases, with the same ``common_lines``.
    """

    kind = "combined_average_lines"
    of = ComposedRelease
    subject = "Estimated average effects of {contrast} on {outcome}, combined over sites"

    sites: tuple[ComposedRelease, ...]

    @property
    def lines(self) -> list[str]:
        """Whom effects are averages of."""
        return [ABOUT.get(name, name) for name in common_lines(self.sites[0])]

    def _known(self) -> tuple[Tensor, Tensor, Tensor]:
        found = []
        for site in self.sites:
            lines = site.required_lines
            places = [lines.place(name) for name in common_lines(site)]
            variances = lines.variances[places]
            shared = variances[:, PARTS.index("nuisances")].sqrt()
            found.append(torch.stack([lines.estimates[places], variances.sum(1), shared]))
        estimates, variances, shared = torch.stack(found, 1)
        return estimates, variances, shared

    def _released(self, level: float) -> Tensor:
        each = []
        for site in self.sites:
            lines, (_, *others) = site.required_lines, common_lines(site)
            rows = [[site.average_effect, *site.average(level)]]
            rows += [[lines.estimate(name), *lines.interval(name, level)] for name in others]
            each.append(rows)
        return torch.tensor(each, dtype=torch.float64)

    def answer(self, x: Tensor) -> Tensor:
        """Refuse: there is nothing to say row by row.

        Raises:
            InputError: Always.
        """
        raise InputError("effect: a combination of averages has none of a person; verify shows its lines")


def common_lines(site: ComposedRelease) -> list[str]:
    """Return the names of a release's lines that are of the same people at all sites, the average first."""
    lines = site.required_lines
    return [AVERAGE, *(name for name in lines.names if name in (*TILTS, *lines.cells))]


class CombinedSubgroups(CombinedLines):
    """The means over sites of the effects in the same public cells.

    Attributes:
        sites: The sites' releases, of the same cells.
    """

    kind = "combined_subgroups"
    of = SubgroupRelease
    subject = "Estimated average effects of {contrast} on {outcome} in subgroups, combined over sites"

    sites: tuple[SubgroupRelease, ...]

    @property
    def lines(self) -> list[str]:
        """The cells, and of more than two arms what is compared."""
        return self.sites[0].titles

    def _known(self) -> tuple[Tensor, Tensor, Tensor]:
        effects = [site.effects for site in self.sites]
        variances = [e.gaussian.square() + noise_deviation(e.laplace).square() for e in effects]
        known = [torch.where(e.noise_dominated, torch.inf, v) for e, v in zip(effects, variances, strict=True)]
        return (
            torch.stack([e.estimate for e in effects]),
            torch.stack(known),
            torch.stack([torch.zeros_like(e.estimate) for e in effects]),
        )

    def _released(self, level: float) -> Tensor:
        each = [np.column_stack([site.estimate, site.interval(level)]) for site in self.sites]
        return torch.from_numpy(np.stack(each))

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
