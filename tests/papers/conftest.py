from tests.data.conftest import domain_file, frame, shared_data  # noqa: F401 - fixtures
