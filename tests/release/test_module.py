import subprocess
import sys

import pandas as pd
import pytest
import torch

from tests.release.helpers import nuisances
from tests.release.test_file import STATEMENT, query_release
from torchdpcate.data.schema import TableSchema
from torchdpcate.errors import InputError
from torchdpcate.fit.feature_maps import Fourier, Identity, Legendre, Products, Representation
from torchdpcate.fit.weighted_basis import KINDS, HiddenUnits, Levels, Standardisation, WeightedBasis, all_features
from torchdpcate.release.composed import ComposedRelease
from torchdpcate.release.release import FunctionRelease
from torchdpcate.release.rule import RuleRelease, _policy_example

FACTS = {
    "treatment": "drug",
    "outcome": {"name": "y", "low": -1, "high": 3, "better": "lower"},
    "covariates": {
        "age": {"low": 18, "high": 90, "missing": "indicator", "typical": [30, 70]},
        "dose": {"low": 1, "high": 1000, "scale": "log"},
        "site": {"categories": ["a", "b", "c"]},
    },
    "overlap": 0.1,
}
ARMS = {"name": "arm", "categories": ["placebo", "low", "high"], "reference": "placebo"}
SCHEMA = TableSchema.from_dict(FACTS)


def coefficients(size: int, seed: int = 0):
    return torch.randn(size, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def function(features) -> FunctionRelease:
    known = nuisances(SCHEMA.domain)
    features = features.setup(SCHEMA.domain, known)
    theta = 0.3 * coefficients(features.dimension)
    return FunctionRelease(theta, features, known, SCHEMA, STATEMENT, None)


def composed(treatment="drug", columns=None, hidden=False) -> ComposedRelease:
    schema = TableSchema.from_dict(FACTS | {"treatment": treatment})
    domain = schema.domain if columns is None else schema.domain.select(columns)
    features = all_features(Levels(domain.two_levels, domain.indicators), KINDS)
    units = None
    if hidden:
        k, draws = domain.dimension, torch.Generator().manual_seed(3)
        W, points = (torch.randn(rows, k, generator=draws, dtype=torch.float64) for rows in (6, 500))
        base, one = WeightedBasis(features, torch.ones(1 + len(features)).double()), torch.eye(k).double()
        units = HiddenUnits.beyond(W, torch.zeros(6).double(), base, one, points)
        features = (*features, *units.features)
    weights = torch.full((1 + len(features),), 1 / (1 + len(features)), dtype=torch.float64)
    theta = coefficients(len(weights) * (len(schema.actions) - 1))
    ones = torch.ones(domain.dimension, dtype=torch.float64)
    scales, curvatures = Standardisation(0.1 * ones, 0.4 * ones), torch.eye(len(theta), dtype=torch.float64)
    basis = WeightedBasis(features, weights, units)
    return ComposedRelease(theta, theta, curvatures, 1.0, basis, scales, schema, STATEMENT, columns=columns)


def rule() -> RuleRelease:
    features = Identity().setup(SCHEMA.domain)
    return RuleRelease(coefficients(features.dimension), features, SCHEMA, STATEMENT)


RELEASES = {
    "composed": composed,
    "composed of some": lambda: composed(columns=(2, 0, 4, 1)),
    "composed of a column without its indicator": lambda: composed(columns=(2, 0)),
    "composed of three arms": lambda: composed(ARMS),
    "composed with hidden units": lambda: composed(hidden=True),
    "composed with hidden units of some": lambda: composed(columns=(2, 0, 4, 1), hidden=True),
    "linear": lambda: function(Legendre(3)),
    "products": lambda: function(Products(squares=True)),
    "fourier": lambda: function(Fourier(16)),
    "layer": lambda: function(Representation()),
    "rule": rule,
    "composed rule": lambda: composed().rule(cost=0.2),
}


def expected(release, x):
    return torch.from_numpy(release.effect(x) if hasattr(release, "effect_tensor") else release.score(x))


@pytest.mark.parametrize("make", RELEASES.values(), ids=RELEASES)
def test_outputs_are_those_of_the_release(make):
    release = make()
    x = release.schema.grid(60)
    assert torch.allclose(release.module()(x), expected(release, x), rtol=0, atol=1e-12)
    single = release.module().float()
    assert single(x).dtype == torch.float32
    assert not any(tensor.dtype == torch.float64 for tensor in single.state_dict().values())
    assert torch.allclose(single(x).double(), expected(release, x), rtol=0, atol=1e-3)
    assert not any(parameter.requires_grad for parameter in single.parameters())


@pytest.mark.parametrize("make", RELEASES.values(), ids=RELEASES)
def test_a_module_works_where_it_was_moved_to(make):
    release = make()
    rows = release.schema.grid(5).to("meta", torch.float32)  # mixes with no other device
    answers = release.module().to("meta", torch.float32)(rows)
    assert (answers.device.type, answers.dtype, len(answers)) == ("meta", torch.float32, 5)


def test_a_module_takes_a_table_s_rows_and_answers_strange_ones():
    release = composed()
    frame = pd.DataFrame({"age": [40.0, None], "dose": [1.0, 30.0], "site": ["a", "c"]})
    x = SCHEMA.matrix(frame, "query")
    assert release.module()(x).tolist() == pytest.approx(release.effect(frame).tolist(), abs=1e-12)
    beyond, edge, unknown = x[:1].clone(), x[:1].clone(), x[:1].clone()
    beyond[0, 2], edge[0, 2], unknown[0, 0] = 1e9, 1000.0, torch.nan
    module = release.module()
    assert torch.equal(module(beyond), module(edge))
    assert module(torch.cat([unknown, edge])).isnan().tolist() == [True, False]
    assert module(x[:0]).shape == (0,)


@pytest.mark.parametrize("make", [query_release, _policy_example], ids=["queries", "policy"])
def test_what_is_no_function_of_numbers_says_so(make):
    with pytest.raises(InputError, match="module: a release of kind"):
        make().module()


ALONE = """
import sys, torch
for program, rows in zip(sys.argv[1::2], sys.argv[2::2]):
    x, expected = torch.load(rows, weights_only=True)
    assert torch.allclose(torch.export.load(program).module()(x), expected, rtol=0, atol=1e-6), program
assert "torchdpcate" not in sys.modules
"""
EXPORTED = ("composed of three arms", "composed with hidden units of some", "fourier", "rule")


def exported(release):
    """A release's module by torch.export, traced on fewer rows than it will see."""
    rows = {"x": {0: torch.export.Dim("rows")}}
    return torch.export.export(release.module(), (release.schema.grid(4),), dynamic_shapes=rows)


@pytest.mark.slow
def test_exported_modules_answer_without_this_library(tmp_path):
    words = [sys.executable, "-W", "ignore", "-c", ALONE]
    for name in EXPORTED:
        release = RELEASES[name]()
        x = release.schema.grid(30)
        torch.export.save(exported(release), tmp_path / f"{name}.pt2")
        torch.save((x, expected(release, x)), tmp_path / f"{name}.pt")
        words += [f"{name}.pt2", f"{name}.pt"]
    subprocess.run(words, check=True, cwd=tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize("name", RELEASES)
def test_onnx_answers_as_the_release_does(name, dtype, tmp_path):
    for library in ("onnx", "onnxscript"):
        pytest.importorskip(library, reason="the extra onnx is not installed")
    runtime = pytest.importorskip("onnxruntime", reason="onnxruntime, of the extra onnx, is not installed")
    release = RELEASES[name]()
    x, path = release.schema.grid(30).to(dtype), tmp_path / "module.onnx"
    rows = {"x": {0: torch.export.Dim("rows")}}
    torch.onnx.export(release.module().to(dtype), (x[:4],), path, dynamo=True, dynamic_shapes=rows, verbose=False)
    session = runtime.InferenceSession(path)
    (found,) = session.run(None, {session.get_inputs()[0].name: x.numpy()})
    tolerance = 1e-6 if dtype == torch.float64 else 1e-3
    assert torch.allclose(torch.from_numpy(found).double(), release.module()(x), rtol=0, atol=tolerance)
