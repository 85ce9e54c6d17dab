"""Values of command-line words that Hydra's grammar cannot take, or would change: names of files above all."""

PATHS = {
    "run_dir": False,
    "budget.shared": False,
    "data.path": True,
    "data.domain": False,
    "data.covariates": False,
    "data.genes": False,
    "data.queries_path": False,
    "data.surface.path": False,
    "effect.public_sample": False,
    "policies.path": False,
    "queries.path": False,
    "release.counter": False,
    "rule.population": False,
    "subgroups": True,
}
"""Settings that name a file or a folder, and whether they take a list too."""
