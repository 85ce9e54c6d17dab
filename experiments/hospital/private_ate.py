r"""A private average effect by output perturbation: the principle of PrivATE, arXiv 2505.21641.

Schröder, Hartenstein & Feuerriegel (2025).

Nuisances are fitted without privacy, and doubly robust scores averaged. Gaussian noise on the average is in proportion
to the gross-error sensitivity, the largest influence that a record could have:

.. math:: \hat\tau + 5\sqrt{2 \ln n\,\ln(2/\delta)}\,\frac{\gamma}{\epsilon n}\,Z, \qquad
    \gamma = \sup_{x, a, y} |\varphi(x, a, y) - \hat\tau|

and the scores' variance is released in the same way, by the influence (phi - tau)^2 - var, and cut at 0. The interval
counts sampling and the noise of the estimate.

Assumed, where we did not have the paper's details: half of epsilon and delta for each of the two; two-fold
cross-fitting of gradient boosting; the supremum over outcomes within public bounds, both arms, and the covariates of
the records; propensities clipped to [``CLIP``, 1 - ``CLIP``], or known. No finite-sample guarantee is proved: the
influence function says nothing of what a replaced record does to the nuisances, and gamma is not a smooth bound.
"""

import math

import numpy as np

from experiments.hospital.cases import LEVEL, Case, Estimate
from torchdpcate.privacy.calibration import theorem1_multiplier

CLIP = 0.05


def private_ate(case: Case, epsilon: float, delta: float, seed: int) -> Estimate:
    """Return the estimate with its interval.

    Args:
        case: The records.
        epsilon: Of all of it.
        delta: Of all of it.
        seed: Public, of folds, nuisances and noise.
    """
    from scipy.stats import norm

    records, domain = case.records, case.schema.domain
    x, a, y = records.x, records.a, records.y
    rng = np.random.default_rng(seed)
    m0, m1, pi = _nuisances(x, a, y, rng.permutation(len(y)) % 2, seed)
    pi = np.clip(pi, CLIP, 1 - CLIP)
    if domain.known_propensity is not None:
        pi = np.full_like(pi, domain.known_propensity.middle)

    def scores(arm: np.ndarray | float, outcome: np.ndarray | float) -> np.ndarray:
        return m1 - m0 + np.where(arm == 1, (outcome - m1) / pi, -(outcome - m0) / (1 - pi))

    own = scores(a, y)
    mean, variance = own.mean(), own.var()
    ends = (domain.outcome_low, domain.outcome_high)
    gamma = max(np.abs(scores(arm, end) - mean).max() for arm in (0.0, 1.0) for end in ends)
    multiplier = theorem1_multiplier(epsilon / 2, delta / 2, len(y))
    noise = multiplier * gamma
    estimate = mean + noise * rng.standard_normal()
    squared = max(variance + multiplier * max(gamma**2 - variance, variance) * rng.standard_normal(), 0.0)
    half = norm.ppf((1 + LEVEL) / 2) * math.sqrt(squared / len(y) + noise**2)
    return Estimate(float(estimate), float(estimate - half), float(estimate + half))


def _nuisances(x: np.ndarray, a: np.ndarray, y: np.ndarray, fold: np.ndarray, seed: int) -> tuple[np.ndarray, ...]:
    """Return outcomes of both arms and propensities [n] each, from the other half; a mean where an arm is tiny."""
    from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor

    found = np.empty((3, len(y)))
    for k in (0, 1):
        train, test = fold != k, fold == k
        for arm in (0, 1):
            inside = train & (a == arm)
            found[arm, test] = y[inside].mean() if inside.any() else y[train].mean()
            if inside.sum() > 1:
                model = HistGradientBoostingRegressor(random_state=seed).fit(x[inside], y[inside])
                found[arm, test] = model.predict(x[test])
        classes = HistGradientBoostingClassifier(random_state=seed).fit(x[train], a[train].astype(int))
        found[2, test] = classes.predict_proba(x[test])[:, -1]
    return tuple(found)
