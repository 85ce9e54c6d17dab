"""Pages that are whole in one file: a release's for its readers, and the curator's of runs."""
