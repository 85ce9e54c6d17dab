import math

import pytest
import torch

from tests.in_parts import LocalParts
from torchdpcate import Domain
from torchdpcate._process import BATCH
from torchdpcate.composition.rows import PartedRows
from torchdpcate.composition.steps import most_additions
from torchdpcate.data.ray_table import spans
from torchdpcate.data.records import CausalData
from torchdpcate.data.schema import TableSchema
from torchdpcate.data.streams import CachedStream, RecordStream
from torchdpcate.errors import InputError


class Few(RecordStream):
    def __init__(self, n):
        self.schema, self.n = TableSchema.of(Domain([0.0], [1.0], 0.0, 1.0)), n

    def __iter__(self):
        y = torch.arange(self.n, dtype=torch.float64) / self.n
        yield CausalData(y[:, None], (y > 0.5).double(), y)


@pytest.mark.parametrize("groups", [[[10] * 7], [[3, 4], [5], [6, 1, 1]], [[100], [1] * 20]])
@pytest.mark.parametrize("parts", [1, 2, 3])
def test_spans_hold_every_row_group_once_and_in_order(groups, parts):
    found = spans(groups, parts)
    owned = [[*zip(span.paths, span.groups, strict=True)] for span in found]
    held = [[(path, group) for path, own in of for group in own.groups] for of in owned]
    every = [(path, group) for path, rows in enumerate(groups) for group in range(len(rows))]
    assert [pair for of in held for pair in of] == every
    assert [span.rows for span in found] == [sum(groups[path][group] for path, group in of) for of in held]
    assert all(own.before == sum(groups[path][: own.groups.start]) for of in owned for path, own in of)


def test_sums_of_parts_go_through_no_more_additions_than_a_streams():
    random = torch.Generator().manual_seed(0)
    for _ in range(500):
        parts = int(torch.randint(1, 50, (), generator=random))
        least = BATCH if parts > 1 else 1
        sizes = least + torch.randint(0, 3 * BATCH, (parts,), generator=random)
        # of a number in its batch, of that among its part's, of the part among all
        own = [min(BATCH, size) - 1 + math.ceil(size / BATCH) - 1 + parts - 1 for size in sizes.tolist()]
        assert max(own) <= most_additions(int(sizes.sum()), BATCH)


def test_neither_batches_nor_numbers_of_records_leave_their_parts():
    parts = LocalParts([Few(3), Few(4)])
    with pytest.raises(InputError, match=r"^stream: its records lie in parts"):
        list(parts)
    with pytest.raises(InputError, match=r"^stream: a number of each record would leave its part"):
        PartedRows(parts, parts.n).each(lambda batch: batch.y)


def test_a_span_of_a_copy_is_its_rows_and_what_is_made_of_it_lies_elsewhere(tmp_path):
    (tmp_path / "part").mkdir()
    with CachedStream(Few(10), tmp_path, 4) as whole:
        part = whole.span(range(3, 9), tmp_path / "part")
        expected = torch.arange(10, dtype=torch.float64)[3:9] / 10
        assert part.n == 6
        assert torch.equal(torch.cat([batch.y for batch in part]), expected)
        with part.mapped(lambda batch: batch, "z") as made:
            assert made.path == tmp_path / "part" / "z.npy"
            assert torch.equal(torch.cat([batch.y for batch in made]), expected)
        assert whole.n == 10
