"""Estimators: treatment effects, rules, selection of a policy, average effects."""
