import pytest
import torch

from torchdpcate import CausalData, Dataset1, PrivacyBudget, RLearner, TableSchema

HOSTILE = "<b>age</b>"
SCHEMA = TableSchema.from_dict(
    {
        "treatment": "treat",
        "outcome": {"name": HOSTILE, "low": -1.0, "high": 1.0},
        "covariates": {f"{HOSTILE}{i}": {"low": 0.0, "high": 1.0} for i in range(30)},
        "overlap": 0.1,
    }
)


@pytest.fixture(scope="module")
def shown() -> dict[str, object]:
    study = Dataset1(n=400).load()
    learner = RLearner(study.schema, PrivacyBudget(4.0, 1e-5))
    learner.fit(study.records.x, study.records.a, study.records.y)
    return {
        "schema": SCHEMA,
        "learner": learner,
        "planned": learner.expected_noise(400),
    }


@pytest.mark.parametrize("name", ["schema", "learner", "planned"])
def test_a_line_and_a_table_without_markup_of_names(shown: dict[str, object], name: str) -> None:
    line, table = repr(shown[name]), shown[name]._repr_html_()
    assert len(line) < 400
    assert "\n" not in line
    assert table.startswith("<div><b>")
    assert HOSTILE not in table


def test_a_schema_names_the_first_covariates() -> None:
    assert repr(SCHEMA).endswith("and 18 more>")


def test_records_show_none_of_themselves() -> None:
    records = CausalData(torch.full((3, 2), 0.123456), torch.tensor([0.0, 1.0, 1.0]), torch.full((3,), 7.654321))
    assert repr(records) == "<CausalData: 3 records of 2 covariates>"
