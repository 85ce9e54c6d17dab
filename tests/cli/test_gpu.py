"""The same runs on a GPU; skipped where there is none."""

import json

import pytest
import torch

from tests.registered import shipped
from torchdpcate.cli.main import main
from torchdpcate.release.file import load_release
from torchdpcate.verify.file import verify_release

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA GPU on this machine"),
]


@pytest.mark.parametrize("words", [[], ["nuisance=additive"], ["nuisance=mlp"]])
def test_a_run_by_default_releases_a_file_that_answers_on_the_cpu(words, tmp_path):
    run = ["trainer.accelerator=gpu", "trainer.progress=false", "force=true", f"run_dir={tmp_path / 'r'}"]
    assert main(["train", "data=dataset1", "data.n=900", *words, *run]) == 0
    path = tmp_path / "r" / "release" / "release.safetensors"
    verify_release(path)
    release = load_release(path)
    points = torch.full((3, release.domain.dimension), 0.5, dtype=torch.float64)
    assert torch.isfinite(torch.as_tensor(release.answer(points))).all()


@pytest.mark.parametrize(
    "words",
    shipped(
        [
            ["second_stage=linear", "second_stage.ridge=0.02"],
            ["second_stage=linear", "second_stage.ridge=0.02", "release=queries", "mechanism=smooth_sensitivity"],
            ["second_stage=neural", "second_stage.width=8", "release=queries", "mechanism=influence"],
        ]
    ),
)
def test_trainer_gpu_runs_whole(words, tmp_path):
    quick = ["data=dataset1", "data.n=900", "queries.count=20", "nuisance.batch_size=60", "nuisance.epochs=2"]
    run = ["trainer.accelerator=gpu", "trainer.progress=false", "force=true", f"run_dir={tmp_path / 'r'}"]
    assert main(["train", *quick, *words, *run]) == 0
    assert json.loads((tmp_path / "r" / "curator" / "summary.json").read_text())["pehe"] > 0
