"""Odd and hostile tables: each is refused in one line that shows no record, or read as what it says."""

import decimal
import gzip
import io
import uuid
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import yaml
from pyarrow import parquet

from tests.data.conftest import DOMAIN
from tests.faults.guards import bounded, nothing_unpickled, refusal
from torchdpcate.cli.main import main
from torchdpcate.cli.predict import stream_answers
from torchdpcate.data.records import CausalData
from torchdpcate.data.schema import TableSchema
from torchdpcate.data.study import read_queries
from torchdpcate.data.table import Table
from torchdpcate.data.table_stream import TableStream
from torchdpcate.errors import InputError

SCHEMA = TableSchema.from_dict(yaml.safe_load(DOMAIN))
N = 40
SECRET = "31.4159265"
"""The age of one record; what damages a cell damages this one."""


def people() -> pd.DataFrame:
    rng = np.random.default_rng(0)
    age = rng.uniform(16, 60, N)
    age[7] = float(SECRET)
    return pd.DataFrame(
        {
            "treat": np.arange(N) % 2,
            "y": rng.uniform(0, 10, N),
            "age": age,
            "sex": rng.integers(0, 2, N),
            "race": rng.choice(["black", "white", "NA"], N),
        }
    )


PEOPLE = people()
CSV = PEOPLE.to_csv(index=False)
HEADER, ROWS = CSV.split("\n", 1)
EXPECTED = SCHEMA.encode(PEOPLE)


def with_age(text: str) -> bytes:
    return CSV.replace(SECRET, text).encode()


def quoted() -> bytes:
    return PEOPLE.astype(str).to_csv(index=False, quoting=1).encode()


# name: bytes of the file, and what the refusal says
REFUSED_CSV = {
    "no header": (ROWS.encode(), "none of the columns .*has the file a header"),
    "a header of which one name is known": (b"treat,0.637,31.4159265,1,NA\n" + ROWS.encode(), "'y' is missing"),
    "names in other letters": (CSV.replace("race", "Race").encode(), "'race' is missing; 'Race' is there"),
    "escapes for a header": (b"\x1b[31m,\x1b]0;x\x07,a,b,c\n" + ROWS.encode(), "none of the columns"),
    "a column twice": (("age," + HEADER + "\n" + "1," + ROWS.replace("\n", "\n1,")[:-2]).encode(), "'age'.*2 times"),
    "infinity": (with_age("inf"), "'age' has 1 infinite value"),
    "not a number": (with_age("nan"), "'age' has 1 missing value"),
    "beyond the largest number": (with_age("1e400"), "'age' has 1 infinite value"),
    "digits without end": (with_age("3" * 5000), "'age' has "),
    "hexadecimal": (with_age("0x1F"), "'age' has 1 non-numeric value"),
    "underscores": (with_age("3_1"), "'age' has 1 non-numeric value"),
    "full-width digits": (with_age("\uff13\uff11"), "'age' has 1 non-numeric value"),
    "a truth value among numbers": (with_age("True"), "'age' has 1 non-numeric value"),
    "a complex number": (with_age("31.4+2j"), "'age' has 1 non-numeric value"),
    "a name": (with_age("Jane Doe"), "'age' has 1 non-numeric value"),
    "a NUL in a number": (with_age("31\x004"), "holds NUL bytes"),
    "NULs": (b"\0" * 1000, "none of the columns|cannot be read"),
    "a row too short": ((CSV + f"{SECRET},1\n").encode(), "cannot be read"),
    "a row too long": ((CSV + "1," * 50 + SECRET + "\n").encode(), "cannot be read"),
    "a quote not closed": ((CSV + '"' + SECRET).encode(), "cannot be read"),
    "an enormous cell": (with_age('"' + "3" * (3 << 20) + '"'), "cannot be read"),
    "an enormous word": (CSV.replace("white", "x" * 50_000, 1).encode(), "longer than"),
    "nothing": (b"", "cannot be read"),
    "a header alone": (HEADER.encode() + b"\n", "no rows"),
    "Latin-1": (CSV.replace("white", "wh\u00efte").encode("latin-1"), "cannot be read"),
}
READ_CSV = {
    "a mark before the header": b"\xef\xbb\xbf" + CSV.encode(),
    "Windows' line ends": CSV.replace("\n", "\r\n").encode(),
    "everything in quotes": quoted(),
    "blanks around numbers": CSV.replace(SECRET, f"  {SECRET} ").encode(),
    "other columns, in another order": PEOPLE.assign(note="\x1b[31m").iloc[:, ::-1].to_csv(index=False).encode(),
    "truth values for two arms": PEOPLE.assign(treat=PEOPLE["treat"] == 1).to_csv(index=False).encode(),
    "truth values for 0 and 1": PEOPLE.assign(sex=PEOPLE["sex"] == 1).to_csv(index=False).encode(),
}


def column(name: str, array: pa.Array) -> bytes:
    """The table as parquet, with another column."""
    table, buffer = pa.Table.from_pandas(PEOPLE), io.BytesIO()
    parquet.write_table(table.set_column(table.column_names.index(name), name, array), buffer)
    return buffer.getvalue()


def renamed(names: list[str]) -> bytes:
    buffer, table = io.BytesIO(), pa.Table.from_pandas(PEOPLE)
    parquet.write_table(table.select((table.column_names * 2)[: len(names)]).rename_columns(names), buffer)
    return buffer.getvalue()


AGES = PEOPLE["age"].to_numpy()
RACES = pa.array(PEOPLE["race"].tolist())
YES = pa.array((PEOPLE["treat"] == 1).tolist())
KIND = "not numbers or words"
REFUSED_PARQUET = {
    "a moment": (column("age", pa.array([31] * N, pa.timestamp("us"))), "'age' holds dates; declare them: kind: date"),
    "a date for an outcome": (column("y", pa.array([3] * N, pa.date32())), "'y' holds dates"),
    "a time": (column("age", pa.array([31] * N, pa.time64("ns"))), "'age' holds times"),
    "truth values for a number": (column("age", YES), "'age' holds true and false.*categories: \\[0, 1\\]"),
    "truth values for an outcome": (column("y", YES), "'y' holds true and false.*write 0 and 1"),
    "text of truth values": (column("age", pa.array(["True"] * N)), "'age' holds true and false"),
    "a list": (column("age", pa.array([[31.0]] * N)), "'age' holds lists"),
    "nothing": (column("age", pa.nulls(N)), "'age' has 40 missing values"),
    "bytes of one length": (column("age", pa.array([b"31"] * N, pa.binary(2))), f"'age' .*{KIND}"),
    "an identifier": (column("age", pa.array([uuid.uuid4().bytes] * N, pa.uuid())), f"'age' .*{KIND}"),
    "json": (column("age", pa.array(["31"] * N, pa.json_())), f"'age' .*{KIND}"),
    "a truth value of eight bits": (column("age", pa.array([1] * N, pa.int8()).cast(pa.bool8())), f"'age' .*{KIND}"),
    "beyond what a number holds": (column("age", pa.array([2**64 - 1] * N, pa.uint64())), "'age' has 40.*2\\^53"),
    "an identifier for a treatment": (column("treat", pa.array([2**53 + 1] * N)), "'treat' has 40.*2\\^53"),
    "nulls": (column("age", pa.array([31.0, None] * (N // 2))), "'age' has 20 missing values"),
    "bytes that are no text": (column("race", pa.array([b"\xff"] * N)), "cannot be read"),
    "long words": (column("race", pa.array(["x" * 50_000] * N)), "longer than"),
    "other names": (renamed([SECRET, "a", "b", "c", "d"]), "none of the columns"),
    "a name twice": (renamed([*PEOPLE, "age"]), "'age'.*2 times"),
}
READ_PARQUET = {
    "decimals": column("age", pa.array([decimal.Decimal(repr(a)) for a in AGES.tolist()])),
    "a dictionary of numbers": column("age", pa.array(AGES).dictionary_encode()),
    "numbers as text": column("age", pa.array([repr(a) for a in AGES.tolist()])),
    "numbers as a dictionary of text": column("age", pa.array([repr(a) for a in AGES.tolist()]).dictionary_encode()),
    "numbers as bytes": column("age", pa.array([repr(a).encode() for a in AGES.tolist()])),
    "words as a dictionary": column("race", RACES.dictionary_encode()),
    "words as bytes": column("race", RACES.cast(pa.binary())),
    "truth values for two arms": column("treat", YES),
    "truth values for 0 and 1": column("sex", pa.array((PEOPLE["sex"] == 1).tolist())),
}


def shown_values(message: str) -> list[str]:
    """The values of records that a message shows, by their first digits."""
    values = [repr(value)[:6] for name in ("y", "age") for value in PEOPLE[name].tolist()]
    return [value for value in [*values, "Jane", "black", "\x1b"] if value in message]


def readings(path: Path) -> dict:
    """Every reader of tables, as a call that returns the covariates."""
    answers = path.with_name("answers.csv")
    return {
        "records": lambda: Table(path, SCHEMA).load().records.x,
        "stream": lambda: np.concatenate([batch.x for batch in TableStream(path, SCHEMA)]),
        "queries": lambda: read_queries(path, SCHEMA),
        "predict": lambda: (
            stream_answers(path, answers, SCHEMA, lambda x: {"effect": x.sum(1)}) and pd.read_csv(answers)["effect"]
        ),
    }


REFUSED = {("csv", fault): row for fault, row in REFUSED_CSV.items()}
REFUSED |= {("parquet", fault): row for fault, row in REFUSED_PARQUET.items()}
READ = {("csv", kind): data for kind, data in READ_CSV.items()}
READ |= {("parquet", kind): data for kind, data in READ_PARQUET.items()}


@pytest.mark.parametrize(("ending", "fault"), REFUSED)
def test_a_hostile_table_is_refused_in_a_line_without_a_record(tmp_path, ending, fault):
    data, words = REFUSED[ending, fault]
    path = tmp_path / f"t.{ending}"
    path.write_bytes(data)
    read = readings(path)
    with pytest.raises(InputError, match=words) as caught:
        read["records"]()
    messages = [str(caught.value)]
    # the other readers meet other columns, or no rows, and may have nothing to refuse
    messages += [str(refused) for name in ("stream", "queries", "predict") if (refused := refusal(read[name]))]
    for message in messages:
        assert shown_values(message) == []
        assert "\n" not in message
        assert len(message) < 500


@pytest.mark.parametrize(("ending", "kind"), READ)
def test_an_odd_table_is_read_as_what_it_says(tmp_path, ending, kind):
    path = tmp_path / f"t.{ending}"
    path.write_bytes(READ[ending, kind])
    for name, read in readings(path).items():
        expected = EXPECTED.sum(1) if name == "predict" else EXPECTED
        np.testing.assert_allclose(np.asarray(read()), expected, rtol=1e-15, err_msg=name)


@pytest.mark.parametrize("fault", ["no header", "a name", "an enormous cell"])
def test_the_command_refuses_in_one_line(tmp_path, capsys, fault):
    data, words = tmp_path / "t.csv", tmp_path / "d.yaml"
    data.write_bytes(REFUSED_CSV[fault][0])
    words.write_text(DOMAIN)
    task = ["task=average_effect", "privacy.delta=0"]
    for more in ([], ["data.stream=true"]):
        run = ["data=table", f"data.path={data}", f"data.domain={words}", f"run_dir={tmp_path / 'r'}"]
        assert main(["train", *task, *run, *more]) == 2
        shown = capsys.readouterr().err
        assert shown.count("\n") == 1
        assert shown_values(shown) == []
        assert not (tmp_path / "r").exists()


def bomb(path: Path, arrays: dict) -> Path:
    """Write one row group, well packed."""
    table = pa.table(arrays)
    parquet.write_table(
        table, path, compression="zstd", row_group_size=len(table), data_page_size=1 << 28, max_rows_per_page=1 << 30
    )
    return path


def crowd(rows: int, **changes: pa.Array) -> dict:
    """Columns of so many people who are all the same."""
    arrays = {"treat": pa.array(np.ones(rows, np.int8)), "y": pa.array(np.full(rows, 3.0))}
    arrays |= {"age": pa.array(np.full(rows, 31.0)), "sex": pa.array(np.ones(rows, np.int8))}
    return arrays | {"race": pa.array(["NA"]).dictionary_encode().take(pa.array(np.zeros(rows, np.int32)))} | changes


def one_word(size: int, rows: int) -> pa.Array:
    return pa.array(["1" * size]).dictionary_encode().take(pa.array(np.zeros(rows, np.int32)))


BOMBS = {
    "a long word many times": (lambda path: bomb(path, crowd(32768, age=one_word(1_000_000, 32768))), "longer than"),
    "a long category many times": (lambda path: bomb(path, crowd(32768, race=one_word(1_000_000, 32768))), "longer"),
    "rows without end": (lambda path: bomb(path, crowd(4_000_000)), "4,000,000 rows in a file of"),
}


@pytest.mark.parametrize("kind", BOMBS)
@pytest.mark.parametrize("reader", ["records", "stream", "queries", "predict"])
def test_a_small_file_that_unpacks_without_end_is_refused_before_memory_is_taken(tmp_path, kind, reader):
    make, words = BOMBS[kind]
    path = make(tmp_path / "t.parquet")
    assert path.stat().st_size < 5_000
    held = pa.total_allocated_bytes()
    with bounded(seconds=60, memory=1 << 29), pytest.raises(InputError, match=words) as caught:
        readings(path)[reader]()
    assert pa.total_allocated_bytes() - held < 1 << 26
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "answers.csv").exists()


@pytest.mark.parametrize("ending", ["csv", "csv.gz", "parquet"])
def test_a_table_of_more_numbers_than_the_limit_is_refused_while_it_is_read(tmp_path, ending):
    path, rows = tmp_path / f"t.{ending}", pd.concat([PEOPLE] * 100)
    rows.to_parquet(path) if ending == "parquet" else rows.to_csv(path, index=False)
    assert Table(path, SCHEMA, most_bytes=8 * 5 * 4000).load().records.n == 4000
    with pytest.raises(InputError, match=r"more than 3,999 rows.*data\.most_bytes = 159,999.*raise it"):
        Table(path, SCHEMA, most_bytes=8 * 5 * 4000 - 1).load()
    with pytest.raises(InputError, match="more than 3,999 rows"):
        Table([path, path], SCHEMA, most_bytes=8 * 5 * 4000 - 1).load()
    assert TableStream(path, SCHEMA, most_bytes=8 * 5 * 4000 - 1).n == 4000  # a stream keeps no rows


def test_text_whose_size_cannot_be_told_is_refused(tmp_path):
    """In DELTA_BYTE_ARRAY a word may be the one before it and one letter: no page says how long words become."""
    path = tmp_path / "t.parquet"
    encoding = {"column_encoding": {"race": "DELTA_BYTE_ARRAY"}, "use_dictionary": False}
    parquet.write_table(pa.Table.from_pandas(PEOPLE), path, **encoding)
    with pytest.raises(InputError, match=r"'race'.*DELTA_BYTE_ARRAY.*dictionary"):
        Table(path, SCHEMA).load()


def test_a_frame_read_without_a_header_shows_no_record():
    frame = pd.read_csv(io.StringIO(ROWS))
    frame.iloc[3, 2] = np.nan
    calls = (
        lambda: SCHEMA.encode(frame),
        lambda: SCHEMA.matrix(frame),
        lambda: CausalData.from_arrays(frame.iloc[:, 1:3], np.arange(N - 1) % 2, frame.iloc[:, 1]),
    )
    for call in calls:
        with pytest.raises(InputError) as caught:
            call()
        assert set(shown_values(str(caught.value))) <= {"black"}  # a category that the schema says


def test_a_small_file_that_unpacks_to_a_large_line_takes_no_memory(tmp_path):
    path = tmp_path / "t.csv.gz"
    with gzip.open(path, "wb", compresslevel=1) as file:
        file.write(b"treat,y,age,sex,race\n")
        for _ in range(100):
            file.write(b"0" * (1 << 20))
    before = pa.total_allocated_bytes()
    assert refusal(lambda: Table(path, SCHEMA).load())
    assert pa.total_allocated_bytes() - before < 20 << 20


def test_a_python_extension_type_in_a_parquet_file_is_not_unpickled(tmp_path):
    """Old pyarrow unpickled the type stored in a file's schema, running whatever code it held (CVE-2023-47248)."""
    table = pa.Table.from_pandas(PEOPLE)
    evil = {b"ARROW:extension:name": b"arrow.py_extension_type", b"ARROW:extension:metadata": b"cos\nabort\n(tR."}
    field = pa.field("age", pa.float64(), metadata=evil)
    path = tmp_path / "t.parquet"
    parquet.write_table(table.set_column(table.column_names.index("age"), field, table["age"]), path)
    stored = parquet.ParquetFile(path).schema_arrow.field("age")
    assert stored.metadata[b"ARROW:extension:name"] == b"arrow.py_extension_type"  # planted, and left alone
    with nothing_unpickled():
        refusal(lambda: Table(path, SCHEMA).load())
