"""The theory note's numbers for private policy selection, with which ours are compared. The paper's tables we lack."""

APPENDIX_G = {
    "rho": 0.019076068,
    "certificate": 28.614102,
    "floor": 22.0,
    "spread": 57.2,
    "bounded range": 27.200361,
    "localised spill": 17.946135,
    "localised": 20.0,
}
"""The paper's worked example (m = n = 1500, R_x^2 = 21, lambda = 50, zeta = 0.1), as the note carries it, and the
note's own numbers for it."""

SIMULATED_PROPENSITY = (0.4997, 0.5003)
"""Range of the propensities that the note's simulation of the paper's positive control fits."""

REGRET = {
    ("uniform", None): {1.0: 0.0286},
    ("control, as printed", "exponential"): {1.0: 0.0262, 2.0: 0.0237},
    ("control, bounded range", "exponential"): {1.0: 0.0234, 2.0: 0.0176},
    ("control, localised gradient", "exponential"): {1.0: 0.0214, 2.0: 0.0137},
    ("private, convex", "exponential"): {1.0: 0.0198, 2.0: 0.0112},
    ("private, convex", "permute_and_flip"): {1.0: 0.0192, 2.0: 0.0104},
    ("constants", "exponential"): {1.0: 0.0058, 2.0: 0.0057},
    ("argmax: truth", None): {1.0: 0.0006},
}
"""Section 9.5's expected regrets by (row, mechanism) and epsilon. The note names a mechanism for its private rows
alone; the others are set beside ours by the exponential mechanism, whose printed certificate the first is."""
