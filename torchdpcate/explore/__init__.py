"""A page on this machine where a reader moves covariates and sees what a release answers (extra ``explore``)."""
