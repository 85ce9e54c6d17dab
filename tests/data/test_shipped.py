import pandas as pd
import pytest
from hydra import compose, initialize_config_dir

from torchdpcate import registry
from torchdpcate.cli.task import data_source
from torchdpcate.data.schema import TableSchema
from torchdpcate.data.study import StudySource


def compose_data(name: str, *overrides: str) -> StudySource:
    root = ["+seed=3", "+queries={path: null, count: 25}"]
    with initialize_config_dir(str(registry.conf_dir()), version_base="1.3"):
        return data_source(compose(overrides=[f"+data={name}", *root, *overrides]))


def test_table_from_yaml(tmp_path, frame, domain_file) -> None:
    frame.to_csv(tmp_path / "t.csv", index=False)
    paths = f"data.path=[{tmp_path / 't.csv'},{tmp_path / 't.csv'}]"
    study = compose_data("table", paths, f"data.domain={domain_file}", "data.n=30").load()
    assert study.records.n == 30
    assert study.queries.shape == (25, 5)
    inline = "data.domain={treatment: treat, outcome: {name: y, low: 0, high: 10}, "
    inline += "covariates: {age: {low: 16, high: 60}}}"
    assert compose_data("table", paths, inline).load().records.x.shape == (80, 1)


@pytest.mark.parametrize(
    ("overrides", "n"),
    [
        (["data.path={acic2016/x.csv}", "data.domain=acic2016", "data.n=3000"], 2700),
        (["data.path={twins/Twin_data.csv}", "data.domain=twins"], 10260),
    ],
)
def test_semi_synthetic_from_yaml(shared_data, overrides: list[str], n: int) -> None:
    filled = [text.replace("{", f"{shared_data}/").replace("}", "") for text in overrides]
    study = compose_data("semi_synthetic", *filled).load()
    assert study.records.n == n
    assert study.effect.shape == (25,)


def test_the_e_mail_trial_of_two_arms(shared_data, tmp_path) -> None:
    everything = pd.read_csv(shared_data / "hillstrom" / "hillstrom.csv.gz")
    everything[everything["segment"] != "Mens E-Mail"].to_csv(tmp_path / "womens.csv", index=False)
    study = compose_data("table", f"data.path={tmp_path / 'womens.csv'}", "data.domain=hillstrom_womens").load()
    records = study.records
    known, treated = study.domain.known_propensity, records.a == 1
    assert known is not None
    assert (records.n, known.bounds, study.domain.outcome_kind) == (42_693, (0.5, 0.5), "binary")
    bought = records.x[:, study.domain.names.index("womens")] == 1
    for among, effect in ((~bought, 0.0111), (bought, 0.0731)):  # as docs/runs.md has them
        found = records.y[among & treated].mean() - records.y[among & ~treated].mean()
        assert found.item() == pytest.approx(effect, abs=5e-5)


def test_conf_is_found_in_a_checkout_and_in_a_wheel(tmp_path, monkeypatch) -> None:
    checkout = registry.conf_dir()
    assert (checkout / "domain" / "lalonde.yaml").is_file()
    package = tmp_path / "torchdpcate"
    monkeypatch.setattr(registry, "_PACKAGE", package)
    with pytest.raises(FileNotFoundError):
        registry.conf_dir()
    (tmp_path / "conf").mkdir()
    assert registry.conf_dir() == tmp_path / "conf"
    (package / "conf").mkdir(parents=True)
    assert registry.conf_dir() == package / "conf"


@pytest.mark.parametrize("path", sorted((registry.conf_dir() / "domain").glob("*.yaml")), ids=lambda path: path.stem)
def test_a_shipped_domain_of_outcomes_of_0_and_1_says_their_kind(path):
    """Without it a table of the user's own, as of twins, is refused."""
    schema = TableSchema.from_yaml(path.stem)
    domain = schema.domain
    assert schema.kind_said or (domain.outcome_low, domain.outcome_high) != (0.0, 1.0)
