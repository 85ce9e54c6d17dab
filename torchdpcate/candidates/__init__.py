"""Public candidate policies: deterministic maps from covariates to actions, given before the records are read."""
