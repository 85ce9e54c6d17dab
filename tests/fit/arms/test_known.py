"""A propensity that the domain knows, in nuisances of K arms."""

import pytest
import torch

from torchdpcate.causal.score import score_spread
from torchdpcate.data.domain import Domain
from torchdpcate.data.propensity import known_propensity
from torchdpcate.data.records import CausalData
from torchdpcate.data.schema import TableSchema
from torchdpcate.errors import InputError
from torchdpcate.fit.arms.base import SelectionFacts, WithKnown
from torchdpcate.fit.arms.fixed import FixedNuisances

STRATA = {"x1": {0: 0.3, 1: 0.6}}
THIRDS = [0.3333333333, 0.3333333333, 0.3333333333]


def facts(propensity=None, actions=(0, 1), overlap: float = 0.1) -> SelectionFacts:
    domain = Domain([-1, 0], [1, 1], 0.0, 1.0, 0.1, two_levels=[False, True], propensity=propensity)
    return SelectionFacts(domain, actions, overlap, n=1500)


def test_ranges_are_those_of_the_design() -> None:
    assert facts(0.4).propensity_range().tolist() == [[0.6, 0.6], [0.4, 0.4]]
    assert facts(STRATA).propensity_range().tolist() == [[0.4, 0.7], [0.3, 0.6]]
    assert facts("p").propensity_range().tolist() == [[pytest.approx(0.1), 0.9]] * 2
    assert facts(THIRDS, (0, 1, 2)).propensity_range().tolist() == [[pytest.approx(1 / 3)] * 2] * 3


def test_fixed_nuisances_take_it() -> None:
    middle = torch.full((2, 2), 0.5)
    for given in (0.4, STRATA, "p"):
        own = facts(given)
        fixed = FixedNuisances().fit(None, own)
        assert fixed.range_sensitivity == 2 * score_spread(own.domain, own.propensity_range(), middle)
    assert FixedNuisances().fit(None, facts(0.4)).public["propensity"] == [0.6, 0.4]
    assert FixedNuisances().fit(None, facts(STRATA)).public["propensity"] == "x1"
    assert FixedNuisances().fit(None, facts("p")).public["propensity"] == "p"
    three = FixedNuisances().fit(None, facts(THIRDS, (0, 1, 2)))
    assert three.range_sensitivity == FixedNuisances().fit(None, facts(None, (0, 1, 2))).range_sensitivity


def test_another_beside_it_is_refused() -> None:
    with pytest.raises(InputError, match=r"propensity = 0.3: the domain says propensity: 0.4; leave one of them out"):
        FixedNuisances(0.3).check(facts(0.4), None)
    FixedNuisances(0.4).check(facts(0.4), None)


def test_records_bring_their_own() -> None:
    records, own = (
        CausalData(torch.zeros(5, 2).double(), torch.zeros(5).double(), torch.zeros(5).double()).with_propensity(
            torch.linspace(0.1, 0.9, 5, dtype=torch.float64)
        ),
        facts("p"),
    )
    both = WithKnown(FixedNuisances().fit(None, own).nuisances, own.known)
    assert both.of(records)[:, 1].tolist() == records.propensity.tolist()
    assert both.propensity(records.x).tolist() == [[0.5, 0.5]] * 5
    by_strata = WithKnown(both.models, facts(STRATA).known)
    assert torch.equal(by_strata.propensity(records.x), by_strata.of(records.with_propensity(None)))


def test_numbers_of_arms() -> None:
    names, levels = ["x"], {}
    assert known_propensity([0.4, 0.6], names, levels, 0.1).bounds == (0.6, 0.6)
    assert known_propensity(THIRDS, names, levels, 0.1).bounds == (pytest.approx(1 / 3, abs=1e-15),) * 2
    for given, words in (
        ([0.5, 0.3, 0.3], "add up to 1.1"),
        ([0.05, 0.5, 0.45], "outside"),
        ([0.5], "one for each of the arms"),
    ):
        with pytest.raises(InputError, match=words):
            known_propensity(given, names, levels, 0.1)
    with pytest.raises(InputError, match="propensity tells of 3 arms; there are 2 actions"):
        FixedNuisances().check(facts(THIRDS), None)
    with pytest.raises(InputError, match=r"below overlap = 0\.35"):
        FixedNuisances().check(facts(STRATA, overlap=0.35), None)


def test_a_schema_has_as_many_numbers_as_arms() -> None:
    unit = {"low": 0, "high": 1}
    table = {"outcome": {"name": "y", **unit}, "covariates": {"x": unit}}
    three = {"treatment": {"name": "t", "categories": ["a", "b", "c"]}, **table}
    schema = TableSchema.from_dict(three | {"propensity": THIRDS})
    assert TableSchema.from_dict(schema.to_dict()) == schema
    with pytest.raises(InputError, match="propensity tells of 2 arms, and treatment 't' has 3"):
        TableSchema.from_dict(three | {"propensity": 0.3})
    with pytest.raises(InputError, match="propensity tells of 3 arms, and treatment 't' has 2"):
        TableSchema.from_dict({"treatment": "t", **table, "propensity": THIRDS})
