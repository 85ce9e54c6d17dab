"""The curator's online service: one noisy function, revealed query by query."""
