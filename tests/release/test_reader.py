"""The reader's side in a fresh process: what is imported to load each kind of release, and to predict with it."""

import json
import os
import subprocess
import sys

import pytest
import torch

from tests.release.helpers import DOMAIN, QUERIES
from tests.release.test_file import STATEMENT, function_release, query_release
from torchdpcate.erm.normal_equations import NormalEquations
from torchdpcate.features.maps import FEATURE_MAPS
from torchdpcate.release import average_effect, policy, rule
from torchdpcate.release.file import _CLASSES
from torchdpcate.release.statistics import StatisticsRelease

# What trains, draws noise, makes figures or composes a configuration, and what only a table of that kind needs.
TRAINING = ("lightning", "opacus", "torchmetrics", "matplotlib", "gpytorch", "linear_operator", "sklearn", "piqp")
CURATOR = ("hydra", "omegaconf", "dp_accounting", "opendp", "scipy.stats", "scipy.optimize")
TABLES = ("pandas", "pyarrow", "rich", "scipy.special")
ROOMS = ("second_stage", "influence", "estimators", "experimental", "verify", "audit", "evaluation")

# One process has torch alone; each job is a copy of it, which costs less than a start of its own.
SERVER = """
import contextlib, io, json, os, sys
import torch
sys.path.insert(0, os.getcwd())
for line in sys.stdin:
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        before = set(sys.modules)
        with contextlib.redirect_stdout(io.StringIO()):
            try:
                exec(json.loads(line))
                found = sorted(set(sys.modules) - before)
            except BaseException as error:
                found = repr(error)
        with os.fdopen(writing, "w") as pipe:
            print(json.dumps(found), file=pipe)
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        print(pipe.readline(), end="", flush=True)
    os.waitpid(child, 0)
"""


def statistics_release() -> StatisticsRelease:
    function = function_release()
    p = function.theta.numel()
    equations = NormalEquations.of(torch.eye(p, dtype=torch.float64), function.theta, 10)
    parts = {name: getattr(function, name) for name in ("features", "nuisances", "schema", "columns")}
    return StatisticsRelease(
        function.theta, privacy=STATEMENT, noise_scale=None, statistics=equations, ridge=0.5, **parts
    )


RELEASES = {
    **{f"function, {name}": lambda name=name: function_release(name) for name in sorted(FEATURE_MAPS)},
    "statistics": statistics_release,
    "queries": query_release,
    "rule": rule._example,
    "policy": policy._example,
    "average_effect": average_effect._example,
}


@pytest.fixture(scope="module")
def fresh():
    """Run words in a process that has imported torch and nothing else; return the modules that they import."""
    with subprocess.Popen([sys.executable, "-c", SERVER], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as server:

        def run(code: str) -> list[str]:
            server.stdin.write(json.dumps(code).encode() + b"\n")
            server.stdin.flush()
            found = json.loads(server.stdout.readline())
            assert isinstance(found, list), found
            return found

        yield run
        server.stdin.close()


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("reader")
    return {
        name: make().save(folder / f"{name.replace(', ', '_')}.safetensors").as_posix()
        for name, make in RELEASES.items()
    }


def of(modules: list[str], packages: tuple[str, ...]) -> list[str]:
    return [name for name in modules if any(name == p or name.startswith(f"{p}.") for p in packages)]


def test_every_kind_of_release_is_here():
    assert {make().kind for make in RELEASES.values()} == set(_CLASSES)


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
@pytest.mark.parametrize("name", ["function, fourier", "statistics", "rule", "policy"])
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
