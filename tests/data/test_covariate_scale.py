import copy
import math
import warnings

import pytest
import torch
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.func import grad, vmap

from torchdpcate.data.domain import Domain
from torchdpcate.data.schema import TableSchema
from torchdpcate.errors import InputError
from torchdpcate.fit.feature_maps import Fourier, Identity, Legendre, Products

calm = settings(deadline=None, max_examples=25)  # shared machines pause
ENTRIES = {
    "treatment": "treat",
    "outcome": {"name": "y", "low": 0, "high": 1},
    "covariates": {
        "crp": {"low": 0, "high": 500, "scale": "log", "typical": [1, 50]},
        "site": {"categories": ["a", "b", "c"]},
        "lactate": {"low": 0.1, "high": 1000, "scale": "log"},
        "pay": {"low": 0, "high": 10000, "typical": [0, 300]},
        "age": {"low": 16, "high": 90},
    },
}


def one(low: float, high: float, scale: str = "linear", typical: tuple[float, float] | None = None) -> Domain:
    return Domain([low], [high], 0.0, 1.0, scales=[scale], typical=[typical])


def scaled(domain: Domain, *x: float) -> list[float]:
    return domain.scale(torch.tensor(x, dtype=torch.float64)[:, None]).flatten().tolist()


@pytest.mark.parametrize(
    ("domain", "expected"),
    [
        (one(1, 10_000, "log"), {1: -1, 10: -0.5, 100: 0, 10_000: 1}),
        (one(0, 1000, "log"), {0: -1, 30: 2 * math.log(31) / math.log(1001) - 1, 1000: 1}),  # s = 1
        (one(-5, 995, "log"), {-5: -1, 25: 2 * math.log(31) / math.log(1001) - 1}),
        (one(0, 100, typical=(10, 20)), {0: -1, 5: -5 / 6, 10: -2 / 3, 15: 0, 20: 2 / 3, 60: 5 / 6, 100: 1}),
        (one(0, 100, typical=(0, 20)), {0: -1, 10: -1 / 6, 20: 2 / 3, 60: 5 / 6}),
        (one(0, 100, typical=(20, 100)), {0: -1, 20: -2 / 3, 60: 1 / 6, 100: 1}),
        (one(0, 100, typical=(0, 100)), {0: -1, 25: -0.5, 100: 1}),
        (one(0, 15, "log", (1, 7)), {0: -1, 1: -2 / 3, 3: 0, 7: 2 / 3, 15: 1}),  # s = 1: log2 is 0, 1, 2, 3, 4
        (one(1, 16, "log", (2, 8)), {1: -1, 2: -2 / 3, 4: 0, 8: 2 / 3, 16: 1}),
    ],
)
def test_it_is_the_closed_form(domain: Domain, expected: dict[float, float]) -> None:
    assert scaled(domain, *expected) == pytest.approx(list(expected.values()), abs=1e-12)
    points = domain.from_unit((torch.tensor(list(expected.values()), dtype=torch.float64)[:, None] + 1) / 2)
    assert points.flatten().tolist() == pytest.approx(list(expected), abs=1e-9)


@st.composite
def domains(draw: st.DrawFn) -> Domain:
    low, width = draw(st.floats(-1e3, 1e3)), draw(st.floats(1e-2, 1e6))
    shares = sorted(draw(st.lists(st.floats(0.001, 0.999), min_size=2, max_size=2)))
    shares = [draw(st.sampled_from([0.0, shares[0]])), draw(st.sampled_from([1.0, shares[1]]))]
    typical = None if shares[1] - shares[0] < 1e-3 else tuple(low + share * width for share in shares)
    if typical is not None and typical[1] > low + width:
        typical = (typical[0], low + width)
    return one(low, low + width, draw(st.sampled_from(["linear", "log"])), draw(st.sampled_from([None, typical])))


@calm
@given(domains(), st.sampled_from([torch.float32, torch.float64]))
def test_it_is_monotone_onto_and_has_an_inverse(domain: Domain, dtype: torch.dtype) -> None:
    u = torch.linspace(0, 1, 201, dtype=torch.float64)[:, None]
    x = domain.from_unit(u)
    domain.check_covariates(x)
    z = domain.scale(domain.clip_covariates(x.to(dtype)))
    assert z.dtype == dtype
    assert z.abs().max() <= 1.0
    assert (z.diff(dim=0) >= -1e-6 if dtype == torch.float32 else z.diff(dim=0) >= -1e-14).all()
    if dtype == torch.float64:
        assert torch.stack([z[0], z[-1]]).flatten().tolist() == pytest.approx([-1, 1], abs=1e-12)
        torch.testing.assert_close(z, 2 * u - 1, rtol=0, atol=1e-8)
        line = domain.line(0, 201)
        torch.testing.assert_close(line[:, None], x, rtol=1e-9, atol=0)


def test_slopes_are_those_of_finite_differences_and_go_through_vmap() -> None:
    domain = TableSchema.from_dict(ENTRIES).domain
    x, step = domain.grid(7), 1e-6
    slopes = vmap(grad(lambda x: domain.scale(x).sum()))(x)
    width = step * (domain.covariate_high - domain.covariate_low)
    for j in range(domain.dimension):
        move = torch.zeros_like(x)
        move[:, j] = width[j]
        found = (domain.scale(x + move) - domain.scale(x - move))[:, j] / (2 * width[j])
        torch.testing.assert_close(slopes[:, j], found, rtol=1e-3, atol=1e-6)


def test_without_facts_it_is_the_linear_map_to_the_last_bit() -> None:
    domain = Domain([0.1, -3.0], [7.3, 11.0], 0.0, 1.0, scales=["linear"] * 2, typical=[None, None])
    x = domain.grid(100)
    low, width = domain.covariate_low, domain.covariate_high - domain.covariate_low
    assert domain.linear
    assert torch.equal(domain.scale(x), 2.0 * ((x - low) / width) - 1.0)
    mixed = Domain([0.1, -3.0], [7.3, 11.0], 0.0, 1.0, scales=["linear", "log"])
    assert torch.equal(mixed.scale(x)[:, 0], domain.scale(x)[:, 0])
    assert torch.equal(mixed.grid(100)[:, 0], x[:, 0])


def test_files_dicts_and_domains_carry_the_facts(tmp_path) -> None:
    schema = TableSchema.from_dict(ENTRIES)
    domain = schema.domain
    assert domain.scales == ("log", *["linear"] * 3, "log", "linear", "linear")
    assert domain.typical == ((1.0, 50.0), *[None] * 4, (0.0, 300.0), None)
    (tmp_path / "d.yaml").write_text(yaml.safe_dump(schema.to_dict(), sort_keys=False))
    plain = copy.deepcopy(ENTRIES)
    for entry in plain["covariates"].values():
        entry.pop("scale", None), entry.pop("typical", None)
    assert TableSchema.from_yaml(tmp_path / "d.yaml") == schema == TableSchema.from_dict(schema.to_dict())
    assert schema.to_dict()["covariates"]["crp"] == ENTRIES["covariates"]["crp"]
    again = Domain.from_dict(domain.to_dict())
    assert again == domain
    assert domain != TableSchema.from_dict(plain).domain
    assert domain.select([5, 0]).typical == ((0.0, 300.0), (1.0, 50.0))
    assert domain.select([5, 0]).scales == ("linear", "log")
    assert schema.without("crp").domain.scales == domain.scales[1:]
    assert TableSchema.from_domain(domain).domain == domain


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ({"scale": "sqrt"}, "scale of covariate 'crp' is 'sqrt'; choose one of linear, log"),
        (
            {"typical": [1, 501]},
            r"typical of covariate 'crp' is \[1, 501\], outside its bounds \[0, 500\]; give a range",
        ),
        ({"typical": [50, 1]}, r"typical of covariate 'crp' is \[50, 1\]; give the lower end first"),
        ({"typical": 50}, r"typical of covariate 'crp' is 50; give two numbers, \[low, high\]"),
        ({"typical": [None, None]}, "typical of covariate 'crp' is None; give a number"),
        ({"typical": [50, 50 + 1e-13]}, "float64 cannot distinguish"),
        ({"low": 1e-320, "high": 1, "scale": "log"}, "too far apart; raise low"),
        ({"two_levels": True, "scale": "log"}, "covariate 'crp' has levels, and scale log, which is of numbers alone"),
        ({"two_levels": True, "typical": [1, 50]}, r"has levels, and typical \[1, 50\]"),
    ],
)
def test_mistakes_are_named(entry, message: str) -> None:
    facts = copy.deepcopy(ENTRIES)
    facts["covariates"]["crp"] = {"low": 0, "high": 500, **entry}
    with pytest.raises(InputError, match=message):
        TableSchema.from_dict(facts)


@pytest.mark.parametrize("features", [Identity, Legendre, Products, Fourier])
def test_maps_are_those_of_scaled_covariates(features) -> None:
    domain = TableSchema.from_dict(ENTRIES).domain
    q, x = domain.dimension, domain.grid(50)
    box = Domain([-1.0] * q, [1.0] * q, 0.0, 1.0)
    psi, same = features().setup(domain), features().setup(box)
    torch.testing.assert_close(psi(x), same(domain.scale(x)), rtol=1e-9, atol=1e-12)
    assert psi(x).norm(dim=1).max() <= 1


def test_a_learner_needs_the_scale_of_a_wide_range() -> None:
    from torchdpcate.estimators.cate.learner import RLearner
    from torchdpcate.privacy.budget import PrivacyBudget
    from torchdpcate.privacy.noise import NoiseSource

    draws, n = torch.Generator().manual_seed(0), 8_000
    z = torch.randn(n, 1, dtype=torch.float64, generator=draws)
    x, a = (3 + z).exp().clamp(0.01, 100_000), torch.randint(2, (n,), generator=draws).double()
    effect = torch.tanh(z[:, 0])
    y = (effect * (a - 0.5) + 0.3 * torch.randn(n, dtype=torch.float64, generator=draws)).clamp(-2, 2)
    errors = {}
    for scale in ("linear", "log"):
        domain = Domain([0.01], [1e9], -2.0, 2.0, propensity=0.5, scales=[scale])
        learner = RLearner(domain, PrivacyBudget(1.0, 1e-5), noise=NoiseSource.fixed(0))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            release = learner.fit(x, a, y).release()
        errors[scale] = float(((release.effect_tensor(x) - effect) ** 2).mean().sqrt())
    assert errors["log"] < 0.5 * errors["linear"], errors
