"""Steps against the ledger: charged ahead, settled exactly, resumed without forgetting."""

from __future__ import annotations

import signal

import pytest
import torch

from tests.fit.nuisance_cases import Foreign, Interrupt, Save, fit, plan
from torchdpcate.errors import BudgetError, InputError
from torchdpcate.fit.dp_sgd_plan import DPSGDPlan, StepAccount
from torchdpcate.fit.trainer import default_trainer
from torchdpcate.fit.training import train
from torchdpcate.privacy.budget import PrivacyBudget
from torchdpcate.privacy.ledger import Ledger
from torchdpcate.privacy.noise import NoiseSource

BLOCKS = {"nuisance": PrivacyBudget(1000.0, 1e-5)}


@pytest.fixture
def path(tmp_path):
    return tmp_path / "ledger.sqlite"


@pytest.fixture
def checkpoint(tmp_path):
    return tmp_path / "run.ckpt"


def ledger_at(path) -> Ledger:
    return Ledger(BLOCKS, path, private=False)


def counts(path) -> tuple[int, int]:
    entry = Ledger.load(path).entry(0)
    return entry.count, entry.planned


def test_the_ledger_is_ahead_of_every_step(dataset, path):
    seen = []

    class Look(Foreign):
        def on_train_batch_end(self, outputs, batch, batch_idx):
            seen.append(counts(path))

    fit(Look(), dataset, plan(), ledger=ledger_at(path))
    # chunks of ceil(1/q) = 6 steps
    assert seen == [(min(6 * (1 + k // 6), 20), 20) for k in range(20)]


def test_a_plan_beyond_the_budget_takes_no_step(dataset, path):
    ledger = Ledger({"nuisance": PrivacyBudget(1.0, 1e-5)}, path, private=False)
    module = Foreign()
    before = [p.clone() for p in module.parameters()]
    with pytest.raises(BudgetError):
        fit(module, dataset, plan(), ledger=ledger)
    assert all(torch.equal(a, b) for a, b in zip(before, module.parameters(), strict=True))
    assert Ledger.load(path).entries == ()


@pytest.mark.first(3)
@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError])
@pytest.mark.parametrize("after", [1, 6, 7])
def test_an_interrupted_run_counts_exactly_its_steps(dataset, path, after, error):
    # Lightning turns KeyboardInterrupt into SystemExit
    with pytest.raises(SystemExit if error is KeyboardInterrupt else error):
        fit(Foreign(), dataset, plan(), ledger=ledger_at(path), callbacks=[Interrupt(after, error)])
    assert counts(path) == (after, after)


@pytest.mark.usefixtures("listening")
def test_ctrl_c_in_train_stays_a_keyboard_interrupt(module, records, path):
    def factory(callbacks=(), **limits):
        return default_trainer(accelerator="cpu", callbacks=[*callbacks, Interrupt(4)], **limits)

    run = {"batch_size": 10, "epochs": 1, "seed": 0, "plan": plan()}
    with pytest.raises(KeyboardInterrupt):
        train(module, records, factory, noise=NoiseSource.fixed(0), ledger=ledger_at(path), **run)
    assert counts(path) == (4, 4)
    with pytest.raises(KeyboardInterrupt):  # the process still listens to Ctrl-C
        signal.raise_signal(signal.SIGINT)


class Pressed(Foreign):
    """Does something inside a step."""

    def __init__(self, step, press):
        super().__init__()
        self.step, self.press = step, press

    def training_step(self, batch, batch_idx):
        if self.global_step == self.step:
            self.press()
        return super().training_step(batch, batch_idx)


def raised():
    raise KeyboardInterrupt


def pressed_twice():
    signal.raise_signal(signal.SIGINT)
    signal.raise_signal(signal.SIGINT)


@pytest.mark.usefixtures("listening")
@pytest.mark.parametrize("press", [raised, pressed_twice])
def test_ctrl_c_inside_a_step_counts_the_steps_before_it(dataset, path, press):
    with pytest.raises(SystemExit):
        fit(Pressed(8, press), dataset, plan(), ledger=ledger_at(path))
    assert counts(path) == (8, 8)


class Dropping:
    """Ctrl-C where Python drops what its handler raises."""

    def __del__(self):
        signal.raise_signal(signal.SIGINT)


@pytest.mark.first(1)
@pytest.mark.usefixtures("listening")
@pytest.mark.parametrize("last", [3, 19])
def test_ctrl_c_in_a_destructor_is_not_dropped(dataset, path, last):
    """It ends the fit before the next step; in the last step, once the ledger is settled."""

    with pytest.raises((KeyboardInterrupt, SystemExit)):
        fit(Pressed(last, Dropping), dataset, plan(), ledger=ledger_at(path))
    assert counts(path) == (last + 1, last + 1)
    assert signal.getsignal(signal.SIGINT) is not signal.SIG_IGN


def interrupted(dataset, path, checkpoint, saved, after):
    callbacks = [Save(saved, checkpoint), Interrupt(after, RuntimeError)]
    with pytest.raises(RuntimeError):
        fit(Foreign(), dataset, plan(), ledger=ledger_at(path), callbacks=callbacks)


def resume(dataset, path, checkpoint, **settings):
    return fit(Foreign(), dataset, plan(), seed=1, ledger=Ledger.load(path), ckpt_path=checkpoint, **settings)


@pytest.mark.first(1)
@pytest.mark.parametrize("after", [1, 6, 11, 19])
def test_a_resumed_run_spends_what_an_uninterrupted_one_does(dataset, path, checkpoint, after):
    interrupted(dataset, path, checkpoint, saved=after, after=after)
    assert counts(path) == (after, after)
    private = resume(dataset, path, checkpoint)
    assert (private.steps, private.spent) == (20, 20)
    assert counts(path) == (20, 20)
    whole = path.with_name("whole.json")
    fit(Foreign(), dataset, plan(), ledger=ledger_at(whole))
    assert Ledger.load(path).spent() == Ledger.load(whole).spent()


@pytest.mark.parametrize(("after", "again"), [(9, 11), (20, 0)])
def test_steps_repeated_since_the_checkpoint_are_paid_again(dataset, path, checkpoint, after, again):
    interrupted(dataset, path, checkpoint, saved=5, after=after)
    private = resume(dataset, path, checkpoint)
    assert (private.steps, private.spent) == (5 + again, 20)
    assert counts(path) == (20, 20)


def test_a_checkpoint_holds_plain_types_and_no_randomness(dataset, path, checkpoint):
    interrupted(dataset, path, checkpoint, saved=3, after=3)
    state = torch.load(checkpoint, weights_only=True)
    kept = state["callbacks"]["DPSGD"]
    said = {"budget": BLOCKS["nuisance"].to_dict(), "ledger": str(path), "private": False, "level": "conditional"}
    assert kept == {"steps": 3, "spent": 3, "entry": 0, "block": "nuisance", "plan": plan().to_dict(), **said}
    leaves = torch.utils._pytree.tree_leaves(state)
    assert not any(isinstance(v, torch.Tensor) and v.dtype == torch.uint8 for v in leaves)


def test_a_resume_needs_its_own_plan_and_ledger(dataset, path, checkpoint):
    interrupted(dataset, path, checkpoint, saved=3, after=3)
    with pytest.raises(InputError, match="plan"):
        fit(Foreign(), dataset, plan(noise_multiplier=2.0), ledger=Ledger.load(path), ckpt_path=checkpoint)
    with pytest.raises(InputError, match="ledger=None"):
        fit(Foreign(), dataset, plan(), ckpt_path=checkpoint)
    other = ledger_at(path.with_name("other.json"))
    other.charge("nuisance", "something else", plan(noise_multiplier=9.0).event, count=1)
    with pytest.raises(InputError, match="entry 0"):
        fit(Foreign(), dataset, plan(), ledger=other, ckpt_path=checkpoint)
    assert counts(path) == (3, 3)


def test_two_runs_of_one_entry_are_noticed(path):
    first = StepAccount(plan(), ledger_at(path), "nuisance", "run")
    first.open()
    for _ in range(4):
        first.count()
    second = StepAccount(plan(), Ledger.load(path), "nuisance", "run")
    second.load_state_dict(first.state_dict())
    second.open()
    assert second.spent == 6
    second.count()
    assert counts(path) == (12, 20)
    first.count()
    first.count()
    with pytest.raises(InputError, match="another run"):
        first.count()
    first.close()
    assert counts(path) == (12, 20)  # it may not forget the other's steps
    second.close()
    assert counts(path) == (7, 7)


@pytest.mark.parametrize("written", [False, True])
def test_an_interrupt_while_the_ledger_is_written_still_settles(written, monkeypatch):
    """Ctrl-C before or after the write-ahead reached the ledger: the entry ends at the steps really taken."""
    ledger = Ledger({"nuisance": PrivacyBudget(50.0, 1e-5)})
    account = StepAccount(DPSGDPlan(2.0, 1.0, 0.5, 6), ledger, "nuisance", "run")
    account.open()
    account.count()
    account.count()
    advance = ledger.advance

    def interrupted(entry, count):
        if written:
            advance(entry, count)
        raise KeyboardInterrupt

    monkeypatch.setattr(ledger, "advance", interrupted)
    with pytest.raises(KeyboardInterrupt):
        account.count()
    account.close()
    assert (ledger.entry(0).count, ledger.entry(0).planned) == (2, 2)
