"""The code of the page on Lightning runs as it stands, learns, and costs what the page says."""

import re
from pathlib import Path

import pytest
import torch

from torchdpcate.privacy.guarantee import Level
from torchdpcate.privacy.ledger import Ledger

PAGE = Path(__file__).parents[2] / "docs" / "lightning.md"


def accuracy(names: dict) -> float:
    return float((names["module"].net(names["records"].tensors[0]).argmax(1) == names["labels"]).float().mean())


@pytest.mark.slow
def test_the_page_s_code_runs(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    first, *blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), flags=re.DOTALL)
    assert len(blocks) == 2
    names: dict = {"__name__": "page"}
    exec(compile(first, str(PAGE), "exec"), names)
    for block, path in zip(blocks, ("ledger", "second"), strict=True):
        torch.manual_seed(0)
        exec(compile(block, str(PAGE), "exec"), names)
        ledger = Ledger.load(f"curator/{path}.sqlite")
        assert ledger.spent()["total"]["epsilon"] == pytest.approx(4.0, abs=1e-3)
        assert [(entry.count, entry.level) for entry in ledger.entries] == [(names["steps"], Level.CONDITIONAL)]
        assert accuracy(names) > 0.8
    assert {path.name for path in Path("curator").glob("*.ckpt")} == {f"step={n}.ckpt" for n in (50, 100, 150)}
    assert "lr-SGD" in Path("curator/unreleased/version_1/metrics.csv").read_text()
