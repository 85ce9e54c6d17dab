"""The task ``policy_selection`` as users run it: runs, reports, decisions, audits, and one line for each mistake."""

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
import yaml

from tests.cli.helpers import TABLE as PEOPLE
from tests.cli.helpers import checked, released, summary, table
from torchdpcate.candidates.library import PolicyLibrary, threshold_grid
from torchdpcate.cli.derived import leaks
from torchdpcate.cli.main import main
from torchdpcate.papers.rules import OWL
from torchdpcate.privacy.selection_mechanisms import exponential_law
from torchdpcate.release.file import load_release

SHARED = Path(__file__).parents[2].parent / "shared" / "data"
HILLSTROM = SHARED / "hillstrom" / "hillstrom.csv.gz"
SMALL = ["task=policy_selection", "data.n=2000", "queries.count=60", "privacy.epsilon=4", "privacy.delta=0"]
RUNS = {
    "composed": ["privacy.delta=1e-5"],
    "pure": [],
    "known": ["data=owl"],
    "arms": ["policies=constants"],
}
POLICIES = [
    {"kind": "constants", "actions": [0, 1]},
    {"kind": "thresholds", "covariate": "dose", "cuts": [0.25, 0.5, 0.75]},
    {"kind": "linear", "coefficients": [[0.02, 1.0]], "intercepts": [-1.1], "covariates": ["age", "dose"]},
]


@pytest.fixture
def trained(finished):
    """Folders of runs on generated data."""
    return lambda name: finished(*SMALL, *RUNS[name])


@pytest.mark.first(1)
@pytest.mark.parametrize("name", RUNS)
def test_every_certificate_trains_verifies_and_leaks_nothing(name, trained, capsys):
    checked(trained(name), "policies.csv", "policies.png")
    found = summary(trained(name))
    assert found["release"] == "policy"
    assert found["level"] == "certified"
    assert found["epsilon"] == pytest.approx(4, rel=1e-4)
    assert found["delta"] == (1e-5 if name == "composed" else 0)
    assert set(found["blocks"]) == {"scoring"}
    capsys.readouterr()
    assert main(["verify", str(released(trained(name)))]) == 0
    assert f"policy: {found['policy']}" in capsys.readouterr().out


@pytest.mark.slow
def test_a_summary_tells_values_and_regrets_of_the_file(trained):
    folder = trained("known")
    found, release = summary(folder), load_release(folder / "release" / "release.safetensors")
    study = OWL(n=2000, queries=60).load()
    library = PolicyLibrary.of(threshold_grid(study.schema)).setup(study.domain, (0, 1))
    effect = study.truth(study.records.x)
    gains = (effect[:, None] * library.decide(study.records.x)).mean(0)
    assert found["policy"] == release.name in library.names
    released = (effect * torch.from_numpy(release.decide(study.records.x.numpy()))).mean()
    assert found["regret"] == pytest.approx(float(gains.max() - released))
    assert found["regret_uniform"] == pytest.approx(float(gains.max() - gains.mean()))
    table = pd.read_csv(folder / "curator" / "policies.csv")
    assert table["policy"].tolist() == list(library.names)
    np.testing.assert_allclose(table["regret"], gains.max() - gains, atol=1e-12)
    assert table["probability"].sum() == pytest.approx(1)
    assert found["regret_expected"] == pytest.approx(table["probability"] @ table["regret"])
    assert found["regret_nonprivate"] == pytest.approx(table["regret"][table["utility"].argmax()])
    middle = study.domain.outcome_middle  # utilities are sums of outcomes less it
    assert found["value_nonprivate"] == pytest.approx(middle + table["utility"].max() / found["blocks"]["scoring"])
    assert found["estimated_regret"] == pytest.approx(found["value_nonprivate"] - found["value_expected"])
    assert 0 <= found["regret_nonprivate"] < found["regret_uniform"]
    assert found["regret_expected"] < found["regret_uniform"]
    names = ("task", "learner", "mechanism", "nuisance_guarantee", "policies", "n")
    assert [found[name] for name in names] == [
        "policy_selection", "PolicySelector", "permute_and_flip", "centred", "thresholds", 1800,
    ]  # fmt: skip


@pytest.mark.slow
def test_the_law_of_the_choice_is_the_mechanisms(trained):
    """Permute-and-flip is the largest of utilities plus exponential noise, by the scoring block's epsilon."""
    folder = trained("known")
    table, found = pd.read_csv(folder / "curator" / "policies.csv"), summary(folder)
    epsilon = load_release(released(folder)).privacy.public["choice_epsilon"]
    assert 3.5 < epsilon < 4  # the centre has the rest
    gaps = torch.tensor(epsilon * (table["utility"].max() - table["utility"]).to_numpy() / found["spread"])
    np.testing.assert_allclose(table["probability"], exponential_law(gaps), rtol=1e-6)
    assert found["blocks"] == {"scoring": 1800}


@pytest.mark.slow
def test_a_sweep_is_reported_by_regret_and_value(tmp_path, capsys):
    folder = tmp_path / "sweep"
    words = ["task=policy_selection", "data.n=1000", "queries.count=40", "privacy.delta=0"]
    varied = ["data=rare_region,owl", "privacy.epsilon=1,8"]
    assert main(["train", "-m", *words, *varied, f"run_dir={folder}"]) == 0
    assert main(["report", str(folder)]) == 0
    page = (folder / "curator" / "report.html").read_text()
    for heading in ("Regret against budget", "Value against budget", "Choices of a policy side by side"):
        assert heading in page
    runs = [summary(folder / str(i)) for i in range(4)]
    for run in runs:
        assert f"{run['regret_expected']:.3g}" in page
    figures = {path.name for path in folder.glob("curator/*.png")}
    assert figures == {"regret_expected_against_budget.png", "value_expected_against_budget.png"}
    assert not list(folder.glob("*.png"))
    assert pd.read_csv(folder / "curator" / "report.csv")["nuisance_guarantee"].tolist() == [
        "centred",
        "centred",
        "composed",
        "composed",
    ]
    statements = [json.loads(path.read_text()) for path in sorted(folder.glob("[0-9]/release/privacy.json"))]
    assert [statement["tuning"]["text"][:7] for statement in statements] == ["run 0 (", "run 1 (", "run 2 (", "run 3 ("]


@pytest.mark.slow
@pytest.mark.skipif(not HILLSTROM.is_file(), reason=f"{HILLSTROM} is not there")
def test_the_trial_of_three_arms_chooses_among_e_mails(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    words = ["task=policy_selection", f"data.path={HILLSTROM}", "data.domain=hillstrom", "privacy.epsilon=2"]
    words += ["privacy.delta=0"]
    assert main(["train", *words, "policies=constants", "run_dir=r"]) == 0
    found = summary("r")
    assert found["n"] == 64_000
    assert "regret" not in found
    # the second e-mail brings 0.183 visits a customer, the others 0.106 and 0.151: noise of 1.5 in a sum of 64,000
    assert found["policy"] == "always 2"
    assert found["value"] == pytest.approx(0.18276, abs=0.005)
    frame = pd.read_csv(HILLSTROM).head(50)
    assert set(load_release("r/release/release.safetensors").decide(frame)) == {2}
    assert leaks("r") == ()
    assert main(["train", *words, "data.n=3000", "run_dir=s"]) == 0
    assert summary("s")["policy"].count(":") == 1
    release = load_release("s/release/release.safetensors")
    assert set(release.decide(frame)) <= {1, 2, 3}
    assert leaks("s") == ()


TABLE = ["task=policy_selection", *PEOPLE, "policies.path=policies.yaml"]


@pytest.fixture
def listed(here):
    Path("policies.yaml").write_text(yaml.safe_dump(POLICIES))


@pytest.mark.slow
@pytest.mark.usefixtures("listed")
def test_a_table_and_a_list_of_policies_become_decisions():
    assert main(["train", *TABLE, "privacy.epsilon=20", "run_dir=r"]) == 0
    found = summary("r")
    assert (found["policies"], found["policy"]) == ("policies.yaml", "dose > 0.5")
    assert "regret" not in found
    assert main(["predict", "r/release/release.safetensors", "people.csv", "-o", "decisions.csv"]) == 0
    decision = pd.read_csv("decisions.csv")["decision"]
    assert decision.tolist() == (table()["dose"] > 0.5).astype(int).tolist()
    assert leaks("r") == ()
