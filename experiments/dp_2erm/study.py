"""DP-2ERM (Lee & Chen 2026): Figure 2 and Table 1."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor

from experiments.dp_2erm import laws
from experiments.frame.figures import draw_lines
from experiments.frame.study import (
    CERTIFIED,
    FREE,
    OTHER,
    PRINTED,
    Cell,
    Found,
    Place,
    Settings,
    Study,
    batches,
    seed_of,
)
from experiments.frame.table import Row, Summary
from experiments.two_stage_rule import printed
from experiments.two_stage_rule.laws import Sample
from experiments.two_stage_rule.methods import Certified, FirstStage, Printed
from torchdpcate.data.domain import Domain
from torchdpcate.estimators.rules.effect_rule import EffectRule
from torchdpcate.estimators.rules.outcome import SignedResidual
from torchdpcate.nuisance.weights.logistic import LogisticWeights
from torchdpcate.nuisance.weights.mmd import MMDWeights
from torchdpcate.nuisance.weights.tilting import TiltingWeights
from torchdpcate.privacy.budget import PrivacyBudget
from torchdpcate.privacy.noise import NoiseSource

EPSILONS = (0.01, 0.05, 0.1, 0.5, 1.0)
FIGURE, TABLE, TWINS = "figure2", "table1_twins", "twins_semi_synthetic"
SIZES, FRESH, REPEATS, BATCH = {TWINS: 1_140}, 10_000, 100, 10
WEIGHTS = {
    "EBW": (TiltingWeights(ridge=0.1), printed.entropy),
    "IPW": (LogisticWeights(ridge=0.1), printed.inverse_propensity),
    "MMD": (MMDWeights(ridge=1.0), printed.mmd),
}
BASELINE = "strong-composition baseline (Cor. 3.4)"


class TwoStage(Study):
    """Three scenarios and the twins."""

    name = "dp_2erm"
    title = "DP-2ERM: two-stage rules of Lee & Chen"
    published = ("dp_2erm/table1_twins.csv", "dp_2erm/figure2_text_values.csv")
    about = """\
*As printed*: weights that sum to n, squared loss on an l1 ball, (3.8) or (3.9) with delta = 1/n, no intercept, and
Corollary 4.3 with every O(.) = 1, which the paper does not state: the largest outcome and the ball's radius are ours
too, and no parameter is tuned. The printed noise does not give the stated epsilon. Weights without privacy are the
library's, at a ridge of 0.1 (MMD: 1); IPW are the paper's 1 / pi(1|x) for everybody.

*Figure 2* prints no table: its published values are those that the text reads off. Noise of outcomes is normal.

*Table 1*: four continuous covariates of the twins (weeks of gestation, weight gain, prenatal visits, mother's age) over
[0, 1], and a synthetic law after algorithm 1 of Crabbe et al. 2022, drawn anew for each repeat: the paper states no
covariates and no law, and its baselines point to a single one. **A difference to its numbers says little**: none is
computed. Among the other methods is the certified two-stage rule with constant weights, box noise and public clips."""
    stand_ins = frozenset({TABLE})

    def cells(self, settings: Settings) -> Iterable[Cell]:
        """See `Study`."""
        repeats = 4 if settings.quick else REPEATS
        there = [] if settings.data is None else [TWINS]
        for first, count in batches(repeats, BATCH):
            for setting in (*laws.SCENARIOS, *there):
                yield {"setting": setting, "who": "ours", "first": first, "repeats": count}
                for name in WEIGHTS:
                    if not (settings.quick and (setting, name) == (TWINS, "MMD")):
                        yield {"setting": setting, "who": name, "first": first, "repeats": count}

    def missing(self, settings: Settings) -> list[str]:
        """See `Study`."""
        return [] if settings.data else ["Table 1: the twins are not here; data=PATH names the folder of twins/"]

    def compute(self, cell: Cell, settings: Settings) -> Iterable[Found]:
        """See `Study`."""
        setting, who = str(cell["setting"]), str(cell["who"])
        for repeat in range(int(cell["first"]), int(cell["first"]) + int(cell["repeats"])):
            sample, x, effect, domain = case(setting, repeat, settings.data)
            if who == "ours":
                yield from _ours(setting, repeat, sample, x, effect, domain)
            else:
                yield from _paper(setting, who, repeat, sample, x, effect, domain)

    def place(self, file: str, line: Mapping[str, str]) -> Place | None:
        """See `Study`."""
        method, weights = line["method"], line["weights"]
        if "printed in the" in method:
            method = f"DP-2ERM {weights} {'Gamma' if 'Gamma' in method else 'Gaussian'}"
        table = FIGURE if file.startswith("figure2") else file
        return Place(table, line["setting"], line["n"], line["epsilon"], method, line["metric"])

    def draw(self, rows: Sequence[Row], found: Sequence[Summary], folder: Path) -> None:
        """See `Study`."""
        draw_lines(
            folder / "figure2.png",
            rows,
            found,
            lambda one: f"{one.place.setting}, n = {one.place.n}",
            lambda one: (
                one.place.variant if one.role == PRINTED else one.method if one.role in (CERTIFIED, OTHER) else None
            ),
            "accuracy",
        )


def case(setting: str, repeat: int, data: Path | None) -> tuple[Sample, Tensor, Tensor, Domain]:
    """Return one run's records, fresh covariates and effects, and the public facts."""
    if setting == TWINS:
        assert data is not None
        return *laws.twins(data, repeat).draw(SIZES[TWINS], repeat), laws.Twins.domain()
    generator = torch.Generator().manual_seed(seed_of("figure 2", setting, repeat))
    sample, x = laws.draw(setting, 400, generator), laws.covariates(FRESH, generator)
    return sample, x, laws.best(setting, x), laws.domain(setting)


def _ours(setting: str, repeat: int, sample: Sample, x: Tensor, effect: Tensor, domain: Domain) -> Iterator[Found]:
    """Yield the rule by default, pure, and what needs no records."""
    records = sample.records(0, domain)
    for epsilon in (*EPSILONS, None):
        noise = NoiseSource.fixed(seed_of("ours", setting, repeat, epsilon))
        budget = None if epsilon is None else PrivacyBudget(epsilon, 0.0)
        learner = EffectRule(domain, budget, noise=noise).fit(records.x, records.a, records.y)
        found = torch.as_tensor(learner.nonprivate_effect(x)) if epsilon is None else learner.release().answer(x)
        words = ("inf", "default rule, no privacy", "not private") if epsilon is None else (
            f"{epsilon:g}", "task=rule, default, delta = 0", "certified")  # fmt: skip
        variant, role = ("default rule", FREE) if epsilon is None else ("", CERTIFIED)
        yield _found(setting, words[0], variant, role, *words[1:], found > 0, effect)
        if epsilon is not None:
            first = FirstStage(sample, domain, NoiseSource.fixed(seed_of("two-stage", setting, repeat, epsilon)))
            rule = Certified("constant", "box", SignedResidual(0.0, 0.5 if setting == TWINS else 2.0))
            decided = (x / x.shape[1] ** 0.5) @ rule(first, epsilon)[0] > 0
            yield _found(setting, words[0], "", OTHER, "two-stage rule, constant weights", "certified", decided, effect)
    for name, decision in (("all to treatment", True), ("all to control", False)):
        decided = torch.full_like(effect, decision, dtype=torch.bool)
        yield _found(setting, "inf", name, FREE, name, "not private", decided, effect)


def _paper(
    setting: str, who: str, repeat: int, sample: Sample, x: Tensor, effect: Tensor, domain: Domain
) -> Iterator[Found]:
    """Yield the paper's mechanism with one kind of weights, by both noises, and without."""
    scheme, movement = WEIGHTS[who]
    first = FirstStage(sample, domain, NoiseSource.fixed(seed_of(who, setting, repeat)))
    n, ball = sample.a.shape[1], laws.slope_radius("twins" if setting == TWINS else setting)
    for kind in ("gamma", "gaussian"):
        method = Printed(scheme, movement, *ball, kind, delta=1 / n)
        variant = f"DP-2ERM {who} {kind.title()}"
        for epsilon in (*EPSILONS, None):
            decided = (x @ method(first, epsilon)[0]) > 0
            role, level = (FREE, "not private") if epsilon is None else (PRINTED, "none holds")
            words = "inf" if epsilon is None else f"{epsilon:g}"
            yield _found(setting, words, variant, role, variant, level, decided, effect)
            if epsilon is None and (who, kind, setting == TWINS) == ("EBW", "gamma", False):
                yield _found(setting, words, "non-private linear rule", role, "EBW", level, decided, effect)
    if who == "EBW":
        strong = Printed(scheme, printed.universal, *ball)
        for epsilon in EPSILONS:
            decided = (x @ strong(first, epsilon)[0]) > 0
            yield _found(setting, f"{epsilon:g}", BASELINE, PRINTED, BASELINE, "none holds", decided, effect)


def _found(
    setting: str, epsilon: str, variant: str, role: str, method: str, level: str, decided: Tensor, effect: Tensor
) -> Found:
    right = (decided == (effect > 0)).double().mean().item()
    table, n = (TABLE, SIZES[TWINS]) if setting == TWINS else (FIGURE, 400)
    return Found(Place(table, setting, str(n), epsilon, variant, "accuracy"), role, method, level, [right])


STUDY = TwoStage()
