import json

import numpy as np
import pandas as pd
import pytest

from torchdpcate.data.assignment import Cluster
from torchdpcate.data.schema import TableSchema
from torchdpcate.data.table import Table
from torchdpcate.data.table_stream import TableStream
from torchdpcate.errors import InputError

FACTS = {
    "treatment": "treated",
    "outcome": {"name": "score", "low": 0, "high": 10},
    "covariates": {"age": {"low": 0, "high": 20}},
    "propensity": 0.5,
}
SCHOOLS = {"name": "school", "size": 4, "correlation": 0.05}


def table(path, schools):
    n = len(schools)
    treated = np.array([name > "a" for name in schools])
    columns = {"treated": treated.astype(int), "score": np.linspace(0, 10, n), "age": 9, "school": schools}
    pd.DataFrame(columns).to_csv(path, index=False)
    return path


def test_a_domain_file_states_clusters_and_keeps_them():
    for entry in ("school", SCHOOLS):
        schema = TableSchema.from_dict(FACTS | {"assignment": {"clusters": entry}})
        assert schema.cluster == Cluster.of(entry)
        assert TableSchema.from_dict(json.loads(json.dumps(schema.to_dict()))) == schema
        assert schema != TableSchema.from_dict(FACTS)
    assert schema.design_effect == pytest.approx(1.15)
    assert TableSchema.from_dict(FACTS).design_effect == 1.0
    with pytest.raises(
        InputError, match=r"cluster 'school': an interval must count clusters.*\{name: school, size: 40"
    ):
        _ = TableSchema.from_dict(FACTS | {"assignment": {"clusters": "school"}}).design_effect


@pytest.mark.parametrize(
    ("entry", "words"),
    [
        ({"name": "school", "size": 40}, "give size and correlation, or neither"),
        (SCHOOLS | {"size": 1.5}, "size of cluster 'school' is 1.5; give a positive integer"),
        (SCHOOLS | {"correlation": 2}, "correlation of cluster 'school' is 2; give a number from 0 to 1"),
        (SCHOOLS | {"icc": 2}, "cluster has the unknown entry 'icc'"),
        ({"size": 3, "correlation": 0}, "cluster has no entry 'name'"),
    ],
)
def test_clusters_that_are_none_are_refused(entry, words):
    with pytest.raises(InputError, match=words):
        TableSchema.from_dict(FACTS | {"assignment": {"clusters": entry}})


def test_a_table_with_a_larger_cluster_is_refused_without_its_size(tmp_path):
    facts = FACTS | {"assignment": {"clusters": SCHOOLS}}
    assert Table(table(tmp_path / "t.csv", list("aaaabbbb")), facts).load().records.n == 8
    with pytest.raises(InputError, match="column 'school' has a cluster of more than size = 4 records") as refused:
        Table(table(tmp_path / "t.csv", list("aaaaaaab")), facts).load()
    assert "7" not in str(refused.value).replace(str(tmp_path), "")


def test_a_stream_counts_clusters_over_batches_and_files(tmp_path):
    facts, first, second = FACTS | {"assignment": {"clusters": SCHOOLS}}, tmp_path / "1.csv", tmp_path / "2.csv"
    table(first, [*"aab", " a"])
    stream = TableStream([table(second, ["b", "b", "", ""]), first], facts, batch_rows=2)
    assert [batch.n for batch in stream] == [2, 2, 2, 2]
    assert stream.n == 8
    with pytest.raises(InputError, match="column 'school' has a cluster of more than size = 4 records") as refused:
        TableStream([first, table(second, list("aabb"))], facts, batch_rows=2)
    assert "5" not in str(refused.value).replace(str(tmp_path), "")
    with pytest.raises(InputError, match="no school"):
        TableStream(table(first, list("abab")), FACTS | {"assignment": {"clusters": SCHOOLS | {"name": "no school"}}})


def test_a_cluster_that_is_a_covariate_is_counted_too(tmp_path):
    covariates = FACTS["covariates"] | {"school": {"categories": ["a", "b"]}}
    facts = FACTS | {"assignment": {"clusters": SCHOOLS}, "covariates": covariates}
    assert TableStream(table(tmp_path / "t.csv", list("aaaabbbb")), facts).n == 8
    with pytest.raises(InputError, match="more than size = 4"):
        TableStream(table(tmp_path / "t.csv", list("aaaaabbb")), facts)
