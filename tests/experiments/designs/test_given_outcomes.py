import math

import pandas as pd
import pytest
import torch

from experiments.designs.given_outcomes import GivenOutcomes
from torchdpcate.data.domain import Domain
from torchdpcate.errors import InputError
from torchdpcate.papers.semi_synthetic import SemiSynthetic

N = 20_000


@pytest.fixture
def covariates(tmp_path):
    x = Domain([0] * 4, [1] * 4, 0, 1).grid(N)
    path = tmp_path / "x.parquet"
    pd.DataFrame(x.numpy(), columns=["x0", "x1", "x2", "x3"]).to_parquet(path)
    return path


def domain() -> Domain:
    return Domain([0] * 4, [1] * 4, 0, 1, overlap=0.2)


def given_frame() -> pd.DataFrame:
    y0 = torch.linspace(0, 4, N).double().numpy()
    return pd.DataFrame({"y0": y0, "y1": y0 + 2, "mu0": y0, "mu1": y0 + 3, "z": [0, 1] * (N // 2)})


def test_given_outcomes(covariates, tmp_path) -> None:
    file = tmp_path / "o.csv"
    given_frame().to_csv(file, index=False)
    surface = GivenOutcomes(file, means=["mu0", "mu1"], treatment="z", bounds=[0, 6])
    study = SemiSynthetic(covariates, domain(), surface).load()
    assert study.effect.tolist() == pytest.approx([3.0] * 300)
    assert (study.domain.outcome_low, study.domain.outcome_high) == (0, 6)
    drawn = SemiSynthetic(covariates, domain(), GivenOutcomes(file, bounds=[0, 6]), seed=1).load()
    assert drawn.effect.tolist() == pytest.approx([2.0] * 300)
    assert not torch.equal(drawn.records.a, study.records.a)


def test_given_outcomes_keep_rows_and_records_together(tmp_path) -> None:
    frame = pd.DataFrame({"x0": [i / 99 for i in range(100)]})
    frame["y0"], frame["y1"], frame["z"] = frame["x0"], 10 + frame["x0"], [0, 1] * 50
    path = tmp_path / "t.csv"
    frame.to_csv(path, index=False)
    surface = GivenOutcomes(treatment="z", bounds=[0, 11])
    records = SemiSynthetic(path, Domain([0], [1], 0, 1), surface, n=60).load().records
    torch.testing.assert_close(records.y, records.x[:, 0] + 10 * records.a)
    assert torch.equal(records.a, (records.x[:, 0] * 99).round() % 2)


def test_the_average_effect_is_that_of_the_records(tmp_path) -> None:
    frame = pd.DataFrame({"x0": [i / 99 for i in range(100)]})
    frame["y0"], frame["y1"], frame["z"] = 0.0, 4 * frame["x0"], [0, 1] * 50
    path = tmp_path / "t.csv"
    frame.to_csv(path, index=False)
    study = SemiSynthetic(path, Domain([0], [1], 0, 1), GivenOutcomes(treatment="z", bounds=[0, 4])).load()
    x, a = study.records.x[:, 0], study.records.a
    assert study.average("ATE") == pytest.approx(4 * x.mean().item())
    assert study.average("ATT") == pytest.approx(4 * x[a == 1].mean().item())
    assert study.average("ATC") == pytest.approx(4 * x[a == 0].mean().item())
    assert study.average("ATO") is None


def test_given_outcomes_refuse_what_does_not_fit(covariates, tmp_path) -> None:
    file = tmp_path / "o.csv"
    given_frame()[:100].to_csv(file, index=False)
    with pytest.raises(InputError, match=f"o.csv: 100 rows for {N} rows of covariates"):
        SemiSynthetic(covariates, domain(), GivenOutcomes(file, bounds=[0, 6])).load()
    given_frame().to_csv(file, index=False)
    with pytest.raises(InputError, match=r"outcome 'y' has .* outside its declared bounds"):
        SemiSynthetic(covariates, domain(), GivenOutcomes(file)).load()
    with pytest.raises(InputError, match="column 'w' is missing"):
        SemiSynthetic(covariates, domain(), GivenOutcomes(file, treatment="w")).load()
    with pytest.raises(InputError, match="name two columns"):
        SemiSynthetic(covariates, domain(), GivenOutcomes(file, outcomes=["y0"])).load()


def test_acic_2016(shared_data) -> None:
    folder = shared_data / "acic2016"
    surface = GivenOutcomes(folder / "zymu_1.csv", means=["mu0", "mu1"], treatment="z")
    study = SemiSynthetic(folder / "x.csv", "acic2016", surface, queries=4802).load()
    assert study.records.n + len(study.queries) == 4802
    assert float(study.records.a.mean()) == pytest.approx(0.179, abs=0.006)
    assert float(study.effect.mean()) == pytest.approx(2.1281, abs=4 * 3.978 / math.sqrt(480))


def test_twins(shared_data) -> None:
    path = shared_data / "twins" / "Twin_data.csv"
    surface = GivenOutcomes(outcomes=["outcome(t=0)", "outcome(t=1)"], event_below=9999, bounds=[0, 1])
    study = SemiSynthetic(path, "twins", surface, train_fraction=0.001, queries=20_000).load()
    assert study.records.n == 11
    assert set(study.effect.unique().tolist()) == {-1.0, 0.0, 1.0}
    assert float(study.effect.mean()) == pytest.approx(-0.0161, abs=0.002)


def test_events_are_binary_and_other_bounds_are_a_surface_s_own(covariates, tmp_path) -> None:
    frame = pd.read_parquet(covariates)
    frame.assign(y0=0.2, y1=0.8).to_parquet(tmp_path / "y.parquet")
    study = SemiSynthetic(tmp_path / "y.parquet", domain(), GivenOutcomes(event_below=0.5)).load()
    assert study.domain.outcome_kind == "binary"
    assert SemiSynthetic(tmp_path / "y.parquet", domain(), GivenOutcomes()).load().domain.outcome_kind == "continuous"
