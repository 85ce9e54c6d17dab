import pytest

from torchdpcate.errors import InputError
from torchdpcate.fit.private_fit import WeightBounds


def test_bounds_of_the_note():
    assert WeightBounds.per_record(4.0) == WeightBounds(4.0, 8.0, 4.0, True)


def test_impossible_bounds_are_refused():
    with pytest.raises(InputError, match=r"bounds\.most"):
        WeightBounds.per_record(0.0)
    with pytest.raises(InputError, match=r"bounds\.first"):
        WeightBounds(4.0, 4.0, 4.0, own=True)
