"""One table of damages over every file that a reader is given: each is refused in a line, or read as what it says."""

import gzip
import io
import json
import os
import shutil
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pandas as pd
import pytest
import yaml
from hypothesis import example, given
from hypothesis import strategies as st

from tests.cli.helpers import SUMMARY
from tests.data.conftest import DOMAIN
from tests.faults import test_fuzz_ledger, test_fuzz_release
from tests.faults.guards import answered
from tests.faults.mutations import byte_faults, examples, json_faults, met_both
from tests.faults.test_hostile_tables import PEOPLE, SCHEMA
from tests.release.test_file import function_release
from torchdpcate.cli.predict import stream_answers
from torchdpcate.cli.report import report
from torchdpcate.data.schema import TableSchema
from torchdpcate.data.study import read_queries
from torchdpcate.data.table import Table
from torchdpcate.privacy.ledger import Ledger
from torchdpcate.release.file import load_release

pytestmark = pytest.mark.usefixtures("no_pickle")

ROWS = PEOPLE.assign(note="not, read")


def saved(save: Callable[[Path], Any], name: str) -> bytes:
    """Return the bytes of a file that is written by its name."""
    with TemporaryDirectory() as folder:
        save(Path(folder) / name)
        return (Path(folder) / name).read_bytes()


def parquet(compression: str | None = "snappy") -> bytes:
    buffer = io.BytesIO()
    ROWS.to_parquet(buffer, row_group_size=17, compression=compression)
    return buffer.getvalue()


@cache
def sound(name: str) -> bytes:
    """Return the bytes of a file that nothing is wrong with."""
    text = ROWS.to_csv(index=False).encode()
    made = {
        "t.csv": lambda: text,
        "t.csv.gz": lambda: gzip.compress(text, mtime=0),
        "t.parquet": parquet,
        "domain.yaml": DOMAIN.encode,
        "ledger.sqlite": lambda: saved(test_fuzz_ledger.write, name),
        "release.safetensors": lambda: saved(function_release().save, name),
        "summary.json": json.dumps(SUMMARY).encode,
    }
    return made[name]()


def table(path: Path) -> bool:
    """Read a table by every reader, whose answers are finite; tell whether the first took it."""
    loaded = answered(lambda: Table(path, SCHEMA).load())
    answered(lambda: read_queries(path, SCHEMA))
    output = path.parent / "answer.csv"
    output.write_text("what was there before")

    def stream() -> None:
        rows, _ = stream_answers(path, output, SCHEMA, lambda x: {"effect": x.sum(1)}, batch_rows=16)
        answers = pd.read_csv(output)["effect"].to_numpy(dtype=np.float64)
        assert len(answers) == rows
        assert np.isfinite(answers).all()

    if not answered(stream):
        assert output.read_text() == "what was there before"
    output.unlink()
    assert [file.name for file in path.parent.iterdir() if "answer" in file.name] == []
    return loaded


def domain(path: Path) -> None:
    """Read a domain file, use it, and send it through JSON as a release does."""
    schema = TableSchema.from_yaml(path)
    schema.domain.check_covariates(schema.grid(3))
    assert TableSchema.from_dict(json.loads(json.dumps(schema.to_dict()))) == schema


def summary(path: Path) -> bool:
    """Report a sweep of which one summary is this one: all of it is shown, or nothing is written."""
    sweep = path.parent / "sweep"
    shutil.rmtree(sweep, ignore_errors=True)
    for name, text in (("0", json.dumps(SUMMARY | {"requested": {"epsilon": 2, "settings": {}}})), ("1", None)):
        (sweep / name / "curator").mkdir(parents=True)
        target = sweep / name / "curator" / "summary.json"
        target.write_text(text) if text else target.write_bytes(path.read_bytes())
    shown = answered(lambda: report(str(sweep)))
    assert (sweep / "curator" / "report.csv").exists() == shown
    if shown:
        runs = pd.read_csv(sweep / "curator" / "report.csv")
        assert len(runs) == 2
        assert not np.isinf(runs.filter(regex="^pehe").to_numpy(np.float64)).any()
    return shown


READS: dict[str, Callable[[Path], bool]] = {
    "t.csv": table,
    "t.csv.gz": table,
    "t.parquet": table,
    "domain.yaml": lambda path: answered(lambda: domain(path)),
    "ledger.sqlite": lambda path: answered(lambda: test_fuzz_ledger.read(path)),
    "release.safetensors": lambda path: answered(lambda: test_fuzz_release.read(path)),
    "summary.json": summary,
}
OF_FILES = {
    "csv": lambda path: Table(path, SCHEMA).load(),
    "parquet": lambda path: Table(path, SCHEMA).load(),
    "safetensors": load_release,
    "sqlite": Ledger.load,
    "yaml": TableSchema.from_yaml,
}


def reads(name: str, folder: Path, data: bytes) -> bool:
    (folder / name).write_bytes(data)
    return READS[name](folder / name)


@pytest.mark.parametrize("name", READS)
def test_damaged_bytes_are_refused_or_read(name, tmp_path):
    whole = sound(name)
    assert reads(name, tmp_path, whole)
    if name == "release.safetensors":  # no damaged one is read: it has a checksum

        @examples(120)
        @given(byte_faults(whole))
        def check(data):
            assert reads(name, tmp_path, data) == (data == whole)

        check()
        return
    met_both(byte_faults(whole), 40 if name == "summary.json" else 120, partial(reads, name, tmp_path))


def test_a_damaged_parquet_footer(tmp_path):
    """The footer says where everything lies and of what type it is: damage there does most."""
    whole, tail = parquet(None)[:-1600], parquet(None)[-1600:]
    met_both(byte_faults(tail), 120, lambda damaged: reads("t.parquet", tmp_path, whole + damaged))


@pytest.mark.parametrize(("name", "document"), [("domain.yaml", yaml.safe_load(DOMAIN)), ("summary.json", SUMMARY)])
def test_replaced_values_are_refused_or_read(name, document, tmp_path):
    faults = json_faults(document).map(str.encode)
    met_both(faults, 40 if name == "summary.json" else 120, partial(reads, name, tmp_path))


@pytest.mark.parametrize("name", READS)
def test_any_bytes_are_refused(name, tmp_path):
    @examples(60)
    @given(st.binary(max_size=300) | st.text(max_size=200).map(lambda text: text.encode("utf-8", "surrogatepass")))
    @example(b"\x80\x04cos\nsystem\n(S'false'\ntR.")
    @example(b"PAR1\xff\xff\xff\x7fPAR1")
    @example(b"SQLite format 3\x00")
    @example(b"a: !!timestamp 2001-99-99")
    @example(b"low: 0x" + b"f" * 5000)
    @example(b"a: ${")
    def check(data):
        assert not reads(name, tmp_path, data)

    check()


@pytest.mark.parametrize("ending", OF_FILES)
def test_what_is_no_file_is_refused(ending, tmp_path):
    """Pipes, folders and endless names: no reader hangs."""
    pipe, folder = tmp_path / f"pipe.{ending}", tmp_path / f"folder.{ending}"
    os.mkfifo(pipe)
    folder.mkdir()
    endless = [tmp_path / f"{'x' * 5000}.{ending}", Path(f"nul\0.{ending}"), tmp_path / (DOMAIN * 20)]
    for path in (pipe, folder, *endless):
        assert not answered(lambda path=path: OF_FILES[ending](path)), path


@pytest.mark.parametrize("make", [os.mkdir, os.mkfifo])
def test_a_summary_is_a_file(make, tmp_path):
    (tmp_path / "curator").mkdir()
    make(tmp_path / "curator" / "summary.json")
    assert not answered(lambda: report(str(tmp_path)))


CELLS = st.one_of(
    st.sampled_from(["", "NA", "nan", "inf", "-1e999", "9" * 5000, "0x11", "1_7", "17,5", "true", '"', '"\n"', "\x00"]),
    st.text(max_size=8),
    st.floats().map(str),
)


def test_any_text_in_a_cell_of_a_csv(tmp_path):
    rows = [line.split(",") for line in PEOPLE.to_csv(index=False).splitlines()]
    places = st.tuples(st.integers(0, len(PEOPLE)), st.integers(0, 4), CELLS)

    @examples(80)
    @given(st.lists(places, min_size=1, max_size=4))
    def check(changes):
        changed = [list(row) for row in rows]
        for row, column, text in changes:
            changed[row][column] = text
        reads("t.csv", tmp_path, "\n".join(map(",".join, changed)).encode("utf-8", "surrogatepass"))

    check()
