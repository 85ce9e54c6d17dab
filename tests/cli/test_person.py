"""Persons as the unit of privacy, from the command line to the card: all of a run names them and counts by them."""

import json

import numpy as np
import pandas as pd
import pytest

from torchdpcate.cli.main import main
from torchdpcate.privacy.budget import PrivacyBudget
from torchdpcate.privacy.ledger import Ledger
from torchdpcate.privacy.unit import PrivacyUnit
from torchdpcate.release.file import load_release
from torchdpcate.release.statement import claim_sentence
from torchdpcate.verify.file import verify_release

DOMAIN = """
treatment: treat
outcome: {name: y, low: 0, high: 10, better: higher}
covariates: {age: {low: 16, high: 60}}
propensity: 0.5
"""


@pytest.fixture
def words(tmp_path) -> list[str]:
    """Words of a run on visits of 400 persons, one to five each."""
    rng = np.random.default_rng(0)
    person = np.repeat(np.arange(400), rng.integers(1, 6, 400))
    n = len(person)
    frame = pd.DataFrame({"who": person, "treat": rng.integers(0, 2, n), "age": rng.integers(16, 61, n)})
    frame["y"] = rng.uniform(0, 9, n) + frame["treat"]
    frame.to_csv(tmp_path / "visits.csv", index=False)
    (tmp_path / "d.yaml").write_text(DOMAIN)
    return [f"data.path={tmp_path / 'visits.csv'}", "data=table", f"data.domain={tmp_path / 'd.yaml'}"]


@pytest.mark.parametrize(
    "choice",
    [
        ["task=average_effect"],
        pytest.param(["second_stage=linear"], marks=pytest.mark.slow),  # two blocks
        pytest.param(["task=owl", "weights=constant"], marks=pytest.mark.slow),
    ],
)
def test_everything_names_the_person_and_counts_by_them(words, tmp_path, capsys, choice) -> None:
    run, unit = tmp_path / "run", PrivacyUnit.person("who", 2)
    given = [*words, "data.person=who", "data.per_person=2", "privacy.epsilon=2", "force=true", f"run_dir={run}"]
    assert main(["train", *given, *choice]) == 0
    out, err = capsys.readouterr()
    assert "unit: person (who), 400 persons with 2 of the records each; by record epsilon = 1, delta" in out
    assert "independent" not in err  # intervals count k times the sampling
    path = run / "release" / "release.safetensors"
    privacy = load_release(path).privacy
    delta = 0.0 if "privacy.delta=0" in choice else 1e-5
    budget = unit.record_budget(PrivacyBudget(2.0, delta))
    ledger = Ledger.load(run / "curator" / "ledger.sqlite")
    assert ledger.unit == unit
    assert set(ledger.blocks.values()) == {budget}
    total = ledger.spent()["total"]
    assert (privacy.epsilon, privacy.delta) == unit.cost(total["epsilon"], total["delta"])
    assert 1.9 < privacy.epsilon <= 2.0
    assert 0 <= privacy.delta <= delta
    assert privacy.claim == claim_sentence(privacy.epsilon, privacy.delta, privacy.level, unit)
    assert privacy.claim.endswith("replace-one person")
    assert (privacy.n, privacy.protected) == (800, unit)
    assert any("by person with 2: " in text for _, text in verify_release(path))
    assert main(["report", str(path)]) == 0
    assert main(["verify", str(path)]) == 0
    assert "persons: 400" in capsys.readouterr().out
    card = (path.parent / "release.html").read_text()
    assert '<tr><th scope="row">Persons</th><td>400</td></tr>' in card
    assert "a given person as with any other person in their place" in card
    summary = json.loads((run / "curator" / "summary.json").read_text())
    assert summary["unit"] == {"column": "who", "records": 2}
    assert summary["spent"]["total"]["epsilon"] == privacy.epsilon


@pytest.mark.first(1)
@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["data.per_person=2"], "data.per_person: whose a record is must be known"),
        (["data.person=who", "data.per_person=0"], "data.per_person = 0: give a positive integer"),
        (["data.person=age"], "data.person = age: names persons by treatment, outcome or columns of the domain alone"),
        (["data.person=whom"], "column 'whom' is missing"),
        (["data.person=who", "data.stream=true"], "a stream does not bring a person's records together"),
    ],
)
def test_mistakes_end_in_one_line(words, tmp_path, capsys, more, message) -> None:
    assert main(["train", *words, *more, "task=average_effect", f"run_dir={tmp_path / 'run'}"]) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_plan_counts_by_the_person(words, tmp_path, capsys) -> None:
    given = [*words, "data.person=who", "data.per_person=4", "task=average_effect", f"run_dir={tmp_path / 'p'}"]
    assert main(["plan", *given, "n=8000"]) == 0
    assert "2,000 persons" in " ".join(capsys.readouterr().out.replace("│", " ").split())
    plan = json.loads((tmp_path / "p" / "plan.json").read_text())
    assert (plan["epsilon"], plan["delta"], plan["unit"]) == (1.0, 1e-5, {"column": "who", "records": 4})
    assert (
        main(["plan", *given[:3], "task=average_effect", "n=80000", "privacy.epsilon=0.25", "privacy.delta=1.65e-6"])
        == 0
    )
    assert main(["plan", *given[:-1], "n=metadata"]) == 2
    assert "counts rows, and not the persons" in capsys.readouterr().err
