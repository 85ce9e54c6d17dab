"""Every kind of outcome, task and number of arms, through every command that takes a release."""

import html
import itertools
import json
import re

import numpy as np
import pandas as pd
import pytest
import yaml

from tests.cli.helpers import leaks, one_line, released
from tests.verify.words import check_words
from torchdpcate.cli.main import main
from torchdpcate.cli.overrides import all_tasks
from torchdpcate.release.file import load_release

FOLLOWED = {"time": "days", "event": "status", "horizon": 300, "unit": "days", "censoring": {"floor": 0.5}}
OUTCOMES = {
    "restricted_mean": {**FOLLOWED, "kind": "restricted_mean", "better": "higher"},
    "event_by_horizon": {**FOLLOWED, "kind": "event_by_horizon", "better": "lower"},
    "continuous": {"name": "score", "low": 0, "high": 10, "better": "higher", "unit": "points"},
    "binary": {"name": "died", "categories": ["no", "yes"], "better": "lower"},
    "count": {"name": "visits", "low": 0, "high": 20, "kind": "count", "better": "lower"},
    "rate": {"name": "visits", "low": 0, "high": 20, "better": "lower", "exposure": {"name": "years", "high": 3}},
    "costs": {"name": "cost", "low": 0, "high": 50_000, "better": "lower", "unit": "EUR", "sd": 4_000},
}
SAID = {
    "restricted_mean": "the mean time without the event (status) within 300 days",
    "event_by_horizon": "the chance of the event (status) within 300 days",
}
"""What effects on an outcome by a horizon are on; of other outcomes it is the column."""
TASKS = {
    "cate": [],
    "average_effect": [],
    "subgroups": ["subgroups=[{sex: true}]"],
    "rule": [],
    "policy_selection": [],
    "owl": [],
    "two_stage_rule": [],
}
RULES = ("rule", "owl", "two_stage_rule")
ARMS = ["none", "low", "high"]
CELLS = [
    (task, arms, outcome)
    for arms, task, outcome in itertools.product((2, 3), filter(all_tasks().__contains__, TASKS), OUTCOMES)
]


def write(folder, outcome: str, arms: int) -> None:
    """Write the tables of two sites, and their domain file."""
    for seed in range(2):
        random, n = np.random.default_rng(seed), 600
        arm = random.integers(0, arms, n)
        frame = pd.DataFrame({"age": random.uniform(20, 80, n), "sex": random.choice(["f", "m"], n)})
        event, end = random.exponential(200 * (1 + 0.5 * arm)), random.exponential(1500, n)
        frame = frame.assign(
            arm=np.array(ARMS)[arm],
            score=(4 + arm + random.normal(0, 1, n)).clip(0, 10),
            died=np.where(random.random(n) < 0.5 - 0.15 * arm, "yes", "no"),
            visits=random.poisson(4 - arm, n).clip(0, 20),
            cost=np.where(random.random(n) < 0.4, 0, random.lognormal(8, 1, n).clip(0, 50_000)),
            days=np.minimum(event, end),
            status=(event <= end).astype(int),
            years=random.uniform(0.5, 3, n),
        )
        frame.to_csv(folder / f"{seed}.csv", index=False)
    facts = {
        "treatment": {"name": "arm", "categories": ARMS[:arms]},
        "outcome": OUTCOMES[outcome],
        "covariates": {"age": {"low": 18, "high": 90}, "sex": {"categories": ["f", "m"]}},
        "propensity": 0.5 if arms == 2 else [1 / 3] * 3,
        "overlap": 0.3,
    }
    (folder / "domain.yaml").write_text(yaml.safe_dump(facts))


def refusal(task: str, arms: int, outcome: str) -> str | None:
    """Return what a line says where a task takes no such outcome or arms; None where it does."""
    if arms > 2 and task in RULES:
        return "has 3 arms, and "
    if outcome in ("rate", *SAID) and task in ("policy_selection", "owl", "two_stage_rule"):
        return "takes no outcome by a horizon" if outcome in SAID else "has no rates"
    return "has no rates" if outcome == "rate" and task in ("cate", "rule") else None


def not_combined(task: str) -> str | None:
    """Return what a line says where releases cannot be combined; None where they can."""
    rules = ("rule", "policy_selection", "owl", "two_stage_rule")
    return "has no known error to weigh it by" if task in rules else None


def check(release, folder, outcome: str, capsys) -> None:
    """Take a release through every command that a reader has."""

    def done(*words) -> str:
        assert main(list(map(str, words))) == 0, capsys.readouterr().err
        return capsys.readouterr().out

    said = check_words(load_release(release))
    shown = json.loads(done("verify", release, "--json"))
    found, kind = shown["findings"], shown["kind"]
    on = (SAID | {"rate": "visits per years"}).get(outcome, OUTCOMES[outcome].get("name"))
    head = " ".join(said.head)
    assert on.removeprefix("the ") in head, found
    assert f"{on} on average" not in head or outcome not in SAID
    if outcome in ("binary", "event_by_horizon"):
        assert " days" not in head.replace(on, "").replace(on.removeprefix("the "), "")
        assert not re.search(r"interval .* on average", head)
        assert " gives " in head or " percentage points" in " ".join(found)
    printed = " ".join(done("verify", release).split())
    assert all(sentence in printed for sentence in found)
    assert f"outcome {on}: " in printed
    if kind == "lines" and "reference" not in shown and len(shown["lines"]) > 1:
        assert sum(cell["records"] for cell in shown["lines"]) == pytest.approx(600, rel=0.05)
    done("report", release)
    page = (release.parent / "release.html").read_text()
    assert f"<td>outcome {on}</td>" in page
    assert all(sentence in html.unescape(page) for sentence in found)
    answers = folder / f"{release.stem}.csv"
    words = ["predict", str(release), str(folder / "0.csv"), "-o", str(answers)]
    if "estimand" in shown or (kind == "sites" and not load_release(release).answers_rows):
        assert main(words) == 2
        assert "no column; see" in one_line(capsys)
    else:
        done(*words)
        assert len(pd.read_csv(answers)) == 600


@pytest.mark.first(1)
@pytest.mark.parametrize(("task", "arms", "outcome"), CELLS)
def test_every_release_goes_through_every_command(task, arms, outcome, tmp_path, capsys):
    write(tmp_path, outcome, arms)
    sites = [tmp_path / name for name in ("north", "south")]
    for seed, run in enumerate(sites):
        words = [f"task={task}", f"data.path={tmp_path}/{seed}.csv", f"data.domain={tmp_path}/domain.yaml"]
        code = main(["train", *words, *TASKS[task], "privacy.epsilon=50", f"run_dir={run}"])
        if (why := refusal(task, arms, outcome)) is not None:
            assert code == 2
            assert why in one_line(capsys)
            assert not run.exists()
            return
        assert code == 0, capsys.readouterr().err
    capsys.readouterr()
    check(released(sites[0]), tmp_path, outcome, capsys)
    assert leaks(sites[0]) == ()
    (tmp_path / "all").mkdir()
    combination = tmp_path / "all" / "all.safetensors"
    code = main(["combine", *map(str, sites), "-o", str(combination)])
    if (why := not_combined(task)) is None:
        assert code == 0, capsys.readouterr().err
        capsys.readouterr()
        check(combination, tmp_path, outcome, capsys)
    else:
        assert code == 2
        assert why in one_line(capsys)
        assert not combination.exists()
