"""Learners on another device than the CPU: an emulated one, which refuses what CUDA does, and a GPU if there is one."""

import warnings

import numpy as np
import pytest
import torch

from tests import registered
from tests.device import trainer_on
from torchdpcate import DRLearner, KernelSecondStage, LinearSecondStage, NeuralSecondStage, PrivacyBudget, RLearner
from torchdpcate.composition.settings import AdaptiveSecondStage, Additive, WideAndDeep
from torchdpcate.estimators.cate.mechanisms.local_sensitivity import InfluencePerturbation
from torchdpcate.fit.feature_maps import FEATURE_MAPS
from torchdpcate.fit.nuisance_config import NuisanceConfig
from torchdpcate.heads.recipes import PlugInSecondStage
from torchdpcate.papers.oprescu import Dataset1

BUDGET = PrivacyBudget(2.0, 1e-5)
STUDY = Dataset1(n=400, queries=10, seed=3).load()
RECORDS = (STUDY.records.x, STUDY.records.a, STUDY.records.y)
NETWORKS = NuisanceConfig(width=4, batch_size=60, epochs=1)
LINEAR = LinearSecondStage(ridge=0.02)
KERNEL = KernelSecondStage(ridge=0.05)
NEURAL = NeuralSecondStage(width=3, depth=1, epochs=1, ridge=0.02)
slow = pytest.mark.slow


def fitted(device, kind=RLearner, **settings):
    settings = {"nuisance": NuisanceConfig(width=0, batch_size=50, epochs=1), "second_stage": LINEAR, **settings}
    return kind(STUDY.domain, BUDGET, trainer=trainer_on(device), **settings).fit(*RECORDS)


def check_module(release, device):
    """Answers of a release are the CPU's; those of its module come from where it was moved."""
    x = RECORDS[0][:5]
    there = release.module().to(device)(x.to(device))
    assert there.device.type == device
    np.testing.assert_allclose(there.detach().cpu().numpy().squeeze(), release.effect(x.numpy()), atol=1e-6)


FUNCTIONS = {
    "objective": (None, {}),
    "objective of networks": (None, {"nuisance": NETWORKS}),
    "doubly robust": ("output", {"kind": DRLearner}),
    "plug_in": (None, {"second_stage": PlugInSecondStage(), "nuisance": NETWORKS}),
}


@pytest.mark.first(4)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions(name, device):
    mechanism, settings = FUNCTIONS[name]
    model = fitted(device, **settings)
    assert model.stage_.block.x.device.type == device
    check_module(model.release_function(mechanism), device)


@pytest.mark.first(4)
@pytest.mark.parametrize("name", sorted(FEATURE_MAPS, reverse=True))
def test_features(name, device):
    networks = name == "representation"
    model = fitted(
        device,
        nuisance=NETWORKS if networks else NuisanceConfig(width=0, batch_size=50, epochs=1),
        second_stage=LinearSecondStage(FEATURE_MAPS[name](), ridge=0.02),
    )
    check_module(model.release_function(), device)


QUERIES = {
    "smooth sensitivity": ("smooth_sensitivity", {}),
    "kernel, smooth": ("smooth_sensitivity", {"second_stage": KERNEL}),
    "kernel, process": ("gaussian_process", {"second_stage": KERNEL}),
}
INFLUENCE = {"linear": LINEAR, "kernel": KERNEL, "neural": NEURAL}


@pytest.mark.first(2)
@pytest.mark.parametrize("name", QUERIES)
def test_queries(name, device):
    mechanism, settings = QUERIES[name]
    mechanism = registered.mechanism(mechanism)
    assert np.isfinite(np.asarray(fitted(device, **settings).release_queries(STUDY.queries, mechanism).answers)).all()


@slow
@pytest.mark.parametrize("kind", [RLearner, DRLearner])
@pytest.mark.parametrize("stage", INFLUENCE)
def test_influence(stage, kind, device, monkeypatch):
    # the search for the worst record goes all its ways, on each a step
    monkeypatch.setattr("torchdpcate.heads.supremum._CLIMB_STEPS", 1)
    monkeypatch.setattr("torchdpcate.heads.supremum._SWEEP_ROUNDS", 1)
    model = fitted(device, kind, second_stage=INFLUENCE[stage])
    answers = model.release_queries(STUDY.queries[:2], InfluencePerturbation(starts=1)).answers
    assert np.isfinite(np.asarray(answers)).all()
    assert model.nonprivate_effect(RECORDS[0][:3]).shape == (3,)


@pytest.mark.parametrize("stage", [LINEAR, KERNEL])
def test_online_answers(stage, device, tmp_path):
    service = fitted(device, second_stage=stage).answer_online(tmp_path / "service")
    assert np.isfinite(np.asarray(service.release(STUDY.queries[:3]).answers)).all()


def test_a_composition_says_that_it_leaves_the_device_unused(device):
    with pytest.warns(UserWarning, match=f"accelerator = {device}: this plan trains no network"):
        model = RLearner(STUDY.domain, BUDGET, second_stage=AdaptiveSecondStage(), trainer=trainer_on(device)).fit(
            *RECORDS
        )
    check_module(model.release_function(), device)


@slow
@pytest.mark.parametrize("nuisance", [Additive(), WideAndDeep()])
def test_composed_networks_train_on_a_device(nuisance, device):
    settings = {"second_stage": AdaptiveSecondStage(nuisance=nuisance), "trainer": trainer_on(device)}
    with warnings.catch_warnings():
        warnings.filterwarnings("error", ".*this plan trains no network")
        model = RLearner(STUDY.domain, BUDGET, **settings).fit(*RECORDS)
    check_module(model.release_function(), device)


def test_a_second_device_refuses_the_first(device):
    here, there = torch.ones(2), torch.ones(2, device=device)
    for mixed in (
        lambda: here + there,
        lambda: torch.cat([here, there]),
        lambda: here[there.long()],
        lambda: there @ here,
    ):
        with pytest.raises(RuntimeError, match="device"):
            mixed()
    with pytest.raises((RuntimeError, TypeError)):
        there.numpy()
    assert (there + torch.tensor(1.0)).tolist() == [2, 2]
    assert (there.cpu() + here).tolist() == (there.to("cpu") * 2).tolist() == [2, 2]
