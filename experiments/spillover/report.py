"""What a spillover audit found, learner by learner: a table, plain numbers and a verdict."""

import math
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import RenderableType

_SHORT = {"exponential": "EM", "permute_and_flip": "PF"}

CURATOR = "the curator's: movements, errors and replaced records depend on the records; publish none of it"


@dataclass(frozen=True)
class Found:
    """The neighbour of the largest spread that one search found.

    Attributes:
        search: ``random``, ``targeted`` or ``guided``.
        spread: max DeltaU - min DeltaU over the policies, in outcome units.
        movement: max |DeltaU| over the policies and over all neighbours of the search.
        refits: Exact refits that it took.
        record: The training record that leaves.
        x: Covariates of the one that comes.
        action: Label of its action.
        y: Its outcome.
    """

    search: str
    spread: float
    movement: float
    refits: int
    record: int
    x: list[float]
    action: int
    y: float


@dataclass(frozen=True)
class Diagnostics:
    """How good the nuisances are on the scoring records, which says nothing about how far they move.

    Attributes:
        against: ``truth``, or ``records`` where it is unknown; errors then contain the noise of outcomes and actions.
        outcome: Root mean squared error of the outcome models.
        propensity: The same of the propensities.
        bias: Largest bias of a policy's value per record, for propensities and outcomes as in truth; nan if unknown.
    """

    against: str
    outcome: float
    propensity: float
    bias: float = math.nan

    @property
    def product(self) -> float:
        """The product of errors that bounds a doubly robust bias."""
        return self.outcome * self.propensity


@dataclass(frozen=True)
class LearnerReport:
    """What one replaced training record does to the utilities that one learner's nuisances give.

    Attributes:
        name: Of the learner.
        guarantee: What bounds its movement: ``stability``, ``frozen``, ``fixed`` or ``none``.
        found: The best neighbour of each search.
        floor: 2 B_psi, B_psi = R (1 + 1/zeta): twice the largest score, what an analysis without spillover allows
            |DeltaU| to be.
        frozen: 2 S = 2 R / zeta: the spread of the naive calibration, which covers a scoring record alone.
        paper: n rho*, the paper's bound of |DeltaU|; None without one.
        range_sensitivity: The certified Delta_BR; None without one.
        diagnostics: How good the nuisances are.
        epsilon: Budget at which log-likelihood ratios are computed.
        naive: Log-likelihood ratio by mechanism at the widest neighbour found, calibrated with 2 S.
        certified: The same, calibrated with the certified range sensitivity; empty without one.
    """

    name: str
    guarantee: str
    found: tuple[Found, ...]
    floor: float
    frozen: float
    paper: float | None
    range_sensitivity: float | None
    diagnostics: Diagnostics
    epsilon: float
    naive: dict[str, float]
    certified: dict[str, float] = field(default_factory=dict)

    @property
    def worst(self) -> Found:
        """The neighbour of the largest spread."""
        return max(self.found, key=lambda found: found.spread)

    @property
    def movement(self) -> float:
        """Largest |DeltaU| found."""
        return max(found.movement for found in self.found)

    @property
    def naive_fails(self) -> bool:
        """Whether a choice calibrated without spillover loses more than epsilon on a neighbour found."""
        return any(_above(ratio, self.epsilon) for ratio in self.naive.values())

    @property
    def refuted(self) -> bool:
        """Whether a neighbour refutes the guarantee."""
        moved = self.range_sensitivity is not None and _above(self.worst.spread, self.range_sensitivity)
        paper = self.paper is not None and _above(self.movement, self.paper)
        return moved or paper or any(_above(ratio, self.epsilon) for ratio in self.certified.values())

    @property
    def verdict(self) -> str:
        """What follows, in one line."""
        if self.refuted:
            return "THE GUARANTEE IS REFUTED"
        if self.range_sensitivity is not None:
            return f"the guarantee holds; {self.worst.spread / self.range_sensitivity:.2%} of it was found"
        if self.naive_fails:
            return f"calibration without spillover refuted: {max(self.naive.values()):.3g} above {self.epsilon:g}"
        return "no failure found, which certifies nothing"

    def to_dict(self) -> dict[str, Any]:
        """Plain types, fit for JSON; what is unknown is None."""
        derived = {
            "movement": self.movement,
            "widest": self.worst.spread,
            "product": self.diagnostics.product,
            "refuted": self.refuted,
            "naive_fails": self.naive_fails,
            "verdict": self.verdict,
        }
        return _plain(asdict(self) | derived)


@dataclass(frozen=True)
class SpilloverReport:
    """How far one replaced training record moves learned utilities, beside what each calibration allows. The curator's.

    Attributes:
        learners: One entry a learner.
        training: Training records m.
        scoring: Scoring records n.
        policies: M.
        floor: zeta.
        epsilon: Budget of the log-likelihood ratios.
    """

    learners: tuple[LearnerReport, ...]
    training: int
    scoring: int
    policies: int
    floor: float
    epsilon: float

    def __getitem__(self, name: str) -> LearnerReport:
        return next(learner for learner in self.learners if learner.name == name)

    @property
    def refuted(self) -> bool:
        """Whether a guarantee is refuted."""
        return any(learner.refuted for learner in self.learners)

    def to_dict(self) -> dict[str, Any]:
        """Plain types, fit for JSON."""
        facts = ("training", "scoring", "policies", "floor", "epsilon")
        return {name: getattr(self, name) for name in facts} | {
            "refuted": self.refuted,
            "note": CURATOR,
            "learners": [learner.to_dict() for learner in self.learners],
        }

    def __rich__(self) -> "RenderableType":
        from rich import box
        from rich.console import Group
        from rich.table import Table

        title = (
            f"one replaced training record: m = {self.training:,}, n = {self.scoring:,}, {self.policies:,} policies, "
            f"floor {self.floor:g}"
        )
        moved = Table(title=title, title_justify="left", box=box.SIMPLE)
        for name in (
            "learner",
            "max |DeltaU|",
            "2 B_psi",
            "n rho*",
            "spread",
            "2 S",
            "certified",
            "found by",
            "refits",
        ):
            moved.add_column(name, justify="left" if name in ("learner", "found by") else "right", overflow="fold")
        for learner in self.learners:
            limits = learner.floor, learner.paper, learner.worst.spread, learner.frozen, learner.range_sensitivity
            refits = sum(found.refits for found in learner.found)
            moved.add_row(learner.name, *map(_shown, (learner.movement, *limits)), learner.worst.search, f"{refits:,}")
        errors = Table(
            title=f"errors, and the privacy loss of one choice at epsilon = {self.epsilon:g}: log-likelihood ratios",
            title_justify="left",
            box=box.SIMPLE,
        )
        ratios = [f"{name} at {spread}" for spread in ("2 S", "certified") for name in _SHORT.values()]
        for name in ("learner", "outcome", "propensity", "product", "bias", *ratios):
            errors.add_column(name, justify="left" if name == "learner" else "right", overflow="fold")
        for learner in self.learners:
            quality = learner.diagnostics
            losses = [table.get(name) for table in (learner.naive, learner.certified) for name in _SHORT]
            errors.add_row(
                learner.name,
                *map(_shown, (quality.outcome, quality.propensity, quality.product, quality.bias, *losses)),
            )
        notes = [f"{learner.name}: {learner.verdict}" for learner in self.learners]
        against = sorted({learner.diagnostics.against for learner in self.learners})
        notes += [f"errors: root mean squares against the {' or '.join(against)}, at the scoring records", CURATOR]
        return Group(moved, errors, "\n".join(notes))

    def __str__(self) -> str:
        from rich.console import Console

        console = Console(width=120, no_color=True)
        with console.capture() as text:
            console.print(self)
        return "\n".join(line.rstrip() for line in text.get().splitlines())


def _above(value: float, limit: float) -> bool:
    """Whether a value is above its limit by more than rounding."""
    return value > limit * (1 + 1e-9) + 1e-9


def _shown(value: float | None) -> str:
    return "-" if value is None or math.isnan(value) else f"{value:.3g}"


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(entry) for entry in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
