"""Conditional average treatment effects: the R- and the DR-learner."""
