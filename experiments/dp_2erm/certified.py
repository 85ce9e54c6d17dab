"""Certified two-stage rules by kind of weights, on the paper's designs and where treatment is strongly confounded."""

from collections.abc import Iterator

import torch
from torch import Tensor

from experiments.dp_2erm.balancing import LogisticWeights, TiltingWeights
from experiments.dp_2erm.methods import Certified, FirstStage
from experiments.dp_2erm.mmd import MMDWeights
from experiments.dp_2erm.sample import Sample
from experiments.frame.study import OTHER, Found, Place
from torchdpcate.errors import InputError
from torchdpcate.estimators.rules.outcome import SignedResidual
from torchdpcate.fit.weights import PrivateWeights

CONSTANT, PRIVATE = "two-stage rule, constant weights", "two-stage rule, private propensity"
CENTRED = "two-stage rule, constant weights, outcomes minus a public 4"
OWN, EVERYBODY = "squared loss, 1 / pi(a|x)", "squared loss, 1 / pi(1|x) for everybody"
CONFOUNDED = "confounded"
MOST_BALANCED = 1_500  # records, beyond which the programme of MMD weights takes too long here


def methods(setting: str, n: int) -> dict[str, Certified]:
    """Return the rules for a setting: what clips their outcomes is public, and no ridge is tuned."""
    outcome = {CONFOUNDED: SignedResidual(0.0, 6.0), "twins_semi_synthetic": SignedResidual(0.0, 0.5)}
    signed = outcome.get(setting, SignedResidual(0.0, 2.0))
    found = {
        CONSTANT: Certified("constant", "box", signed),
        "two-stage rule, known propensity": Certified("known", "box", signed),
        PRIVATE: Certified(PrivateWeights(), "box", signed),
        "two-stage rule, IPW": Certified(LogisticWeights(ridge=1.0), "gamma", signed),
        "two-stage rule, EBW": Certified(TiltingWeights(ridge=1.0), "gamma", signed),
    }
    if n <= MOST_BALANCED:
        found["two-stage rule, MMD"] = Certified(MMDWeights(ridge=1.0), "gamma", signed)
    if setting == CONFOUNDED:
        found[CENTRED] = Certified("constant", "box", SignedResidual(4.0, 4.0))
    return found


def compute(
    table: str, setting: str, epsilons: tuple[float, ...], first: FirstStage, x: Tensor, effect: Tensor
) -> Iterator[Found]:
    """Yield accuracies of all kinds of weights; a budget at which a mechanism refuses has none.

    Args:
        table: Where they belong.
        setting: Likewise.
        epsilons: Budgets; without privacy is done too.
        first: Records and what weighs them.
        x: Fresh covariates.
        effect: Their effects.
    """
    n = first.sample.a.shape[1]
    for method, rule in methods(setting, n).items():
        for epsilon in (*epsilons, None):
            try:
                theta = rule(first, epsilon)[0]
            except InputError:
                continue
            word, level = ("inf", "not private") if epsilon is None else (f"{epsilon:g}", "certified")
            yield accuracy(table, setting, n, word, method, level, x @ theta > 0, effect)
    if setting == CONFOUNDED:
        for method, theta in _squared(first.sample).items():
            yield accuracy(table, setting, n, "inf", method, "not private", x @ theta > 0, effect)


def accuracy(
    table: str, setting: str, n: int, epsilon: str, method: str, level: str, decided: Tensor, effect: Tensor
) -> Found:
    """Return the share of decisions that are the best rule's."""
    right = (decided == (effect > 0)).double().mean().item()
    return Found(Place(table, setting, str(n), epsilon, "", "accuracy"), OTHER, method, level, [right])


def _squared(sample: Sample) -> dict[str, Tensor]:
    """Return minimisers of the paper's loss by known propensities: of one's own treatment, and the paper's."""
    x, a, y, treated = sample.x[0], sample.a[0], sample.y[0], sample.propensity[0].clamp(0.1, 0.9)
    found = {}
    for name, share in {OWN: torch.where(a == 1, treated, 1 - treated), EVERYBODY: treated}.items():
        weighted = x / share[:, None]
        found[name] = torch.linalg.solve(weighted.mT @ x, weighted.mT @ (2 * (2 * a - 1) * y))
    return found
