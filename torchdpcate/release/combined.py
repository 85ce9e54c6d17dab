"""Releases of several sites combined: post-processing of their released numbers, which a combined file holds whole."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, singledispatch
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from torchdpcate.data.schema import TableSchema
from torchdpcate.data.words import labelled
from torchdpcate.errors import InputError
from torchdpcate.release.average_effect import AverageEffectRelease
from torchdpcate.release.composed import ComposedRelease
from torchdpcate.release.effect_law import EffectLaw
from torchdpcate.release.estimate import noise_deviation
from torchdpcate.release.file import Release, ReleaseFile, draw
from torchdpcate.release.lines import ABOUT, AVERAGE, PARTS, powers, whom
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
_NO_COLUMN = "release of {}: these are averages, which give no column; see them with torchdpcate verify"


class SiteLines(NamedTuple):
    """What a site released of some averages, a line each.

    Attributes:
        names: What they are called; lines of one name are about the same at all sites.
        estimates: [L], outcome units.
        variances: Of their errors, noise and sampling together, [L]; infinite where noise dominates.
        common: Variances among them of errors that may be the same at all sites, [L].
        shown: What the site itself says of them at a level: estimates and ends of intervals, [L, 3].
        assumptions: What they rest on, in words.
    """

    names: tuple[str, ...]
    estimates: Tensor
    variances: Tensor
    common: Tensor
    shown: Callable[[float], Tensor]
    assumptions: str

    def only(self, names: Sequence[str]) -> "SiteLines":
        """Return those of these names, in their order."""
        places = [self.names.index(name) for name in names]
        estimates, variances, common = (part[places] for part in (self.estimates, self.variances, self.common))
        return self._replace(
            names=tuple(names),
            estimates=estimates,
            variances=variances,
            common=common,
            shown=lambda level: self.shown(level)[places],
        )


@singledispatch
def site_lines(site: Release) -> SiteLines | None:
    """Return the lines of a site that may mean the same elsewhere; None where it has none.

    Groups by effect are no such lines, nor is the value of a rule: each site has other people in them, whom its own
    effect chose.

    Args:
        site: A release.
    """
    return None


@site_lines.register
def _of_average(site: AverageEffectRelease) -> SiteLines | None:
    if site.main.law is None and not site.main.noise_dominated:
        return None
    bound, records = site.domain.outcome_range, site.privacy.protected.records
    value, variance = (torch.tensor([number], dtype=torch.float64) for number in site.main.moments(records))

    def shown(level: float) -> Tensor:
        return torch.tensor([[site.estimate, *site.main.range(level, bound, records)]], dtype=torch.float64)

    return SiteLines((site.estimand,), value, variance, torch.zeros_like(value), shown, site.assumptions)


@site_lines.register
def _of_subgroups(site: SubgroupRelease) -> SiteLines:
    found = site.effects
    variances = found.gaussian.square() + noise_deviation(found.laplace).square()
    variances = torch.where(found.noise_dominated, torch.inf, variances)

    def shown(level: float) -> Tensor:
        return torch.from_numpy(np.column_stack([site.estimate, site.interval(level)]))

    own, none = str(site.assumptions), torch.zeros_like(variances)
    return SiteLines(tuple(site.line_names), found.estimate, variances, none, shown, own)


@site_lines.register
def _of_composed(site: ComposedRelease) -> SiteLines | None:
    lines = site.lines
    if lines is None:
        return None
    own = [name for name in lines.names if name == AVERAGE or powers(name) is not None or name in lines.cells]
    places = [lines.place(name) for name in own]
    variances = lines.variances[places]

    def shown(level: float) -> Tensor:
        rows = [[lines.estimate(name), *lines.interval(name, level)] for name in own]
        if AVERAGE in own:
            rows[own.index(AVERAGE)] = [site.average_effect, *site.average(level)]
        return torch.tensor(rows, dtype=torch.float64)

    names = tuple(f"{arm} instead of {site.schema.reference}" for arm in site.arms) or tuple(own)
    common = variances[:, PARTS.index("nuisances")]
    return SiteLines(names, lines.estimates[places], variances.sum(1), common, shown, site.line_assumptions)


def common_lines(sites: Sequence[Release]) -> list[SiteLines]:
    """Return, of each site, the lines that all of them have; nothing where there are none."""
    each = [site_lines(site) for site in sites]
    known = [lines for lines in each if lines is not None]
    if len(known) < len(sites):
        return []
    names = [name for name in known[0].names if all(name in lines.names for lines in known)]
    return [lines.only(names) for lines in known] if names else []


@dataclass(frozen=True, eq=False, repr=False)
class Combined(Release):
    """Releases of K sites and their meta-analysis; everything it answers follows from ``sites`` and ``between``.

    Attributes:
        sites: The sites' releases, as they were published.
        names: What the sites are called.
        between: ``fixed`` or ``random``: whether effects are taken to be the same at all sites.
        schema: Columns and public bounds of all sites.
        privacy: What is guaranteed by site.
    """

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
            if file.fault is not None:
                raise ValueError(f"site {k}: {file.fault}")
            sites.append(file.build())
        if kind_of(sites) is not cls:
            raise ValueError("sites: not of this kind of combination")
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
        mean = self.means(level)
        last = [(title, ALL_SITES, *mean[c].tolist(), self.privacy.n, 1.0) for c, title in enumerate(self.lines)]
        table = pd.concat([table, pd.DataFrame(last, columns=table.columns)])
        order = {title: c for c, title in enumerate(self.lines)}
        return table.sort_values("partition", key=lambda column: column.map(order), kind="stable", ignore_index=True)

    @property
    def shares(self) -> Tensor:
        """Share of each site in the mean of each line, [K, lines]; zero where noise dominates its estimate."""
        weights = self.pooled.weights
        return weights / weights.sum(0).clamp_min(torch.finfo(weights.dtype).tiny)

    @cached_property
    def line_names(self) -> tuple[str, ...]:
        """Names of the averages that all sites have; see ``site_lines``."""
        return next((lines.names for lines in common_lines(self.sites)), ())

    @property
    def lines(self) -> list[str]:
        """What is compared between sites, a line each, in words."""
        names = [name if self.answers_rows or name in self.cells else whom(name) for name in self.line_names]
        return labelled(self.schema, names)

    @property
    def _of_cells(self) -> SubgroupRelease | None:
        """The first site, where sites released effects in subgroups."""
        return self.sites[0] if isinstance(self.sites[0], SubgroupRelease) else None

    @property
    def answers_rows(self) -> bool:
        """Whether each row has a cell with a mean: sites released effects in subgroups."""
        return self._of_cells is not None

    @property
    def cells(self) -> tuple[str, ...]:
        """Names of the lines that are of parts of the records, of which there are several."""
        if self.answers_rows:
            return self.line_names if len(self.line_names) > 1 else ()
        return tuple(name for name in self.line_names if name not in ABOUT and powers(name) is None)

    @cached_property
    def pooled(self) -> Pooled:
        """The meta-analysis of each line, [lines]."""
        return pool(*self._known(), self.between)

    def _known(self) -> tuple[Tensor, Tensor, Tensor]:
        """Return the sites' estimates of each line, their variances, and deviations by nuisances, [K, lines] each."""
        each = common_lines(self.sites)
        return (
            torch.stack([lines.estimates for lines in each]),
            torch.stack([lines.variances for lines in each]),
            torch.stack([lines.common.sqrt() for lines in each]),
        )

    def _released(self, level: float) -> Tensor:
        """Return what each site itself says of each line: estimate and ends of its interval, [K, lines, 3]."""
        return torch.stack([lines.shown(level) for lines in common_lines(self.sites)])

    @cached_property
    def _means(self) -> Tensor:
        """The mean over sites of each line, [lines]: of what they released, which of averages may be shrunk."""
        return (self.shares * self._released(LEVEL)[..., 0]).sum(0)

    def means(self, level: float = LEVEL) -> Tensor:
        """Return the mean over sites of each line and the ends of its interval, [lines, 3], in outcome units.

        Args:
            level: Probability of the intervals, in (0, 1).
        """
        return torch.cat([self._means[:, None], self._about(self.pooled, self._means, level)], 1)

    def _about(self, pooled: Pooled, effect: Tensor, level: float) -> Tensor:
        """Return the intervals of means, [m, 2], each with the nearer end moved to the effect where it lies beyond."""
        half = pooled.half_width(level)
        low, high = torch.minimum(pooled.mean - half, effect), torch.maximum(pooled.mean + half, effect)
        return torch.stack([low, high], 1).clamp(-self.domain.outcome_range, self.domain.outcome_range)

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
        words = [part for words in self._rest_on() for part in words.split("; ")]
        sampled = [] if self.between == FIXED else [_SAMPLED]
        return "; ".join(dict.fromkeys([_INDEPENDENT, *sampled, *words]))

    def _rest_on(self) -> list[str]:
        """Return what the numbers of each site rest on."""
        return [lines.assumptions for lines in common_lines(self.sites)]

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
    need not be the middle of its interval. Where all sites' effects are one number so is it, and intervals of means are
    the average's: by lines where all sites have them, as of ``CombinedLines``.

    Attributes:
        sites: The sites' releases, each with intervals.
    """

    kind = "combined_effect"
    subject = "Estimated effect of {contrast} on {outcome} as a function of the covariates, combined over sites"

    sites: tuple[ComposedRelease, ...]

    @property
    def lines(self) -> list[str]:
        """What is compared between sites, a line each, in words."""
        return super().lines or ["average effect"]

    def _known(self) -> tuple[Tensor, Tensor, Tensor]:
        if self.line_names:
            return super()._known()
        numbers = []
        for law in (law_of(site) for site in self.sites):
            *_, nuisances = law.moments(law.centre[None])
            numbers.append([law.average, law.average_variance, nuisances.sqrt().item()])
        first, second, third = torch.tensor(numbers, dtype=torch.float64).unbind(1)
        return first[:, None], second[:, None], third[:, None]

    def _released(self, level: float) -> Tensor:
        if self.line_names:
            return super()._released(level)
        rows = [[site.average_effect, *site.average(level)] for site in self.sites]
        return torch.tensor(rows, dtype=torch.float64)[:, None]

    def _rest_on(self) -> list[str]:
        estimated = any(site.domain.known_propensity is None for site in self.sites)
        return [site.assumptions for site in self.sites] + (super()._rest_on() if estimated else [])

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
        return float(self._means[0])

    def average(self, level: float = LEVEL) -> np.ndarray:
        """Return the confidence interval of the mean of the sites' average effects, (low, high), in outcome units.

        Raises:
            InputError: A level outside (0, 1).
        """
        found: np.ndarray = self.means(level)[0, 1:].numpy()
        return found

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
        end is moved to it. They hold if what ``assumptions`` says is so.

        Args:
            X: Covariates, as for ``effect``.
            level: Probability in (0, 1).

        Raises:
            InputError: A level outside (0, 1).
        """
        x = self._covariates(X)
        return self._about(self.pooled_at(x), self.effect_tensor(x), level).numpy()

    def mean_interval(self, X: Covariates, level: float = LEVEL, rows: int | None = None) -> np.ndarray:
        """Return confidence intervals of the means over public rows, [m, 2]; arguments as of a composed release."""
        x = self._covariates(X)
        rows = len(x) if rows is None else rows
        if rows < 1 or len(x) % rows:
            raise InputError(f"rows = {rows}: X has {len(x)} rows; give a number that divides it")
        if self.form == "constant" and rows > 1:
            return np.tile(self.average(level), (len(x) // rows, 1))
        return self._about(self.pooled_at(x, rows), self.effect_tensor(x).view(-1, rows).mean(1), level).numpy()

    def effect_interval(self, X: Covariates, alpha: float = 0.05) -> tuple[np.ndarray, np.ndarray]:
        """Return lower and upper ends of ``interval(X, 1 - alpha)``, [m] each; see ``EffectRelease``."""
        low, high = self.interval(X, 1 - alpha).T
        return low, high

    def ate_interval(self, X: Covariates, alpha: float = 0.05) -> tuple[float, float]:
        """Return the ends of ``mean_interval(X, 1 - alpha)`` over all rows of X; see ``EffectRelease``."""
        low, high = self.mean_interval(X, 1 - alpha)[0]
        return float(low), float(high)

    @property
    def target(self) -> str:
        """What intervals are about, in one sentence."""
        average = "of the sites' average effects, and of a person of the effect at x"
        sites = average if self.form == "constant" else "over sites of the effect at x"
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
    """The means over sites of the averages that all of them have: of everybody, of weighted people, of public cells.

    Each line is a meta-analysis of its own (``pool``): its estimate is the mean, by its weights, of what sites
    released. Errors of estimated nuisances may be the same at all sites: they do not average out. Groups by effect are
    left out, for they are not the same people at other sites, and so is the value of a rule.

    Attributes:
        sites: The sites' releases, of one kind.
    """

    kind = "combined_lines"
    column = "effect"

    @property
    def subject(self) -> str:  # type: ignore[override]
        """What it is about, of a treatment and an outcome."""
        several = "effects" if len(self.line_names) > 1 else "effect"
        return f"Estimated average {several} of {{contrast}} on {{outcome}}, combined over sites"

    @property
    def estimate(self) -> np.ndarray:
        """The means over sites, float64 [lines], in outcome units."""
        return self._means.numpy()

    def interval(self, level: float = LEVEL) -> np.ndarray:
        """Return confidence intervals of the means over sites, float64 [lines, 2], in outcome units.

        They hold sampling, all privacy noise, and how sites differ (``between=random``), if what ``assumptions`` says
        is so. A line that noise dominates at all sites has the full range of effects.

        Args:
            level: Probability in (0, 1).

        Raises:
            InputError: A level outside (0, 1).
        """
        found: np.ndarray = self.means(level)[:, 1:].numpy()
        return found

    def answer(self, x: Tensor) -> Tensor:
        """Return the mean over sites of the effect of each row's cell, [m]; of K > 2 arms [m, K - 1].

        Raises:
            InputError: Sites released no effects in subgroups, or of several partitions, in which a row has several
                cells.
        """
        return self._of_rows(self._means, x)

    def interval_at(self, x: Tensor, level: float = LEVEL) -> np.ndarray:
        """Return the interval of the cell of each row of encoded covariates x [m, q], [m, 2].

        Raises:
            InputError: As ``answer``, or a level outside (0, 1).
        """
        low, high = torch.from_numpy(self.interval(level)).unbind(1)
        return torch.stack([self._of_rows(low, x), self._of_rows(high, x)], -1).numpy()

    def _of_rows(self, values: Tensor, x: Tensor) -> Tensor:
        site, arms = self._of_cells, len(self.arms)
        if site is None:
            raise InputError(_NO_COLUMN.format(self.kind))
        return (values.view(-1, arms) if arms else values)[site.cells(x[:, self._position(0)])]

    def plot(self, *, level: float = LEVEL) -> "Figure":  # type: ignore[override]
        """Return ``forest``."""
        return self.forest(level=level)

    def summary(self) -> dict[str, Any]:
        """Return each line with its interval, how far sites differ, and what each site guarantees."""
        rows = zip(self.lines, self.estimate.tolist(), self.interval().tolist(), strict=True)
        lines = [{"line": title, "estimate": y, "low": low, "high": high} for title, y, (low, high) in rows]
        return {"estimates": lines, "interval_level": LEVEL} | self._shown() | {STATED_AS: self.assumptions}


def kind_of(sites: Sequence[Release]) -> type[Combined]:
    """Return the kind of the combination of some sites, which follows from their releases.

    Effects with a law at all of them make an effect; what else all of them have makes lines.

    Raises:
        InputError: They are of several kinds, or have nothing with a known error in common.
    """
    if len({type(site) for site in sites}) == 1:
        if all(isinstance(site, ComposedRelease) and site.law is not None for site in sites):
            return CombinedEffect
        if common_lines(sites):
            return CombinedLines
    raise InputError("sites have nothing with a known error in common")
