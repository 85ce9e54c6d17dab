"""What in a released average effect beside its estimate does not follow: fits, balance table, difference in means."""

import math
from collections.abc import Iterator

from torchdpcate.erm.balancing_loss import BalancingLoss
from torchdpcate.erm.losses import CrossEntropy, Logistic, Loss
from torchdpcate.erm.private_fit import LINEAR_FITS
from torchdpcate.estimators.average.balance import COUNT, BalanceStatistics, expected_balance, names_of
from torchdpcate.estimators.average.balanced_difference import SCALES
from torchdpcate.estimators.average.effect_estimator import EffectFacts
from torchdpcate.estimators.average.outcome_table import EQUAL, OutcomeTable, floors
from torchdpcate.estimators.average.stated import FITTED, Entry, StatedEffect
from torchdpcate.estimators.recompute import CLOSE, compared, constants_problems, same
from torchdpcate.features.maps import FeatureMap
from torchdpcate.privacy.guarantee import Level
from torchdpcate.privacy.mechanisms import k_norm_deviation
from torchdpcate.privacy.noisy_numbers import FAR, grid_problems
from torchdpcate.release.balance_table import BalanceTable
from torchdpcate.release.released_weights import ReleasedWeights

_FITTED = 1e-6  # how well noise scales of fits must agree, some of which are found by search
_MOST = 1e15  # of a coefficient: n times the slope over the ridge, for more records than there are


def fit_problems(stated: StatedEffect) -> Iterator[str]:
    """Return what is wrong with the fits of weights and outcome model: label, level, noise, coefficients.

    Args:
        stated: The release.
    """
    release = stated.release
    weights = None if release.weights is None else release.weights.theta
    coefficients = {"weights": weights, "outcome_model": release.outcome_theta}
    for what, purpose in FITTED.items():
        paid, theta = stated.charged(purpose), coefficients[what]
        if not paid:
            yield from constants_problems(what, stated.public, {}, _FITTED)
            continue
        if len(paid) > 1 or theta is None or release.weights is None:
            yield f"it was charged for its {what}, but does not hold them once"
            continue
        name, said = paid[0].charge.mechanism, stated.public.get(f"{what}_fitter")
        if name != said and (said is not None or name in LINEAR_FITS):
            yield f"its {what} are charged by {name}, but its statement says {said}"
        for fit in {name, str(said)} & set(LINEAR_FITS):
            yield from _level(stated, what, fit, paid[0])
        if not float(theta.abs().amax()) <= _MOST:
            yield f"its {what} hold numbers that no fit gives"
        elif name in LINEAR_FITS:
            yield from _noise(stated, what, name, paid[0], release.weights.features)


def _level(stated: StatedEffect, what: str, name: str, entry: Entry) -> Iterator[str]:
    """Problems of the level and the conditions of a fit."""
    kind = LINEAR_FITS[name]
    if kind.level is not Level.CERTIFIED and entry.level == Level.CERTIFIED:
        yield f"its {what} are by {name}, which is {kind.level}, but they are called certified"
    names = [condition["name"] for condition in stated.release.privacy.conditions]
    for condition in kind.conditions:
        if condition.name not in names:
            yield f"its {what} are by {name}, but the condition {condition.name!r} is not stated"


def _noise(stated: StatedEffect, what: str, name: str, entry: Entry, features: FeatureMap) -> Iterator[str]:
    """Problems of a fit's constants and charge, and of the imbalance that its noise is stated to leave."""
    balancing, of = stated.balancing and what == "weights", stated.estimand
    loss: Loss = BalancingLoss(of) if balancing and of.scoring_rule is not None else Logistic()
    if what == "outcome_model":
        loss = CrossEntropy()
    start = f"{what}_"
    public = {key.removeprefix(start): value for key, value in stated.public.items() if key.startswith(start)}
    fit = LINEAR_FITS[name].recompute(public, entry.event, entry.count, loss, stated.n, features)
    if (fit.event, fit.count) != (entry.event, entry.count):
        yield f"the charge of its {what} is not that of {name} with its settings"
    weights = None if stated.release.weights is None else stated.release.weights.theta
    theta = stated.release.outcome_theta if what == "outcome_model" else weights
    if theta is not None and f"{what}_solver_scale" in stated.public:
        yield from grid_problems(f"its {what}", theta, stated.number(f"{what}_solver_scale"))
    yield from constants_problems(what, stated.public, fit.public, _FITTED)
    if what == "weights" and "noise_per_record" in stated.public:
        left = fit.imbalance / stated.n
        yield from compared("noise_per_record", stated.number("noise_per_record"), left, close=_FITTED)


def balance_problems(stated: StatedEffect, size: float) -> Iterator[str]:
    """Return what is wrong with a balance table: what follows from public facts, and how large the rest may be.

    Args:
        stated: The release.
        size: N, what imbalances are divided by.
    """
    release, table = stated.release, stated.release.balance
    if table is None or release.weights is None:
        return
    features = release.weights.features
    if list(table.names) != names_of(features):
        yield "its balance table is not of its features"
    elif not _expected(stated, table, features, size):
        yield "the balance that it expects does not follow from its numbers"
    elif table.before is not None or table.after is not None:
        yield from _statistics(stated, table, release.weights, size)
    elif table.before_sd is not None or table.after_sd is not None:
        yield "its balance table has noise of what it does not hold"


def _expected(stated: StatedEffect, table: BalanceTable, features: FeatureMap, size: float) -> bool:
    """Whether what is expected is what shrinkage and noise of a balancing fit leave."""
    if not stated.balancing:
        return table.expected is None and table.expected_sd is None
    weights = stated.release.weights
    if table.expected is None or table.expected_sd is None or weights is None:
        return False
    ridge = next((stated.number(name) for name in ("weights_ridge", "weights_gamma") if name in stated.public), None)
    noise = stated.number("noise_per_record") * stated.n
    needed = expected_balance(weights.theta, features, ridge or 0.0, noise, size)
    assert needed.expected is not None
    assert needed.expected_sd is not None
    if not all(same(*pair) for pair in zip(table.expected_sd, needed.expected_sd, strict=True)):
        return False
    if ridge is None:  # a fit that is not the library's
        return all(abs(mean) <= _MOST for mean in table.expected)
    return all(same(*pair) for pair in zip(table.expected, needed.expected, strict=True))


def _statistics(stated: StatedEffect, table: BalanceTable, weights: ReleasedWeights, size: float) -> Iterator[str]:
    """Problems of released balance statistics: their noise, and values beyond what records and noise can make."""
    count, sums = (stated.epsilon("balance", part) for part in ("treated", "sums"))
    if table.before is None or table.before_sd is None or table.after is None or table.after_sd is None:
        yield "its balance statistics are not all there"
        return
    n, rows, statistics = stated.n, len(table.names), BalanceStatistics(count + sums, stated.estimand)
    most = statistics.largest(weights.features, weights.theta[None]).item()
    # the released share of treated, which is not stated, is between 1/n and 1 - 1/n; 1/2 has the least noise
    ends = [statistics.deviations(n, share, rows, size, most) for share in (0.5, 1 / n)]
    before, after = table.before_sd[0], ends[0][1]
    if not (
        math.isclose(count, COUNT * (count + sums), rel_tol=_FITTED)
        and ends[0][0] * (1 - CLOSE) <= before <= ends[1][0] * (1 + CLOSE)
        and all(same(sd, before) for sd in table.before_sd)
        and all(same(sd, after) for sd in table.after_sd)
    ):
        yield "the noise in its balance statistics is not what was paid for"
    # plain sums are at most n in their unit, of which ``before`` has the noise
    noise = statistics.sums(n).released_scale(2 * rows) * k_norm_deviation(2 * rows, math.inf)
    plain = before * (n / noise + FAR)
    for values, reach in ((table.before, plain), (table.after, n * most / size + FAR * after)):
        if not all(abs(value) <= reach for value in values):
            yield "its balance statistics are larger than records and noise can make them"


def beside_problems(stated: StatedEffect) -> Iterator[str]:
    """Return what is wrong with a difference in means beside the estimate; its sums stand in its law alone.

    Args:
        stated: The release.
    """
    beside = stated.release.beside
    if beside is None:
        return
    n, unit = stated.n, stated.release.domain.outcome_range
    epsilons = {part: stated.epsilon("difference_in_means", part) for part in OutcomeTable.parts}
    facts = EffectFacts(n, EQUAL)
    scale = EQUAL.largest * OutcomeTable().mechanisms(facts, epsilons)[0].released_scale(4)
    floor, law = floors(facts, epsilons["table"])[0, 0].item(), beside.law
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
    far = n * EQUAL.largest + FAR * scale
    if not (
        same(beside.value, unit * (treated - control), unit)
        and floor * (1 - CLOSE) <= min(sizes) <= max(sizes) <= far
        and beside.noise_dominated is (min(sizes) <= SCALES * floor)
        and law.gaussian <= unit * math.sqrt(n) * reach * (1 + CLOSE)
    ):
        yield "its difference in means does not follow from its interval and what was paid for it"
