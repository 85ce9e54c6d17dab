"""A folder with a table and its domain file, in which commands run."""

from pathlib import Path

import pytest
import yaml

from tests.cli.helpers import DOMAIN, TABLE, redomained, table


@pytest.fixture
def here(tmp_path, monkeypatch) -> Path:
    """Return the present folder, which holds ``people.csv`` and ``domain.yaml``."""
    monkeypatch.chdir(tmp_path)
    table().to_csv("people.csv", index=False)
    redomained()
    return tmp_path


@pytest.fixture
def composed(finished) -> Path:
    """Return the folder of a run of one composition on a table."""
    files = {"people.csv": table(2000).to_csv(index=False), "domain.yaml": yaml.safe_dump(DOMAIN)}
    return finished(*TABLE, "trainer.progress=false", files=files)
