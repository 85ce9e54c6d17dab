"""Decimal commas, ASCII terminals, and names in any letters."""

import json
import locale
import os
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from tests.cli.helpers import SUMMARY
from tests.data.conftest import DOMAIN as DOMAIN_FILE
from tests.release.helpers import DOMAIN
from torchdpcate import RLearner
from torchdpcate.cli.main import main
from torchdpcate.data._frames import arrow_path
from torchdpcate.data.schema import TableSchema
from torchdpcate.errors import InputError
from torchdpcate.privacy.budget import PrivacyBudget
from torchdpcate.privacy.events import PureEvent
from torchdpcate.privacy.ledger import Ledger
from torchdpcate.privacy.noise import NoiseSource
from torchdpcate.release.file import Release

POINTS = DOMAIN.grid(40)


@cache
def released() -> Release:
    """Return a release that verifies."""
    random, x = torch.Generator().manual_seed(0), DOMAIN.grid(400)
    a, y = (torch.rand(2, 400, generator=random, dtype=torch.float64) > 0.5).double()
    learner = RLearner(DOMAIN, PrivacyBudget(1.0, 1e-5))
    return learner.fit(x, a, DOMAIN.outcome_low + y * DOMAIN.outcome_range).release_function()


NAME = "donn\u00e9es \u00fc\u4e16"


@pytest.fixture
def folder(tmp_path) -> Path:
    """A folder with a name beyond ASCII: a release, points as csv and parquet, a domain file, and a run to report."""
    folder = tmp_path / NAME
    (folder / "curator").mkdir(parents=True)
    released().save(folder / "r\u00e9ponse.safetensors")
    frame = pd.DataFrame(POINTS.numpy(), columns=list(DOMAIN.names))
    frame.to_csv(folder / "entr\u00e9e.csv", index=False)
    frame.to_parquet(folder / "entr\u00e9e.parquet")
    (folder / "domaine\u00e9.yaml").write_text(DOMAIN_FILE.replace("black", "\u00e9bano"), encoding="utf-8")
    (folder / "curator" / "summary.json").write_text(json.dumps(SUMMARY), encoding="utf-8")
    return folder


def commands(folder: Path) -> list[list[str]]:
    release = str(folder / "r\u00e9ponse.safetensors")
    words = [["verify", release], ["verify", release, "--json"], ["report", str(folder)]]
    for source, target in (("csv", "csv"), ("csv", "csv.gz"), ("parquet", "parquet")):
        points, answers = folder / f"entr\u00e9e.{source}", folder / f"sortie\u00e9.{target}"
        words.append(["predict", release, str(points), "-o", str(answers), "--overwrite"])
    return words


def check_outputs(folder: Path) -> None:
    """What the commands wrote is what they write anywhere."""
    expected = released().effect(POINTS)
    for ending in ("csv", "csv.gz", "parquet"):
        path = folder / f"sortie\u00e9.{ending}"
        answers = pd.read_parquet(path) if ending == "parquet" else pd.read_csv(path)
        np.testing.assert_allclose(answers["effect"], expected, rtol=1e-15)
    report = pd.read_csv(folder / "curator" / "report.csv")
    assert report["run"].tolist() == [NAME]
    assert report["pehe"].tolist() == [SUMMARY["pehe"]]
    assert not [path.name for path in folder.iterdir() if path.name.startswith(".")]


def test_a_name_that_is_no_text_is_refused_in_a_line(tmp_path):
    path = os.fsdecode(os.fsencode(tmp_path) + b"/\xff.csv")
    shutil.copy(__file__, path)
    with pytest.raises(InputError, match="not UTF-8"):
        arrow_path(path)


_ASCII = """
import json, sys
from torchdpcate.cli.main import main
assert sys.getfilesystemencoding() == "ascii", sys.getfilesystemencoding()
sys.exit(max(main(words) for words in json.loads(sys.argv[1])))
"""


def test_an_ascii_terminal_in_no_known_time_zone(folder):
    """LC_ALL=C without Python's own remedies: paths are bytes that are no ASCII, and bullets cannot be printed."""
    remedies = {"PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "TZ": "Nowhere/Land"}
    environment = {**os.environ, "LC_ALL": "C", **remedies}
    environment.pop("PYTHONIOENCODING", None)
    # Sent as bytes of JSON in ASCII: what the shell would send are bytes of UTF-8, read back as the locale reads them.
    words = [[os.fsencode(word).decode("ascii", "surrogateescape") for word in command] for command in commands(folder)]
    run = subprocess.run(
        [sys.executable, "-c", _ASCII, json.dumps(words)], env=environment, capture_output=True, text=True
    )
    assert run.returncode == 0, run.stderr
    assert run.stderr == ""
    check_outputs(folder)


@pytest.fixture
def decimal_comma(tmp_path, monkeypatch):
    """A locale that writes 1,5 for 1.5, installed or compiled here, in force for everything."""
    names = ["de_DE.UTF-8", "de_DE.utf8", "fr_FR.UTF-8", "fr_FR.utf8"]
    if shutil.which("localedef"):
        made = tmp_path / "locales" / "de_DE.UTF-8"
        made.parent.mkdir()
        command = ["localedef", "-i", "de_DE", "-f", "UTF-8", str(made)]
        if subprocess.run(command, capture_output=True).returncode == 0:
            monkeypatch.setenv("LOCPATH", str(made.parent))
    before = locale.setlocale(locale.LC_ALL)
    for name in names:
        try:
            locale.setlocale(locale.LC_ALL, name)
            break
        except locale.Error:
            continue
    else:
        pytest.skip("no locale with a decimal comma is installed, and none can be compiled")
    yield
    locale.setlocale(locale.LC_ALL, before)


def test_a_decimal_comma_changes_no_number(folder, decimal_comma):
    assert locale.localeconv()["decimal_point"] == ","
    assert f"{1.5:n}" == "1,5"
    for words in commands(folder):
        assert main(words) == 0
    check_outputs(folder)
    path = folder / "ledger.sqlite"
    Ledger({"all": PrivacyBudget(1.5, 1e-5)}, path).charge("all", "x", PureEvent(0.25))
    assert Ledger.load(path).remaining("all") == PrivacyBudget(1.25, 1e-5)
    assert '"epsilon": 0.25' in Ledger.load(path).to_json()
    domain = TableSchema.from_yaml(folder / "domaine\u00e9.yaml").domain
    assert (domain.overlap, domain.names[2]) == (0.1, "race=\u00e9bano")
    noise = NoiseSource.system().gaussian(2000, 1.5)
    assert 1.2 < float(noise.std()) < 1.8  # 12 standard errors
