import math

import pandas as pd
import pytest
import torch

from experiments.designs.given_outcomes import GivenOutcomes
from torchdpcate.data.domain import Domain
from torchdpcate.data.schema import TableSchema
from torchdpcate.papers.semi_synthetic import GeneratedSurface, SemiSynthetic

N = 20_000


@pytest.fixture
def covariates(tmp_path):
    x = Domain([0] * 4, [1] * 4, 0, 1).grid(N)
    path = tmp_path / "x.parquet"
    pd.DataFrame(x.numpy(), columns=["x0", "x1", "x2", "x3"]).to_parquet(path)
    return path


def domain() -> Domain:
    return Domain([0] * 4, [1] * 4, 0, 1, overlap=0.2)


@pytest.mark.parametrize("effect", ["smooth", "linear", "constant"])
@pytest.mark.parametrize("noise", [0.0, 0.5])
def test_outcome_bounds_are_public_and_hold(covariates, effect, noise) -> None:
    surface = GeneratedSurface(effect, noise=noise, confounding=3.0)
    for seed in range(3):
        study = SemiSynthetic(covariates, domain(), surface, seed=seed).load()
        study.domain.check_outcome(study.records.y)
        assert (study.domain.outcome_low, study.domain.outcome_high) == surface.outcome_bounds()
        assert torch.equal(study.effect, surface.effect_at(study.queries, study.schema))
        assert torch.equal(study.effect, study.truth(study.queries))


def test_the_effect_is_the_one_promised(covariates) -> None:
    study = SemiSynthetic(covariates, domain()).load()
    u = 2 * study.queries - 1
    expected = 1 + torch.sin(math.pi * u[:, 0]) + u[:, 1] * u[:, 2]
    torch.testing.assert_close(study.effect, expected)


def test_outcomes_follow_the_formula(covariates) -> None:
    surface = GeneratedSurface("linear", noise=0.0)
    study = SemiSynthetic(covariates, domain(), surface).load()
    u, a, y = 2 * study.records.x - 1, study.records.a, study.records.y
    gamma = torch.linalg.lstsq(u / 4, (y - (1 + u[:, 0]) * a)[:, None])
    assert gamma.residuals.sum() < 1e-18 * N
    assert (gamma.solution >= 0).all()
    assert (gamma.solution <= 1).all()


def test_the_propensity_keeps_its_overlap(covariates) -> None:
    study = SemiSynthetic(covariates, domain(), GeneratedSurface(confounding=50.0)).load()
    # about 4500 records a quadrant; a share is 7 sd off its mean, itself in [0.2, 0.8], once in 1e11
    cells = (study.records.x[:, 0] * 2).long() + 2 * (study.records.x[:, 1] * 2).long()
    shares = torch.stack([study.records.a[cells == cell].mean() for cell in range(4)])
    slack = 7 * math.sqrt(0.25 / 4000)
    assert shares.min() > 0.2 - slack
    assert shares.max() < 0.8 + slack
    assert shares.max() - shares.min() > 0.1
    coin = SemiSynthetic(covariates, domain(), GeneratedSurface(confounding=0.0)).load()
    assert abs(float(coin.records.a.mean()) - 0.5) < 6 * 0.5 / math.sqrt(coin.records.n)


def test_acic_domain_is_the_published_codebook(shared_data) -> None:
    book = pd.read_csv(shared_data / "acic2016" / "columns.csv").set_index("column")
    for covariate in TableSchema.from_yaml("acic2016").covariates:
        row = book.loc[covariate.name]
        if row["dtype"] == "str":
            assert len(covariate.categories) == row["n_unique"]
        else:
            assert [covariate.low, covariate.high] == [float(row["min"]), float(row["max"])]


@pytest.mark.parametrize("given", [0.3, {"x3": {0: 0.3, 1: 0.6}}, "p"])
def test_the_design_decides_on_the_treatment(given, tmp_path) -> None:
    x = Domain([0] * 4, [1] * 4, 0, 1).grid(N)
    x[:, 3] = (x[:, 3] > 0.5).double()
    p = 0.3 + 0.3 * x[:, 3]
    frame = pd.DataFrame(x.numpy(), columns=["x0", "x1", "x2", "x3"]).assign(p=p.numpy(), y0=0.0, y1=x[:, 0].numpy())
    frame.to_parquet(tmp_path / "x.parquet")
    facts = Domain([0] * 4, [1] * 4, 0, 1, 0.2, two_levels=[False] * 3 + [True], propensity=given)
    for surface in (GeneratedSurface(confounding=3.0), GivenOutcomes()):
        study = SemiSynthetic(tmp_path / "x.parquet", facts, surface).load()
        records = study.records
        expected = torch.full_like(records.y, 0.3) if given == 0.3 else 0.3 + 0.3 * records.x[:, 3]
        torch.testing.assert_close(records.propensity, expected)
        assert study.domain.known_propensity == facts.known_propensity
        assert (study.own_propensity is None) == (given != "p")
        for level in (0.0, 1.0):  # five standard deviations of a share of 9,000
            own = records.x[:, 3] == level
            assert (records.a[own].mean() - expected[own].mean()).abs() < 5 * 0.5 / 9000**0.5
