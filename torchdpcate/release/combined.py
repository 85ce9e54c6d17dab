"""Releases of several sites as one: post-processing of their released numbers, which a file of them holds whole."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from torchdpcate.data.schema import TableSchema
from torchdpcate.errors import InputError, MissingError
from torchdpcate.release.averages import ABOUT, powers
from torchdpcate.release.file import Release, ReleaseFile, draw
from torchdpcate.release.lines import LEVEL, Lines
from torchdpcate.release.meta_analysis import BETWEEN, FEWEST, FIXED, Pooled, pool
from torchdpcate.release.parts import tensors_of
from torchdpcate.release.population import ROWS
from torchdpcate.release.release import EffectRelease
from torchdpcate.release.statement import STATED_AS, PrivacyStatement
from torchdpcate.typing import Covariates

if TYPE_CHECKING:
    from matplotlib.figure import Figure


ALL_SITES, NEW_SITE = "all sites", "a new site like these"
"""What the mean and the prediction are called beside the sites."""
_INDEPENDENT = "sites hold different records"
_SAMPLED = "sites differ as a sample of the sites that their mean is about"
_PREDICTED = "a new site is another of that sample, in which effects are normally distributed"
_NO_COLUMN = "release of sites: these are averages, which give no column; see them with torchdpcate verify"
_NO_FUNCTION = "this combination has averages alone, see lines(); a site released no effect with intervals"


def common_lines(sites: Sequence[Release]) -> list[Lines]:
    """Return, of each site, the lines that all of them have and that mean the same everywhere; nothing without any.

    Groups by effect are no such lines, nor is the value of a rule: each site has other people in them, whom its own
    effect chose.
    """
    each = [site.named for site in sites]
    known = [lines for lines in each if lines is not None]
    if len(known) < len(sites):
        return []
    names = [name for name in known[0].comparable if all(name in lines.comparable for lines in known)]
    return [lines.only([lines.names.index(name) for name in names]) for lines in known] if names else []


@dataclass(frozen=True, eq=False, repr=False)
class SitesRelease(EffectRelease):
    r"""Releases of K sites and their meta-analysis; everything it answers follows from ``sites`` and ``between``.

    Each line that all sites have is a meta-analysis of its own (``pool``): its estimate is the mean, by its weights, of
    what sites released. Errors of estimated nuisances may be the same at all sites: they do not average out.

    Where all sites have an effect with intervals it is an effect too. At every x the sites' unshrunk estimates
    :math:`\tau_k(x)` with their known variances, noise and sampling together, are pooled: that makes the intervals, in
    which what effects are expected to have beyond the released features does not average out either. The effect itself
    is the mean of the released ones, each shrunk by its own release, with the weights of the first line, of less error
    than what is shrunk after pooling (experiments/defaults/combine.csv). It need not be the middle of its interval.

    Attributes:
        sites: The sites' releases, as they were published.
        names: What the sites are called.
        between: ``fixed`` or ``random``: whether effects are taken to be the same at all sites.
        schema: Columns and public bounds of all sites.
        privacy: What is guaranteed by site.
    """

    kind = "sites"

    sites: tuple[Any, ...]
    names: tuple[str, ...]
    between: str = field()
    schema: TableSchema
    privacy: PrivacyStatement

    @property
    def subject(self) -> str:  # type: ignore[override]
        """What it is about, of a treatment and an outcome."""
        if self.function is not None:
            return f"{self.sites[0].subject}, combined over sites"
        several = "effects" if len(self.line_names) > 1 else "effect"
        return f"Estimated average {several} of {{contrast}} on {{outcome}}, combined over sites"

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
    ) -> "SitesRelease":
        """Rebuild a combination from ``tensors`` and ``facts``."""
        if facts["between"] not in BETWEEN:
            raise ValueError("between: no model")
        names, sites = [], []
        for k, entry in enumerate(facts["sites"]):
            metadata = {key: str(value) for key, value in entry.items()}
            names.append(metadata.pop("name"))
            file = ReleaseFile(Path(names[-1]), metadata, tensors_of(str(k), tensors))
            if file.fault is not None or metadata["class"] == cls.kind:
                raise ValueError(f"site {k}: {file.fault or 'a combination, whose sites would be those of this one'}")
            sites.append(file.build())
        if not common_lines(sites):
            raise ValueError("sites: they have nothing with a known error in common")
        return cls(tuple(sites), tuple(names), facts["between"], schema, privacy)

    @property
    def function(self) -> "SitesRelease | None":  # type: ignore[override]
        """Itself, where all sites have an effect with intervals; None of averages alone."""
        own = all(site.function is site and site.law is not None for site in self.sites)
        return self if own else None

    @property
    def _function(self) -> "SitesRelease":
        if self.function is None:
            raise MissingError(_NO_FUNCTION)
        return self.function

    @property
    def named(self) -> Lines:
        """The lines of each site; below those of one name their mean, and what a new site's may be.

        That is there of three or more sites whose effects differ, see ``Pooled.new_half_width``.
        """
        each, found, means = common_lines(self.sites), self.pooled, self._means
        predicted = self.between != FIXED and len(self.sites) >= FEWEST
        count, more, lines = len(self.sites), 1 + predicted, len(means)

        def below(of_sites: Sequence[Tensor], *rest: Tensor) -> Tensor:
            return torch.stack([*of_sites, *rest[:more]], 1).flatten(0, 1)

        def ends(level: float) -> Tensor:
            new = self._about(found, found.new_half_width(level), means)
            return below([own.ends(level) for own in each], self.means(level)[:, 1:], new)

        titles = (*self.names, ALL_SITES, NEW_SITE)[: count + more] * lines
        groups = tuple(title for title in self.line_titles for _ in range(count + more))
        noise, records = (torch.stack([getattr(own, name) for own in each]) for name in ("noise", "records"))
        none, error = torch.zeros_like(means), torch.hypot(found.deviation, found.common)
        return Lines(
            tuple(f"{group}: {title}" for group, title in zip(groups, titles, strict=True)),
            titles,
            groups,
            below([own.estimates for own in each], means, means),
            below([own.errors for own in each], error, torch.hypot(found.new_deviation, found.common)),
            below([*noise], *[(self.shares * noise).square().sum(0).sqrt()] * 2),
            below([*records], records.sum(0), none),
            ends,
            self.assumptions,
            weights=below([*self.shares], torch.ones_like(means), none),
            means=(*[False] * count, True, *[False] * predicted) * lines,
        )

    @property
    def shares(self) -> Tensor:
        """Share of each site in the mean of each line, [K, lines]; zero where noise dominates its estimate."""
        weights = self.pooled.weights
        return weights / weights.sum(0).clamp_min(torch.finfo(weights.dtype).tiny)

    @cached_property
    def line_names(self) -> tuple[str, ...]:
        """Names of the averages that all sites have; see ``common_lines``."""
        return common_lines(self.sites)[0].names

    @property
    def line_titles(self) -> list[str]:
        """What is compared between sites, a line each, in words."""
        return [*common_lines(self.sites)[0].titles]

    @property
    def answers_rows(self) -> bool:
        """Whether each row has an effect: that of all sites' functions, or of its cell at sites with subgroups."""
        return self.function is not None or hasattr(self.sites[0], "cells")

    @property
    def cells(self) -> tuple[str, ...]:
        """Names of the lines that are of parts of the records, or of one of several arms."""
        found = tuple(name for name in self.line_names if name not in ABOUT and powers(name) is None)
        return found if len(self.line_names) > 1 else ()

    @cached_property
    def pooled(self) -> Pooled:
        """The meta-analysis of each line, [lines]."""
        each = common_lines(self.sites)
        return pool(
            torch.stack([lines.estimates if lines.unshrunk is None else lines.unshrunk for lines in each]),
            torch.stack([lines.errors.square() for lines in each]),
            torch.stack([torch.zeros_like(x.errors) if x.common is None else x.common.sqrt() for x in each]),
            self.between,
        )

    @cached_property
    def _means(self) -> Tensor:
        """The mean over sites of each line, [lines]: of what they released, which of averages may be shrunk."""
        return (self.shares * torch.stack([lines.estimates for lines in common_lines(self.sites)])).sum(0)

    def means(self, level: float = LEVEL) -> Tensor:
        """Return the mean over sites of each line and the ends of its interval, [lines, 3], in outcome units.

        Args:
            level: Probability of the intervals, in (0, 1).
        """
        ends = self._about(self.pooled, self.pooled.half_width(level), self._means)
        return torch.cat([self._means[:, None], ends], 1)

    def _about(self, pooled: Pooled, half: Tensor, effect: Tensor) -> Tensor:
        """Return intervals about means, [m, 2], each with the nearer end moved to the effect where it lies beyond."""
        low, high = torch.minimum(pooled.mean - half, effect), torch.maximum(pooled.mean + half, effect)
        return torch.stack([low, high], 1).clamp(-self.schema.greatest, self.schema.greatest)

    def heterogeneity(self) -> list[dict[str, Any]]:
        """Return how far sites differ, their noise and sampling taken out, a mapping a line.

        ``between_sd`` is tau, in outcome units; ``i_squared`` the share of the variance that is between sites; ``q``
        Cochran's Q, which is about ``q_if_equal`` where all sites have one effect.
        """
        found, keys = self.pooled, ("between_sd", "i_squared", "q", "q_if_equal")
        numbers = torch.stack([found.tau2.sqrt(), found.i2, found.q, (found.sites - 1).clamp_min(0)], 1).tolist()
        rows = zip(self.line_titles, numbers, strict=True)
        return [{"line": title} | dict(zip(keys, row, strict=True)) for title, row in rows]

    @property
    def assumptions(self) -> str:
        """When intervals hold, beside noise and sampling, which they count; one sentence."""
        sampled = [_SAMPLED, *[_PREDICTED] * (len(self.sites) >= FEWEST)] if self.between != FIXED else []
        rest = [] if self.function is None else [site.assumptions for site in self.sites]
        if not rest or any(site.domain.known_propensity is None for site in self.sites):
            rest += [lines.assumptions for lines in common_lines(self.sites)]
        return "; ".join(dict.fromkeys([_INDEPENDENT, *sampled, *"; ".join(rest).split("; ")]))

    def _position(self, k: int) -> list[int]:
        """Return the positions among all encoded columns of those of site k."""
        return [place for name in self.sites[k].schema.columns for place in self.schema.places[name]]

    @property
    def has_intervals(self) -> bool:
        """Whether there are confidence intervals of an effect function."""
        return self.function is not None

    @cached_property
    def reference(self) -> Tensor | None:
        """Rows whose covariates have the released means and spreads of the sites that have them, [256, q].

        Covariates are independent of each other; see ``ComposedRelease.population``. None of averages alone.
        """
        if self.function is None:
            return None
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
        sites = enumerate(self._function.sites)
        return {self._position(k)[column] for k, site in sites for column in site.features_used}

    @property
    def form(self) -> str:
        """What the effect is: ``constant`` or ``additive``."""
        return "constant" if all(site.form == "constant" for site in self._function.sites) else "additive"

    @property
    def average_effect(self) -> float:
        """Mean over sites of the first line, that of everybody where all sites have it, in outcome units."""
        return float(self._means[0])

    def average(self, level: float = LEVEL) -> np.ndarray:
        """Return the confidence interval of ``average_effect``, (low, high), in outcome units.

        Raises:
            InputError: A level outside (0, 1).
        """
        found: np.ndarray = self.means(level)[0, 1:].numpy()
        return found

    def effect_tensor(self, x: Tensor) -> Tensor:
        """Return the effects at encoded covariates x [m, q], or of the rows' cells, [m]; of K > 2 arms [m, K - 1].

        Raises:
            InputError: Sites released averages that are no one partition's.
        """
        if self.function is None:
            return self._of_cells(self._means, x)
        each = [site.effect_tensor(x[:, self._position(k)]) for k, site in enumerate(self.sites)]
        return self.shares[:, 0] @ torch.stack(each)

    def _of_cells(self, values: Tensor, x: Tensor) -> Tensor:
        """Return those of some values [lines, ...] that are of the cells of rows."""
        if not self.answers_rows:
            raise InputError(_NO_COLUMN)
        arms = len(self.arms) or 1
        found = values.view(-1, arms, *values.shape[1:])[self.sites[0].cells(x[:, self._position(0)])]
        return found if self.arms else found[:, 0]

    def pooled_at(self, x: Tensor, rows: int = 1) -> Pooled:
        """Return the meta-analysis of the sites' unshrunk estimates at each row of x [m, q], or of means of rows.

        Args:
            x: Encoded covariates.
            rows: How many rows in turn make a mean.

        Raises:
            MissingError: There is no effect function.
        """
        found = []
        for k, site in enumerate(self._function.sites):
            law, psi = site.law, site.features(x[:, self._position(k)])
            middle, variance, nuisances = law.moments(psi.view(-1, rows, psi.shape[1]).mean(1))
            missed = law.missed if rows == 1 else 0.0
            found.append(torch.stack([middle, variance + nuisances + missed, (nuisances + missed).sqrt()]))
        estimates, variances, shared = torch.stack(found, 1)
        return pool(estimates, variances, shared, self.between)

    def interval(self, X: Covariates, level: float = LEVEL) -> np.ndarray:
        """Return intervals of the mean effect over sites for a person like each of X, or of the cell, [m, 2].

        They hold sampling, all privacy noise, how sites differ (``between=random``), and what effects are expected to
        have beyond the released features, in outcome units. The effect, which is shrunk, is in them: where it lies
        beyond an end, that end is moved to it. They hold if what ``assumptions`` says is so. A line that noise
        dominates at all sites has the full range of effects. Of K > 2 arms they are [m, K - 1, 2].

        Args:
            X: Covariates, as for ``effect``.
            level: Probability in (0, 1).

        Raises:
            InputError: As ``effect_tensor``, or a level outside (0, 1).
        """
        return self.interval_at(self._covariates(X), level)

    def interval_at(self, x: Tensor, level: float = LEVEL) -> np.ndarray:
        """Return ``interval`` at encoded covariates x [m, q]."""
        if self.function is None:
            return self._of_cells(self.means(level)[:, 1:], x).numpy()
        pooled = self.pooled_at(x)
        return self._about(pooled, pooled.half_width(level), self.effect_tensor(x)).numpy()

    def mean_interval(self, X: Covariates, level: float = LEVEL, rows: int | None = None) -> np.ndarray:
        """Return confidence intervals of the means over public rows, [m, 2]; arguments as of a composed release."""
        x = self._covariates(X)
        rows = len(x) if rows is None else rows
        if rows < 1 or len(x) % rows:
            raise InputError(f"rows = {rows}: X has {len(x)} rows; give a number that divides it")
        if self.form == "constant" and rows > 1:
            return np.tile(self.average(level), (len(x) // rows, 1))
        pooled = self.pooled_at(x, rows)
        return self._about(pooled, pooled.half_width(level), self.effect_tensor(x).view(-1, rows).mean(1)).numpy()

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
        """What intervals of the effect are about, in one sentence."""
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

    def plot(
        self,
        covariate: str | Sequence[str] | None = None,
        *,
        profile: Mapping[str, Any] | None = None,
        level: float = LEVEL,
    ) -> "Figure":
        """Return the forest plot by site, the mean below each line's sites; or the effect against a covariate.

        Args:
            covariate: As of ``EffectRelease``; None draws the lines.
            profile: Likewise.
            level: Probability of the intervals, in (0, 1).

        Raises:
            InputError: As ``EffectRelease.plot``.
            MissingError: A covariate, and there is no effect function.
        """
        if covariate is None:
            return draw("plot_lines", self, level=level)
        return draw("plot_effect", self._function, covariate, profile=profile, level=level)

    def summary(self) -> dict[str, Any]:
        """Return each line with its interval, how far sites differ, and what each site guarantees."""
        rows = zip(self.line_titles, self.means().tolist(), strict=True)
        effect = {} if self.function is None else {"form": self.form, "intervals_of": self.target}
        return {
            "estimates": [{"line": title, "estimate": y, "low": low, "high": high} for title, (y, low, high) in rows],
            "interval_level": LEVEL,
            "between": self.between,
            "sites": [
                {"site": name, "records": site.privacy.n, "claim": site.privacy.claim}
                for name, site in zip(self.names, self.sites, strict=True)
            ],
            "heterogeneity": self.heterogeneity(),
            **effect,
            STATED_AS: self.assumptions,
        }
