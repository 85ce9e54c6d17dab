"""One flag changes how the function is made private; every choice trains, verifies, and predicts."""

import io
import json
import shutil
from contextlib import redirect_stderr, redirect_stdout

import numpy as np
import pandas as pd
import pytest

from torchdpcate.cli.main import main
from torchdpcate.release.file import load_release

SMALL = (
    "data=dataset1", "data.n=600", "queries.count=12", "nuisance=mlp", "nuisance.width=16",
    "nuisance.epochs=2", "nuisance.batch_size=60",
    "trainer.progress=false", "privacy.epsilon=2",
)  # fmt: skip
CHOICES = {
    "objective": ("second_stage=linear", "mechanism=objective"),
    "output": ("second_stage=linear", "mechanism=output"),
    "gaussian_process": ("second_stage=linear", "mechanism=gaussian_process"),
    "plug_in": ("second_stage=linear", "mechanism=plug_in"),
    "kernel": ("mechanism=gaussian_process", "second_stage=kernel_ridge"),
    "kernel queries": ("mechanism=gaussian_process", "second_stage=kernel_ridge", "release=queries"),
    "tangent": ("mechanism=objective", "second_stage=tangent"),
    "cross_fit": ("second_stage=linear", "mechanism=output", "split=cross_fit"),
}


def run(*words) -> tuple[int, str, str]:
    """Exit code, what was printed, and what was complained about."""
    out, error = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(error):
        try:
            code = main([str(word) for word in words])
        except SystemExit as leaving:
            code = int(leaving.code or 0)
    return code, out.getvalue(), error.getvalue()


@pytest.fixture(scope="module")
def queries(tmp_path_factory):
    path = tmp_path_factory.mktemp("queries") / "a.csv"
    pd.DataFrame(np.random.default_rng(0).random((5, 2)), columns=["x0", "x1"]).to_csv(path, index=False)
    return path


@pytest.fixture
def trained(finished):
    """Folders of runs by choice."""
    return lambda choice: finished(*SMALL, *CHOICES[choice])


@pytest.mark.first(1)
@pytest.mark.parametrize("choice", CHOICES)
def test_every_choice_trains_and_verifies(choice, trained):
    folder = trained(choice)
    release = folder / "release" / "release.safetensors"
    assert run("verify", release)[0] == 0
    summary = json.loads((folder / "curator" / "summary.json").read_text())
    assert summary["level"] == "certified"
    assert 0 < summary["epsilon"] <= 2
    assert summary["pehe"] > 0
    assert run("audit", "leak", folder)[0] == 0
    points = ("mechanism=gaussian_process" in CHOICES[choice], load_release(release).kind == "queries")
    assert points in ((True, True), (False, False))


@pytest.mark.first(1)
@pytest.mark.parametrize("choice", ["objective", "plug_in", "tangent"])
def test_a_reader_asks_a_function_wherever_he_likes(choice, trained, queries, tmp_path):
    out = tmp_path / "out.csv"
    assert run("predict", trained(choice) / "release" / "release.safetensors", queries, "-o", out)[0] == 0
    assert pd.read_csv(out)["effect"].notna().all()


@pytest.mark.first(1)
@pytest.mark.parametrize("choice", ["gaussian_process", "kernel"])
def test_the_curator_answers_as_often_as_wanted_and_always_the_same(choice, trained, queries, tmp_path):
    folder, outs = shutil.copytree(trained(choice), tmp_path / "r"), [tmp_path / f"{k}.csv" for k in (0, 1)]
    ledger = (folder / "curator" / "ledger.sqlite").read_bytes()
    for out in outs:
        assert run("predict", folder / "curator" / "online", queries, "-o", out)[0] == 0
    assert outs[0].read_bytes() == outs[1].read_bytes()
    assert (folder / "curator" / "ledger.sqlite").read_bytes() == ledger  # paid for once
