import math

import pytest
import torch

from experiments.designs.rules import ITR
from tests.papers.moments import near
from torchdpcate.papers.rules import OWL

N = 200_000
STUDIES = [OWL, *(lambda s=s, c=c, **rest: ITR(s, c, **rest) for s in ("linear", "quadratic", "tree") for c in (0, 1))]


@pytest.mark.parametrize("source", STUDIES)
def test_treatment_outcome_and_domain_are_as_stated(source) -> None:
    study = source(seed=1)
    records = study.draw(N, torch.Generator().manual_seed(0))
    domain, pi = study.domain(), study.propensity(records.x)
    domain.check_covariates(records.x)
    domain.check_outcome(records.y)
    assert float(torch.minimum(pi, 1 - pi).min()) >= domain.overlap
    assert near(records.a - pi, 0.0)
    clipped = (records.y == domain.outcome_low) | (records.y == domain.outcome_high)
    assert float(clipped.double().mean()) < 0.01
    middle = study.baseline(records.x) + (records.a - 0.5) * study.effect(records.x)
    residual = records.y - middle
    # four deviations from both bounds, clipping moves the mean by 1e-5 deviations, a hundredth of its error
    free = (middle - domain.outcome_low).minimum(domain.outcome_high - middle) > 4 * study.noise_sd
    assert float(free.double().mean()) > 0.5
    assert near(residual[free], 0.0)
    assert near(residual[free] ** 2, study.noise_sd**2)


def test_the_trial_of_giddens_et_al() -> None:
    study = OWL(n=N, train_fraction=0.99).load()
    x, effect = study.records.x, OWL().effect(study.records.x)
    assert OWL().effect(torch.tensor([[1.0, 0.0, 0.5, 0.5]])).item() == pytest.approx(0.0, abs=1e-12)
    assert near(effect, 0.0)
    assert near(effect**2, 36 * (1 + 1 + 1.8**2 + 2.2**2) / 12)
    assert near(x.flatten(), 0.5)
    assert (study.name, study.domain.overlap) == ("owl", 0.4)
    assert torch.equal(study.effect, OWL().effect(study.queries))


def test_moments_of_the_three_effects() -> None:
    x = ITR().draw(N, torch.Generator().manual_seed(3)).x
    linear, quadratic, tree = (ITR(name).effect(x) for name in ("linear", "quadratic", "tree"))
    assert near(linear, 0.0)
    assert near(linear**2, 9.0)
    assert near(quadratic, 0.0)
    assert near(quadratic**2, 9 / 3 + 81 * (1 / 5 - 1 / 9))
    assert set(tree.tolist()) == {-3.0, 3.0}
    assert near(tree, 0.0)  # half of the box is better treated: 1/2 * 3/4 + 1/2 * 1/4


def test_confounding_is_that_of_the_theory_note() -> None:
    study = ITR(confounded=True)
    x = torch.zeros(2, 10, dtype=torch.float64)
    x[1, 0], x[1, 1] = 1.0, -1.0
    assert study.propensity(x).tolist() == pytest.approx([0.5, 1 / (1 + math.exp(-2.4))])
    assert study.outcome_bounds == (-4.0, 12.0)
    assert ITR().outcome_bounds == (-8.0, 8.0)
    assert ITR().propensity(x).tolist() == [0.5, 0.5]
