import json

import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from torchdpcate.data.domain import Domain
from torchdpcate.errors import InputError

calm = settings(deadline=None, max_examples=25)  # shared machines pause
bound = st.floats(-1e6, 1e6, allow_subnormal=False)
interval = st.tuples(bound, bound).map(sorted).filter(lambda pair: pair[1] - pair[0] >= 1e-18)


@st.composite
def domains(draw: st.DrawFn) -> Domain:
    box = draw(st.lists(interval, min_size=1, max_size=5))
    low, high = zip(*box, strict=True)
    outcome = draw(interval)
    return Domain(low, high, *outcome, overlap=draw(st.floats(0.001, 0.499)))


@st.composite
def domains_and_points(draw: st.DrawFn) -> tuple[Domain, torch.Tensor]:
    domain = draw(domains())
    row = st.lists(st.floats(-2e6, 2e6), min_size=domain.dimension, max_size=domain.dimension)
    return domain, torch.tensor(draw(st.lists(row, min_size=1, max_size=8)), dtype=torch.float64)


@calm
@given(domains_and_points(), st.sampled_from([torch.float32, torch.float64]))
def test_scale_maps_the_box_into_the_unit_box(case: tuple[Domain, torch.Tensor], dtype: torch.dtype) -> None:
    domain, x = case
    scaled = domain.scale(domain.clip_covariates(x).to(dtype))
    assert scaled.dtype == dtype
    assert scaled.abs().max() <= 1.0


@calm
@given(domains())
def test_round_trip_through_json(domain: Domain) -> None:
    again = Domain.from_dict(json.loads(json.dumps(domain.to_dict())))
    assert again == domain
    assert hash(again) == hash(domain)


@calm
@given(domains(), st.integers(1, 50))
def test_grid_is_public_inside_and_repeatable(domain: Domain, count: int) -> None:
    grid = domain.grid(count)
    assert grid.shape == (count, domain.dimension)
    assert grid.dtype == torch.float64
    domain.check_covariates(grid)
    assert torch.equal(grid, domain.grid(count))


def test_grid_fills_the_box_better_than_chance() -> None:
    grid = Domain([0, 0], [1, 1], 0, 1).grid(256)
    cells = (grid * 16).long()
    assert len(torch.unique(cells[:, 0] * 16 + cells[:, 1])) == 256  # a Sobol net: one point a cell


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"covariate_low": [0.0, 2.0]}, "'age' are inverted: low 2 is above high 1"),
        ({"covariate_low": [0.0, 1.0]}, r"'age' are both 1; low must be below high \(leave a constant column out\)"),
        ({"covariate_low": [0.0]}, "covariate_low has 1 bounds and covariate_high 2"),
        ({"covariate_low": [0.0, float("nan")]}, "lower bound of covariate 'age' is nan"),
        ({"covariate_high": [float("inf"), 1.0]}, "upper bound of covariate 'x' is inf"),
        ({"covariate_low": ["low", 0.0]}, "covariate_low must be numbers"),
        ({"covariate_low": [], "covariate_high": [], "names": None}, "at least one covariate"),
        ({"outcome_low": None}, "lower bound of outcome is None"),
        ({"outcome_low": 3.0}, "outcome are inverted"),
        ({"outcome_low": 1e16, "outcome_high": 1e16 + 2}, "float64 cannot distinguish outcomes so far from zero"),
        ({"outcome_low": -1e308, "outcome_high": 1e308}, r"outcome are \[-1e\+308, 1e\+308\]; .* at most 1e\+18"),
        ({"outcome_high": 1.01e18}, "must not overflow"),
        ({"outcome_high": 9.9e-19}, "1e-18 apart or more"),
        ({"covariate_high": [1.0, 1e300]}, "'age' are .* must not overflow"),
        ({name: [0.0] * 21_202 for name in ("covariate_low", "covariate_high")}, "21,202 columns.* at most 21,201"),
        ({"overlap": 0.0}, "overlap is 0"),
        ({"overlap": 0.5}, "equally likely for everybody; where a trial's design says so, give propensity 0.5 too"),
        ({"overlap": 0.5, "propensity": 0.4}, "propensity is 0.4, outside"),
        ({"names": ["x", "x"]}, "twice"),
    ],
)
def test_bad_facts_are_refused_in_one_line(change: dict, words: str) -> None:
    facts = {
        "covariate_low": [0.0, 0.0],
        "covariate_high": [1.0, 1.0],
        "outcome_low": 0.0,
        "outcome_high": 1.0,
        "names": ["x", "age"],
    }
    with pytest.raises(InputError, match=words) as caught:
        Domain(**facts | change)
    assert "\n" not in str(caught.value)


def test_a_trial_of_equal_chances_may_state_an_overlap_of_a_half() -> None:
    domain = Domain([0.0, 0.0], [1.0, 1.0], 0.0, 1.0, overlap=0.5, propensity=0.5)
    assert domain.known_propensity is not None
    assert domain.known_propensity.bounds == (0.5, 0.5)
    assert Domain.from_dict(domain.to_dict()) == domain
    selected = domain.select([1])
    assert (selected.overlap, selected.known_propensity) == (0.5, domain.known_propensity)


def test_check_covariates_names_column_count_bounds_and_remedy() -> None:
    domain = Domain([0, 16], [1, 60], 0, 1, names=["x", "age"])
    x = torch.tensor([[0.5, 15.0], [2.0, 61.0], [0.5, 20.0]])
    with pytest.raises(InputError) as caught:
        domain.check_covariates(x)
    assert str(caught.value) == (
        "covariate 'age' has 2 values outside its declared bounds [16, 60] (and 1 other column too); "
        "name codes of missing values in the domain file first, codes: [-99]; then clip with data.out_of_bounds=clip "
        "(Domain.clip_covariates), or give a bound known from outside the records"
    )
    with pytest.raises(InputError, match=r"query 'age' has 2 values .* move these queries"):
        domain.check_covariates(x, "query")


def test_a_frame_is_read_by_name_not_by_position() -> None:
    domain = Domain([0, 16], [1, 60], 0, 1, names=["x", "age"])
    frame = pd.DataFrame({"age": [20, 30], "other": ["a", "b"], "x": [0.1, 0.2]})
    assert domain.matrix(frame).tolist() == [[0.1, 20.0], [0.2, 30.0]]
    with pytest.raises(InputError, match="lacks the column 'x'"):
        domain.matrix(frame[["age"]])
    unnamed = Domain([0, 16], [1, 60], 0, 1)
    assert unnamed.matrix(frame[["x", "age"]]).tolist() == [[0.1, 20.0], [0.2, 30.0]]


def test_the_share_of_the_treated_is_a_public_fact() -> None:
    domain = Domain([0.0, 0.0], [1.0, 1.0], 0.0, 1.0, overlap=0.01, treated=0.05)
    assert domain.treated == 0.05
    assert Domain.from_dict(domain.to_dict()) == domain != Domain([0.0, 0.0], [1.0, 1.0], 0.0, 1.0, overlap=0.01)
    assert domain.select([1]).treated == 0.05
    with pytest.raises(
        InputError, match=r"treated is 0\.005; give the public share .* from the overlap 0\.01 to 0\.99"
    ):
        Domain([0.0], [1.0], 0.0, 1.0, overlap=0.01, treated=0.005)
    with pytest.raises(InputError, match=r"treated is 0\.3, beside a propensity"):
        Domain([0.0], [1.0], 0.0, 1.0, propensity=0.5, treated=0.3)
