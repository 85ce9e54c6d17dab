"""The benchmark of a GPU: refused without one, and run small on the CPU."""

import csv

import pytest
import torch

from experiments.benchmarks import gpu


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
def test_without_a_gpu_it_is_refused_in_one_line(capsys):
    assert gpu.main([]) == 2
    said = capsys.readouterr().err.splitlines()
    assert len(said) == 1
    assert "no CUDA GPU" in said[0]


def test_every_measurement_runs_small(tmp_path, monkeypatch):
    monkeypatch.setattr(gpu, "tests", lambda: "exit status 0: none")
    assert gpu.main(["--device", "cpu", "--small", "--folder", str(tmp_path)]) == 0
    rows = list(csv.DictReader((tmp_path / "gpu.csv").open()))
    assert all("says nothing of a GPU" in row["device"] for row in rows)
    assert all(float(row["seconds"]) > 0 for row in rows)
    said = " ".join(row["what"] for row in rows)
    for what in ("DP-SGD step, float32", "Hessian product", "Cholesky", "torchdpcate train"):
        assert what in said
