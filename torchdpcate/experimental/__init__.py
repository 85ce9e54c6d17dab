"""Mechanisms that are not ready for use: the K-norm gradient mechanism, which may never end."""
