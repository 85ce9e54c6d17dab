"""Propensity and outcome models of K arms for policy selection, with guarantees."""
