"""The theory note's own simulations of the confounded design, and its estimates on LaLonde's data.

Source: theory note ``covariate_balancing``, section 6.
"""

Numbers = dict[int, tuple[float, float, float]]
"""By records of a data set: at epsilon = 0.5, 1 and 5."""

NOTE_MSE: dict[str, Numbers] = {
    "literal": {5_000: (0.00797, 0.00471, 0.00044)},
    "certified, logistic loss, eta = 0.1": {5_000: (0.00073, 0.00033, 0.00021)},
    "certified, balancing loss, eta = 0.1": {5_000: (0.00093, 0.00039, 0.00021)},
}
"""By row; 100 to 200 runs, so that the errors are known to 10 or 15 %."""

LALONDE = {
    ("NSW", "no intercept"): (0.111887, 0.0228, 0.2009),
    ("NSW", "with intercept"): (0.110778, None, None),
    ("NSW treated and PSID", "no intercept"): (0.163894, None, None),
    ("NSW treated and PSID", "with intercept"): (0.165148, None, None),
    ("NSW treated and PSID", "no intercept, e clipped at 0.01"): (0.1125, None, None),
    ("NSW treated and PSID", "no intercept, e clipped at 0.05"): (0.0255, None, None),
    ("NSW treated and PSID", "no intercept, e clipped at 0.1"): (-0.0195, None, None),
}
"""The note's estimates without privacy and interval ends."""
"""The note's estimates without privacy and interval ends."""
