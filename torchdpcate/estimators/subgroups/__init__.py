"""Effects in subgroups of public cells, with intervals."""
