"""Attacks on our own claims: empirical bounds."""
