"""Words that went, each with the way that answers its question."""

_EFFECT = "effect=auto takes the estimator of least planned error"
_SECOND_STAGE = "second_stage=adaptive, the default, chooses covariates and features within its own budget"
_NUISANCE = "nuisance=mlp has its width, batch_size and epochs; other numbers of its training are the library's"
_THRESHOLD = "second_stage.threshold=NUMBER gives a public one; a private one is the 0.9 quantile, at 5 % of epsilon"
_STUDY = "the design is one of the studies: torchdpcate study --help"
_CHOICE = "the scores decide on the mechanism of a choice: the one of least noise beside them"
_CELLS = "where no propensity is known, doubly robust scores of one composition estimate it (with privacy.delta)"
_OVERLAP = "the domain's overlap is the public clip of the propensity"
_RIDGE = "rule.ridge bounds the coefficients: null takes what n and the budget need"
_FREE_WEIGHTS = "weights=private pays for a propensity and needs less noise; torchdpcate study dp_2erm has the paper's"
_PLAN = "the plan decides it, by public facts"
_LAW = "the law of generated data is fixed; give its class other arguments in Python"
GONE = {
    "data=acic_rare": _STUDY,
    "data=hospital": _STUDY,
    "data=mimic_iii": "data=mimic reads MIMIC-III's tables too",
    "data=mimic_iv": "data=mimic reads MIMIC-IV's tables too",
    "data=niu": _STUDY,
    "experiment=acic2016": "data=semi_synthetic data.domain=acic2016 is the same",
    "experiment=dataset1": "data=dataset1 is the same",
    "experiment=dataset2": "data=dataset2 data.n=3000 is the same",
    "data.before": "the cohort is the paper's: 10 hours before, 24 after; Mimic(before=) in Python",
    "data.after": "the cohort is the paper's: 10 hours before, 24 after; Mimic(after=) in Python",
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
    "data.version": "data=mimic reads either version, the folder tells which",
    "data.trailing_separator": "write the table without a separator at the end of rows",
    "effect=difference_in_means": "state propensity: in the domain file; effect=known_propensity is for trials",
    "effect=doubly_robust": "effect=composed has doubly robust scores on all records",
    "effect=horvitz_thompson": _EFFECT,
    "effect=subsample_aggregate": _EFFECT,
    "effect.fitter=k_norm_gradient": "effect.fitter=null takes the fit of least noise",
    "effect.loss": _PLAN,
    "effect.outcome_bounds": _PLAN,
    "effect.overlap": _OVERLAP,
    "effect.public_sample": "take the domain's overlap so small that it clips few propensities of the public sample",
    "effect.readout": _EFFECT,
    "effect.seed": "no estimator of an average splits the records",
    "effect.slope_bound": _PLAN,
    "effect.shares": "the parts of the budget are the library's",
    "nuisance.max_physical_batch": "batches pass in parts of 16,384 records by themselves",
    "nuisance.solver.max_physical_batch": "batches pass in parts of 16,384 records by themselves",
    "nuisance.solver.mode": "gradients are clipped layer by layer, the fastest way",
    "nuisance_guarantee=private_nuisances": "nuisance_guarantee=composed learns nuisances and effect in one plan",
    "nuisance_guarantee=stability": "nuisance_guarantee=composed, or the paper's own: torchdpcate study spillover",
    "features=nystrom": "second_stage=kernel_ridge has the kernel itself, features=fourier approximates it",
    "features.scale": "features=representation has half of its length for the nuisances' features",
    "features.seed": "random features are drawn with a seed of the library's",
    "features.squares": "features=legendre has squares, products of covariates alone are features=products",
    "plan": "sd: of the outcome, in the domain file, is what plans take",
    "trainer=cpu": "trainer.accelerator=cpu, the default",
    "trainer=gpu": "trainer.accelerator=gpu",
    "trainer.log_folder": "losses and checkpoints go to the run's curator/logs alone",
    "unit": "data.person=COLUMN protects persons, else each record is one; verify says which",
    "sweep": "sweep over the values that are missing, into another run_dir; budget.shared keeps one total",
    "matching": "task=rule compares arms by an effect",
    "mechanism.damping": "a release with damping would be heuristic; raise second_stage.ridge",
    "mechanism.seed": "the search for the worst record has starting points of the library's",
    "mechanism.starts": "the search for the worst record has starting points of the library's",
    "mechanism=dp_sgd_head": "mechanism=objective is the least noisy for linear heads",
    "mechanism=by_scores": _CHOICE,
    "mechanism=exponential": _CHOICE,
    "mechanism=permute_and_flip": _CHOICE,
    "mechanism=report_noisy_max": "mechanism=permute_and_flip is never worse at the same epsilon",
    "mechanism=statistics": "mechanism=objective is the least noisy for linear heads, output has a public band",
    "loss=squared": "loss=huber_hinge, the default, has least noise",
    "loss.smoothing": _PLAN,
    "outcome.budget_fraction": _PLAN,
    "outcome.high": "outcome=shifted is by the domain's bounds of the outcome",
    "outcome.low": "outcome=shifted is by the domain's bounds of the outcome",
    "outcome.quantile": _PLAN,
    "policies.shares": "write thresholds of your own into a file, policies.path=FILE",
    "rule.perturbation": _PLAN,
    "rule.radius": _RIDGE,
    "rule.radius_norm": _RIDGE,
    "rule.ridge_bound": "a budget whose ridge would dominate all records is refused; rule.ridge=NUMBER sets the ridge",
    "ray.address": "data.address=HOST:PORT",
    "ray.parts": "data.parts=NUMBER",
    "screen": _SECOND_STAGE,
    "selection.overlap": _OVERLAP,
    "selection.split": "half of the records train nuisances, where any are trained",
    "subgroup_effects.estimand": "effects in subgroups are averages over each cell; ATO is of task=average_effect",
    "subgroup_effects.law": _PLAN,
    "subgroup_effects.overlap": _OVERLAP,
    "subgroup_effects.propensity=composed": _CELLS,
    "subgroup_effects.propensity=fitted": _CELLS,
    "subgroup_effects.propensity=known": "state propensity: in the domain file, and leave this out",
    "subgroup_effects.propensity_share": _CELLS,
    "subgroup_effects.released": _PLAN,
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
    "second_stage.batch_size": "the neural head is polished to a stationary point, however it was trained",
    "second_stage.depth": "the neural head has two hidden layers; second_stage.width is theirs",
    "second_stage.largest_dense": "beyond 15,000 records conjugate gradients take over",
    "second_stage.loss=truncated_squared": "it is not convex, so nothing bounds what a record moves; use huber",
    "second_stage.noise_ratio": "each mechanism has the ratio it works best with; second_stage.ridge=NUMBER fixes it",
    "second_stage.private_threshold": _THRESHOLD,
    "second_stage.tolerance": "the neural head is polished to a stationary point, however it was trained",
    "split.nuisance_share": "the nuisances of two folds have 0.7 of the budget",
    "task=pairwise": "task=rule compares arms by an effect, task=two_stage_rule by weights",
    "weights=entropy": _FREE_WEIGHTS,
    "weights=ipw": _FREE_WEIGHTS,
    "weights=mmd": _FREE_WEIGHTS,
    "weights.alpha": _PLAN,
    "weights.bandwidth": _PLAN,
    "weights.block_fraction": "a private propensity is fitted on all records, for weights.budget_fraction of epsilon",
    "weights.cap": _PLAN,
    "weights.features": _PLAN,
    "weights.kernel": _PLAN,
    "weights.perturbation": _PLAN,
    "weights.ridge": _PLAN,
    "weights.propensity": "state propensity: in the domain file (a number, a column, or one for each stratum)",
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
COMMANDS = {
    "answer": "torchdpcate predict RUN/curator/online TABLE -o FILE asks a run's online service",
    "completion": "a word that is no setting is answered by the nearest ones; train task=NAME --help lists all",
    "explore": "torchdpcate report RELEASE writes a page with sliders, torchdpcate predict answers a table",
    "inspect": "torchdpcate verify RELEASE says it, with --json and --card",
}
"""Commands."""


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
