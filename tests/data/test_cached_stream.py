import stat

import numpy as np
import pytest
import torch

from torchdpcate.data.domain import Domain
from torchdpcate.data.records import CausalData
from torchdpcate.data.schema import TableSchema
from torchdpcate.data.streams import CachedStream, RecordStream
from torchdpcate.errors import InputError


class Drawn(RecordStream):
    """Records drawn once, in batches of 7."""

    def __init__(self, n=100, own=False, lost=0):
        generator = torch.Generator().manual_seed(0)
        x, y, pi = torch.rand(n, 3, generator=generator).double(), torch.rand(n).double(), torch.rand(n).double()
        self.records = CausalData(x, (y > 0.5).double(), y, pi if own else None)
        self.schema, self.n, self.lost = TableSchema.from_domain(Domain([0.0] * 3, [1.0] * 3, 0.0, 1.0)), n, lost

    def __iter__(self):
        for rows in torch.arange(self.n - self.lost).split(7):
            yield self.records.subset(rows)


@pytest.mark.parametrize("own", [False, True])
def test_all_records_come_back_at_each_reading(tmp_path, own):
    stream = Drawn(own=own)
    with CachedStream(stream, tmp_path, batch_rows=32) as cached:
        assert stat.S_IMODE(cached.path.stat().st_mode) == 0o600
        assert np.load(cached.path).shape == (100, 5 + own)  # any reader of npy files can tell what it is
        for _ in range(2):
            batches = list(cached)
            assert [batch.n for batch in batches] == [32, 32, 32, 4]
            for name in ("x", "a", "y", *(["propensity"] if own else [])):
                read = torch.cat([getattr(batch, name) for batch in batches])
                assert torch.equal(read, getattr(stream.records, name))
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(InputError, match="make a new one"):
        next(iter(cached))


def test_a_copy_that_was_cut_is_refused_and_not_read_as_fewer_records(tmp_path):
    with CachedStream(Drawn(), tmp_path) as cached:
        with cached.path.open("r+b") as file:
            file.truncate(cached.path.stat().st_size - 8)
        with pytest.raises(InputError, match="cut short"):
            list(cached)


def test_nothing_is_left_of_a_copy_that_fails(tmp_path):
    with pytest.raises(InputError, match="stays as it is"):
        CachedStream(Drawn(lost=1), tmp_path)
    assert list(tmp_path.iterdir()) == []
