import contextlib
import json

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors import safe_open

from tests.release.helpers import DOMAIN, QUERIES, SCHEMA, nuisances
from tests.verify.forgery import rewritten, write_file
from torchdpcate.errors import InputError, ReleaseFileError
from torchdpcate.fit.feature_maps import FEATURE_MAPS
from torchdpcate.release.file import load_release, read_release_file
from torchdpcate.release.release import FunctionRelease, QueryRelease
from torchdpcate.release.statement import PrivacyStatement

STATEMENT = PrivacyStatement(
    mechanism="output", formula="f", level="certified", claim="c", epsilon=1.0, delta=1e-5, n=10, blocks=()
)


def function_release(features: str = "legendre") -> FunctionRelease:
    eta = nuisances()
    psi = FEATURE_MAPS[features]().setup(DOMAIN, eta)
    theta = torch.linspace(-1, 1, psi.dimension, dtype=torch.float64)
    return FunctionRelease(theta, psi, eta, SCHEMA, STATEMENT, 0.25)


def query_release(**rest) -> QueryRelease:
    return QueryRelease(QUERIES, torch.arange(8, dtype=torch.float64), SCHEMA, STATEMENT, **rest)


@pytest.mark.parametrize("features", sorted(FEATURE_MAPS))
def test_a_function_release_answers_the_same_after_a_round_trip(features, tmp_path):
    release = function_release(features)
    loaded = load_release(release.save(tmp_path / "r.safetensors"))
    np.testing.assert_allclose(loaded.effect(QUERIES), release.effect(QUERIES), rtol=1e-12, atol=1e-14)
    np.testing.assert_allclose(loaded.noise_band(QUERIES), release.noise_band(QUERIES), rtol=1e-12, atol=1e-14)
    assert loaded.privacy == release.privacy
    assert loaded.schema.to_dict() == SCHEMA.to_dict()


def test_a_file_that_is_there_is_overwritten_by_a_word_alone(tmp_path):
    path, release = tmp_path / "r.safetensors", function_release()
    path.write_text("mine")
    with pytest.raises(InputError, match=r"r\.safetensors: exists already; .*overwrite=True"):
        release.save(path)
    assert path.read_text() == "mine"
    assert load_release(release.save(path, overwrite=True)).privacy == release.privacy


def test_function_effect_is_offset_plus_head_clipped():
    release = function_release()
    values = release.nuisances.predict(QUERIES)
    expected = (values.mu1 - values.mu0 + release.features(QUERIES) @ release.theta).clamp(-4, 4)
    np.testing.assert_allclose(release.effect(QUERIES), expected.numpy(), rtol=0, atol=1e-14)


def test_band_is_the_normal_quantile_of_the_public_scale():
    release = function_release()
    band, effect = release.noise_band(QUERIES, 0.9), release.effect(QUERIES)
    half = 1.6448536269514722 * 0.25 * release.features(QUERIES).norm(dim=1).numpy()
    inside = np.abs(effect) + half < 4
    np.testing.assert_allclose((band[:, 1] - effect)[inside], half[inside], rtol=1e-12)
    with pytest.raises(InputError, match="level = 1"):
        release.noise_band(QUERIES, 1.0)


def test_a_query_release_answers_its_own_queries_exactly_in_any_order(tmp_path):
    loaded = load_release(query_release().save(tmp_path / "q.safetensors"))
    order = torch.tensor([5, 0, 0, 7])
    np.testing.assert_array_equal(loaded.effect(QUERIES[order]), order.double().numpy())


def test_nuisances_are_in_a_query_release_only_when_asked_for(tmp_path):
    for eta, expected in ((None, False), (nuisances(), True)):
        path = query_release(nuisances=eta).save(tmp_path / f"q{expected}.safetensors")
        with safe_open(path, "pt") as file:
            assert any(name.startswith("nuisances") for name in file.keys()) is expected  # noqa: SIM118
        assert (load_release(path).nuisances is not None) is expected


@pytest.mark.parametrize("keep", [0, 100, 0.99])
def test_truncated_file(keep, tmp_path):
    path = function_release().save(tmp_path / "r.safetensors")
    data = path.read_bytes()
    path.write_bytes(data[: int(keep if keep > 1 else keep * len(data))])
    with pytest.raises(ReleaseFileError, match="not a release, or damaged"):
        load_release(path)


@pytest.mark.parametrize("version", ["0", "2"])
def test_another_format(version, tmp_path):
    path = rewritten(function_release().save(tmp_path / "r.safetensors"), format_version=version)
    with pytest.raises(ReleaseFileError, match=r"is not the one that this torchdpcate reads \(1\)"):
        load_release(path)


@pytest.mark.parametrize(
    "field",
    [
        {"blocks": 3},
        {"blocks": [{"name": "a", "n": -1, "charges": []}]},
        {"blocks": [{"name": "a", "n": 1, "charges": [{"purpose": "tuning", "level": "sure"}]}]},
        *(
            {"blocks": [{"name": "a", "n": 1, "charges": [{"level": "certified", **charge}]}]}
            for charge in ({"purpose": "tuning", "event": {"kind": "x"}}, {"purpose": "none"}, {"label": "DP-SGD"})
        ),
        {"conditions": [{"name": "C1", "text": "t", "holds": "yes"}]},
        {"epsilon": float("nan")},
        {"epsilon": None},
        {"level": "sure"},
        {"public": {"split": {"a": 1}}},
        {"private_noise": 1},
        {"surprise": 1},
    ],
    ids=lambda field: json.dumps(field)[:60],
)
def test_a_statement_whose_fields_are_not_of_their_kind_is_refused(field, tmp_path):
    path = function_release().save(tmp_path / "r.safetensors")
    rewritten(path, privacy=json.dumps(STATEMENT.to_dict() | field))
    with pytest.raises(ReleaseFileError, match="do not fit together"):
        load_release(path)


@pytest.mark.parametrize("text", ["[]", "[" * 100_000, "{", '{"a": 1}'])
@pytest.mark.parametrize("key", ["facts", "schema", "privacy", "class"])
def test_metadata_that_is_no_json_object_is_refused(key, text, tmp_path):
    path = rewritten(function_release().save(tmp_path / "r.safetensors"), **{key: text})
    with pytest.raises(ReleaseFileError, match="do not fit together"):
        load_release(path)


def test_a_changed_number_is_refused(tmp_path):
    path = function_release().save(tmp_path / "r.safetensors")
    file = read_release_file(path)
    file.tensors["theta"][3] += 1e-12
    write_file(file.tensors, path, file.metadata)
    with pytest.raises(ReleaseFileError, match="do not match its checksum; request the file again"):
        load_release(path)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.binary(max_size=300), st.integers(0, 4000))
def test_no_bytes_crash_the_reader(tmp_path, junk, position):
    path = function_release().save(tmp_path / "r.safetensors", overwrite=True)
    data = bytearray(path.read_bytes())
    position = min(position, len(data) - 1)
    data[position : position + len(junk)] = junk
    path.write_bytes(bytes(data))
    with contextlib.suppress(InputError):
        assert load_release(path).effect(QUERIES).shape == (8,)
