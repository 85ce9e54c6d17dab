"""The published numbers that the theory note carries, and its own simulations. We do not have the paper's tables.

Keys are row, records of a data set and epsilon. Source: theory note ``covariate_balancing``, sections 5 and 6.
"""

Numbers = dict[int, tuple[float, float, float]]
"""By records of a data set: at epsilon = 0.5, 1 and 5."""

PUBLISHED_MSE: Numbers = {5_000: (0.01425, 0.00378, 0.00043), 10_000: (0.00394, 0.00110, 0.00019)}
"""The paper's mechanism in scenario 1."""
PUBLISHED_LENGTH: Numbers = {5_000: (0.70, 0.50, 0.22)}
"""Mean length of its 95 % intervals there."""
PUBLISHED_LGPR_BIAS = 0.28
"""Of LGPR in the paper, as a share of the effect."""

NOTE_MSE: dict[str, dict[str, Numbers]] = {
    "scenario 1": {
        "literal": {5_000: (0.01449, 0.00349, 0.00033), 10_000: (0.00297, 0.00120, 0.00017)},
        "certified, outcome table, eta = 0.05": {
            5_000: (0.00215, 0.00072, 0.00025),
            10_000: (0.00051, 0.00031, 0.00014),
        },
        "certified, eta = 0.05": {
            5_000: (0.00248, 0.00086, 0.00025),
            10_000: (0.00063, 0.00021, 0.00012),
        },
        "certified, eta = 0.1": {
            5_000: (0.00091, 0.00036, 0.00021),
            10_000: (0.00026, 0.00014, 0.00011),
        },
        "difference in means": {5_000: (0.00022, 0.00022, 0.00022), 10_000: (0.00011, 0.00010, 0.00010)},
    },
    "confounded": {
        "literal": {5_000: (0.00797, 0.00471, 0.00044)},
        "certified, logistic loss, eta = 0.1": {5_000: (0.00073, 0.00033, 0.00021)},
        "certified, balancing loss, eta = 0.1": {5_000: (0.00093, 0.00039, 0.00021)},
    },
}
NOTE_COVERAGE: dict[str, dict[str, Numbers]] = {
    "scenario 1": {"literal, note's interval": {5_000: (0.69, 0.81, 0.97)}},
    "confounded": {
        "literal, note's interval": {5_000: (0.60, 0.65, 0.87)},
        "certified, logistic loss, eta = 0.1": {5_000: (0.955, 0.970, 0.965)},
        "certified, balancing loss, eta = 0.1": {5_000: (1.000, 0.990, 0.980)},
    },
}
NOTE_LENGTH: dict[str, dict[str, Numbers]] = {
    "scenario 1": {"literal, note's interval": {5_000: (0.27, 0.20, 0.13)}},
    "confounded": {
        "literal, note's interval": {5_000: (0.198, 0.148, 0.094)},
        "certified, logistic loss, eta = 0.1": {5_000: (0.110, 0.074, 0.058)},
        "certified, balancing loss, eta = 0.1": {5_000: (0.195, 0.110, 0.060)},
    },
}
NOTE_ONE = {"GR": {5_000: 0.00656, 10_000: 0.00268}, "LGPR": {5_000: 0.00092, 10_000: 0.00024}}
"""MSE of the peers in scenario 1 at epsilon = 1."""

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
PUBLISHED_LALONDE = {"NSW": "0.112 (0.023, 0.201)", "NSW treated and PSID": "0.164"}
