"""The theory note's own estimates on LaLonde's data.

Source: theory note ``covariate_balancing``, section 6.
"""

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
