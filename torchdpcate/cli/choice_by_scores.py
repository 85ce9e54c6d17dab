"""The place of a mechanism of selection where the scores decide on it."""


def by_scores() -> None:
    """Stand for ``exponential`` with composed scores and a delta, else ``permute_and_flip``; see ``PolicySelector``."""
