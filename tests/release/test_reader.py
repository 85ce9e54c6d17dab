"""The reader's side in a fresh process: what is imported to load each kind of release, and to predict with it."""

import os

import pytest
import torch

from tests.fresh_process import CURATOR, ROOMS, TABLES, TRAINING, fresh_process, of
from tests.release.helpers import DOMAIN, QUERIES
from tests.release.test_file import STATEMENT, function_release, query_release
from torchdpcate.data.schema import TableSchema
from torchdpcate.erm.normal_equations import NormalEquations
from torchdpcate.features.maps import FEATURE_MAPS
from torchdpcate.features.weighted_basis import Standardisation, WeightedBasis, all_features
from torchdpcate.release import average_effect, composed, rule, subgroups
from torchdpcate.release.composed import ComposedRelease
from torchdpcate.release.file import kinds
from torchdpcate.release.statistics import StatisticsRelease


def statistics_release() -> StatisticsRelease:
    function = function_release()
    p = function.theta.numel()
    equations = NormalEquations.of(torch.eye(p, dtype=torch.float64), function.theta, 10)
    parts = {name: getattr(function, name) for name in ("features", "nuisances", "schema", "columns")}
    return StatisticsRelease(
        function.theta, privacy=STATEMENT, noise_scale=None, statistics=equations, ridge=0.5, **parts
    )


def composed_release() -> ComposedRelease:
    k = DOMAIN.dimension
    basis = WeightedBasis(all_features([False] * k, "1"), torch.full((1 + k,), 1 / (1 + k), dtype=torch.float64))
    theta, ones = torch.arange(1.0 + k, dtype=torch.float64), torch.ones(k, dtype=torch.float64)
    standardisation = Standardisation(0 * ones, ones / 2)
    schema, curvatures = TableSchema.from_domain(DOMAIN), torch.eye(1 + k, dtype=torch.float64)
    return ComposedRelease(theta, theta, curvatures, 1.0, basis, standardisation, schema, STATEMENT)


RELEASES = {
    "composed": composed_release,
    **{f"function, {name}": lambda name=name: function_release(name) for name in sorted(FEATURE_MAPS)},
    "statistics": statistics_release,
    "queries": query_release,
    "rule": rule._example,
    "composed_rule": composed._example,
    "policy": rule._policy_example,
    "average_effect": average_effect._example,
    "subgroups": subgroups._example,
}


@pytest.fixture(scope="module")
def fresh():
    with fresh_process() as run:
        yield run


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("reader")
    return {
        name: make().save(folder / f"{name.replace(', ', '_')}.safetensors").as_posix()
        for name, make in RELEASES.items()
    }


def test_every_kind_of_release_is_here():
    assert {make().kind for make in RELEASES.values()} == set(kinds())


@pytest.mark.parametrize("name", RELEASES)
def test_loading_imports_what_a_reader_needs(name, files, fresh):
    modules = fresh(f"from torchdpcate import load_release; load_release({files[name]!r})")
    assert not of(modules, (*TRAINING, *CURATOR, *TABLES))
    assert not of(modules, tuple(f"torchdpcate.{room}" for room in (*ROOMS, "cli")))


@pytest.mark.parametrize("name", RELEASES)
def test_answering_imports_no_more(name, files, fresh):
    domain = RELEASES[name]().domain
    rows = QUERIES.tolist() if domain.dimension == DOMAIN.dimension else domain.grid(8).tolist()
    answers = f"release.answer(torch.tensor({rows}, dtype=torch.float64))"
    asked = "release.interval()" if name == "average_effect" else answers
    modules = fresh(f"from torchdpcate import load_release; release = load_release({files[name]!r}); {asked}")
    assert not of(modules, (*TRAINING, *CURATOR))


@pytest.mark.parametrize("kind", ["csv", "parquet"])
@pytest.mark.parametrize("name", ["composed", "composed_rule", "function, fourier", "statistics", "rule", "policy"])
def test_predicting_a_table_imports_no_trainer(name, kind, files, fresh, tmp_path):
    import pandas as pd

    schema, table = RELEASES[name]().schema, tmp_path / f"x.{kind}"
    frame = pd.DataFrame(schema.domain.grid(20).numpy(), columns=list(schema.domain.names))
    (frame.to_csv if kind == "csv" else frame.to_parquet)(table, index=False)
    output = tmp_path / f"out.{kind}"
    words = ["predict", files[name], table.as_posix(), "-o", output.as_posix()]
    modules = fresh(f"from torchdpcate.cli.main import main; assert main({words!r}) == 0")
    assert os.path.exists(output)
    assert not of(modules, (*TRAINING, *CURATOR))
    assert not of(modules, tuple(f"torchdpcate.{room}" for room in ROOMS))
