"""A stand-in for the melatonin trial (Table 1), whose records are not public: the same sizes, bounds and budgets.

Nothing about the outcome is known but its bounds, so these numbers say how the mechanisms differ at this size, not what
that trial would show.
"""

from collections.abc import Iterator
from functools import cache

import torch
from scipy.stats import chi2_contingency
from torch import Tensor

from experiments.dp_werm.batch import Batch, scores
from experiments.dp_werm.trial import shifted, value
from experiments.dp_werm.tuning import output_noise
from experiments.frame.study import CERTIFIED, FREE, PRINTED, Cell, Found, Place, Settings, batches, seed_of
from torchdpcate.data.domain import Domain
from torchdpcate.estimators.rules.effect_rule import EffectRule
from torchdpcate.fit.feature_maps import Identity
from torchdpcate.fit.private_fit import WeightBounds
from torchdpcate.privacy.budget import PrivacyBudget
from torchdpcate.privacy.noise import NoiseSource

TABLE, SETTING = "table1_melatonin", "melatonin_trial"
N, TREATED, REPEATS = 246, 120, 200
RIDGES, EPSILONS = (30, 50, 90, 150), (0.1, 0.5, 1.0, 2.0, 5.0)
MOST, MOST_WEIGHT = 4.0, 8.0  # the paper's bound of shifted outcomes, and W
LOW, HIGH = [0.0, 18.0, 0.0, 0.0, 0.0], [20.0, 60.0, 1.0, 1.0, 1.0]  # ages at diagnosis and enrolment, three yes or no
SHARES = (0.5, 0.8, 0.5)  # of the latter
BATCH = 50


@cache
def records() -> tuple[Tensor, Tensor, Tensor]:
    """Return covariates [246, 5], treatments and changes of a score; drawn once.

    Ages are uniform within their bounds; the change is normal of deviation 0.7 around 0.1 A (1 + x), x the age at
    enrolment over [-1, 1] and A = 1 or -1.
    """
    generator = torch.Generator().manual_seed(seed_of("stand-in for the melatonin trial"))
    u = torch.rand(N, 5, generator=generator, dtype=torch.float64)
    ages = torch.tensor(LOW[:2]) + (torch.tensor(HIGH[:2]) - torch.tensor(LOW[:2])) * u[:, :2]
    x = torch.cat([ages, (u[:, 2:] < torch.tensor(SHARES)).double()], 1)
    a = torch.zeros(N, dtype=torch.float64)
    a[torch.randperm(N, generator=generator)[:TREATED]] = 1.0
    age = (x[:, 1] - 39) / 21
    noise = 0.7 * torch.randn(N, generator=generator, dtype=torch.float64)
    return x, a, 0.1 * (2 * a - 1) * (1 + age) + noise


def cells(settings: Settings) -> Iterator[Cell]:
    """Yield one for the paper's, and batches of ours."""
    repeats = 20 if settings.quick else REPEATS
    yield {"part": "stand-in", "who": "paper", "first": 0, "repeats": repeats}
    for first, count in batches(repeats, BATCH):
        yield {"part": "stand-in", "who": "ours", "first": first, "repeats": count}


def compute(cell: Cell) -> Iterator[Found]:
    """Yield what a cell finds: decisions on the training records, as the paper evaluates them."""
    domain = Domain(LOW, HIGH, -2.0, 2.0, 0.4, propensity=0.5, better="higher")
    x, a, y = records()
    psi = Identity(False).setup(domain)(x)[None]
    weights = (shifted(y[None]) / MOST).clamp(max=1)
    problem = Batch(psi, 2 * a[None] - 1, weights, WeightBounds.per_record(1.0))
    fits = {ridge: problem.fit(ridge / MOST_WEIGHT) for ridge in RIDGES}
    own = {ridge: scores(psi, theta)[0] > 0 for ridge, theta in fits.items()}
    if cell["who"] == "paper":
        for ridge, theta in fits.items():
            yield from _found(
                "inf", f"gamma = {ridge}", FREE, "no privacy", "not private", own[ridge][None], own[ridge]
            )
            for epsilon in EPSILONS:
                many = theta.expand(int(cell["repeats"]), -1)
                noise = NoiseSource.fixed(seed_of("stand-in", ridge, epsilon))
                decided = scores(psi, output_noise(problem, ridge / MOST_WEIGHT, epsilon, many, noise)) > 0
                words = (f"gamma = {ridge}", PRINTED, "output perturbation, shift by the sample's least", "none holds")
                yield from _found(f"{epsilon:g}", *words, decided, own[ridge])
        return
    for epsilon in EPSILONS:
        decided = torch.stack([_rule(domain, epsilon, int(cell["first"]) + k) for k in range(int(cell["repeats"]))])
        words = ("", CERTIFIED, "task=rule, default, delta = 0", "certified")
        yield from _found(f"{epsilon:g}", *words, decided, own[RIDGES[0]])


def _rule(domain: Domain, epsilon: float, repeat: int) -> Tensor:
    x, a, y = records()
    noise = NoiseSource.fixed(seed_of("stand-in, ours", epsilon, repeat))
    learner = EffectRule(domain, PrivacyBudget(epsilon, 0.0), noise=noise).fit(x, a, y.clamp(-2.0, 2.0))
    return learner.release().answer(x) > 0


def _found(
    epsilon: str, variant: str, role: str, method: str, level: str, decided: Tensor, own: Tensor
) -> Iterator[Found]:
    """Yield the paper's measures of decisions [runs, n] beside the rule without privacy, [n]."""
    _, a, y = records()
    treated = decided.double().sum(1)
    worth = value(decided, a[None], shifted(y[None]))
    found = {
        "treatment_value": worth[worth.isfinite()].tolist(),
        "allocated_to_melatonin": treated.tolist(),
        "allocated_to_placebo": (N - treated).tolist(),
        "concordance_share": (decided == own).double().mean(1).tolist(),
        "p_value_chi_squared": [_p_value(one, own) for one in decided],
    }
    for metric, values in found.items():
        yield Found(Place(TABLE, SETTING, str(N), epsilon, variant, metric), role, method, level, values)


def _p_value(decided: Tensor, own: Tensor) -> float:
    """P value of a chi-squared test of independence; 1 where either treats all or none."""
    both = 2 * decided.long() + own.long()
    counts = torch.bincount(both, minlength=4).reshape(2, 2).numpy()
    return float(chi2_contingency(counts).pvalue) if counts.sum(0).all() and counts.sum(1).all() else 1.0
