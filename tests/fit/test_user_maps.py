"""What claims rest on holds for every feature map: rows of norm at most one that see one record, or a refusal."""

from fractions import Fraction

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fit import own_maps
from torchdpcate.data.domain import Domain
from torchdpcate.errors import InputError
from torchdpcate.fit.feature_maps import FEATURE_MAPS, Fourier, Identity, Legendre, Products, Representation, on_domain
from torchdpcate.fit.nuisance_kinds import Nuisances

DOMAIN = Domain([-1.0, 10.0, 0.0], [3.0, 20.0, 1.0], 0.0, 1.0)
AGE = Domain([0.0], [90.0], 0.0, 1.0)
CORNERS = torch.cartesian_prod(*torch.stack([DOMAIN.covariate_low, DOMAIN.covariate_high], 1))
MAPS = [
    *(Identity(centred) for centred in (True, False)),
    *(Products(squares) for squares in (True, False)),
    *(Legendre(degree) for degree in (1, 2, 7, 40)),
    *(Fourier(pairs, bandwidth) for pairs in (1, 3, 128) for bandwidth in (None, 1e-8, 0.1, 1e8)),
]


def square(row: torch.Tensor) -> Fraction:
    """Squared norm without any rounding."""
    return sum((Fraction(v) ** 2 for v in row.tolist()), Fraction(0))


@pytest.mark.parametrize("features", MAPS, ids=lambda m: f"{type(m).__name__}-{m.config()}")
def test_the_library_s_rows_keep_their_bounds_to_the_last_bit(features):
    psi = on_domain(features, DOMAIN)
    x = torch.cat([DOMAIN.grid(40), CORNERS])
    rows = psi(x)
    assert max(square(row) for row in rows) <= 1
    assert rows.abs().max().item() <= psi.largest_entry
    theta = torch.linspace(-1, 1, psi.dimension, dtype=torch.float64)
    torch.testing.assert_close(psi.product(theta, x), rows @ theta, rtol=0, atol=1e-9)
    assert psi.conditions == ()


@pytest.mark.parametrize("width", [1, 16])
def test_rows_made_of_networks_keep_their_bounds_to_the_last_bit(width):
    torch.manual_seed(0)
    network = Nuisances(DOMAIN, width=width).double().requires_grad_(False)
    for parameter in network.parameters():
        parameter.mul_(1e3)
    for cls in (Representation,):
        psi = on_domain(cls(), DOMAIN, network)
        rows = psi(torch.cat([DOMAIN.grid(30), CORNERS]))
        assert max(square(row) for row in rows) <= 1
        assert psi.conditions == ()


@pytest.mark.slow
@settings(max_examples=100, deadline=None)
@given(st.lists(st.floats(-1e9, 1e9) | st.just(float("nan")), min_size=1, max_size=40), st.floats(1e-3, 1.0))
def test_any_row_is_held_to_its_bounds_and_those_within_are_left_alone(numbers, largest):
    class Given(own_maps.RawCovariates):
        dimension = len(numbers)
        largest_entry = largest

        def forward(self, x):
            return torch.tensor(numbers, dtype=torch.float64).expand(len(x), -1)

    row = on_domain(Given(), AGE)(torch.zeros(1, 1).double())[0]
    assert square(row) <= 1
    assert row.abs().max().item() <= largest
    given_row = torch.tensor(numbers, dtype=torch.float64)
    if bool((given_row.abs() <= largest).all()) and given_row.norm().item() < 1 - 1e-12:
        assert torch.equal(row, given_row)


def test_a_user_s_rows_are_scaled_and_its_entries_clipped():
    x = torch.tensor([[0.0], [0.5], [90.0]]).double()
    rows = on_domain(own_maps.RawCovariates(), AGE)(x)
    length = 8101**0.5
    expected = torch.tensor([[1.0, 0.0], [0.8**0.5, 0.2**0.5], [1 / length, 90 / length]]).double()
    torch.testing.assert_close(rows, expected, rtol=0, atol=1e-7)
    small = on_domain(own_maps.Small(), AGE)
    assert small.largest_entry == 0.1
    assert small(x)[2].tolist() == pytest.approx([1 / length, 0.1])


def test_numbers_that_are_none_become_zero():
    assert torch.equal(on_domain(own_maps.ManyGaps(), AGE)(AGE.grid(4)), torch.zeros(4, 3).double())


@pytest.mark.parametrize("name", ["Centred", "Shuffled", "Greedy"])
def test_rows_that_depend_on_each_other_are_refused(name):
    with pytest.raises(InputError, match=f"features = {name}"):
        on_domain(getattr(own_maps, name)(), AGE)


def test_a_map_of_another_width_and_what_is_no_map_are_refused():
    with pytest.raises(InputError, match=r"features = Narrow: gave .*\[40, 1\]"):
        on_domain(own_maps.Narrow(), AGE)
    with pytest.raises(InputError, match="FeatureMap"):
        on_domain(torch.nn.Linear(1, 2), AGE)


def test_layers_that_train_on_a_batch_are_not_trained():
    psi = on_domain(own_maps.Normalised(), AGE)
    before, _ = psi(AGE.grid(5)), psi(AGE.grid(50))
    assert torch.equal(psi(AGE.grid(5)), before)


def test_the_covariates_themselves_are_never_changed():
    x = AGE.grid(8)
    kept = x.clone()
    with pytest.raises(InputError):
        on_domain(own_maps.Greedy(), AGE)
    psi = on_domain(own_maps.RawCovariates(), AGE)
    psi.inner.forward = lambda x: torch.cat([x.zero_(), x], 1).double()
    psi(x)
    assert torch.equal(x, kept)


@pytest.mark.parametrize("name", ["RawCovariates", "Own", "Shortcut"])
def test_a_user_s_map_says_what_its_claims_rest_on(name):
    features = getattr(own_maps, name)()
    for psi in (features, on_domain(features, AGE), on_domain(on_domain(features, AGE), AGE).twin()):
        (condition,) = psi.conditions
        assert condition.holds is None
        assert f"features = {name}" in condition.text
        assert psi.title == name
    assert on_domain(None, AGE).conditions == ()


def test_a_map_s_own_shortcuts_are_not_taken():
    psi, x = on_domain(own_maps.Shortcut(), AGE), AGE.grid(5)
    theta = torch.tensor([0.3, 0.4]).double()
    torch.testing.assert_close(psi.product(theta, x), psi(x) @ theta)


def test_the_library_s_maps_are_made_anew_from_their_settings():
    features = Identity()
    features.forward = lambda x: x.mean(0).expand(len(x), -1)
    assert torch.equal(on_domain(features, AGE)(AGE.grid(5)), on_domain(None, AGE)(AGE.grid(5)))


def test_a_twin_is_the_same_map_whatever_it_holds():
    features = own_maps.Normalised()
    features.layer.running_mean.fill_(30.0)
    psi = on_domain(features, AGE)
    torch.testing.assert_close(psi.twin()(AGE.grid(9)), psi(AGE.grid(9)), rtol=0, atol=0)


def test_the_registry_of_names_does_not_vouch_for_a_map(monkeypatch):
    monkeypatch.setitem(FEATURE_MAPS, "raw", own_maps.RawCovariates)
    assert on_domain(own_maps.RawCovariates(), AGE).conditions
