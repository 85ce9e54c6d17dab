"""Words that went, each with the way that answers its question."""

_EFFECT = "effect=auto takes the estimator of least planned error"
_SECOND_STAGE = "second_stage=adaptive, the default, chooses covariates and features within its own budget"
_NUISANCE = "nuisance=mlp has its width, batch_size and epochs; other numbers of its training are the library's"
_THRESHOLD = "second_stage.threshold=NUMBER gives a public one; a private one is the 0.9 quantile, at 5 % of epsilon"
_STUDY = "the design is one of the studies: torchdpcate study --help"
GONE = {
    "data=acic_rare": _STUDY,
    "data=hospital": _STUDY,
    "data=niu": _STUDY,
    "effect=difference_in_means": "state propensity: in the domain file; effect=known_propensity is for trials",
    "effect=doubly_robust": "effect=composed has doubly robust scores on all records",
    "effect=horvitz_thompson": _EFFECT,
    "effect=subsample_aggregate": _EFFECT,
    "effect.fitter=k_norm_gradient": "effect.fitter=null takes the fit of least noise",
    "effect.readout": _EFFECT,
    "effect.shares": "the parts of the budget are the library's",
    "features.scale": "features=representation has half of its length for the nuisances' features",
    "features.seed": "random features are drawn with a seed of the library's",
    "features.squares": "features=legendre has squares, products of covariates alone are features=products",
    "matching": "task=rule compares arms by an effect",
    "mechanism.damping": "a release with damping would be heuristic; raise second_stage.ridge",
    "mechanism.seed": "the search for the worst record has starting points of the library's",
    "mechanism.starts": "the search for the worst record has starting points of the library's",
    "mechanism=dp_sgd_head": "mechanism=objective is the least noisy for linear heads",
    "mechanism=statistics": "mechanism=objective is the least noisy for linear heads, output has a public band",
    "nuisance.average": _NUISANCE,
    "nuisance.features": "nuisance=mlp has a hidden layer alone, nuisance=additive features alone",
    "nuisance.jacobian_share": "nuisance=convex divides its budget itself",
    "nuisance.learning_rate": _NUISANCE,
    "nuisance.max_grad_norm": _NUISANCE,
    "nuisance.median_share": "nuisance=convex divides its budget itself",
    "nuisance.noise_walk": _NUISANCE,
    "nuisance.optimizer": _NUISANCE,
    "nuisance.outcome_from": "nuisance=auto takes a hidden layer where there is room for it, wide_and_deep always",
    "nuisance.outcome_share": _NUISANCE,
    "nuisance.propensity_degree": "nuisance=convex has a propensity of degree 1",
    "nuisance.propensity_share": "nuisance=convex divides its budget itself",
    "nuisance.share": "nuisance=wide_and_deep has three tenths of a squared gradient for its hidden layer",
    "nuisance=linear": "nuisance=mlp nuisance.width=0",
    "nuisance=narrow": "nuisance=mlp nuisance.width=16",
    "release.counter": "the user's state folder notes how far a service has come, and a copy put back is refused",
    "screen": _SECOND_STAGE,
    "second_stage.batch_size": "the neural head is polished to a stationary point, however it was trained",
    "second_stage.depth": "the neural head has two hidden layers; second_stage.width is theirs",
    "second_stage.largest_dense": "beyond 15,000 records conjugate gradients take over",
    "second_stage.loss=truncated_squared": "it is not convex, so nothing bounds what a record moves; use huber",
    "second_stage.noise_ratio": "each mechanism has the ratio it works best with; second_stage.ridge=NUMBER fixes it",
    "second_stage.private_threshold": _THRESHOLD,
    "second_stage.tolerance": "the neural head is polished to a stationary point, however it was trained",
    "split.nuisance_share": "the nuisances of two folds have 0.7 of the budget",
    "task=pairwise": "task=rule compares arms by an effect, task=two_stage_rule by weights",
    "tune": _SECOND_STAGE + "; of rules rule.ridge=null follows from n and the budget",
}
"""By the setting, or by the setting with its value."""
_PUBLISHER = "say who publishes a release beside it; train privacy.chosen=... says who chose epsilon, and why"
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
