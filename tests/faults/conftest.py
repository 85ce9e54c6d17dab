import pytest

from tests.faults.guards import nothing_unpickled


@pytest.fixture(scope="module")
def no_pickle():
    with nothing_unpickled():
        yield
