"""``trainer.logger``: losses go to the curator's folder of the run, whatever the environment says, and nowhere else."""

from importlib.util import find_spec
from pathlib import Path

import pandas as pd
import pytest
import torch
from safetensors.torch import load_file

from tests.cli.helpers import QUICK, TABLE, one_line, summary
from tests.cli.test_dp_cate import NEURAL
from torchdpcate.cli.main import main
from torchdpcate.errors import InputError
from torchdpcate.fit.trainable import TrainableNuisances
from torchdpcate.fit.trainer import check_device, default_trainer
from torchdpcate.fit.watching import KINDS, LossLog
from torchdpcate.heads.neural import NeuralHead
from torchdpcate.privacy.events import DPSGDEvent
from torchdpcate.privacy.ledger import Ledger


def charges(folder: str) -> list:
    """What a run paid, and at which level."""
    entries = Ledger.load(Path(folder, "curator", "ledger.sqlite")).entries
    return [(entry.block, entry.event, entry.count, entry.level) for entry in entries]


@pytest.mark.first(1)
@pytest.mark.parametrize("kind", KINDS)
def test_losses_are_the_curators_alone(here, monkeypatch, capsys, kind):
    if find_spec(kind) is None:
        pytest.skip(f"there is no {kind} here")
    elsewhere = here.parent / "elsewhere"
    for name in ("MLFLOW_TRACKING_URI", "MLFLOW_REGISTRY_URI", "MLFLOW_ARTIFACT_ROOT"):
        monkeypatch.setenv(name, elsewhere.as_uri())
    before = set(here.iterdir())
    assert main(["train", *TABLE, *QUICK, "run_dir=plain"]) == 0
    assert main(["train", *TABLE, *QUICK, f"trainer.logger={kind}", "run_dir=logged"]) == 0
    assert charges("logged") == charges("plain")
    assert set(here.iterdir()) - before == {here / "plain", here / "logged"}
    assert not elsewhere.exists()
    assert "mlflow" not in capsys.readouterr().err

    curator = here / "logged" / "curator"
    assert curator.stat().st_mode & 0o777 == 0o700
    logs = [path for path in curator.rglob("*") if curator / "logs" in path.parents]
    assert any(path.is_file() for path in logs)
    assert all(path.stat().st_mode & 0o777 == (0o700 if path.is_dir() else 0o600) for path in logs)
    outside = {path.relative_to(here / "logged") for path in (here / "logged").rglob("*") if path not in logs}
    also = {path.relative_to(here / "plain") for path in (here / "plain").rglob("*")}
    assert outside - {Path("curator/logs")} == also
    assert all("unreleased-losses" in str(path) for path in logs if path.is_file())
    if kind == "csv":
        losses = pd.concat(map(pd.read_csv, (curator / "logs").rglob("metrics.csv")))["loss"]
        assert len(losses) == sum(count for _, event, count, _ in charges("logged") if isinstance(event, DPSGDEvent))
        assert losses.gt(0).all()
    if kind == "mlflow":
        from mlflow.tracking import MlflowClient

        client = MlflowClient(f"sqlite:///{curator / 'logs' / 'unreleased-losses.db'}")
        (experiment,) = client.search_experiments(filter_string="name = 'unreleased-losses'")
        runs = client.search_runs([experiment.experiment_id])
        assert all(client.get_metric_history(run.info.run_id, "loss") for run in runs)


@pytest.mark.first(1)
@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["trainer.logger=wandb"], "choose one of csv, tensorboard, mlflow"),
        (
            ["trainer.logger=csv", "trainer.log_folder=public"],
            "losses and checkpoints go to the run's curator/logs alone",
        ),
    ],
)
def test_another_place_or_logger_is_refused(here, capsys, words, why):
    assert main(["train", *TABLE, *QUICK, *words, "run_dir=r"]) == 2
    assert why in one_line(capsys)
    assert not Path("r").exists()
    assert not Path("public").exists()


def test_a_library_that_is_missing_is_named_before_anything_is_spent(here, capsys, monkeypatch):
    monkeypatch.setattr("torchdpcate.fit.watching.find_spec", lambda name: None)
    for kind in ("tensorboard", "mlflow"):
        assert main(["train", *TABLE, *QUICK, f"trainer.logger={kind}", "run_dir=r"]) == 2
        assert f"pip install {kind}" in one_line(capsys)
    assert not Path("r").exists()


@pytest.mark.slow
@pytest.mark.parametrize("logger", ["null", "csv"])
def test_what_a_run_leaves_of_its_networks_says_what_it_is_and_loads(here, logger, capsys):
    """The private nuisances and the head, each as it ended; nothing of the comparison without privacy."""
    words = ["trainer.enable_checkpointing=true", f"trainer.logger={logger}", "data.n=300", "compare=true"]
    assert main(["train", *NEURAL, *words]) == 0
    assert "no network was trained" not in capsys.readouterr().out
    assert summary("r")["pehe_nonprivate"] > 0
    found = sorted(here.rglob("*.ckpt"))
    assert [path.name for path in found] == ["private-TrainableNuisances-2.ckpt", "unreleased-NeuralHead-2.ckpt"]
    assert all(path.parent == here / "r" / "curator" / "logs" for path in found)
    assert all(path.stat().st_mode & 0o777 == 0o600 for path in found)
    kinds = {"TrainableNuisances": TrainableNuisances, "NeuralHead": NeuralHead}
    for path in found:
        word, name, steps = path.stem.split("-")
        module = kinds[name].load_from_checkpoint(path, private=word == "private")
        if word == "private":
            [entry] = Ledger.load(module.hparams.privacy["ledger"]).entries[:1]
            said = module.hparams.privacy
            assert (said["steps"], said["plan"]["steps"], entry.count) == (int(steps),) * 3
            assert (said["budget"], said["entry"], said["level"]) == (
                {"epsilon": 1.0, "delta": 1e-5},
                entry.id,
                "certified",
            )
        else:
            with pytest.raises(InputError, match=r"^.*is not private, for no steps of DPSGD are stated in it; .*$"):
                NeuralHead.load_from_checkpoint(path)
            kept = load_file(here / "r" / "curator" / "numbers.safetensors")["theta_without_noise"]
            assert torch.equal(kept, module.theta)


def test_a_name_needs_a_folder_in_python_and_a_check_makes_none(tmp_path):
    from functools import partial

    with pytest.raises(InputError, match="give log_folder"):
        default_trainer(logger="csv")
    check_device(partial(default_trainer, accelerator="auto", logger="csv", log_folder=str(tmp_path / "a" / "logs")))
    assert not list(tmp_path.iterdir())
    trainer = default_trainer(logger="csv", log_folder=str(tmp_path / "a" / "logs"))
    assert not list(tmp_path.iterdir())
    [log] = (callback for callback in trainer.callbacks if isinstance(callback, LossLog))
    log.on_train_batch_end(trainer, None, torch.ones(1), None, 0)
    assert [path.stat().st_mode & 0o777 for path in (tmp_path / "a", tmp_path / "a" / "logs")] == [0o700, 0o700]
    assert default_trainer().loggers == []
