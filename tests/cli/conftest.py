"""A folder with a table and its domain file, in which commands run."""

from pathlib import Path

import pytest

from tests.cli.helpers import redomained, table


@pytest.fixture
def here(tmp_path, monkeypatch) -> Path:
    """Return the present folder, which holds ``people.csv`` and ``domain.yaml``."""
    monkeypatch.chdir(tmp_path)
    table().to_csv("people.csv", index=False)
    redomained()
    return tmp_path
