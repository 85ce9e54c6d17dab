"""Families of laws like a hospital's tables: sizes, truth, and seeds that tables do not share with tuning."""

import pytest

from experiments.defaults.hospital_laws import FAMILIES, REPORTED, TUNING, hospital_case, hospital_law


@pytest.mark.parametrize("family", FAMILIES)
def test_a_case_has_its_records_and_its_truth(family):
    case = hospital_case(family, 3, 400)
    assert (case.records.n, len(case.queries), len(case.truth)) == (400, 3_000, 3_000)
    case.schema.domain.check_covariates(case.records.x)
    case.schema.domain.check_outcome(case.records.y)
    average = hospital_law(family, 3).average_effect("ATE")
    assert abs(float(case.truth.mean()) - average) < 6.0 * float(case.truth.std()) / 3_000**0.5
    assert (case.schema.domain.known_propensity is not None) == ("trial" in family)
    assert (case.schema.domain.outcome_kind == "binary") == (family == "trial_death")


def test_no_law_of_a_table_is_tuned_by():
    assert not set(TUNING) & set(REPORTED)
