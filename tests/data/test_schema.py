import json
from pathlib import Path

import pandas as pd
import pytest
import torch
import yaml

from torchdpcate.data.covariates import Categorical, Numeric
from torchdpcate.data.domain import Domain
from torchdpcate.data.schema import TableSchema
from torchdpcate.errors import InputError

from .conftest import DOMAIN

FACTS = yaml.safe_load(DOMAIN)


def schema() -> TableSchema:
    return TableSchema.from_dict(FACTS)


def test_from_yaml_reads_roles_bounds_and_categories(domain_file: Path) -> None:
    read = TableSchema.from_yaml(domain_file)
    assert (read.treatment, read.outcome, read.columns) == ("treat", "y", ("age", "sex", "race"))
    assert read.domain.covariate_low.tolist() == [16, 0, 0, 0, 0]
    assert read.domain.covariate_high.tolist() == [60, 1, 1, 1, 1]
    assert (read.domain.outcome_low, read.domain.outcome_high, read.domain.overlap) == (0, 10, 0.1)
    assert read.text_columns == {"race"}
    assert read == schema()


def test_encode_numbers_bools_and_words() -> None:
    frame = pd.DataFrame(
        {"race": ["NA", "white"], "sex": [True, False], "age": ["16", " 17.5 "], "extra": [None, None]}
    )
    assert schema().encode(frame).tolist() == [[16, 1, 0, 0, 1], [17.5, 0, 0, 1, 0]]


def test_number_categories_match_whatever_the_column_type() -> None:
    three = Categorical("grade", (1, 2, 8))
    for column in (pd.Series([8, 1]), pd.Series([8.0, 1.0]), pd.Series(["8", "1.0"])):
        assert three.encode(column).tolist() == [[0, 0, 1], [1, 0, 0]]


def test_grid_respects_categories() -> None:
    grid = schema().grid(300)
    schema().domain.check_covariates(grid, "query")
    assert torch.equal(grid[:, 2:].sum(1), torch.ones(300, dtype=torch.float64))
    assert set(grid[:, 1:].unique().tolist()) == {0.0, 1.0}
    assert (grid[:, 2:].mean(0) - 1 / 3).abs().max() < 0.02
    assert grid.dtype == torch.float64
    assert torch.equal(grid, schema().grid(300))


def test_from_domain() -> None:
    domain = Domain([0, 1], [1, 3], -1, 1)
    of = TableSchema.from_domain(domain)
    assert of.covariates == (Numeric("x0", 0.0, 1.0), Numeric("x1", 1.0, 3.0))
    assert of.domain is domain
    assert of.encode(pd.DataFrame({"x1": [1], "x0": [0.5]})).tolist() == [[0.5, 1.0]]
    assert TableSchema.from_dict(of.to_dict()).domain == domain


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"treatment": None}, "no entry 'treatment'"),
        ({"outcome": {"name": "y", "low": 0}}, "outcome has no entry 'high'"),
        ({"outcome": "y"}, "outcome is 'y'; it needs the entries"),
        ({"outcome": {"name": "y", "low": 0, "high": 1, "units": "d"}}, "unknown entry 'units'"),
        ({"covariates": {}}, "covariates is empty"),
        ({"covariates": {"age": None}}, "covariate 'age' is None"),
        ({"covariates": {"age": {"low": 0, "high": "many"}}}, "upper bound of covariate 'age' is 'many'"),
        ({"covariates": {"age": {"low": 0, "high": 1, "log": True}}}, "unknown entry 'log'"),
        ({"covariates": {"y": {"low": 0, "high": 1}}}, "column 'y' has two roles"),
        ({"covariates": {"g": {"categories": ["a"]}}}, "two or more"),
        ({"covariates": {"g": {"categories": ["a", 1]}}}, "mix"),
        ({"bounds": 1}, "unknown entry 'bounds'"),
    ],
)
def test_a_bad_domain_file_is_refused_in_one_line(tmp_path: Path, change: dict, words: str) -> None:
    file = tmp_path / "bad.yaml"
    file.write_text(yaml.safe_dump(FACTS | change))
    with pytest.raises(InputError, match=words) as caught:
        TableSchema.from_yaml(file)
    assert str(file) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_an_overlap_that_a_file_leaves_out_is_said(tmp_path: Path) -> None:
    path = tmp_path / "d.yaml"
    path.write_text("treatment: t\noutcome: {name: y, low: 0, high: 1}\ncovariates: {x: {low: 0, high: 1}}\n")
    with pytest.warns(UserWarning, match="states no overlap; 0.05 is taken"):
        assert TableSchema.from_yaml(path).domain.overlap == 0.05


def test_a_missing_file_is_named() -> None:
    with pytest.raises(InputError, match=r"'nowhere/d.yaml' does not exist"):
        TableSchema.from_yaml("nowhere/d.yaml")
    with pytest.raises(InputError, match=r"shipped ones: acic2016, hillstrom, .*, mimic, nhefs, twins"):
        TableSchema.from_yaml("nothing")


def test_the_origin_of_each_bound_is_that_of_its_entry_or_of_the_whole(tmp_path: Path) -> None:
    facts = json.loads(json.dumps(FACTS))
    facts["covariates"]["age"]["origin"] = "eligibility\n  rule"
    facts["outcome"]["origin"] = "the scale"
    given = TableSchema.from_dict(facts)
    others = dict.fromkeys(("sex", "race"), "given in code by the curator")
    assert given.origins == {"y": "the scale", "age": "eligibility rule", **others}
    assert TableSchema.from_dict(json.loads(json.dumps(given.to_dict()))).origins == given.origins
    file = tmp_path / "folder" / "mine.yaml"
    file.parent.mkdir()
    file.write_text(yaml.safe_dump(facts | {"origin": "codebook"}))
    assert TableSchema.from_yaml(file).domain.origin == "domain file mine: codebook"
    assert TableSchema.from_yaml(file).origins["age"] == "eligibility rule"
    again = TableSchema.from_dict(TableSchema.from_yaml(file).to_dict())
    assert str(tmp_path) not in json.dumps(again.to_dict())


def test_a_schema_without_a_covariate_keeps_the_others():
    facts = {
        "treatment": "t",
        "outcome": {"name": "y", "low": 0, "high": 1},
        "covariates": {
            "a": {"low": 0, "high": 2},
            "b": {"categories": ["u", "v", "w"]},
            "c": {"low": 0.2, "high": 0.8},
        },
    }
    schema = TableSchema.from_dict(facts)
    less = schema.without("c")
    assert less.columns == ("a", "b")
    assert less.domain == schema.domain.select(range(4))
    assert (less.treatment, less.outcome) == ("t", "y")
