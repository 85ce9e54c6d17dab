import math
from dataclasses import replace

import pandas as pd
import pytest
import torch

from tests.fresh_process import CURATOR, ROOMS, TABLES, TRAINING, fresh_process, of
from tests.release.helpers import DOMAIN, QUERIES
from tests.release.test_file import STATEMENT, function_release, query_release
from tests.verify.forgery import write_anew
from torchdpcate.data.schema import TableSchema
from torchdpcate.errors import ReleaseFileError
from torchdpcate.fit.feature_maps import FEATURE_MAPS
from torchdpcate.fit.weighted_basis import Standardisation, WeightedBasis, all_features
from torchdpcate.release import average_effect, composed, rule, subgroups
from torchdpcate.release.combination import combine
from torchdpcate.release.combined import SitesRelease
from torchdpcate.release.composed import ComposedRelease
from torchdpcate.release.effect_law import EffectLaw
from torchdpcate.release.file import Release, kinds, load_release, read_release_file


def composed_release() -> ComposedRelease:
    k = DOMAIN.dimension
    basis = WeightedBasis(all_features([False] * k, "1"), torch.full((1 + k,), 1 / (1 + k), dtype=torch.float64))
    theta, ones = torch.arange(1.0 + k, dtype=torch.float64), torch.ones(k, dtype=torch.float64)
    standardisation = Standardisation(0 * ones, ones / 2)
    schema, curvatures = TableSchema.from_domain(DOMAIN), torch.eye(1 + k, dtype=torch.float64)
    return ComposedRelease(theta, theta, curvatures, 1.0, basis, standardisation, schema, STATEMENT)


def effect_with_law() -> ComposedRelease:
    effect = composed._example().effect
    eye = torch.eye(2, dtype=torch.float64)
    law = EffectLaw(effect.theta, 0.01 * eye, eye, eye[0], 0.0, 0.01, 0.0, 0.01)
    return replace(effect, law=law)


def combined(site: Release) -> SitesRelease:
    return combine([site, replace(site, privacy=replace(site.privacy, chosen="by the board"))], ["north", "south"])


RELEASES = {
    "composed": composed_release,
    **{f"function, {name}": lambda name=name: function_release(name) for name in sorted(FEATURE_MAPS)},
    "queries": query_release,
    "rule": rule._example,
    "composed, rule": composed._example,
    "policy": rule._policy_example,
    "average_effect": average_effect._example,
    "subgroups": subgroups._example,
    "sites, effect": lambda: combined(effect_with_law()),
    "sites": lambda: combined(average_effect._example()),
    "sites, subgroups": lambda: combined(subgroups._example()),
}
# functions are drawn alike whatever their features
DRAWN = [
    pytest.param(name, marks=[pytest.mark.slow] * (name.startswith("function") and "legendre" not in name))
    for name in sorted(RELEASES)
]


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


def test_loading_imports_what_a_reader_needs(files, fresh):
    modules = fresh(f"from torchdpcate import load_release\nfor path in {[*files.values()]}: load_release(path)")
    assert not of(modules, (*TRAINING, *CURATOR, *TABLES))
    assert not of(modules, tuple(f"torchdpcate.{room}" for room in (*ROOMS, "cli")))


def test_answering_imports_no_more(files, fresh):
    lines = ["from torchdpcate import load_release"]
    for name, make in RELEASES.items():
        domain = make().domain
        rows = QUERIES.tolist() if domain.dimension == DOMAIN.dimension else domain.grid(8).tolist()
        requested = (
            "lines()" if name in ("average_effect", "sites") else f"answer(torch.tensor({rows}, dtype=torch.float64))"
        )
        lines.append(f"load_release({files[name]!r}).{requested}")
    assert not of(fresh("\n".join(lines)), (*TRAINING, *CURATOR))


@pytest.mark.slow
def test_predicting_a_table_imports_no_trainer(files, fresh, tmp_path):
    lines = ["from torchdpcate.cli.main import main"]
    names = ["composed", "composed, rule", "function, fourier", "rule", "policy"]
    outputs = [tmp_path / f"{name} out.{kind}" for name in names for kind in ("csv", "parquet")]
    for output in outputs:
        name, kind = output.name.split(" out.")
        schema, table = RELEASES[name]().schema, tmp_path / f"{name}.{kind}"
        frame = pd.DataFrame(schema.domain.grid(20).numpy(), columns=list(schema.domain.names))
        (frame.to_csv if kind == "csv" else frame.to_parquet)(table, index=False)
        lines.append(f"assert main({['predict', files[name], str(table), '-o', str(output)]!r}) == 0")
    modules = fresh("\n".join(lines))
    assert all(output.exists() for output in outputs)
    assert not of(modules, (*TRAINING, *CURATOR))
    assert not of(modules, tuple(f"torchdpcate.{room}" for room in ROOMS))


def no_other_tensors_are_read(path, copy):
    file = read_release_file(path)
    for name, sound in file.tensors.items():
        for wrong in (sound.flatten().repeat(2), sound[..., :-1].contiguous(), sound.float(), sound * math.nan):
            if sound.numel():
                write_anew(copy, file.metadata, {**file.tensors, name: wrong})
                with pytest.raises(ReleaseFileError):
                    load_release(copy)


@pytest.mark.parametrize("name", DRAWN)
def test_tensors_that_do_not_fit_are_refused(name, files, tmp_path):
    no_other_tensors_are_read(files[name], tmp_path / "release.safetensors")
