"""The free plug-in: nothing spent, nothing of the second stage in it, and no other release may pass for one."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from tests.estimators.cate.test_learner import RECORDS, STUDY, learner
from torchdpcate import NeuralSecondStage
from torchdpcate.errors import VerificationError
from torchdpcate.release.file import load_release
from torchdpcate.verify.file import verify_release


@pytest.fixture(scope="module")
def model():
    return learner().fit(*RECORDS)


@pytest.mark.slow
def test_is_the_difference_of_the_outcome_models_and_spends_nothing(model, tmp_path):
    before = model.ledger_.to_json()
    release = model.release_function("plug_in")
    assert model.ledger_.to_json() == before
    np.testing.assert_array_equal(release.effect(STUDY.queries), model.plug_in_effect(STUDY.queries))
    path = release.save(tmp_path / "r.safetensors")
    verify_release(path)
    assert load_release(path).privacy.claims
    assert release.privacy.level == "certified"


@pytest.mark.slow
def test_works_beside_any_second_stage():
    model = learner(second_stage=NeuralSecondStage(width=2, depth=1, epochs=0, ridge=0.1)).fit(*RECORDS)
    assert model.release_function("plug_in").privacy.claims


def test_is_still_there_when_the_second_stage_has_spent_all(model):
    spent = learner().fit(*RECORDS)
    spent.release_function("output")
    assert spent.release_function("plug_in").privacy.epsilon == spent.ledger_.spent()["total"]["epsilon"]


def test_another_release_cannot_be_called_a_plug_in(model, tmp_path):
    release = model.release_function("plug_in")
    forged = replace(release, theta=torch.ones_like(release.theta))
    with pytest.raises(VerificationError, match="holds some"):
        verify_release(forged.save(tmp_path / "r.safetensors"))
