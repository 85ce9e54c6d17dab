"""Bugs that break privacy in practice, planted; an attack or a refusal must find each.

Where the check is an attack, the same attack passes the honest mechanism in ``test_attack`` or here. The noise is a
fixed source, so every test repeats. `audit` repeats a refutation four times; here an attack is played once, at the
confidence of the five. Bounds and a split taken from the records are planted in ``test_check``, noise
that follows the experiment's seed in ``replay/test_entropy``: no attack on one mechanism sees these.
"""

from functools import partial

import pytest
import torch
from dp_accounting import GaussianDpEvent, NeighboringRelation, PoissonSampledDpEvent, SelfComposedDpEvent
from dp_accounting.mechanism_calibration import calibrate_dp_mechanism
from dp_accounting.pld import PLDAccountant
from opacus.grad_sample import GradSampleHooksFastGradientClipping

from torchdpcate.audit.attack import AGAIN, AuditResult, Terms, audit, play
from torchdpcate.audit.report import find
from torchdpcate.errors import InputError
from torchdpcate.fit import dp_sgd_plan as poisson
from torchdpcate.fit import dp_sgd_worst_case as worst_case
from torchdpcate.privacy import selection as selection_mechanisms
from torchdpcate.privacy.budget import PrivacyBudget
from torchdpcate.privacy.noise import FixedNoise, NoiseSource

pytestmark = pytest.mark.slow

BUDGET = PrivacyBudget(1.0, 1e-5)
AS_SURE = 1 - 0.05 ** (1 + AGAIN)


def once(name: str, budget: PrivacyBudget, trials: int, noise: NoiseSource) -> AuditResult:
    """One play of a mechanism's attack."""
    case = find(name)
    return play(case.make(budget), case, Terms(budget, AS_SURE, trials, noise, lambda *_: None))


class Quiet(FixedNoise):
    """Half the noise that is requested."""

    def gaussian(self, size, scale, step=None):
        return super().gaussian(size, scale / 2, step)

    def laplace(self, size, scale):
        return super().laplace(size, scale / 2)

    def k_norm(self, size, dimension, scale, order=2.0, step=None):
        return super().k_norm(size, dimension, scale / 2, order, step)

    def _noisy_max(self, scores, epsilon, sensitivity):
        return super()._noisy_max(scores, 2 * epsilon, sensitivity)

    def _gumbel_max(self, scores, epsilon, sensitivity):
        return super()._gumbel_max(scores, 2 * epsilon, sensitivity)


@pytest.mark.parametrize(
    ("name", "trials"),
    [
        ("gaussian", 20_000),
        ("laplace", 20_000),
        ("k_norm", 20_000),
        ("quantile", 8_000),
        ("output", 20_000),
        ("objective", 150_000),
        ("cube", 8_000),
        ("objective_gamma", 8_000),
        ("objective_box", 8_000),
        ("output_gamma", 20_000),
        ("output_gaussian", 8_000),
        ("private_propensity", 8_000),
        ("outcome_weighted_learner", 8_000),
        ("permute_and_flip", 8_000),
        ("exponential_mechanism", 50_000),
    ],
)
def test_half_the_noise_is_refuted(name, trials):
    result = once(name, BUDGET, trials, Quiet(0))
    assert result.refuted, result


@pytest.mark.parametrize(
    ("name", "kind", "trials"),
    [
        ("permute_and_flip", "PermuteAndFlip", 8_000),
        ("exponential_mechanism", "ExponentialMechanism", 50_000),
    ],
)
def test_a_spread_that_is_what_one_utility_moves_by_is_refuted(monkeypatch, name, kind, trials):
    """Utilities move against each other by twice as much; with the true spread the same attack finds nothing."""
    assert not audit(find(name), BUDGET, trials=8_000, noise=NoiseSource.fixed(0)).refuted
    honest = getattr(selection_mechanisms, kind)

    def draw(self, *given):
        return honest(self.epsilon, self.range_sensitivity / 2)._draw(*given)

    monkeypatch.setattr(selection_mechanisms, kind, type(kind, (honest,), {"_draw": draw}))
    assert once(name, BUDGET, trials, NoiseSource.fixed(0)).refuted


TRIALS = 6_000


def dp_sgd_once(epsilon: float = 4.0) -> AuditResult:
    return once("dp_sgd", PrivacyBudget(epsilon, 1e-5), TRIALS, NoiseSource.fixed(0))


def dp_sgd(epsilon: float = 4.0) -> AuditResult:
    return audit(find("dp_sgd"), PrivacyBudget(epsilon, 1e-5), trials=TRIALS, noise=NoiseSource.fixed(0))


def test_honest_dp_sgd_is_not_refuted_and_comes_near_its_claim():
    result = dp_sgd()
    assert 0.7 * 4.0 <= result.bound <= 4.0


def test_half_the_noise_of_dp_sgd_is_refuted(monkeypatch):
    honest = NoiseSource.fine_gaussian
    monkeypatch.setattr(NoiseSource, "fine_gaussian", lambda self, size, scale: honest(self, size, scale / 2))
    assert dp_sgd_once().refuted


def test_unclipped_gradients_are_refuted(monkeypatch):
    norms = GradSampleHooksFastGradientClipping.get_norm_sample
    monkeypatch.setattr(
        GradSampleHooksFastGradientClipping, "get_norm_sample", lambda self: torch.zeros_like(norms(self))
    )
    assert dp_sgd_once().refuted


def add_or_remove(epsilon: float, delta: float, rate: float, steps: int) -> float:
    """Noise multiplier by the accountant that others use: one record added or removed."""

    def event(noise: float):
        return SelfComposedDpEvent(PoissonSampledDpEvent(rate, GaussianDpEvent(noise)), steps)

    relation = NeighboringRelation.ADD_OR_REMOVE_ONE
    # discretised ten times more coarsely than by default, which requests a little more noise and never for less
    return calibrate_dp_mechanism(partial(PLDAccountant, relation, 1e-3), event, epsilon, delta)


def test_accounting_for_records_added_or_removed_is_refuted(monkeypatch):
    """The noise is that of the wrong accountant; the claim is what the right one says it should be."""
    honest = worst_case.DPSGDPlan
    multiplier = add_or_remove(4.0, 1e-5, worst_case._RATE, worst_case._STEPS)
    case = find("dp_sgd")
    needed = case.make(PrivacyBudget(4.0, 1e-5)).event.noise_multiplier
    assert multiplier < 0.8 * needed
    monkeypatch.setattr(worst_case, "noisy_sums", partial(_with_noise, worst_case.noisy_sums, honest, multiplier))
    assert dp_sgd().refuted  # each of five plays by a little: one play would take more trials


def _with_noise(honest, plan_type, multiplier, plan, *args, **kwargs):
    plan = plan_type(multiplier, plan.max_grad_norm, plan.sampling_rate, plan.steps)
    return honest(plan, *args, **kwargs)


def shuffled(self):
    """Batches of a fixed size: every record once an epoch."""
    for start in range(0, self.steps, round(1 / self.sampling_rate)):
        order = torch.randperm(self.size, generator=self._noise.generator())
        yield from order.chunk(round(1 / self.sampling_rate))[: self.steps - start]


def test_batches_that_are_not_poisson_are_refuted(monkeypatch):
    """A record that is certain to be used is not hidden by chance: seen where the noise is small."""
    monkeypatch.setattr(poisson.PoissonSampler, "__iter__", shuffled)
    assert dp_sgd_once(epsilon=16.0).refuted


def test_honest_poisson_batches_are_not_refuted_there():
    assert not dp_sgd(epsilon=16.0).refuted


def test_a_loader_that_is_not_poisson_is_refused():
    plan = worst_case.DPSGDPlan(2.0, 1.0, 0.2, 5)
    records = torch.utils.data.TensorDataset(torch.arange(50), torch.ones(50))
    loader = torch.utils.data.DataLoader(records, batch_size=10, shuffle=True)
    trainer = worst_case.default_trainer(
        accelerator="cpu", max_steps=5, callbacks=[worst_case.DPSGD(plan, NoiseSource.fixed(0))]
    )
    with pytest.raises(InputError, match="Poisson"):
        trainer.fit(worst_case.Canaries(50, 8.0), loader)
