import numpy as np
import pytest
import torch

from tests.release.test_file import STATEMENT
from torchdpcate.data.schema import TableSchema
from torchdpcate.errors import InputError
from torchdpcate.fit.weighted_basis import Feature, Standardisation, WeightedBasis
from torchdpcate.release.composed import ComposedRelease
from torchdpcate.release.effect_law import EffectLaw

SCHEMA = TableSchema.from_dict(
    {
        "treatment": "t",
        "outcome": {"name": "y", "low": 0, "high": 1, "better": "lower"},
        "covariates": {
            "age": {"low": 20, "high": 60},
            "sex": {"categories": ["f", "m"]},
            "site": {"categories": ["a", "b", "c"]},
        },
    }
)
MEANS, SPREADS = [-0.5, 0.4, -0.6, 0.0, -0.4], [0.3, 0.9, 0.8, 1.0, 0.9]


def double(values: list) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


def release(means: list[float] = MEANS, columns: tuple[int, ...] | None = None, law: bool = False) -> ComposedRelease:
    basis = WeightedBasis((Feature("1", 0, 0),), double([1.0, 1.0]))
    coefficients, one = double([0.2, 0.1]), torch.eye(2, dtype=torch.float64)
    found = EffectLaw(coefficients, 0.01 * one, one, double([1.0, 0.0]), 0.0, 0.0, 0.2, 0.01) if law else None
    spreads = SPREADS if columns is None else [SPREADS[column] for column in columns]
    standardisation = Standardisation(double(means), double(spreads))
    return ComposedRelease(
        coefficients, coefficients, one, 1.0, basis, standardisation, SCHEMA, STATEMENT, columns=columns, law=found
    )


def test_it_has_the_released_moments_within_the_bounds() -> None:
    x = release().population(4096)
    SCHEMA.domain.check_covariates(x)
    assert x[:, 0].mean().item() == pytest.approx(20 + 0.25 * 40, abs=0.1)
    assert x[:, 0].std().item() == pytest.approx(0.3 * 20, abs=0.1)
    assert x[:, 1].mean().item() == pytest.approx(0.7, abs=0.01)
    assert x[:, 2:].mean(0).tolist() == pytest.approx([0.2, 0.5, 0.3], abs=0.01)


def test_an_interval_of_a_mean_is_that_of_the_mean_features() -> None:
    found, x = release(law=True), release().population(6)
    psi = found.features(x).view(2, 3, -1).mean(1)
    assert found.law is not None
    np.testing.assert_allclose(found.mean_interval(x, 0.9, rows=3), found.law.interval(psi, 0.9).numpy())
    assert found.mean_interval(x).shape == (1, 2)
    with pytest.raises(InputError, match=r"rows = 4: X has 6 rows"):
        found.mean_interval(x, rows=4)
    with pytest.raises(InputError, match="this release has none"):
        release().mean_interval(x)


def test_levels_without_a_released_share_divide_what_is_left() -> None:
    x = release([-0.5, -0.6], columns=(0, 2)).population(4096)
    assert x[:, 2:].mean(0).tolist() == pytest.approx([0.2, 0.4, 0.4], abs=0.01)
    more = release([-0.5, 1.2], columns=(0, 2)).population(4096)  # noise beyond a share of one
    assert more[:, 2:].mean(0).tolist() == pytest.approx([1.0, 0.0, 0.0], abs=0.01)


def test_people_lie_about_a_released_mean_near_a_bound() -> None:
    """Noise may leave a rare value's spread next to nothing: people are then at most a deviation from its mean."""
    basis, one = WeightedBasis((Feature("1", 0, 0),), double([1.0, 1.0])), torch.eye(2, dtype=torch.float64)
    near = Standardisation(double([-0.999, *MEANS[1:]]), double([0.002, *SPREADS[1:]]))
    own = ComposedRelease(double([0.2, 0.1]), double([0.2, 0.1]), one, 1.0, basis, near, SCHEMA, STATEMENT)
    z = near.of(SCHEMA.domain.scale(own.population(1024)), None, SCHEMA.domain.indicators)
    assert abs(float(z[:, 0].mean())) <= 1
