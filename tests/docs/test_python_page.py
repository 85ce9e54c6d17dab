"""The code of the page on Python runs as it stands, and costs what the page says."""

import re
from pathlib import Path

import numpy as np
import pytest

PAGE = Path(__file__).parents[2] / "docs" / "python.md"


@pytest.mark.slow
def test_the_page_s_code_runs() -> None:
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), flags=re.DOTALL)
    names: dict = {"__name__": "page"}
    for block in blocks[:2]:
        exec(compile(block, str(PAGE), "exec"), names)
    learner, people = names["learner"], names["people"]
    assert learner.ledger_.spent()["total"]["epsilon"] == pytest.approx(1.0, abs=1e-6)
    assert np.all(names["low"] <= learner.effect(people))
    for block in blocks[2:]:
        exec(compile(block, str(PAGE), "exec"), names)
    assert names["pipeline"].predict(people).shape == (2,)
    assert names["search"].best_params_["budget"].epsilon in (0.5, 2.0)
    served = names["module"](names["encoded"]).numpy()
    assert np.allclose(served, names["release"].effect(people), rtol=0, atol=1e-6)
    assert np.allclose(names["program"].module()(names["encoded"]).numpy(), served, rtol=0, atol=1e-6)
