import os
import tracemalloc

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import torch

from torchdpcate.data.records import CausalData
from torchdpcate.data.study import StreamedStudy
from torchdpcate.data.table import Table
from torchdpcate.data.table_stream import TableStream
from torchdpcate.errors import InputError
from torchdpcate.papers.confounded import Confounded

BATCH = 1000


def write(frame: pd.DataFrame, path):
    frame.to_parquet(path, row_group_size=700) if path.suffix == ".parquet" else frame.to_csv(path, index=False)
    return path


def whole(stream: TableStream) -> CausalData:
    batches = list(stream)
    return CausalData(*(torch.cat([getattr(batch, name) for batch in batches]) for name in ("x", "a", "y")))


@pytest.fixture
def big(frame) -> pd.DataFrame:
    rows = frame.sample(5500, replace=True, random_state=0).reset_index(drop=True)
    rows["age"] = np.random.default_rng(0).uniform(16, 60, len(rows))
    return rows


@pytest.mark.parametrize("ending", ["csv", "csv.gz", "parquet"])
def test_the_batches_are_the_whole_table_at_each_reading(tmp_path, big, domain_file, ending) -> None:
    path = write(big, tmp_path / f"t.{ending}")
    stream, table = TableStream(path, domain_file, batch_rows=BATCH), Table(path, domain_file).load()
    assert stream.n == 5500
    assert stream.schema == table.schema
    assert max(batch.n for batch in stream) <= BATCH
    for _ in range(2):
        read = whole(stream)
        for name in ("x", "a", "y"):
            assert torch.equal(getattr(read, name), getattr(table.records, name))


def test_files_are_laid_end_to_end_and_empty_ones_passed_over(tmp_path, big, domain_file) -> None:
    parts = [big[:0], big[:1500], big[:0], big[1500:]]
    kinds = ["csv", "parquet", "parquet", "csv"]
    paths = [write(part, tmp_path / f"{i}.{kind}") for i, (part, kind) in enumerate(zip(parts, kinds, strict=True))]
    stream = TableStream(paths, domain_file, batch_rows=BATCH)
    assert stream.n == 5500
    assert min(batch.n for batch in stream) > 0
    assert whole(stream).y.tolist() == big["y"].tolist()


@pytest.mark.parametrize(
    ("row", "column", "value", "words"),
    [
        (4321, "age", 99.0, r"rows 4001 to 5000: covariate 'age' has 1 value outside .* \[16, 60\]"),
        (5, "y", None, "rows 1 to 1000: column 'y' has 1 missing value"),
        (2000, "treat", 2, "rows 2001 to 3000: treatment column 'treat' has 1 value other than 0 and 1"),
    ],
)
def test_bad_rows_are_named_in_one_line(tmp_path, big, domain_file, row, column, value, words) -> None:
    big[column] = big[column].astype(object)
    big.loc[row, column] = value
    with pytest.raises(InputError, match=f"t.csv, {words}") as caught:
        TableStream(write(big, tmp_path / "t.csv"), domain_file, batch_rows=BATCH)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("change", ["longer", "same size", "gone"])
def test_a_file_that_changes_between_readings_is_refused(tmp_path, big, domain_file, change) -> None:
    path = write(big, tmp_path / "t.csv")
    stream = TableStream(path, domain_file, batch_rows=BATCH)
    assert len(list(stream)) > 1
    if change == "gone":
        path.unlink()
    else:
        times = os.stat(path)
        write(big[:1] if change == "longer" else big, path)
        if change == "longer":
            os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
        else:
            os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns + 1))
    with pytest.raises(InputError, match=r"t.csv' has changed since it was first read"):
        next(iter(stream))


def test_a_table_opens_as_a_stream_where_that_was_asked_for(tmp_path, frame, domain_file) -> None:
    path = write(frame, tmp_path / "t.csv")
    table = Table(path, domain_file, stream=True)
    study = table.open()
    assert isinstance(study, StreamedStudy)
    assert (study.records.n, study.name, study.domain.dimension) == (40, "t", 5)
    with pytest.raises(InputError, match=r"data.n is 20; a stream has all records"):
        Table(path, domain_file, stream=True, n=20).open()


@pytest.mark.faults
@pytest.mark.parametrize(("ending", "most"), [("csv", 48e6), ("parquet", 12e6)])
def test_memory_does_not_grow_with_the_file(tmp_path, ending, most) -> None:
    """The records would take 38 MB and their text 70; Arrow looks 40 MB of text ahead, however much there is."""
    drawn = Confounded().draw(4000, torch.Generator().manual_seed(0))
    rows = pd.DataFrame(drawn.x, columns=Confounded().domain().names).assign(a=drawn.a, y=drawn.y)
    path = tmp_path / f"t.{ending}"
    if ending == "csv":
        header, text = rows.to_csv(index=False).split("\n", 1)
        path.write_text(header + "\n" + text * 200)
    else:
        write(pd.concat([rows] * 200), path)
    tracemalloc.start()
    stream = TableStream(path, Confounded().domain(), batch_rows=4000)
    held = [pa.total_allocated_bytes() for _ in stream]
    python = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert stream.n == 800_000
    assert python < 4e6
    assert max(held) < most
