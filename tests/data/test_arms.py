import json

import numpy as np
import pandas as pd
import pytest
import torch

from tests.registered import DRLearner, OutcomeWeightedLearner, RLearner, SubgroupEffects
from torchdpcate import LinearSecondStage, PrivacyBudget
from torchdpcate.data.domain import Domain
from torchdpcate.data.records import CausalData
from torchdpcate.data.schema import TableSchema
from torchdpcate.data.table import Table
from torchdpcate.errors import InputError

FACTS = {
    "treatment": {"name": "segment", "categories": ["none", "men", "women"]},
    "outcome": {"name": "visit", "low": 0, "high": 1, "better": "higher"},
    "covariates": {"age": {"low": 0, "high": 90}},
    "overlap": 0.3,
}
TWO = FACTS | {"treatment": {"name": "segment", "categories": ["none", "men"]}}
NUMBERS = FACTS | {"treatment": {"name": "segment", "categories": [0, 2, 1]}}


def table(path, segments):
    frame = pd.DataFrame({"segment": segments, "visit": 0.5, "age": np.arange(len(segments))})
    frame.to_csv(path, index=False)
    return path


def test_labels_of_arms():
    three, two = TableSchema.from_dict(FACTS), TableSchema.from_dict(TWO)
    assert (three.treatment, three.arms, three.actions) == ("segment", ("none", "men", "women"), (1, 2, 3))
    assert (two.actions, TableSchema.from_dict(FACTS | {"treatment": "segment"}).actions) == ((0, 1), (0, 1))
    assert TableSchema.from_domain(Domain([0], [1], 0, 1, better="higher")).actions == (0, 1)
    # whole numbers in increasing order are their own labels; others would be taken for one another
    assert TableSchema.from_dict(FACTS | {"treatment": {"name": "t", "categories": [0, 1, 4]}}).actions == (0, 1, 4)
    assert TableSchema.from_dict(NUMBERS).actions == (1, 2, 3)
    for schema in (three, two, TableSchema.from_dict(NUMBERS)):
        assert TableSchema.from_dict(json.loads(json.dumps(schema.to_dict()))) == schema
        assert schema.with_outcome_bounds(0, 2).arms == schema.arms
    assert three != two


@pytest.mark.parametrize("ending", ["csv", "parquet"])
def test_tables_with_arms(tmp_path, ending):
    path = table(tmp_path / "t.csv", ["women", "none", "men", "none"])
    if ending == "parquet":
        pd.read_csv(path).to_parquet(path.with_suffix(".parquet"))
    records = Table(path.with_suffix(f".{ending}"), FACTS).load().records
    assert records.a.tolist() == [3, 1, 2, 1]
    assert records.a.dtype == torch.float64
    own = FACTS | {"treatment": {"name": "segment", "categories": [0, 1, 4]}}
    assert Table(table(tmp_path / "w.csv", [4, 0, 1, 4]), own).load().records.a.tolist() == [4, 0, 1, 4]
    assert Table(table(tmp_path / "u.csv", ["men", "none", "none"]), TWO).load().records.a.tolist() == [1, 0, 0]
    words = FACTS | {"treatment": {"name": "segment", "categories": ["0", "1", "01"]}}
    assert Table(table(tmp_path / "w.csv", ["01", "0", "1"]), words).load().records.a.tolist() == [3, 1, 2]
    assert Table(table(tmp_path / "v.csv", [1, 0, 2]), NUMBERS).load().records.a.tolist() == [3, 1, 2]


@pytest.mark.parametrize(
    ("segments", "words"),
    [
        (["women", "child", "men", "none"], "column 'segment' has 1 value outside its declared categories"),
        (["women", None, "men", "none"], "column 'segment' has 1 missing value"),
        (["women", "none"], "treatment column 'segment' has no record with value 2; all arms, 1, 2 and 3, are needed"),
    ],
)
def test_tables_whose_arms_are_not_as_declared(tmp_path, segments, words):
    with pytest.raises(InputError, match=words):
        Table(table(tmp_path / "t.csv", segments), FACTS).load()


def test_arrays_with_arms():
    x, y = [[0.0]] * 4, [0.0] * 4
    assert CausalData.from_arrays(x, [1, 3, 2, 1], y, actions=(1, 2, 3)).a.tolist() == [1, 3, 2, 1]
    with pytest.raises(InputError, match="treatment has 2 values other than 1, 2 and 3; code the arms as 1, 2 and 3"):
        CausalData.from_arrays(x, [0, 1, 2, 4], y, actions=(1, 2, 3))
    with pytest.raises(InputError, match="treatment has no record with value 3; all arms, 1, 2 and 3, are needed"):
        CausalData.from_arrays(x, [1, 1, 2, 2], y, actions=(1, 2, 3))
    with pytest.raises(InputError, match="treatment has 2 values other than 0 and 1; code the arms as 0 and 1"):
        CausalData.from_arrays(x, [0, 1, 2, 3], y)
    with pytest.raises(InputError, match="treatment has no record with value 0; both arms, 0 and 1, are needed"):
        CausalData.from_arrays(x, [1, 1, 1, 1], y)


@pytest.mark.parametrize("learner", [RLearner, DRLearner, OutcomeWeightedLearner])
def test_learners_of_effects_and_rules_refuse_more_than_two_arms(learner):
    settings = {} if learner is OutcomeWeightedLearner else {"second_stage": LinearSecondStage()}
    fitted = learner(TableSchema.from_dict(FACTS), PrivacyBudget(1.0, 1e-5), **settings)
    words = f"treatment 'segment' has 3 arms, and .*{learner.__name__}.? compares two; .* .PolicySelector"
    with pytest.raises(InputError, match=words):
        fitted.fit([[1.0]] * 9, [1, 2, 3] * 3, [0.0] * 9)
    with pytest.raises(InputError, match=words):
        fitted.check(*[9, "objective"] if learner is not OutcomeWeightedLearner else [9])


ORDERED = FACTS | {
    "treatment": {"name": "segment", "categories": ["men", "women", "none"], "reference": "none"},
    "propensity": [0.3, 0.3, 0.4],
}


def test_the_reference_is_the_first_arm_and_propensities_follow():
    schema = TableSchema.from_dict(ORDERED)
    assert schema == TableSchema.from_dict(
        FACTS
        | {"propensity": [0.4, 0.3, 0.3], "treatment": {"name": "segment", "categories": ["none", "men", "women"]}}
    )
    assert (schema.reference, schema.compared) == ("none", ("men", "women"))
    assert TableSchema.from_dict(json.loads(json.dumps(schema.to_dict()))) == schema
    two = {"name": "segment", "categories": ["none", "men"]}
    assert TableSchema.from_dict(TWO).compared == ()
    assert TableSchema.from_dict(TWO | {"treatment": two | {"reference": "none"}}) == TableSchema.from_dict(TWO)
    swapped = TableSchema.from_dict(TWO | {"treatment": two | {"reference": "men"}, "propensity": [0.4, 0.6]})
    assert (swapped.arms, swapped.domain.known_propensity.values) == (("men", "none"), (0.4,))


@pytest.mark.slow
def test_the_e_mail_trial_has_its_two_effects(shared_data):
    """Visits of 10.617 % without an e-mail, 18.276 % by the men's and 15.140 % by the women's (Hillstrom 2008)."""
    study = Table(shared_data / "hillstrom" / "hillstrom.csv.gz", "hillstrom").load()
    learner = SubgroupEffects(study.schema, PrivacyBudget(1.0, 1e-5), subgroups="everybody")
    release = learner.fit(study.records.x, study.records.a, study.records.y).release()
    assert [*release.named.titles] == ["a men's e-mail instead of no e-mail", "a women's e-mail instead of no e-mail"]
    assert release.estimate == pytest.approx(np.array([0.07659, 0.04523]), abs=0.003)
    low, high = release.interval().T
    truth = np.array([0.07659, 0.04523])
    assert ((low < truth) & (high > truth)).all()
