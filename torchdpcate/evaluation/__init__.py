"""Metrics and figures."""
