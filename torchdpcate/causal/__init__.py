"""Causal estimation: scores, estimands, weights of average effects."""
