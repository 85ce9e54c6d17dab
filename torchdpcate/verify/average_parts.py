"""What a released average effect holds beside its estimate: fits, a balance table, a difference in means."""

import math
from collections.abc import Callable, Iterator
from typing import Any

from torch import Tensor

from torchdpcate.erm.balancing_loss import BalancingLoss
from torchdpcate.erm.bounds import WeightBounds
from torchdpcate.erm.losses import Logistic
from torchdpcate.erm.perturbation import SOLVER_SHARE, calibrate_objective
from torchdpcate.estimators.recompute import CLOSE, as_number, compared, same
from torchdpcate.features.maps import FeatureMap, Identity
from torchdpcate.privacy.budget import PrivacyBudget
from torchdpcate.privacy.exact_sums import sum_grid
from torchdpcate.privacy.guarantee import Level
from torchdpcate.privacy.mechanisms import KNormMechanism, LaplaceMechanism
from torchdpcate.release.balance_table import BalanceTable
from torchdpcate.verify.average_facts import AverageFacts
from torchdpcate.verify.average_law import EQUAL, SCALES, denominator, table_noise

CONDITIONAL = "k_norm_gradient"
"""The fitter that is private on a condition."""
CONDITION = "running time"
"""Its condition's name."""
FITS = {"weights": "weights: ", "outcome_model": "outcome model: "}
"""What is fitted, and how its charge begins."""

_FITTED = 1e-6  # how well noise scales of fits must agree, some of which are found by search
_MOST = 1e15  # of a coefficient: n times the slope over the ridge, for more records than there are
_FAR = 1e3  # deviations of noise that no draw exceeds


def fit_problems(facts: AverageFacts) -> Iterator[str]:
    """Return what is wrong with the fits of weights and outcome model: label, level, noise at the price, numbers.

    Args:
        facts: The release.
    """
    release, public = facts.release, facts.release.privacy.public
    charges = [charge for block in release.privacy.blocks for charge in block["charges"]]
    weights = None if release.weights is None else release.weights.theta
    coefficients = {"weights": weights, "outcome_model": release.outcome_theta}
    for what, start in FITS.items():
        paid, theta = [c for c in charges if c["label"].startswith(start)], coefficients[what]
        if not paid:
            continue
        if len(paid) > 1 or theta is None or release.weights is None:
            yield f"it was charged for its {what}, but does not hold them once"
            continue
        name, told = paid[0]["label"].rpartition("by ")[2], public.get(f"{what}_fitter")
        if name != told and (told is not None or name in _FITTERS):
            yield f"its {what} are charged by {name}, but its statement tells {told}"
        if CONDITIONAL in (name, told):
            if paid[0]["level"] == Level.CERTIFIED:
                yield f"its weights are by {CONDITIONAL}, which is conditional, but they are called certified"
            if CONDITION not in [condition["name"] for condition in release.privacy.conditions]:
                yield f"its weights are by {CONDITIONAL}, but the condition {CONDITION!r} is not told"
        if not float(theta.abs().amax()) <= _MOST:
            yield f"its {what} hold numbers that no fit gives"
        elif name in _FITTERS:
            yield from _noise(facts, what, name, paid[0], release.weights.features)


def _noise(facts: AverageFacts, what: str, name: str, charge: dict[str, Any], features: FeatureMap) -> Iterator[str]:
    """Problems of a fit's noise, and of what its statement says that it leaves."""
    of, balancing = facts.estimand, what == "weights" and facts.balancing
    loss = BalancingLoss(of) if balancing and of.scoring_rule is not None else Logistic()
    problems: list[str] = []
    deviation = _FITTERS[name](facts, what, charge, (loss.slope, loss.curvature), features, problems)
    yield from problems
    if what == "weights" and "noise_per_record" in facts.release.privacy.public:
        left = deviation / features.largest_entry / facts.n
        yield from compared("noise_per_record", facts.number("noise_per_record"), left, least=True, close=_FITTED)


def _objective(
    facts: AverageFacts,
    what: str,
    charge: dict[str, Any],
    loss: tuple[float, float],
    features: FeatureMap,
    problems: list[str],
) -> float:
    """Compare the noise of a perturbed objective, and return the deviation of the objective noise."""
    kind, event = facts.release.privacy.public[f"{what}_perturbation"], charge["event"]
    objective = calibrate_objective(
        PrivacyBudget(event["epsilon"], event.get("delta", 0.0)),
        kind=kind,
        slope=loss[0],
        bounds=WeightBounds.per_record(1.0),
        curvature=loss[1],
        gamma=facts.number(f"{what}_ridge"),
        size=features.dimension,
        largest_entry=features.largest_entry,
    )
    if (objective.event.to_dict(), 1) != (event, charge["count"]):
        problems.append(f"the charge of its {what} is not that of a {kind} perturbation")
    needed = {
        "tilt_scale": objective.scale,
        "epsilon_jacobian": objective.jacobian,
        "solver_scale": objective.solver.released_scale(objective.size),
    }
    for part, scale in needed.items():
        problems += compared(f"{what} ({part})", facts.number(f"{what}_{part}"), scale, close=_FITTED)
    return objective.deviation


def _noisy_gradient(
    facts: AverageFacts,
    what: str,
    charge: dict[str, Any],
    loss: tuple[float, float],
    features: FeatureMap,
    problems: list[str],
) -> float:
    """Compare the noise of gradient steps, and return the deviation of its mean over the last two thirds."""
    steps, multiplier = charge["count"], as_number(charge["event"]["noise_multiplier"])
    if facts.number(f"{what}_steps") != steps:
        problems.append(f"the steps of its {what} are not those that were charged")
    share = math.sqrt(features.dimension) * 2.0**-20 * multiplier  # that noise loses to its grid
    rounding = math.sqrt(features.dimension) * sum_grid(facts.n, loss[0] * features.largest_entry)
    scale = (2 * loss[0] + rounding) * multiplier / (1 - share)
    problems += compared(f"{what} (gradient)", facts.number(f"{what}_gradient_scale"), scale, close=_FITTED)
    return scale / math.sqrt(steps - steps // 3)


def _k_norm_gradient(
    facts: AverageFacts,
    what: str,
    charge: dict[str, Any],
    loss: tuple[float, float],
    features: FeatureMap,
    problems: list[str],
) -> float:
    """Compare the noise of the K-norm gradient mechanism, and return its deviation."""
    cube, size = facts.release.privacy.public[f"{what}_order"] == "infinity", features.dimension
    sensitivity = 2 * loss[0] * (features.largest_entry if cube else 1.0)
    needed = {
        "gradient_sensitivity": sensitivity,
        "gradient_scale": 2 * sensitivity / ((1 - SOLVER_SHARE) * charge["event"]["epsilon"]),
        "radius": facts.estimand.reach / features.largest_entry,
    }
    for part, scale in needed.items():
        problems += compared(f"{what} ({part})", facts.number(f"{what}_{part}"), scale, close=_FITTED)
    return needed["gradient_scale"] * (_cube(size) if cube else math.sqrt(size + 1))


_Fitter = Callable[[AverageFacts, str, dict[str, Any], tuple[float, float], FeatureMap, list[str]], float]
_FITTERS: dict[str, _Fitter] = {
    "objective": _objective,
    "noisy_gradient": _noisy_gradient,
    CONDITIONAL: _k_norm_gradient,
}


def balance_problems(facts: AverageFacts) -> Iterator[str]:
    """Return what is wrong with a balance table: what follows from public facts, and how large the rest may be.

    Args:
        facts: The release.
    """
    release, table = facts.release, facts.release.balance
    if table is None:
        return
    if release.weights is None or release.privacy.mechanism not in ("balanced_difference", "outcome_table"):
        yield "it holds a balance table, but its mechanism has none"
        return
    features, size = release.weights.features, denominator(facts)
    if list(table.names) != _names(features):
        yield "its balance table is not of its features"
    elif not _expected(facts, table, release.weights.theta, features, size):
        yield "the balance that it expects does not follow from its numbers"
    elif table.before is not None or table.after is not None:
        yield from _bought(facts, table, len(table.names), size)
    elif table.before_sd is not None or table.after_sd is not None:
        yield "its balance table tells noise of what it does not hold"


def _names(features: FeatureMap) -> list[str]:
    if isinstance(features, Identity):
        return list(features.domain.names)
    return [f"feature {k}" for k in range(1, features.dimension)]


def _expected(facts: AverageFacts, table: BalanceTable, theta: Tensor, features: FeatureMap, size: float) -> bool:
    """Whether what is expected is what shrinkage and noise of a balancing fit leave."""
    if not facts.balancing:
        return table.expected is None and table.expected_sd is None
    if table.expected is None or table.expected_sd is None:
        return False
    deviation = facts.number("noise_per_record") * facts.n / size
    if not all(same(sd, deviation) for sd in table.expected_sd):
        return False
    public = facts.release.privacy.public
    ridge = next((facts.number(name) for name in ("weights_ridge", "weights_gamma") if name in public), None)
    if ridge is None:
        return all(abs(mean) <= _MOST for mean in table.expected)  # of a fitter that tells no ridge
    means = (ridge * theta[1:] / features.largest_entry / size).tolist()
    return all(same(*pair) for pair in zip(table.expected, means, strict=True))


def _bought(facts: AverageFacts, table: BalanceTable, rows: int, size: float) -> Iterator[str]:
    """Problems of bought balance: the noise that was paid for, and values beyond what records and noise can make."""
    n, sums = facts.n, KNormMechanism(facts.price("balance (sums)"), 1 + sum_grid(facts.n, 1.0), math.inf)
    count = LaplaceMechanism(facts.price("balance (treated)"), 1.0).released_scale(1)
    if table.before is None or table.before_sd is None or table.after is None or table.after_sd is None:
        yield "its bought balance is not whole"
        return
    noise = sums.released_scale(2 * rows) * _cube(2 * rows)
    after = 2 * facts.estimand.largest * noise / size
    # the bought share of treated, which is not told, is between 1/n and 1 - 1/n; 1/2 has the least noise
    ends = [math.hypot(2 * most * noise, count * math.sqrt(2)) / (n * p * (1 - p)) for p, most in _shares(n)]
    before = table.before_sd[0]
    if not (
        ends[0] * (1 - CLOSE) <= before <= ends[1] * (1 + CLOSE)
        and all(same(sd, before) for sd in table.before_sd)
        and all(same(sd, after) for sd in table.after_sd)
    ):
        yield "the noise in its bought balance is not what was paid for"
    reaches = before * (n / noise + _FAR), n * facts.estimand.largest / size + _FAR * after
    for values, reach in zip((table.before, table.after), reaches, strict=True):
        if not all(abs(value) <= reach for value in values):
            yield "its bought balance is larger than records and noise can make it"


def _shares(n: int) -> list[tuple[float, float]]:
    """Shares p of treated with the least and most noise, and the larger of p and 1 - p."""
    return [(0.5, 0.5), (1 / n, 1 - 1 / n)]


def _cube(size: int) -> float:
    """Deviation of an entry of K-norm noise of the largest entry, of scale 1."""
    return math.sqrt((size + 1) * (size + 2) / 3)


def beside_problems(facts: AverageFacts) -> Iterator[str]:
    """Return what is wrong with a difference in means beside the estimate; its sums stand in its law alone.

    Args:
        facts: The release.
    """
    beside = facts.release.beside
    if beside is None:
        return
    n, unit, price = facts.n, facts.release.domain.outcome_range, facts.price("difference_in_means (table)")
    facts.price("difference_in_means (variance)")
    scale = table_noise(EQUAL, n, price).released_scale(4)
    floor, law = 2 * EQUAL.largest / price, beside.law
    if law is None or law.laplace or len(law.polytope) != 4:
        yield "its difference in means has no interval of a table"
        return
    a, b, c, d = (pull / unit for pull in law.polytope)
    if not (a >= 0 >= b and d >= 0 >= c and a > b and d > c):
        yield "the interval of its difference in means is of no table"
        return
    treated, control = -b / (a - b), d / (d - c)
    sizes = scale / (a - b), scale / (d - c)
    reach = max((EQUAL.largest * max(mean, 1 - mean) / s) for mean, s in zip((treated, control), sizes, strict=True))
    far = n * EQUAL.largest + _FAR * scale
    if not (
        same(beside.value, unit * (treated - control), unit)
        and floor * (1 - CLOSE) <= min(sizes) <= max(sizes) <= far
        and beside.swamped is (min(sizes) <= SCALES * floor)
        and law.gaussian <= unit * math.sqrt(n) * reach * (1 + CLOSE)
    ):
        yield "its difference in means does not follow from its interval and what was paid for it"
