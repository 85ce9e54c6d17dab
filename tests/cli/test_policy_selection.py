"""The task ``policy_selection`` as users run it: runs, reports, decisions, audits, and one line for each mistake."""

import json
import re
import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
import yaml
from safetensors.torch import load_file

from tests.cli.test_cli import one_line
from torchdpcate.audit.leak.scan import FALSE_ALARM, scan
from torchdpcate.candidates.library import PolicyLibrary, threshold_grid
from torchdpcate.cli.main import main
from torchdpcate.papers.rare_region import RareRegion
from torchdpcate.release.file import load_release

SHARED = Path(__file__).parents[2].parent / "shared" / "data"
HILLSTROM, ACIC = SHARED / "hillstrom" / "hillstrom.csv.gz", SHARED / "acic2016" / "x.csv"
SMALL = ["task=policy_selection", "data.n=2000", "queries.count=60", "privacy.epsilon=4", "privacy.delta=0"]
RUNS = {
    "composed": ["privacy.delta=1e-5"],
    "pure": [],
    "stable": ["nuisance_guarantee=stability"],
    "exponential": ["mechanism=exponential", "selection.split=0.4", "nuisance_guarantee=stability"],
    "noisy max": ["mechanism=report_noisy_max", "nuisance_guarantee=stability", "nuisance_guarantee.constants=paper"],
    "fixed": ["nuisance_guarantee=fixed"],
    "frozen": [
        "nuisance_guarantee=frozen",
        "nuisance_guarantee.propensity=tests.cli.test_policy_selection:half",
        "nuisance_guarantee.outcome=tests.cli.test_policy_selection:middle",
    ],
    "private": [
        "nuisance_guarantee=private_nuisances",
        "nuisance=linear",
        "nuisance.batch_size=50",
        "nuisance.epochs=1",
        "trainer.progress=false",
        "privacy.delta=1e-5",
    ],
    "arms": ["policies=constants", "nuisance_guarantee=fixed"],
    "public target": ["nuisance_guarantee=stability", "nuisance_guarantee.target={propensity:0.5,outcome:[0.38,0.33]}"],
}
DOMAIN = {
    "treatment": "treat",
    "outcome": {"name": "pay", "low": 0, "high": 10},
    "covariates": {"age": {"low": 16, "high": 60}, "dose": {"low": 0, "high": 1}, "site": {"categories": list("abc")}},
    "overlap": 0.2,
}
POLICIES = [
    {"kind": "constants", "actions": [0, 1]},
    {"kind": "thresholds", "covariate": "dose", "cuts": [0.25, 0.5, 0.75]},
    {"kind": "linear", "coefficients": [[0.02, 1.0]], "intercepts": [-1.1], "covariates": ["age", "dose"]},
]


def half(x: np.ndarray) -> np.ndarray:
    """Propensity of another study."""
    return np.full((len(x), 2), 0.5)


def middle(x: np.ndarray) -> np.ndarray:
    """Outcome models of another study."""
    return np.stack([np.full(len(x), 0.38), np.full(len(x), 0.35)], axis=1)


def summary(folder) -> dict:
    return json.loads((Path(folder) / "summary.json").read_text())


@pytest.fixture
def trained(finished):
    """Folders of runs on generated data."""
    return lambda name: finished(*SMALL, *RUNS[name])


@pytest.mark.first(1)
@pytest.mark.parametrize("name", RUNS)
def test_every_certificate_trains_verifies_and_leaks_nothing(name, trained):
    folder = trained(name)
    written = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
    assert {path for path in written if path.startswith("release/")} == {
        "release/release.safetensors",
        "release/privacy.json",
        "release/privacy.md",
        "release/SHA256SUMS",
    }
    kept = ("config.yaml", "fit.json", "numbers.safetensors", "ledger.json", "policies.csv", "policies.png", "plan.txt")
    assert {f"curator/{file}" for file in kept} < written
    assert main(["verify", str(folder / "release" / "release.safetensors")]) == 0
    found = summary(folder)
    assert found["release"] == "policy"
    assert found["level"] == ("conditional" if name == "frozen" else "certified")
    assert found["epsilon"] == pytest.approx(4, rel=1e-4)
    assert found["delta"] == (1e-5 if name in ("private", "composed") else 0)
    assert set(found["blocks"]) == (
        {"scoring"} if name in ("composed", "pure", "fixed", "frozen", "arms") else {"nuisance", "scoring"}
    )
    report = scan(folder)
    assert report.leaks == ()
    assert report.notes == ()
    assert sum(next(row for row in report.comparisons if "names" in row.against).expected) < FALSE_ALARM


def test_a_summary_tells_values_and_regrets_of_the_file(trained):
    folder = trained("stable")
    found, release = summary(folder), load_release(folder / "release" / "release.safetensors")
    study = RareRegion(n=2000, queries=60).load()
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
    # what is best by the scores need not be best: fits shrunk to their target see little of a rare region
    assert 0 <= found["regret_nonprivate"] < found["regret_uniform"]
    assert found["regret_expected"] < found["regret_uniform"] < 0.05
    names = ("task", "learner", "mechanism", "nuisance_guarantee", "policies", "nuisance", "n")
    assert [found[name] for name in names] == [
        "policy_selection", "PolicySelector", "permute_and_flip", "stability", "thresholds", None, 1800,
    ]  # fmt: skip


@pytest.mark.slow
def test_the_law_of_the_choice_is_the_mechanisms(trained):
    """The exponential mechanism's chances are exp(epsilon U / spread), normalised, by the scoring block's epsilon."""
    folder = trained("exponential")
    table, found = pd.read_csv(folder / "curator" / "policies.csv"), summary(folder)
    weights = np.exp(4 * (table["utility"] - table["utility"].max()) / found["spread"])
    np.testing.assert_allclose(table["probability"], weights / weights.sum(), rtol=1e-6)
    assert found["blocks"] == {"nuisance": 720, "scoring": 1080}
    facts = json.loads((folder / "curator" / "fit.json").read_text())
    assert facts["spread"] == found["spread"]
    numbers = load_file(folder / "curator" / "numbers.safetensors")
    assert {"utility", "probability", "propensity_at_queries", "arm.treated"} <= set(numbers)
    assert "public.outcome_at_queries" in load_file(trained("private") / "curator" / "numbers.safetensors")


@pytest.mark.slow
def test_certificates_spend_where_they_must(trained):
    spent = {name: summary(trained(name))["spent"] for name in ("stable", "private")}
    for name in ("stable", "private"):  # a tenth of the training block's pays for the target of the stable ones
        assert {block: spent[name][block]["epsilon"] for block in ("nuisance", "scoring")} == {
            "nuisance": pytest.approx(4, rel=1e-4),
            "scoring": pytest.approx(4, rel=1e-4),
        }
    assert spent["private"]["scoring"]["delta"] == 0
    assert summary(trained("private"))["nuisance"] == "linear"
    # fixed halves have S = 1; learned nuisances have indirect sensitivity besides, wider by the paper's constants
    assert summary(trained("fixed"))["spread"] == pytest.approx(2, rel=1e-6)
    assert summary(trained("noisy max"))["spread"] > summary(trained("stable"))["spread"] > 2


@pytest.mark.slow
def test_the_curator_keeps_only_settings_in_use(trained):
    config = yaml.safe_load((trained("stable") / "curator" / "config.yaml").read_text())
    assert {"policies", "nuisance_guarantee", "selection", "mechanism", "data", "privacy"} <= set(config)
    assert not {"nuisance", "learner", "second_stage", "rule", "weights", "trainer"} & set(config)
    assert "nuisance" in yaml.safe_load((trained("private") / "curator" / "config.yaml").read_text())


def test_a_utility_in_the_release_is_found(trained, tmp_path):
    folder = Path(shutil.copytree(trained("stable"), tmp_path / "r"))
    utility = load_file(folder / "curator" / "numbers.safetensors")["utility"][3].item()
    (folder / "release" / "note.md").write_text(f"the fourth came to {utility!r}\n")
    assert "utility" in " ".join(leak.what for leak in scan(folder).leaks)


def test_predict_writes_decisions(trained, tmp_path, capsys):
    path = trained("stable") / "release" / "release.safetensors"
    release = load_release(path)
    frame = pd.DataFrame(release.domain.grid(50).numpy(), columns=list(release.schema.columns))
    frame.to_csv(tmp_path / "in.csv", index=False)
    assert main(["predict", str(path), str(tmp_path / "in.csv"), "-o", str(tmp_path / "out.parquet")]) == 0
    assert "50 decisions (certified) written to" in capsys.readouterr().out
    written = pd.read_parquet(tmp_path / "out.parquet")
    assert list(written) == ["decision"]
    assert written["decision"].dtype == np.int64
    np.testing.assert_array_equal(written["decision"], release.decide(frame))


def test_inspect_and_card_of_a_policy(trained, tmp_path, capsys):
    path = str(trained("stable") / "release" / "release.safetensors")
    name = load_release(path).name
    assert main(["inspect", path]) == 0
    assert f"policy: {name}" in capsys.readouterr().out
    assert main(["inspect", path, "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert (shown["kind"], shown["policy"]) == ("policy", name)
    assert main(["inspect", path, "--card", "-o", str(tmp_path)]) == 0
    assert json.loads((tmp_path / "card.json").read_text())["guarantee"]["level"] == "certified"


@pytest.mark.slow
def test_a_sweep_is_reported_by_regret_and_value(tmp_path, capsys):
    folder = tmp_path / "sweep"
    words = ["task=policy_selection", "data.n=1000", "queries.count=40", "privacy.delta=0"]
    varied = ["nuisance_guarantee=stability,fixed", "privacy.epsilon=1,8"]
    assert main(["train", "-m", *words, *varied, f"run_dir={folder}"]) == 0
    assert main(["report", str(folder)]) == 0
    page = (folder / "curator" / "report.md").read_text()
    assert re.findall(r"^# (.*)", page, re.M) == [
        "Regret of the choice against budget",
        "Value of the choice against budget",
        "Choices of a policy side by side",
    ]
    rows = {
        line.split(" | ")[2]: line.split(" | ")[3:] for line in page.split("# Value")[0].splitlines() if "|" in line
    }
    runs = [summary(folder / str(i)) for i in range(4)]
    # Hydra counts the last word fastest
    stable = [f"{run['regret_expected']:.3g}" for run in runs if run["nuisance_guarantee"] == "stability"]
    assert [cell.strip(" |") for cell in rows["permute_and_flip stability"]] == stable
    assert "uniform choice" in rows
    figures = {path.name for path in folder.glob("curator/*.png")}
    assert figures == {"regret_against_budget.png", "choice_against_budget.png"}
    assert not list(folder.glob("*.png"))
    assert pd.read_csv(folder / "curator" / "report.csv")["nuisance_guarantee"].tolist() == [
        "fixed",
        "fixed",
        "stability",
        "stability",
    ]
    statements = [json.loads(path.read_text()) for path in sorted(folder.glob("[0-9]/release/privacy.json"))]
    assert [statement["tuning"]["text"][:7] for statement in statements] == ["run 0 (", "run 1 (", "run 2 (", "run 3 ("]


@pytest.mark.slow
@pytest.mark.skipif(not HILLSTROM.is_file(), reason=f"{HILLSTROM} is not there")
def test_the_trial_of_three_arms_chooses_among_e_mails(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    words = ["experiment=hillstrom_policy", f"data.path={HILLSTROM}", "privacy.epsilon=2", "privacy.delta=0"]
    assert main(["train", *words, "policies=constants", "run_dir=r"]) == 0
    found = summary("r")
    assert found["n"] == 64_000
    assert "regret" not in found
    # the second e-mail brings 0.183 visits a customer, the others 0.106 and 0.151: noise of 1.5 in a sum of 64,000
    assert found["policy"] == "always 2"
    assert found["value"] == pytest.approx(0.18276, abs=0.005)
    frame = pd.read_csv(HILLSTROM).head(50)
    assert set(load_release("r/release/release.safetensors").decide(frame)) == {2}
    assert scan("r").leaks == ()
    assert (
        main(["train", *words, "data.n=3000", "policies.shares=[0.5]", "nuisance_guarantee=stability", "run_dir=s"])
        == 0
    )
    assert summary("s")["policy"].count(":") == 1
    release = load_release("s/release/release.safetensors")
    assert set(release.decide(frame)) <= {1, 2, 3}
    assert scan("s").leaks == ()


@pytest.mark.slow
@pytest.mark.skipif(not ACIC.is_file(), reason=f"{ACIC} is not there")
def test_real_covariates_with_a_rare_region(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["train", *SMALL, "data=acic_rare", f"data.path={ACIC}", "run_dir=r"]) == 0
    found = summary("r")
    assert found["data"] == "x_rare_region"
    assert 0.025 < found["regret_uniform"] < 0.036
    assert scan("r").leaks == ()
    assert main(["predict", "r/release/release.safetensors", str(ACIC), "-o", "decisions.csv"]) == 0
    assert len(pd.read_csv("decisions.csv")) == 4802


def table(n: int = 400) -> pd.DataFrame:
    rng = np.random.default_rng(0)
    treat, age, dose = rng.integers(0, 2, n), rng.integers(16, 61, n), rng.uniform(0, 1, n)
    frame = pd.DataFrame({"treat": treat, "age": age, "dose": dose, "site": rng.choice(list("abc"), n)})
    return frame.assign(pay=np.clip(5 + (2 * treat - 1) * (4 * dose - 2) + rng.normal(0, 1, n), 0, 10))


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    table().to_csv("people.csv", index=False)
    Path("domain.yaml").write_text(yaml.safe_dump(DOMAIN))
    Path("policies.yaml").write_text(yaml.safe_dump(POLICIES))
    return tmp_path


TABLE = ["task=policy_selection", "data=table", "data.path=people.csv", "data.domain=domain.yaml"]


@pytest.mark.slow
def test_a_table_and_a_list_of_policies_become_decisions(here):
    words = [*TABLE, "policies.path=policies.yaml", "nuisance_guarantee=fixed", "privacy.epsilon=20"]
    assert main(["train", *words, "run_dir=r"]) == 0
    found = summary("r")
    assert (found["policies"], found["policy"]) == ("policies.yaml", "dose > 0.5")
    assert "regret" not in found
    assert main(["predict", "r/release/release.safetensors", "people.csv", "-o", "decisions.csv"]) == 0
    decision = pd.read_csv("decisions.csv")["decision"]
    assert decision.tolist() == (table()["dose"] > 0.5).astype(int).tolist()
    report = scan("r")
    assert (report.leaks, report.notes) == ((), ())


@pytest.mark.slow
def test_the_propensity_may_be_a_column(here):
    table().assign(chance=lambda f: np.where(f["site"] == "a", 0.25, 0.5)).to_csv("people.csv", index=False)
    domain = DOMAIN | {"covariates": DOMAIN["covariates"] | {"chance": {"low": 0.2, "high": 0.8}}}
    Path("domain.yaml").write_text(yaml.safe_dump(domain))
    words = [*TABLE, "policies.path=policies.yaml", "nuisance_guarantee=fixed", "nuisance_guarantee.propensity=chance"]
    assert main(["train", *words, "privacy.epsilon=20", "run_dir=r"]) == 0
    assert summary("r")["level"] == "certified"


def test_a_fixed_noise_seed_claims_nothing_anywhere(here, capsys):
    assert main(["train", *TABLE, "privacy.noise_seed=1", "run_dir=r"]) == 0
    shown = capsys.readouterr().out
    assert "NOT PRIVATE" in shown
    assert "epsilon" not in shown
    assert summary("r")["epsilon"] is None


def policies(*entries):
    return lambda: Path("policies.yaml").write_text(yaml.safe_dump(list(entries)))


def change(**columns):
    return lambda: table().assign(**columns).to_csv("people.csv", index=False)


FILE = "policies.path=policies.yaml"
MISTAKES = {
    "empty library": (policies(), [FILE], "policies is empty"),
    "no list": (lambda: Path("policies.yaml").write_text("kind: constants"), [FILE], "policies.yaml.*holds no list"),
    "no file": (None, ["policies.path=nowhere.yaml"], "nowhere.yaml: no such file"),
    "a policy twice": (
        policies({"kind": "constants", "actions": [1, 0]}, {"kind": "constants", "actions": [1], "names": ["treat"]}),
        [FILE],
        "'always 1' and 'treat' are the same policy",
    ),
    "a name twice": (
        policies(POLICIES[0], dict(POLICIES[0]) | {"actions": [0, 1]}),
        [FILE],
        "'always 0' is there twice",
    ),
    "an action outside": (policies({"kind": "constants", "actions": [0, 7]}), [FILE], "action 7 is none of 0, 1"),
    "a covariate outside": (
        policies({"kind": "thresholds", "covariate": "height", "cuts": [1]}),
        [FILE],
        "'height' is no covariate",
    ),
    "an unknown kind": (policies({"kind": "oracle"}), [FILE], r"policies\[0\] is no policy; .*kind: .*trees"),
    "a share outside": (None, ["policies.shares=[1.5]"], "shares"),
    "floor above 1/K": (None, ["selection.overlap=0.6"], "0.6.*at most"),
    "overlap of zero": (None, ["selection.overlap=0"], "overlap"),
    "no certificate": (None, ["nuisance_guarantee=none"], "nuisance_guarantee=none.*stability"),
    "split of nothing": (None, ["selection.split=0"], "split"),
    "split of nobody": (None, ["nuisance_guarantee=composed", "selection.split=0.3"], "leave selection.split out"),
    "propensity above one": (None, ["nuisance_guarantee=fixed", "nuisance_guarantee.propensity=1.5"], "propensity"),
    "negative ridge": (None, ["nuisance_guarantee=stability", "nuisance_guarantee.ridge=-1"], "ridge = -1"),
    "unknown constants": (
        None,
        ["nuisance_guarantee=stability", "nuisance_guarantee.constants=magic"],
        "constants = 'magic'",
    ),
    "nothing frozen": (None, ["nuisance_guarantee=frozen"], "propensity"),
    "one arm": (change(treat=1), [], "treat.*no record with value 0"),
    "outcome outside": (change(pay=11), [], "pay.*out_of_bounds=clip"),
    "epsilon of nothing": (None, ["privacy.epsilon=0"], "epsilon"),
    "unknown mechanism": (None, ["mechanism=magic"], "magic"),
    "mechanism of effects": (None, ["mechanism=objective"], "objective: releases effects.*permute_and_flip"),
    "nuisance untrained": (None, ["nuisance=mlp"], "nuisance: not used.*private_nuisances"),
    "trainer untrained": (None, ["nuisance_guarantee=fixed", "trainer=gpu"], "trainer: not used"),
    "delta for networks": (
        None,
        ["nuisance_guarantee=private_nuisances", "privacy.delta=0", "trainer.progress=false"],
        "delta",
    ),
    "learner": (None, ["learner=dr"], "learner: not used by task=policy_selection"),
    "second stage": (None, ["second_stage=neural"], "second_stage: not used"),
    "split of effects": (None, ["split=cross_fit"], "use selection.split"),
    "weights": (None, ["weights=private"], "weights: not used.*of task=owl"),
    "tune": (None, ["tune=private"], "tune: not used"),
    "figure": (None, ["figure.level=0.9"], "figure.level: not used"),
    "unknown setting": (None, ["selection.flor=0.1"], "selection.flor"),
    "policies of effects": (None, ["task=cate", FILE], "policies.path: not used by task=cate"),
    "certificate of a rule": (
        None,
        ["task=owl", "nuisance_guarantee=fixed"],
        "nuisance_guarantee: not used by task=owl",
    ),
    "choice of an effect": (None, ["task=cate", "mechanism=permute_and_flip"], "use it with task=policy_selection"),
}


@pytest.mark.first(3)
@pytest.mark.parametrize("mistake", sorted(MISTAKES))
def test_mistakes_give_one_line_and_leave_nothing(mistake, here, capsys):
    prepare, words, message = MISTAKES[mistake]
    if prepare is not None:
        prepare()
    before = {path.name for path in here.iterdir()}
    assert main(["train", *TABLE, *words, "run_dir=r"]) == 2
    assert re.search(message, one_line(capsys))
    assert {path.name for path in here.iterdir()} == before
