"""``experiment=dp_cate`` and ``dp_cate_kernel``: the paper's pipeline in one word, by the libraries that it names."""

import re
import sys
from collections import Counter
from pathlib import Path

import pandas as pd
import pytest

from tests.cli.helpers import summary
from torchdpcate.cli.main import main
from torchdpcate.release.file import load_release

SMALL = ["nuisance.epochs=1", "nuisance.batch_size=60", "queries.count=5", "trainer.progress=false", "run_dir=r"]
NEURAL = ["experiment=dp_cate", "second_stage.width=3", "second_stage.epochs=1", *SMALL]
KERNEL = ["experiment=dp_cate_kernel", *SMALL]
TABLE = ["data.path=people.csv", "data.domain=domain.yaml"]
LIBRARIES = {
    "norms by opacus": "opacus.grad_sample.linear",
    "clipping by opacus": "opacus.utils.fast_gradient_clipping_utils",
    "lightning": "lightning.pytorch.trainer.trainer",
    "torch.func": "torch._functorch.eager_transforms",
    "gpytorch": "gpytorch.kernels.kernel",
}
"""A module of each library that works at every step of it, and not when it is imported; two steps are taken."""


def calls(words: list[str]) -> Counter[str]:
    """Return how often a run that succeeds calls functions of the libraries."""
    names, found = {module: name for name, module in LIBRARIES.items()}, Counter[str]()

    def count(frame, event, argument):
        if event == "call" and frame.f_code.co_name != "<module>":
            found[names.get(frame.f_globals.get("__name__"), "")] += 1

    sys.setprofile(count)
    try:
        assert main(["train", *words]) == 0
    finally:
        sys.setprofile(None)
    return found


@pytest.mark.slow
@pytest.mark.parametrize(("learner", "data"), [("r", "dataset1"), ("dr", "dataset2")])
def test_networks_by_opacus_in_lightning_and_influence_by_torch_func(here, capsys, learner, data):
    found = calls([*NEURAL, "data.n=300", f"data={data}", f"learner={learner}"])
    assert all(found[name] > 3 for name in LIBRARIES if name != "gpytorch")
    run = summary("r")
    assert (run["mechanism"], run["level"], run["learner"]) == ("influence", "heuristic", f"{learner.upper()}Learner")
    shown = capsys.readouterr().out
    shown = " ".join(shown.split())
    ways = re.search(
        "influence is heuristic here; certified ways .*? second_stage=plug_in .*?; second_stage=adaptive", shown
    )
    assert ways
    assert ("One private number for all would err less" in shown) == (data == "dataset2")
    ending = shown.partition("publish nothing of it")[2]
    assert "torchdpcate verify r" in ending
    assert not re.search("torchdpcate (sign|report)|signature|pages", ending)


@pytest.mark.slow
def test_kernel_ridge_by_gpytorch_answers_on(here, capsys):
    found = calls([*KERNEL, "data.n=300"])
    assert all(found[name] > 3 for name in LIBRARIES if name != "torch.func")
    assert summary("r")["level"] == "certified"
    shown = " ".join(capsys.readouterr().out.split())
    assert "certified ways" not in shown
    assert re.search("of the second stage alone for an average person .errors of the nuisances come on top", shown)
    assert re.search("noise alone is about [0-9.]+, and other errors come on top", shown)
    assert "torchdpcate sign r" in shown
    pd.DataFrame({"x0": [0.2, 0.4], "x1": [0.1, 0.9]}).to_csv("queries.csv", index=False)
    assert main(["predict", "r/curator/online", "queries.csv", "-o", "answers.csv"]) == 0
    assert pd.read_csv("answers.csv")["effect"].notna().all()


@pytest.mark.slow
@pytest.mark.parametrize("words", [NEURAL, KERNEL])
def test_a_table_without_queries_is_answered_on_a_public_grid(here, words):
    assert main(["train", *words, *TABLE]) == 0
    release = load_release(Path("r/release/release.safetensors"))
    assert len(release.queries) == 5
