"""Nothing here is a test: files that ``tests/test_recipes.py`` adds to a copy of the library."""

collect_ignore_glob = ["*.py"]
