"""Records that hardly vary: a fit is refused before its first charge, or its release is of numbers, and verifies."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import pytest
from safetensors import safe_open

from tests.composition.cases import Batches
from tests.estimators.families import made
from tests.verify.forgery import card_html
from torchdpcate import TableSchema
from torchdpcate.candidates.kinds import Constants
from torchdpcate.composition.settings import AdaptiveSecondStage
from torchdpcate.data.records import CausalData
from torchdpcate.errors import TorchDPCateError
from torchdpcate.privacy.budget import LEAST_DELTA, PrivacyBudget
from torchdpcate.release.file import load_release
from torchdpcate.verify.file import verify_release

pytestmark = pytest.mark.filterwarnings("ignore")
NUMBERS = ("u", "v", "w")
SITES = [f"site {number}" for number in range(12)]
Parts = dict[str, Any]


def records(n: int, arms: int) -> Parts:
    """Columns of records by name, with time and event, and weights."""
    draws = np.random.default_rng(0)
    columns: Parts = {name: draws.uniform(0, 10, n) for name in NUMBERS}
    columns["site"] = draws.choice(SITES, n).astype(object)
    columns["a"] = draws.integers(0, arms, n)
    columns["y"] = (5 + 0.3 * (columns["u"] - 5) + columns["a"] + draws.normal(0, 1, n)).clip(0, 10)
    columns |= {"time": draws.uniform(0.5, 9, n), "event": draws.integers(0, 2, n), "weight": draws.uniform(0, 2, n)}
    return columns


def all_missing_but(share: float) -> Callable[[Parts], None]:
    def change(columns: Parts) -> None:
        n = len(columns["y"])
        there = np.random.default_rng(1).random((4, n)) < share
        for name, seen in zip(NUMBERS, there, strict=False):
            columns[name] = np.where(seen, columns[name], np.nan)
        columns["site"] = np.where(there[3], columns["site"], None)

    return change


def all_alike(**values: Any) -> Callable[[Parts], None]:
    return lambda columns: columns.update({name: np.full_like(columns[name], v) for name, v in values.items()})


def one_only(**values: tuple[Any, Any]) -> Callable[[Parts], None]:
    """All records have the first of two values, but one, which has the second."""

    def change(columns: Parts) -> None:
        for name, (most, last) in values.items():
            columns[name] = np.full_like(columns[name], most)
            columns[name][0] = last

    return change


def separated(columns: Parts) -> None:
    columns["a"] = (columns["u"] > 5).astype(int)


TABLES: dict[str, Callable[[Parts], None]] = {
    "as drawn": lambda _: None,
    "nearly all missing": all_missing_but(0.03),
    "all missing": all_missing_but(0.0),
    "one site": all_alike(site=SITES[0]),
    "constant covariates": all_alike(u=3.0, v=0.0, w=10.0),
    "covariates that are one": lambda columns: columns.update(v=columns["u"], w=10 - columns["u"]),
    "one treated record": one_only(a=(0, 1)),
    "an arm by a covariate": separated,
    "outcomes at the lower bound": all_alike(y=0.0, event=0, time=0.5),
    "outcomes at the upper bound": all_alike(y=10.0, event=0, time=8.0),
    "one outcome": all_alike(y=4.0, event=1, time=0.0),
    "outcomes that are arms": lambda columns: columns.update(y=10.0 * (columns["a"] > 0), event=columns["a"] > 0),
    "one outcome that is another": one_only(y=(0.0, 10.0), event=(0, 1)),
    "weights of zero": all_alike(weight=0.0),
    "weights at their bound": all_alike(weight=2.0),
    "one record with a weight": one_only(weight=(0.0, 2.0)),
}
SCHEMA = {
    "treatment": "a",
    "outcome": {"name": "y", "low": 0, "high": 10, "better": "higher", "kind": "continuous"},
    "covariates": {
        **{name: {"low": 0, "high": 10, "missing": "indicator"} for name in NUMBERS},
        "site": {"categories": SITES, "missing": "indicator"},
    },
    "overlap": 0.1,
}
BINARY = {"outcome": {"name": "y", "low": 0, "high": 1, "better": "higher", "kind": "binary"}}
HORIZON = {"outcome": {"time": "time", "event": "event", "horizon": 5, "kind": "restricted_mean", "better": "higher"}}
WEIGHTS, TRIAL = {"weights": {"name": "weight", "high": 2}}, {"propensity": 0.5}
ARMS = {"treatment": {"name": "a", "categories": [0, 1, 2]}}
CELLS = {"subgroups": [{"u": [5]}, {"site": True}]}
ALIKE = {"policies": [Constants([0, 1])]}
CASES: dict[str, tuple[Parts, str, Parts]] = {
    "average": ({}, "average", {}),
    "average of a binary outcome": (BINARY, "average", {}),
    "average of a trial": (TRIAL, "average of a trial", {}),
    "average by a horizon, with weights": (HORIZON | WEIGHTS, "average", {}),
    "balancing": ({}, "balancing", {}),
    "effect": ({}, "effect", {}),
    "effect of a binary outcome": (BINARY, "effect", {}),
    "effect of a trial, with intervals": (TRIAL, "effect", {"second_stage": AdaptiveSecondStage(intervals=True)}),
    "effect, with weights": (WEIGHTS, "effect", {}),
    "effect by a horizon": (HORIZON, "effect", {}),
    "effects of three arms": (ARMS, "effect", {}),
    "subgroups": ({}, "line subgroups", CELLS),
    "subgroups of a trial": (TRIAL, "subgroups", CELLS),
    "subgroups by a horizon": (HORIZON, "line subgroups", CELLS),
    "rule": ({}, "rule", {}),
    "rule of a trial": (TRIAL, "rule", {}),
    "policy": ({}, "policies", ALIKE),
    "weighted rule": (TRIAL, "weighted rule", {}),
    "two stages": ({}, "two stages", {}),
}
WORST = ("nearly all missing", "one site", "one treated record", "one outcome", "one record with a weight")
FEW, SOME = (60, PrivacyBudget(1.0, 1e-5)), (600, PrivacyBudget(20.0, 1e-5))
MANY, PURE = (3_000, PrivacyBudget(20.0, 1e-5)), (3_000, PrivacyBudget(5.0, 0.0))


def fitted(family: str, table: str, size: tuple[int, PrivacyBudget], streamed: bool = False) -> Any:
    """Return a release; None where the fit, or the release, was refused and nothing charged."""
    (facts, name, settings), (n, budget) = CASES[family], size
    columns = records(n, 3 if "treatment" in facts else 2)
    TABLES[table](columns)
    if facts.get("outcome") is BINARY["outcome"]:
        columns["y"] = (columns["y"] > 5).astype(float)
    schema = TableSchema.from_dict(SCHEMA | facts)
    x, a = pd.DataFrame({name: columns[name] for name in (*NUMBERS, "site")}), columns["a"]
    y = np.stack([columns["time"], columns["event"]], 1) if "time" in schema.to_dict()["outcome"] else columns["y"]
    own = {"weight": columns["weight"]} if "weights" in facts else {}
    learner = None
    try:
        learner = made(name, schema, budget, **settings)
        if streamed:
            whole = CausalData.from_arrays(schema.encode(x), a, y)
            learner.fit_stream(Batches(schema, whole, 500))
        else:
            learner.fit(x, a, y, **own)
        release = learner.release()
    except TorchDPCateError as refused:
        if getattr(getattr(learner, "ledger_", None), "entries", ()):
            raise  # it was paid for
        release = str(refused)
    if isinstance(release, str):
        assert "\n" not in release
        return None
    for spent in learner.ledger_.spent().values():
        assert spent["epsilon"] <= budget.epsilon * (1 + 1e-9)
        assert spent["delta"] <= budget.delta * (1 + 1e-9)
    return release


def check(release: Any, folder: Any) -> None:
    """Every number of a release is finite, and those that it shows, in a file that verifies."""
    path = release.save(folder / "release.safetensors", overwrite=True)
    verify_release(path)
    with safe_open(path, "pt") as file:
        tensors, metadata = {name: file.get_tensor(name) for name in file.keys()}, file.metadata()  # noqa: SIM118
    for name, values in tensors.items():
        assert bool(values.isfinite().all()), name
    for text in metadata.values():
        assert "NaN" not in text
        assert "Infinity" not in text
    assert "nan" not in card_html(load_release(path)).lower()


def walk(table: str, size: tuple[int, PrivacyBudget], folder: Any, families: Any = CASES) -> int:
    """Check all families on a table; return how many were not refused."""
    found = [fitted(family, table, size) for family in families]
    there = [release for release in found if release is not None]
    for release in there:
        check(release, folder)
    return len(there)


BORDERS = [(1e-9, 0.0), (0.1, 1e-5), (1e-9, 1e-5), (1e-3, 0.0), (1.0, LEAST_DELTA), (700.0, 0.0), (700.0, 1e-5)]


@pytest.mark.first(1)
@pytest.mark.parametrize(("epsilon", "delta"), BORDERS)
def test_a_fit_is_refused_before_it_is_charged_or_keeps_to_its_budget(epsilon, delta):
    found = [fitted(family, "as drawn", (60, PrivacyBudget(epsilon, delta))) for family in CASES]
    assert epsilon < 0.1 or len([release for release in found if release is not None]) > 9


def test_records_that_hardly_vary(tmp_path):
    """Of the families whose plan has the most steps."""
    assert walk(WORST[0], MANY, tmp_path, ("average", "effect", "subgroups")) == 3


@pytest.mark.slow
@pytest.mark.parametrize("table", TABLES)
def test_records_that_hardly_vary_of_every_family(table, tmp_path):
    assert walk(table, MANY, tmp_path) >= 17


@pytest.mark.slow
@pytest.mark.parametrize("size", [FEW, PURE], ids=["few", "pure"])
@pytest.mark.parametrize("table", WORST)
def test_few_records_and_pure_events(table, size, tmp_path):
    assert walk(table, size, tmp_path) >= 7


@pytest.mark.slow
@pytest.mark.parametrize("family", ["average", "effect", "subgroups"])
@pytest.mark.parametrize("table", ["nearly all missing", "one site", "one outcome"])
def test_a_stream_of_records_that_hardly_vary(family, table, tmp_path):
    check(fitted(family, table, MANY, streamed=True), tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("table", ["nearly all missing", "all missing", "one site", "constant covariates"])
@pytest.mark.parametrize("epsilon", [5.0, 60.0])
def test_large_plans_of_records_that_hardly_vary(table, epsilon, tmp_path):
    """With hidden units of the effect at the larger epsilon."""
    size = 50_000, PrivacyBudget(epsilon, 1e-5)
    assert walk(table, size, tmp_path, ("average", "effect", "rule of a trial")) == 3
