"""Words that went, each with the way that answers its question."""

_EFFECT = "effect=auto takes the estimator of least planned error"
_SECOND_STAGE = "second_stage=adaptive, the default, chooses covariates and features within its own budget"
_STUDY = "the design is one of the studies: torchdpcate study --help"
GONE = {
    "data=acic_rare": _STUDY,
    "data=hospital": _STUDY,
    "data=niu": _STUDY,
    "effect.fitter=k_norm_gradient": "effect.fitter=null takes the fit of least noise",
    "effect.readout": _EFFECT,
    "effect.shares": "the parts of the budget are the library's",
    "effect=difference_in_means": "state propensity: in the domain file; effect=known_propensity is for trials",
    "effect=doubly_robust": "effect=composed has doubly robust scores on all records",
    "effect=horvitz_thompson": _EFFECT,
    "effect=subsample_aggregate": _EFFECT,
    "matching": "task=rule compares arms by an effect",
    "mechanism=dp_sgd_head": "mechanism=objective is the least noisy for linear heads",
    "mechanism=statistics": "mechanism=objective is the least noisy for linear heads, output has a public band",
    "plan": "sd: of the outcome, in the domain file, is what plans take",
    "rule.perturbation": "the perturbation of least noise is taken, pure where privacy.delta=0",
    "rule.radius_norm": "rule.radius bounds coefficients in l2",
    "screen": _SECOND_STAGE,
    "subgroup_effects.law": "the law of less noise is taken, Laplace where privacy.delta=0",
    "subgroup_effects.overlap": "the domain file's overlap: is the public clip",
    "subgroup_effects.propensity_share": "the parts of the budget are the library's",
    "subgroup_effects.released": "whether partitions are crossed follows from public facts, by the least noise",
    "task=pairwise": "task=rule compares arms by an effect, task=two_stage_rule by weights",
    "trainer.log_folder": "losses and checkpoints go to the run's curator/logs alone",
    "trainer=cpu": "trainer.accelerator=cpu, the default",
    "trainer=gpu": "trainer.accelerator=gpu",
    "tune": _SECOND_STAGE + "; of rules rule.ridge=null follows from n and the budget",
    "unit": "data.person=COLUMN protects persons, else each record is one; verify says which",
}
"""By the setting, or by the setting with its value."""
_PUBLISHER = "say who publishes a release beside it; train privacy.chosen=... says who chose epsilon, and why"
COMMANDS = {
    "answer": "torchdpcate predict RUN/curator/online TABLE -o FILE asks a run's online service",
    "completion": "a word that is no setting is answered by the nearest ones; train task=NAME --help lists all",
    "explore": "torchdpcate report RELEASE --serve is that page",
    "inspect": "torchdpcate verify RELEASE says it, with --json and --card",
}
OPTIONS = {"--facts": _PUBLISHER, "--new-facts": _PUBLISHER}
"""Options of commands."""


def remedy(key: str, values: list[object]) -> str | None:
    """Return what answers the question of a word that went; None of others.

    Args:
        key: The setting.
        values: Its values.

    Example:
        >>> remedy("screen.most", [3])[:23]
        'second_stage=adaptive, '
        >>> remedy("seed", [3])
    """
    names = [f"{key}={value}" for value in values]
    while key:
        names.append(key)
        key = key.rpartition(".")[0]
    return next((GONE[name] for name in names if name in GONE), None)
