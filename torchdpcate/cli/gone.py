"""Words that went, each with the way that answers its question."""

_EFFECT = "effect=auto takes the estimator of least planned error"
_SECOND_STAGE = "second_stage=adaptive, the default, chooses covariates and features within its own budget"
_STUDY = "the design is one of the studies: torchdpcate study --help"
_LAW = "the law of generated data is fixed; give its class other arguments in Python"
GONE = {
    "data=acic_rare": _STUDY,
    "data=hospital": _STUDY,
    "data=niu": _STUDY,
    "data.before": "the cohort is the paper's: 10 hours before, 24 after; MimicExtract(before=) in Python",
    "data.after": "the cohort is the paper's: 10 hours before, 24 after; MimicExtract(after=) in Python",
    "data.confounding": _LAW,
    "data.footer_rows": "delete last rows that are no records",
    "data.modifiers": "the first ten genes of data.genes are the modifiers",
    "data.noise": _LAW,
    "data.overlap": "state overlap: in the domain file; that of data=tcga is 0.1",
    "data.queries": "queries.count=NUMBER",
    "data.queries_path": "queries.path=FILE",
    "data.region": "the region is the design's; RareRegion(region=) in Python",
    "data.repeated_header": "delete rows that are the header again",
    "data.seed": "seed=NUMBER is of data too",
    "data.surface.confounding": _LAW,
    "data.surface.noise": _LAW,
    "data.too_many": "data.per_person records of each person are drawn",
    "data.train_fraction": "nine tenths of generated data are records",
    "data.trailing_separator": "write the table without a separator at the end of rows",
    "effect=difference_in_means": "state propensity: in the domain file; effect=known_propensity is for trials",
    "effect=doubly_robust": "effect=composed has doubly robust scores on all records",
    "effect=horvitz_thompson": _EFFECT,
    "effect=subsample_aggregate": _EFFECT,
    "effect.fitter=k_norm_gradient": "effect.fitter=null takes the fit of least noise",
    "effect.readout": _EFFECT,
    "effect.shares": "the parts of the budget are the library's",
    "matching": "task=rule compares arms by an effect",
    "mechanism=dp_sgd_head": "mechanism=objective is the least noisy for linear heads",
    "mechanism=statistics": "mechanism=objective is the least noisy for linear heads, output has a public band",
    "ray.address": "data.address=HOST:PORT",
    "ray.parts": "data.parts=NUMBER",
    "screen": _SECOND_STAGE,
    "task=pairwise": "task=rule compares arms by an effect, task=two_stage_rule by weights",
    "tune": _SECOND_STAGE + "; of rules rule.ridge=null follows from n and the budget",
}
"""By the setting, or by the setting with its value."""
_PUBLISHER = "say who publishes a release beside it; train privacy.chosen=... says who chose epsilon, and why"
OPTIONS = {
    "--footer-rows": "delete last rows that are no records",
    "--repeated-header": "delete rows that are the header again",
    "--trailing-separator": "write the table without a separator at the end of rows",
    "--facts": _PUBLISHER,
    "--new-facts": _PUBLISHER,
}
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
