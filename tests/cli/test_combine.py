"""``torchdpcate combine`` and the other commands on what it writes."""

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from tests.cli.helpers import one_line
from tests.release.sites import FACTS, NAMES, PEOPLE, fitted, released
from torchdpcate.cli.main import main
from torchdpcate.privacy.noise import NoiseSource
from torchdpcate.release.file import load_release


@pytest.fixture
def files(tmp_path, monkeypatch) -> list[str]:
    """The sites' releases of effects, in the current folder."""
    monkeypatch.chdir(tmp_path)
    return [released("effect", k).save(f"{name}.safetensors").name for k, name in enumerate(NAMES)]


def test_run_folders_name_the_sites(files, capsys) -> None:
    for name, path in zip(NAMES, files, strict=True):
        (Path(name) / "release").mkdir(parents=True)
        Path(path).rename(Path(name) / "release" / "release.safetensors")
    assert main(["combine", *NAMES, "-o", "all.safetensors"]) == 0
    made = load_release("all.safetensors")
    assert made.names == NAMES
    assert "Over 3 sites, among everybody, drug instead of placebo lowers pain by" in capsys.readouterr().out
    assert Path("effect.png").stat().st_size > 10_000
    PEOPLE.to_csv("people.csv", index=False)
    assert main(["predict", "all.safetensors", "people.csv", "-o", "found.csv", "--interval"]) == 0
    found = pd.read_csv("found.csv")
    assert found["effect"].tolist() == pytest.approx(made.effect(PEOPLE).tolist())
    assert found[["low", "high"]].to_numpy() == pytest.approx(made.interval(PEOPLE))


def test_cohorts_are_combined_by_their_averages(files, capsys) -> None:
    cohorts = [released("cohort", k).save(f"cohort {name}.safetensors").name for k, name in enumerate(NAMES)]
    assert main(["combine", *cohorts, "-o", "all.safetensors"]) == 0
    said = capsys.readouterr().out
    assert "Over 3 sites, among everybody, drug instead of placebo lowers pain by" in said
    assert "For those who were treated, the effect is −" in said
    rows = zip(
        load_release("all.safetensors").line_names, load_release("all.safetensors").means().tolist(), strict=True
    )
    clear = [name for name, (_, low, high) in rows if name.startswith("sex") and (low > 0 or high < 0)]
    assert clear  # of two; the smallest site's noise may hide one
    assert f"in {len(clear)} of 2 subgroups the effect is below zero, each by itself: {'; '.join(clear)}." in said
    assert main(["verify", "all.safetensors", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert [line["line"] for line in shown["estimates"]] == load_release("all.safetensors").line_titles
    assert shown["findings"][0] in said
    PEOPLE.to_csv("people.csv", index=False)
    assert main(["predict", "all.safetensors", "people.csv", "-o", "found.csv"]) == 2
    assert "no column; see" in one_line(capsys)
    assert main(["combine", files[0], cohorts[1], "-o", "both.safetensors", "--overwrite"]) == 0  # a trial and a cohort
    assert load_release("both.safetensors").line_titles == ["everybody"]


def test_few_sites_are_told_of_one_effect_at_all(tmp_path, monkeypatch, capsys) -> None:
    """Where intervals are more than twice as wide; a combination of them is combined anew, by its own file."""
    monkeypatch.chdir(tmp_path)
    sites = [released("average", k, private=False).save(f"{k}.safetensors").name for k in (1, 2)]
    said = []
    for *given, output in ([*sites, "all.safetensors"], ["all.safetensors", "--between=fixed", "one.safetensors"]):
        assert main(["combine", *given, "-o", output, "--overwrite"]) == 0
        said.append(capsys.readouterr().out)
    most = np.divide(*(np.ptp(load_release(f"{name}.safetensors").average()) for name in ("all", "one")))
    assert most > 2
    assert f"2 sites say little of how far sites differ: intervals are up to {most:.1f} times as wide as" in said[0]
    assert "with --between fixed, which takes it for granted that the effect is the same at all of them." in said[0]
    assert "say little" not in said[1]
    assert load_release("one.safetensors").names == ("1", "2")


def test_mistakes_are_one_line_and_leave_nothing(files, capsys) -> None:
    def refused(*words: str) -> str:
        assert main(["combine", *words]) == 2
        assert not Path("all.safetensors").exists()
        assert not Path("effect.png").exists()
        return one_line(capsys)

    output = ["-o", "all.safetensors"]
    assert "releases: 1 given; a combination needs two or more" in refused(files[0], *output)
    assert "north 1 and north 2 are one and the same release" in refused(files[0], files[0], *output)
    assert "nowhere.safetensors: no such file" in refused(files[0], "nowhere.safetensors", *output)
    assert "output north.safetensors is one of the releases" in refused(*files, "-o", files[0])
    assert "the folder nowhere does not exist" in refused(*files, "-o", "nowhere/all.safetensors")
    assert "choose from" in refused(*files, *output, "--between", "both")
    assert "give each of the 3 sites a name of its own" in refused(*files, *output, "--names", "a,b")
    other = FACTS | {"outcome": FACTS["outcome"] | {"unit": "cm"}}
    fitted("effect", other, 0, 1.0, NoiseSource.fixed(1)).save("cm.safetensors")
    assert "north and cm cannot be combined: unit of pain is 'points' in the one and 'cm'" in refused(
        files[0], "cm.safetensors", *output
    )
    data = bytearray(Path(files[1]).read_bytes())
    data[-1] ^= 1
    Path(files[1]).write_bytes(data)
    assert "south.safetensors: changed" in refused(*files, *output)


def test_what_is_there_is_not_overwritten(files, capsys) -> None:
    Path("effect.png").write_bytes(b"mine")
    assert main(["combine", *files, "-o", "all.safetensors"]) == 2
    assert "effect.png" in one_line(capsys)
    assert Path("effect.png").read_bytes() == b"mine"
    assert main(["combine", *files, "-o", "all.safetensors", "--overwrite"]) == 0
