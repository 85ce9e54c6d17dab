from tests.data.conftest import shared_data  # noqa: F401 - fixture
