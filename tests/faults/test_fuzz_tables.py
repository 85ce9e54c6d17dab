"""The readers of tables: any damage is refused in a line that shows no record, and predict writes all or nothing."""

import decimal
import gzip
import io

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import yaml
from hypothesis import example, given
from hypothesis import strategies as st
from pyarrow import parquet

from tests.data.conftest import DOMAIN
from tests.faults.guards import answered, refusal
from tests.faults.mutations import byte_faults, examples, met_both
from tests.faults.test_hostile_tables import PEOPLE, SECRET, N
from torchdpcate.cli.predict import stream_answers
from torchdpcate.data.schema import TableSchema
from torchdpcate.data.study import read_queries
from torchdpcate.data.table import Table

pytestmark = pytest.mark.usefixtures("no_pickle")

FACTS = yaml.safe_load(DOMAIN)
SCHEMA = TableSchema.from_dict(FACTS)
ROWS = PEOPLE.assign(note="not, read")[["note", "treat", "y", "age", "sex", "race"]]


def as_bytes(ending: str, compression: str | None = "snappy") -> bytes:
    buffer = io.BytesIO()
    if ending == "parquet":
        ROWS.to_parquet(buffer, row_group_size=17, compression=compression)
        return buffer.getvalue()
    text = ROWS.to_csv(index=False).encode()
    return gzip.compress(text, mtime=0) if ending == "csv.gz" else text


DATA = {ending: as_bytes(ending) for ending in ("csv", "csv.gz", "parquet")}
PLAIN_PARQUET = as_bytes("parquet", None)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("tables")


def read_all(path) -> bool:
    """Read a file by every reader of tables, what they return being finite; tell whether the first took it."""
    loaded = answered(lambda: Table(path, SCHEMA).load())
    answered(lambda: read_queries(path, SCHEMA))
    output = path.parent / "answer.csv"
    output.write_text("what was there before")

    def stream() -> None:
        rows = stream_answers(path, output, SCHEMA, lambda x: {"effect": x.sum(1)}, batch_rows=16).rows
        answers = pd.read_csv(output)["effect"].to_numpy(dtype=np.float64)
        assert len(answers) == rows
        assert np.isfinite(answers).all()

    if not answered(stream):
        assert output.read_text() == "what was there before"
    output.unlink()
    assert [file.name for file in path.parent.iterdir() if "answer" in file.name] == []
    return loaded


@pytest.mark.parametrize("ending", DATA)
def test_the_files_are_sound_to_begin_with(folder, ending):
    path = folder / f"t.{ending}"
    path.write_bytes(DATA[ending])
    assert Table(path, SCHEMA).load().records.n == N
    assert read_all(path)


@pytest.mark.parametrize("ending", DATA)
def test_damaged_bytes(folder, ending):
    path = folder / f"t.{ending}"

    met_both(byte_faults(DATA[ending]), 120, lambda data: path.write_bytes(data) and read_all(path))


def test_a_damaged_parquet_footer(folder):
    """The footer says where everything lies and of what type it is: damage there does most."""
    path = folder / "t.parquet"
    whole = PLAIN_PARQUET[:-1600]
    met_both(byte_faults(PLAIN_PARQUET[-1600:]), 120, lambda tail: path.write_bytes(whole + tail) and read_all(path))


@examples(60)
@given(st.sampled_from(list(DATA)), st.binary(max_size=300))
@example("csv", b"\x80\x04cos\nsystem\n(S'false'\ntR.")
@example("parquet", b"PAR1\xff\xff\xff\x7fPAR1")
def test_any_bytes(folder, ending, data):
    path = folder / f"t.{ending}"
    path.write_bytes(data)
    assert not read_all(path)


CELLS = st.one_of(
    st.sampled_from(["", "NA", "nan", "inf", "-1e999", "9" * 5000, "0x11", "1_7", "17,5", "true", '"', '"\n"', "\x00"]),
    st.text(max_size=8),
    st.floats().map(str),
)


@examples(80)
@given(st.lists(st.tuples(st.integers(0, N), st.sampled_from([1, 2, 3, 4, 5]), CELLS), min_size=1, max_size=4))
def test_any_text_in_a_cell_of_a_csv(folder, changes):
    rows = [line.split(",") for line in DATA["csv"].decode().replace('"not, read"', "note").splitlines()]
    for row, column, text in changes:
        rows[row][column] = text
    path = folder / "t.csv"
    path.write_bytes("\n".join(",".join(row) for row in rows).encode("utf-8", "surrogatepass"))
    read_all(path)


COLUMNS = {
    "list": pa.array([[1.0]] * N),
    "list of text": pa.array([["a"]] * N),
    "struct": pa.array([{"a": 1}] * N),
    "map": pa.array([[("a", 1)]] * N, pa.map_(pa.string(), pa.int64())),
    "null": pa.nulls(N),
    "binary": pa.array([b"17"] * N),
    "binary, no text": pa.array([b"\xff"] * N),
    "large binary": pa.array([b"\xff"] * N, pa.large_binary()),
    "fixed binary": pa.array([b"ab"] * N, pa.binary(2)),
    "date": pa.array([1] * N, pa.date32()),
    "timestamp": pa.array([0] * N, pa.timestamp("ns")),
    "timestamp of no zone": pa.array([0] * N, pa.timestamp("us", "Foo/Bar")),
    "time": pa.array([1] * N, pa.time64("ns")),
    "duration": pa.array([2**62] * N, pa.duration("s")),
    "decimal": pa.array([decimal.Decimal("17.5")] * N),
    "large decimal": pa.array([decimal.Decimal("1e70")] * N, pa.decimal256(76, 0)),
    "dictionary": pa.array(["a", "b"] * (N // 2)).dictionary_encode(),
    "dictionary of numbers": pa.array([17.0, 18.0] * (N // 2)).dictionary_encode(),
    "large text": pa.array(["17"] * N, pa.large_string()),
    "half": pa.array(np.full(N, 17, np.float16)),
    "unsigned": pa.array([2**64 - 1] * N, pa.uint64()),
    "bool": pa.array([True] * N),
    "text that is not UTF-8": pa.Array.from_buffers(
        pa.string(), N, [None, pa.py_buffer(np.arange(N + 1, dtype=np.int32).tobytes()), pa.py_buffer(b"\xff" * N)]
    ),
    "words": pa.array(["abc"] * N),
    "long words": pa.array(["x" * 100_000] * N),
    "digits without end": pa.array(["9" * 5000] * N),
    "other digits": pa.array(["١٧"] * N),
}


@pytest.mark.parametrize("kind", COLUMNS)
def test_a_parquet_column_of_any_type(folder, kind):
    path, table = folder / "t.parquet", pa.Table.from_pandas(ROWS)
    for name in ("age", "sex", "race", "treat", "y"):
        parquet.write_table(table.set_column(table.column_names.index(name), name, COLUMNS[kind]), path)
        read_all(path)


ODD = {  # beyond those of test_hostile_tables
    "lines alone": b"\n" * 1000,
    "quotes": b'"' * 100_001,
    "a line without end": b"treat,y,age,sex,race\n" + b"1" * (3 << 20),
    "a header without end": b"a" * (3 << 20),
    "a number with letters": DATA["csv"].replace(SECRET.encode(), SECRET.encode() + b"abc"),
    "gzip under another name": DATA["csv.gz"],
    "rows under another name": DATA["csv"],
}


@pytest.mark.parametrize("fault", ODD)
@pytest.mark.parametrize("ending", DATA)
def test_odd_files_are_read_or_refused_without_showing_a_record(folder, ending, fault):
    path = folder / f"t.{ending}"
    path.write_bytes(gzip.compress(ODD[fault]) if ending == "csv.gz" else ODD[fault])
    read_all(path)
    message = str(refusal(lambda: Table(path, SCHEMA).load()))
    assert SECRET not in message
    assert "\n" not in message


def test_a_small_file_that_unpacks_to_a_large_line_takes_no_memory(folder):
    path = folder / "t.csv.gz"
    with gzip.open(path, "wb", compresslevel=1) as file:
        file.write(b"treat,y,age,sex,race\n")
        for _ in range(100):
            file.write(b"0" * (1 << 20))
    before = pa.total_allocated_bytes()
    assert not answered(lambda: Table(path, SCHEMA).load())
    assert pa.total_allocated_bytes() - before < 20 << 20


def test_a_python_extension_type_in_a_parquet_file_is_not_unpickled(folder):
    """Old pyarrow unpickled the type stored in a file's schema, running whatever code it held (CVE-2023-47248)."""
    table = pa.Table.from_pandas(ROWS)
    evil = {b"ARROW:extension:name": b"arrow.py_extension_type", b"ARROW:extension:metadata": b"cos\nabort\n(tR."}
    field = pa.field("age", pa.float64(), metadata=evil)
    path = folder / "t.parquet"
    parquet.write_table(table.set_column(table.column_names.index("age"), field, table["age"]), path)
    stored = parquet.ParquetFile(path).schema_arrow.field("age")
    assert stored.metadata[b"ARROW:extension:name"] == b"arrow.py_extension_type"  # planted, and left alone
    read_all(path)
