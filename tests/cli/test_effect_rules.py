"""``task=rule``: what a run writes, its plan, and one line for each mistake."""

import json

import pandas as pd
import pytest

from tests.cli.helpers import summary
from torchdpcate.cli.audit import leaks
from torchdpcate.cli.main import main
from torchdpcate.release.composed import ComposedRule
from torchdpcate.release.file import load_release

SMALL = ["task=rule", "data.n=1200", "queries.count=60"]


@pytest.mark.first(1)
@pytest.mark.parametrize(
    ("epsilon", "delta", "form"), [(1, 1e-5, "linear"), (0.05, 1e-5, "constant"), (1, 0, "linear")]
)
def test_a_run_releases_the_rule_that_its_plan_asks_for(epsilon, delta, form, finished, tmp_path, capsys):
    folder = finished(*SMALL, f"privacy.epsilon={epsilon}", f"privacy.delta={delta}")
    found = summary(folder)
    assert (found["release"], found["learner"], found["form"]) == ("composed_rule", "EffectRule", form)
    assert found["level"] == "certified"
    assert found["epsilon"] == pytest.approx(epsilon, rel=1e-6)
    assert {"accuracy", "value", "regret", "regret_constant", "planned_noise", "nuisance"} <= found.keys()
    assert found["regret"] >= 0
    assert (folder / "release" / "rule.png").exists() is (form == "linear")
    path = folder / "release" / "release.safetensors"
    assert main(["verify", str(path)]) == 0
    assert isinstance(load_release(path), ComposedRule)
    assert leaks(folder) == ()
    points = tmp_path / "x.csv"
    pd.DataFrame(load_release(path).domain.grid(8).numpy(), columns=[f"x{j}" for j in range(4)]).to_csv(points)
    assert main(["predict", str(path), str(points), "-o", str(tmp_path / "out.csv")]) == 0
    decisions = pd.read_csv(tmp_path / "out.csv")["decision"]
    assert set(decisions) <= {0, 1}
    assert decisions.nunique() == 1 or form != "constant"
    assert main(["report", str(folder)]) == 0
    capsys.readouterr()


def test_costs_and_budgets_of_treatments_are_choices_of_a_run(tmp_path):
    population = tmp_path / "public.csv"
    pd.DataFrame([[0.1 * i, 0.5, 0.5, 0.5] for i in range(10)], columns=[f"x{j}" for j in range(4)]).to_csv(population)
    chosen = ["rule.cost=0.5", "rule.share=0.3", f"rule.population={population}", f"run_dir={tmp_path / 'r'}"]
    assert main(["train", *SMALL, "privacy.epsilon=4", *chosen]) == 0
    rule = load_release(tmp_path / "r" / "release" / "release.safetensors")
    assert (rule.cost, rule.budget) == (0.5, 0.3)
    assert rule.decide(pd.read_csv(population)).sum() <= 3


@pytest.mark.slow
def test_the_plan_says_regret_and_from_which_n_a_rule_beats_a_constant_one(tmp_path, capsys):
    assert main(["plan", *SMALL, f"run_dir={tmp_path / 'p'}"]) == 0
    plan = json.loads((tmp_path / "p" / "plan.json").read_text())
    assert 0 < plan["expected_noise"] < plan["outcome_range"]
    assert "loses of the mean outcome" in plan["of"]
    assert any("records are enough to lose less" in remark for remark in plan["remarks"])
    assert [target["task"] for target in plan["targets"]][2] == "rule"
    shown = " ".join(capsys.readouterr().out.split())
    assert "plan: a linear rule" in shown
