"""A kernel head's released answers as a process of GPyTorch: its posterior is the closed form, of released numbers."""

import math

import gpytorch
import pytest
import torch

from torchdpcate import ConvexNuisanceConfig, Domain, KernelSecondStage, PrivacyBudget, RLearner, load_release
from torchdpcate.errors import InputError
from torchdpcate.fit.kernels import UnitKernel
from torchdpcate.heads.released_process import _example, released_process

DOMAIN = Domain([0.0, 1.0], [1.0, 100.0], -1.0, 1.0, overlap=0.1, scales=["linear", "log"])
QUERIES = torch.cat([DOMAIN.grid(30), DOMAIN.grid(3)])  # three are asked twice
ELSEWHERE = DOMAIN.from_unit(torch.rand(20, 2, generator=torch.Generator().manual_seed(1), dtype=torch.float64))


def fitted(kernel="gaussian"):
    generator = torch.Generator().manual_seed(0)
    x = DOMAIN.from_unit(torch.rand(2_000, 2, generator=generator, dtype=torch.float64))
    a = (torch.rand(2_000, generator=generator) < 0.5).double()
    learner = RLearner(
        DOMAIN,
        PrivacyBudget(8.0, 1e-5),
        nuisance=ConvexNuisanceConfig(),
        second_stage=KernelSecondStage(kernel=kernel, bandwidth=0.7),
    )
    return learner.fit(x, a, (0.8 * a * torch.sin(4 * x[:, 0])).clamp(-1, 1))


def released(folder, kernel="gaussian", nuisances=True):
    release = fitted(kernel).release_queries(QUERIES, mechanism="gaussian_process", include_nuisances=nuisances)
    return load_release(release.save(folder / "release.safetensors"))


def closed_form(release, x, s):
    """Posterior mean and covariance by our own kernel and a Cholesky factor."""
    public, head = release.privacy.public, release.head["kernel"]
    kernel = UnitKernel(head["name"], head["bandwidth"], DOMAIN)
    q, r2 = release.queries[:30], public["noise_scale"] ** 2
    within, across = kernel(q, q), s**2 * kernel(x, q)
    observed = (s**2 + r2) * within + r2 * public["jitter"] * torch.eye(30, dtype=torch.float64)
    factor = torch.linalg.cholesky(observed)

    def plug_in(at):
        return torch.zeros(len(at)).double() if release.nuisances is None else release.nuisances.effect(at)

    shift = torch.cholesky_solve((release.answers[:30] - plug_in(q))[:, None], factor)[:, 0]
    covariance = s**2 * kernel(x, x) - across @ torch.cholesky_solve(across.T, factor)
    return plug_in(x) + across @ shift, covariance


@pytest.mark.parametrize(
    ("kernel", "nuisances"),
    [
        ("gaussian", True),
        *(pytest.param(*row, marks=pytest.mark.slow) for row in (("gaussian", False), ("matern32", True))),
    ],
)
def test_its_posterior_is_the_closed_form_of_released_numbers(tmp_path, kernel, nuisances):
    release = released(tmp_path, kernel, nuisances)
    process = released_process(release, prior_sd=0.3)
    assert len(process.train_targets) == 30
    for points in (ELSEWHERE, release.queries[:5]):
        mean, covariance = closed_form(release, points, 0.3)
        found = process(points)
        assert (found.mean - mean).abs().max() < 1e-8
        assert (found.covariance_matrix - covariance).abs().max() < 1e-8


@pytest.mark.slow
def test_answers_of_a_service_are_observations_too(tmp_path):
    release = fitted().answer_online(tmp_path / "service").release(QUERIES)
    found = released_process(release, prior_sd=0.3)(ELSEWHERE)
    assert (found.mean - closed_form(release, ELSEWHERE, 0.3)[0]).abs().max() < 1e-8


def test_a_model_that_goes_on_can_be_trained_and_predicts_further_answers():
    process = released_process(_example())
    process.train()
    likelihood = gpytorch.mlls.ExactMarginalLogLikelihood(process.likelihood, process)
    optimizer = torch.optim.Adam(process.parameters(), lr=0.1)
    losses = []
    for _ in range(20):
        optimizer.zero_grad()
        loss = -likelihood(process(*process.train_inputs), process.train_targets)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0]
    process.eval()
    points = torch.tensor([[0.2], [0.7], [0.9]], dtype=torch.float64)
    latent = process(points)
    answers = process.likelihood(latent, points)
    assert torch.allclose(answers.variance, latent.variance + 0.01**2 * 1.001, rtol=1e-9)
    with pytest.raises(InputError, match="needs these"):
        process.likelihood(latent)


def test_many_answers_do_not_average_out_noise_that_is_a_function(tmp_path):
    """Were answers independent, the process would be surer than the mechanism's noise, which moves all of them."""
    release = released(tmp_path)
    s, r = 0.3, release.privacy.public["noise_scale"]
    surest = s**2 * r**2 / (s**2 + r**2)  # of a function that is known but for noise of its own kernel
    with torch.no_grad():
        assert released_process(release, s)(ELSEWHERE).variance.min() > 0.99 * surest


@pytest.mark.parametrize(("prior_sd", "message"), [(0.0, "prior_sd = 0"), (math.inf, "prior_sd = inf")])
def test_what_is_no_process_says_so(prior_sd, message):
    with pytest.raises(InputError, match=message):
        released_process(_example(), prior_sd)
    from torchdpcate.release.release import _example as function

    with pytest.raises(InputError, match="needs private answers of second_stage=kernel_ridge"):
        released_process(function())
