"""Pipes, folders and endless names in the place of a file: no reader hangs, and each refuses them."""

import os
from pathlib import Path

import pytest

from tests.data.conftest import DOMAIN
from tests.faults.guards import answered
from tests.faults.test_hostile_tables import SCHEMA
from torchdpcate.cli.report import report
from torchdpcate.data.schema import TableSchema
from torchdpcate.data.table import Table
from torchdpcate.privacy.ledger import Ledger
from torchdpcate.release.file import load_release

READERS = {
    "csv": lambda path: Table(path, SCHEMA).load(),
    "safetensors": load_release,
    "yaml": TableSchema.from_yaml,
    "sqlite": Ledger.load,
}


@pytest.mark.parametrize("ending", READERS)
def test_what_is_no_file_is_refused(ending, tmp_path):
    pipe, folder = tmp_path / f"pipe.{ending}", tmp_path / f"folder.{ending}"
    os.mkfifo(pipe)
    folder.mkdir()
    endless = [tmp_path / f"{'x' * 5000}.{ending}", Path(f"nul\0.{ending}"), tmp_path / (DOMAIN * 20)]
    for path in (pipe, folder, *endless):
        assert not answered(lambda path=path: READERS[ending](path)), path


def test_a_summary_is_a_file(tmp_path):
    (tmp_path / "curator" / "summary.json").mkdir(parents=True)
    assert not answered(lambda: report(str(tmp_path)))
    (tmp_path / "curator" / "summary.json").rmdir()
    os.mkfifo(tmp_path / "curator" / "summary.json")
    assert not answered(lambda: report(str(tmp_path)))
