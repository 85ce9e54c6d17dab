"""A Trainer of the user's, and what it may hold, makes a release conditional, and the release says so."""

from functools import partial

import pytest
from lightning.pytorch import Callback
from lightning.pytorch.callbacks import ModelCheckpoint, ModelSummary

from tests.estimators.test_own_code import records
from torchdpcate import Domain, LinearSecondStage, NuisanceConfig, PrivacyBudget, RLearner
from torchdpcate.composition.settings import AdaptiveSecondStage, WideAndDeep
from torchdpcate.fit.trainer import default_trainer
from torchdpcate.privacy.events import DPSGDEvent
from torchdpcate.verify.file import verify_release

DOMAIN = Domain([0.0, -1.0], [1.0, 1.0], outcome_low=-1.0, outcome_high=1.0, overlap=0.1)
BUDGET = PrivacyBudget(6.0, 1e-5)
NETWORKS = NuisanceConfig(width=4, batch_size=50, epochs=3)


class LeastLoss(Callback):
    """Keeps the weights of the least loss."""

    def __init__(self):
        self.least, self.kept = float("inf"), None

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        if float(outputs["loss"]) < self.least:
            self.least, self.kept = float(outputs["loss"]), [p.detach().clone() for p in pl_module.parameters()]

    def on_train_end(self, trainer, pl_module):
        for p, kept in zip(pl_module.parameters(), self.kept, strict=True):
            p.data.copy_(kept)


class Replacing(Callback):
    """Puts another loss on the module itself."""

    def setup(self, trainer, pl_module, stage):
        own = pl_module.record_loss
        pl_module.record_loss = lambda batch: own(batch)


def factory(*own):
    def made(callbacks=(), **settings):
        return default_trainer(accelerator="cpu", callbacks=[*callbacks, *own], **settings)

    return made


def released(trainer, **settings):
    settings = {"nuisance": NETWORKS, "second_stage": LinearSecondStage(), **settings}
    learner = RLearner(DOMAIN, BUDGET, trainer=trainer, **settings).fit(*records())
    return learner, learner.release_function()


REPLACED = ModelSummary()
REPLACED.on_train_batch_end = lambda trainer, *_: None
OWN = {
    "factory": factory(LeastLoss()),
    "callback": partial(default_trainer, accelerator="cpu", callbacks=[LeastLoss()]),
    "callback that replaces": partial(default_trainer, accelerator="cpu", callbacks=[Replacing()]),
    "a method on a known callback": partial(default_trainer, accelerator="cpu", callbacks=[REPLACED]),
}


@pytest.mark.first(2)
@pytest.mark.parametrize("name", OWN)
def test_a_trainer_of_the_user_s_is_a_condition_of_the_entry_and_of_the_statement(name, tmp_path):
    learner, release = released(OWN[name])
    trained = [entry for entry in learner.ledger_.entries if isinstance(entry.event, DPSGDEvent)]
    assert {entry.level for entry in trained} == {"conditional"}
    assert release.privacy.level == "conditional"
    [condition] = release.privacy.conditions
    assert (condition["name"], condition["holds"]) == ("trainer", None)
    assert "the user put into the Trainer (" in condition["text"]
    assert verify_release(release.save(tmp_path / "release.safetensors"))


def test_callbacks_that_change_nothing_keep_the_word_and_are_called(tmp_path):
    saved = ModelCheckpoint(tmp_path / "weights", every_n_train_steps=6, save_top_k=-1)
    plain = partial(default_trainer, accelerator="cpu", callbacks=[saved], enable_checkpointing=True)
    learner, release = released(plain)
    assert release.privacy.level == "certified"
    assert {entry.level for entry in learner.ledger_.entries} == {"certified"}
    assert len(list((tmp_path / "weights").glob("*.ckpt"))) == 3


@pytest.mark.parametrize("trains", [True, False])
def test_a_composition_says_so_where_it_trains(trains):
    nuisance = {"nuisance": WideAndDeep(width=4)} if trains else {}
    _, release = released(factory(), nuisance=None, second_stage=AdaptiveSecondStage(**nuisance))
    assert release.privacy.level == ("conditional" if trains else "certified")
    assert [condition["name"] for condition in release.privacy.conditions] == ["trainer"] * trains
