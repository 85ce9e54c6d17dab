"""The replay check: honest learners pass, and each planted fault is reported with its place."""

import warnings
from dataclasses import replace as with_changes
from types import SimpleNamespace

import pytest
import torch

from tests.tools.replay.check import learner_pipeline, neighbours_for_replay, replay
from torchdpcate import DRLearner, LinearSecondStage, PrivacyBudget, RLearner
from torchdpcate.data.domain import Domain
from torchdpcate.data.records import public_split
from torchdpcate.errors import InputError
from torchdpcate.estimators.cate.mechanisms.perturbation import OutputPerturbation
from torchdpcate.fit.dp_sgd import DPSGD
from torchdpcate.fit.dp_sgd_plan import DPSGDPlan, poisson_loader
from torchdpcate.fit.feature_maps import Legendre
from torchdpcate.fit.nuisance_config import NuisanceConfig
from torchdpcate.fit.trainable import TrainableNuisances
from torchdpcate.fit.trainer import default_trainer
from torchdpcate.papers.oprescu import Dataset1
from torchdpcate.privacy.ledger import Ledger

STUDY = Dataset1(n=260, queries=6, seed=3).load()
RECORDS, DOMAIN = STUDY.records, STUDY.domain
BUDGET = PrivacyBudget(4.0, 1e-4)
QUICK = NuisanceConfig(width=4, batch_size=40, epochs=1)
NEIGHBOURS = neighbours_for_replay(RECORDS, DOMAIN)
FIRST, SECOND = (int(block[0]) for block in public_split(RECORDS.n, 0.5, 0))
SOME = NEIGHBOURS[-3:]  # a record of each block


def learner(kind=RLearner, **rest):
    stage = LinearSecondStage(Legendre(), ridge=0.1)
    return kind(DOMAIN, BUDGET, **({"nuisance": QUICK, "second_stage": stage} | rest))


def check(pipeline, neighbours=SOME):
    return replay(pipeline, RECORDS, *neighbours)


def found(pipeline):
    """What is reported, as {kind: places}."""
    report = check(pipeline)
    assert not report.passed
    kinds: dict[str, set[str]] = {}
    for difference in report.differences:
        kinds.setdefault(difference.kind, set()).add(difference.place)
    return kinds


# ---- honest pipelines


@pytest.mark.first(1)
@pytest.mark.parametrize(
    ("kind", "release", "mechanism", "outputs"),
    [
        (RLearner, "function", "objective", 5),  # three noisy gradients, the Huber threshold and the release
        (DRLearner, "queries", "output", 5),
    ],
)
def test_the_learners_pass(kind, release, mechanism, outputs):
    report = check(learner_pipeline(learner(kind), release, mechanism, STUDY.queries))
    assert report.passed, str(report)
    assert (report.neighbours, report.outputs) == (3, outputs)


# ---- planted faults: settings read off the records


@pytest.mark.slow
def test_bounds_taken_from_the_records_are_reported():
    def pipeline(records, noise):
        low, high = records.x.min(0).values, records.x.max(0).values
        domain = Domain(low, high, records.y.min(), records.y.max(), better="higher")
        squared = LinearSecondStage(ridge=0.1, loss="squared")
        model = learner(second_stage=squared).set_params(domain=domain)
        return learner_pipeline(model, "function", "output")(records, noise)

    kinds = found(pipeline)
    assert "learner.settings.domain.outcome_high" in kinds["result"]
    assert "release.schema.covariates.x0.high" in kinds["result"]
    assert "release.privacy.public.sensitivity" in kinds["result"]
    assert any(place.startswith("torchdpcate/privacy/mechanisms.py:") for place in kinds["scale of gaussian"])


@pytest.mark.slow
def test_a_split_by_value_is_reported(monkeypatch):
    held = {}

    def by_value(n, fraction, seed):
        order = held["records"].y.argsort()
        return order[: round(fraction * n)], order[round(fraction * n) :]

    def pipeline(records, noise):
        held["records"] = records
        return learner_pipeline(learner())(records, noise)

    monkeypatch.setattr("torchdpcate.estimators.cate.blocks.public_split", by_value)
    kinds = found(pipeline)
    assert {"learner.blocks_.nuisance", "learner.blocks_.second_stage"} <= kinds["result"]
    assert "learner.stage_.block" in kinds["records"]


@pytest.mark.slow
def test_a_record_that_pushes_another_into_the_other_block_is_reported():
    def pipeline(records, noise):
        order = torch.arange(records.n)
        if bool((records.y == DOMAIN.outcome_high).any()):
            order[[FIRST, SECOND]] = order[[SECOND, FIRST]]
        return learner_pipeline(learner(nuisance=QUICK))(records.subset(order), noise)

    kinds = found(pipeline)
    assert set(kinds) == {"records"}
    assert len(kinds["records"]) == 2  # one row in each block, which is one too many


def test_a_ridge_chosen_from_the_records_is_reported():
    def pipeline(records, noise):
        stage = LinearSecondStage(ridge=0.1 + 0.01 * float(records.y.abs().mean()))
        return learner_pipeline(learner(second_stage=stage))(records, noise)

    places = found(pipeline)["result"]
    assert {"learner.stage_.ridge", "release.privacy.public.ridge", "learner.stage_.sensitivity"} <= places


# ---- planted faults: mechanisms


class Planted(OutputPerturbation):
    """Output perturbation with one thing wrong, in ``privatize``."""

    def head(self, ready, theta, **public):
        return with_changes(ready, output=theta, public=ready.public | public)


class SkipsItsCharge(Planted):
    def privatize(self, stage, budget, session):
        ready, noise = self.prepare(stage, budget), session.noise
        return self.head(ready, noise.released(ready.draw(noise, 1)[0]))


class ChargesAfterwards(Planted):
    def privatize(self, stage, budget, session):
        ready, noise = self.prepare(stage, budget), session.noise
        theta = noise.released(ready.draw(noise, 1)[0])
        session.pay(ready.event)
        return self.head(ready, theta)


class ScalesBySample(Planted):
    def privatize(self, stage, budget, session):
        ready, noise = self.prepare(stage, budget), session.noise
        session.pay(ready.event)
        drawn = noise.gaussian(len(stage.theta), float(stage.block.s.abs().mean()))
        return self.head(ready, noise.released(stage.theta + drawn))


class ReleasesTheFit(Planted):
    def privatize(self, stage, budget, session):
        ready = self.prepare(stage, budget)
        return self.head(ready.run(session), stage.theta)


class HandsOutTheFitAsPaid(Planted):
    def privatize(self, stage, budget, session):
        ready, noise = self.prepare(stage, budget), session.noise
        session.pay(ready.event)
        return self.head(ready, noise.released(stage.theta))


class RefusesACorner(Planted):
    def privatize(self, stage, budget, session):
        if bool((stage.block.x == DOMAIN.covariate_high).all(1).any()):
            raise InputError("a record lies in the corner")
        return super().privatize(stage, budget, session)


THIS = f"{__file__}:"


@pytest.mark.first(1)
@pytest.mark.parametrize(
    ("mechanism", "kind", "where"),
    [
        (SkipsItsCharge(), "unpaid gaussian", "torchdpcate/privacy/mechanisms.py:"),
        (ChargesAfterwards(), "unpaid output", THIS),
        (ScalesBySample(), "scale of gaussian", THIS),
        (ReleasesTheFit(), "result", "release.tensors.theta"),
        (HandsOutTheFitAsPaid(), "output without noise", THIS),
        (RefusesACorner(), "exception", THIS),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Planted) else None,
)
def test_a_wrong_mechanism_is_reported_with_its_place(mechanism, kind, where):
    places = found(learner_pipeline(learner(), "function", mechanism))[kind]
    assert any(place.startswith(where) for place in places), places
    if where == THIS:
        assert any(type(mechanism).__name__ in place for place in places), places


# ---- planted faults: what a reader sees beside the release


def at_the_top(records):
    return bool((records.y == DOMAIN.outcome_high).any())


def test_exceptions_on_one_side_only_are_reported():
    def on_neighbours(records, noise):
        if at_the_top(records):
            raise InputError("an outcome is at its bound")

    def on_d(records, noise):
        if not at_the_top(records):
            raise InputError("no outcome is at its bound")

    for pipeline in (on_neighbours, on_d):
        (difference,) = check(pipeline, NEIGHBOURS[1:2]).differences
        assert difference.kind == "exception"
        assert f"{pipeline.__name__}" in difference.place
        assert {difference.on_d, difference.on_neighbour} >= {"no exception"}


def test_a_pipeline_that_always_fails_is_no_pass():
    def pipeline(records, noise):
        raise InputError("bad settings")

    with pytest.raises(InputError, match="bad settings"):
        check(pipeline)


def test_warnings_printed_text_and_file_names_are_reported(tmp_path):
    runs = iter(range(100))

    def pipeline(records, noise):
        if at_the_top(records):
            warnings.warn("an outcome is at its bound", stacklevel=1)
        print(f"largest outcome {records.y.max():.3f}")
        folder = tmp_path / str(next(runs))
        folder.mkdir()
        (folder / f"treated_{int(records.a.sum())}.json").write_text('{"n": 234}')
        (folder / "note.json").write_text(f'{{"mean": {float(records.y.mean())}}}')
        return SimpleNamespace(folder=folder)

    kinds = found(pipeline)
    assert kinds["warning"] == {"warnings[0]"}
    assert kinds["printed"] == {"text"}
    assert {"folder/note.json.mean", f"folder/treated_{int(RECORDS.a.sum())}.json"} <= kinds["result"]


# ---- DP-SGD


class Keeping(TrainableNuisances):
    """Keeps the mean of each batch in a buffer, as a normalising layer would."""

    def __init__(self, domain):
        super().__init__(domain, width=3)
        self.register_buffer("mean", torch.zeros(()))

    def training_step(self, batch, batch_idx):
        self.mean += batch[2].sum()
        return super().training_step(batch, batch_idx)


def dp_sgd(kind=TrainableNuisances, rate=0.2):
    """A pipeline that trains by DP-SGD alone."""

    def pipeline(records, noise):
        torch.manual_seed(1)
        module = kind(DOMAIN)
        plan = DPSGDPlan(2.0, 0.5, rate, steps=4)
        data = torch.utils.data.TensorDataset(records.x.float(), records.a.float(), records.y.float())
        ledger = Ledger({"nuisance": PrivacyBudget(50.0, 1e-5)}, private=noise.private)
        private = DPSGD(plan, noise, ledger)
        trainer = default_trainer(callbacks=[private], accelerator="cpu", max_epochs=-1, max_steps=plan.steps)
        trainer.fit(module, poisson_loader(data, plan.sampling_rate, plan.steps, noise))
        return {"module": module, "ledger": ledger.entries}

    return pipeline


def test_a_statistic_of_the_batches_is_refused():
    with pytest.raises(InputError, match="training_step changes mean"):
        check(dp_sgd(Keeping, rate=1.0))


# ---- neighbours and arguments


def test_neighbours_are_extreme_and_differ_in_one_record():
    assert len(NEIGHBOURS) == 6  # the last record is also the first one of its block
    for neighbour in NEIGHBOURS:
        changed = (neighbour.x != RECORDS.x).any(1) | (neighbour.y != RECORDS.y)
        (index,) = changed.nonzero().flatten().tolist()
        assert index in (0, FIRST, SECOND)
        assert neighbour.a[index] == 1 - RECORDS.a[index]
        assert neighbour.y[index] in (DOMAIN.outcome_low, DOMAIN.outcome_high)
        DOMAIN.check_covariates(neighbour.x)
