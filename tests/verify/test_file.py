import re
import resource

import pytest
import torch

from tests import registered
from tests.faults.guards import bounded
from tests.registered import (
    CovariateBalancingEffect,
    InfluencePerturbation,
    OutcomeWeightedLearner,
    PolicySelector,
    RLearner,
    TwoStageRule,
)
from tests.verify import forgeries as forge
from tests.verify.forgery import rewritten
from torchdpcate import (
    CausalData,
    Domain,
    KernelSecondStage,
    LinearSecondStage,
    NeuralSecondStage,
    NoiseSource,
    NuisanceConfig,
    PrivacyBudget,
)
from torchdpcate.candidates.kinds import Constants
from torchdpcate.errors import ReleaseFileError, VerificationError
from torchdpcate.fit.feature_maps import Fourier, Representation
from torchdpcate.heads.recipes import PlugInSecondStage
from torchdpcate.release.file import write_sums
from torchdpcate.verify.file import verify_release

DOMAIN = Domain([0.0, 0.0], [1.0, 1.0], -1.0, 1.0, overlap=0.1, better="higher")
TRIAL = Domain.from_dict(DOMAIN.to_dict() | {"propensity": 0.5})
BUDGET, PURE = PrivacyBudget(4.0, 1e-5), PrivacyBudget(4.0, 0.0)
QUERIES = DOMAIN.grid(6)
FAST = NuisanceConfig(width=8, batch_size=100, epochs=2)
N = 600


def records() -> CausalData:
    """Records with an effect that grows with the first covariate."""
    generator = torch.Generator().manual_seed(3)
    x = torch.rand(N, 2, generator=generator, dtype=torch.float64)
    a = (torch.rand(N, generator=generator) < 0.5).double()
    noise = 0.2 * torch.rand(N, generator=generator, dtype=torch.float64)
    return CausalData(x, a, ((2 * a - 1) * (x[:, 0] - x[:, 1]) / 2 + noise).clamp(-1, 1))


def fitted(learner=RLearner, **settings):
    data, settings = records(), {"nuisance": FAST, "second_stage": LinearSecondStage(), **settings}
    return learner(DOMAIN, BUDGET, **settings).fit(data.x, data.a, data.y)


def function(mechanism, **settings):
    return fitted(**settings).release_function(mechanism)


def queries(mechanism, **settings):
    return fitted(**settings).release_queries(QUERIES, registered.mechanism(mechanism))


def other(learner, *args, domain=DOMAIN, **settings):
    data = records()
    return learner(domain, *args, **settings).fit(data.x, data.a, data.y).release()


def linear(**settings):
    return LinearSecondStage(loss="squared", ridge=5.0, **settings)


MADE = {
    "objective": lambda: function("objective"),
    "output": lambda: function("output"),
    "queries": lambda: queries("objective"),
    "gaussian_process": lambda: queries("gaussian_process"),
    "influence": lambda: queries("influence", second_stage=LinearSecondStage(loss="squared", ridge=0.01)),
    "holding influence": lambda: queries(InfluencePerturbation(starts=16), second_stage=linear()),
    "neural": lambda: queries("influence", second_stage=NeuralSecondStage(width=4, ridge=1e-2, epochs=1)),
    "fixed": lambda: function("objective", noise=NoiseSource.fixed(1)),
    "smooth_sensitivity": lambda: queries("smooth_sensitivity", second_stage=linear()),
    "plug_in": lambda: function("plug_in", second_stage=PlugInSecondStage()),
    "kernel": lambda: queries("gaussian_process", second_stage=KernelSecondStage()),
    "squared kernel": lambda: queries("gaussian_process", second_stage=KernelSecondStage(loss="squared", ridge=1.0)),
    "public threshold": lambda: function("objective", second_stage=LinearSecondStage(threshold=0.5)),
    "fourier": lambda: queries("output", second_stage=LinearSecondStage(features=Fourier(pairs=8))),
    "representation": lambda: function("output", second_stage=LinearSecondStage(features=Representation())),
    "owl": lambda: other(OutcomeWeightedLearner, PURE, domain=TRIAL),
    "private weights": lambda: other(TwoStageRule, PURE),
    "policy": lambda: other(PolicySelector, PURE, policies=[Constants([0, 1])]),
    "average": lambda: other(CovariateBalancingEffect, PURE),
}


@pytest.fixture(scope="session")
def made(tmp_path_factory):
    """Return the path of a release of a kind, in a folder as a run writes it; made once."""
    return forge.written(MADE, tmp_path_factory.mktemp("releases"))


STOWED = "contents do not fit together|it has other (tensors|metadata) than its release: '|its facts are not what"
FORGERIES = [
    ("objective", forge.renamed("output"), "lack noise_scale, sensitivity; its formula is not that of"),
    ("objective", forge.renamed("quantum"), "mechanism 'quantum' is none of the library's"),
    ("neural", forge.certified, "mechanism 'influence' is conditional at most"),
    ("influence", forge.certified, "mechanism 'influence' is conditional at most"),
    ("fixed", forge.certified, "its assumptions is not what .* are not those of one release by its plan"),
    ("objective", forge.nothing_assumed, "versions are not .*assumptions is .*not protected is .*accountant is"),
    ("queries", forge.free_nuisances, "block 'nuisance' trained nuisances, but no charge is for their training"),
    *(("objective", edit, STOWED) for edit in (forge.tensor, forge.metadata, forge.fact)),
]
SLOW = ("neural", "influence", "fixed")
"""Kinds that take long."""


@pytest.mark.parametrize(
    ("kind", "edit", "why"),
    [pytest.param(*row, marks=pytest.mark.slow) if row[0] in SLOW else row for row in FORGERIES],
)
def test_a_forgery_is_refused_in_one_line(kind, edit, why, made, tmp_path):
    path = forge.forged(made(kind), edit, tmp_path / "release.safetensors")
    with pytest.raises((VerificationError, ReleaseFileError), match=why) as refused:
        verify_release(path)
    assert "\n" not in str(refused.value)


@pytest.mark.first(2)
@pytest.mark.parametrize("kind", ["objective", "plug_in", "influence", "neural", "fixed", "squared kernel"])
def test_an_honest_release_verifies_in_its_folder_and_alone(kind, made, tmp_path):
    path = made(kind)
    assert "3 files match" in dict(verify_release(path))["SHA256SUMS"]
    alone = tmp_path / "release.safetensors"
    alone.write_bytes(path.read_bytes())
    found = dict(verify_release(alone))
    assert found["files beside"].startswith("no SHA256SUMS")
    assert found["signature"].startswith("none: the file is consistent")


def test_a_forged_file_that_agrees_with_itself_verifies_and_is_told_to_prove_nothing(made, tmp_path):
    path = forge.forged(made("objective"), forge.one_step, tmp_path / "release.safetensors")
    told = dict(verify_release(path))
    assert told["signature"] == "none: the file is consistent; anyone could have written it; a signature says who"
    assert told["as the file says"].startswith("released numbers, names of columns")


WORDS = {
    "charge": (lambda draft: draft.charges[0].update(note="records"), "its privacy are not what"),
    "constant": (lambda draft: draft.privacy["public"].update(note=[1.5] * 20), "hold 'note'"),
    "tuning": (lambda draft: draft.privacy["tuning"].update(note="records"), "do not fit together"),
}


@pytest.mark.parametrize("where", WORDS)
def test_words_between_the_words_of_a_statement_are_refused(where, made, tmp_path):
    edit, why = WORDS[where]
    with pytest.raises((ReleaseFileError, VerificationError), match=why):
        verify_release(forge.forged(made("objective"), edit, tmp_path / "release.safetensors"))


@pytest.mark.parametrize("name", ["facts", "privacy"])
def test_nothing_hides_between_the_words(name, made, tmp_path):
    path = tmp_path / "release.safetensors"
    path.write_bytes(made("objective").read_bytes())
    text = forge.opened(path).metadata[name]
    with pytest.raises(VerificationError, match=f"its {name} are not what its release would write"):
        verify_release(rewritten(path, **{name: text + " " * 600}))


@pytest.mark.parametrize(
    "features",
    [
        {"name": "fourier", "pairs": 10**9, "bandwidth": None, "seed": 0},
        {"name": "legendre", "degree": 10**8},
    ],
)
def test_a_feature_map_that_is_told_and_not_held_takes_no_memory(features, made, tmp_path):
    def edit(draft):
        draft.facts["head"]["features"] = features

    path = forge.forged(made("queries"), edit, tmp_path / "release.safetensors")
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with bounded(60), pytest.raises(VerificationError, match="are not those of one release by its plan"):
        verify_release(path)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100_000


@pytest.mark.parametrize("name", ["privacy.json", "privacy.md"])
def test_a_file_beside_a_release_has_one_form(name, made, tmp_path):
    """An entry twice, blanks and ends of lines hold what the release does not say."""
    path = forge.copied(made("owl"), tmp_path / "release")
    file = path.parent / name
    text = file.read_text()
    for changed in (text.replace("\n", '\n  "findings": "41,1,0.25",\n', 1), text + " "):
        file.write_bytes(changed.encode())
        write_sums(path.parent)
        with pytest.raises(VerificationError, match=rf"{re.escape(name)} does not say what"):
            verify_release(path)
    file.write_text(text)
    write_sums(path.parent)
    verify_release(path)
