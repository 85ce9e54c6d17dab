"""Leaks of every kind planted into a real run are found, also with checksums made anew; honest folders have none."""

import base64
import html
import json
import pickle
import shutil
import struct
import zipfile
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
import yaml
from PIL import Image
from safetensors.torch import load_file, save_file

from tests.cli.helpers import DOMAIN, table
from tests.verify.forgery import write_anew
from torchdpcate.cli.audit import leaks
from torchdpcate.cli.main import main
from torchdpcate.errors import InputError
from torchdpcate.evaluation.curator_figures import kept_figure
from torchdpcate.evaluation.figures import EffectPanel, effect_panels, save_figure
from torchdpcate.release.file import RELEASE_FILE, read_release_file, write_sums

TABLE = ["data=table", "data.path=people.csv", "data.domain=domain.yaml"]
LINEAR = ["trainer.progress=false", "nuisance.batch_size=50"]
LINEAR += ["nuisance.epochs=2", "second_stage=linear", "second_stage.ridge=0.05"]
FEATURES = ["features.degree=4", "privacy.epsilon=4"]


@dataclass
class Run:
    """A run folder with what a test plants into it."""

    folder: Path
    table: pd.DataFrame

    @property
    def release(self) -> Path:
        return self.folder / "release"

    @property
    def theta(self) -> torch.Tensor:
        return load_file(self.folder / "curator" / "numbers.safetensors")["theta_without_noise"]

    def add_tensors(self, metadata: dict[str, str] | None = None, **tensors: torch.Tensor) -> None:
        """Write the file as the library would, if it held more; its checksum is made anew."""
        held = read_release_file(self.release / RELEASE_FILE)
        write_anew(self.release / RELEASE_FILE, held.metadata | (metadata or {}), held.tensors | tensors)

    def add_line(self, text: str, name: str = "privacy.md") -> None:
        with (self.release / name).open("a", encoding="utf-8") as file:
            file.write(text + "\n")

    def edit_json(self, key: str, value: object) -> None:
        path = self.release / "privacy.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | {key: value}, indent=2) + "\n")

    def add_chunk(self, kind: bytes, body: bytes, name: str = "effect.png") -> None:
        data = (self.release / name).read_bytes()
        chunk = struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))
        (self.release / name).write_bytes(data[:33] + chunk + data[33:])  # after IHDR

    def draw(self, change: Callable[[np.ndarray], np.ndarray], name: str = "effect.png") -> None:
        """Write other pixels, as the library writes pictures."""
        picture = Image.open(self.release / name)
        pixels = change(np.asarray(picture).copy())
        Image.fromarray(pixels).save(self.release / name, dpi=picture.info["dpi"])


@pytest.fixture
def run(finished, tmp_path) -> Run:
    """A copy of a run with the pages that its curator asked for."""
    people = table(600)
    files = {"people.csv": people.to_csv(index=False), "domain.yaml": yaml.safe_dump(DOMAIN)}
    folder = finished(*TABLE, *LINEAR, *FEATURES, "compare=true", files=files)
    return Run(Path(shutil.copytree(folder, tmp_path / "run")), people)


def record(run: Run) -> float:
    return float(run.table["pay"][3])


def drop(name: str, data: bytes) -> Callable[[Run], object]:
    return lambda run: (run.release / name).write_bytes(data)


def zipped(run: Run) -> None:
    with zipfile.ZipFile(run.release / "extra.zip", "w") as archive:
        archive.writestr("deep/facts.json", json.dumps({"value": record(run)}))


def embedded(run: Run) -> None:
    figure = base64.b64encode((run.release / "effect.png").read_bytes()).decode()
    (run.release / "effect.png").unlink()
    (run.release / "release.html").write_text(f'<p>page</p><img src="data:image/png;base64,{figure}">')


def given_twice(run: Run) -> None:
    text = (run.release / "privacy.json").read_text()
    (run.release / "privacy.json").write_text(text.replace('"n": 600', f'"n": {record(run)!r}, "n": 600', 1))


def between_tensors(run: Run) -> None:
    """Records behind the last tensor, where no reader looks."""
    with (run.release / RELEASE_FILE).open("ab") as file:
        file.write(run.table["pay"].to_numpy().tobytes())


def frame_to(name: str) -> Callable[[Run], object]:
    def plant(run: Run) -> None:
        frame = run.table[["age", "dose"]].head(3)
        frame.to_csv(run.release / name) if name.endswith("csv") else frame.to_parquet(run.release / name)

    return plant


def other_curve(run: Run) -> None:
    """A curve of the curator's in the place of the released one."""
    age = np.linspace(16, 60, 101)
    save_figure(effect_panels([EffectPanel("age", age, age + 1)]), run.release / "effect.png")


def shade(pixels: np.ndarray) -> np.ndarray:
    pixels[5:25, 5:25, :3] = 30
    return pixels


def in_statement(**fields: object) -> Callable[[Run], object]:
    """Further entries of the statement in the release file."""

    def plant(run: Run) -> None:
        held = read_release_file(run.release / RELEASE_FILE)
        run.add_tensors({"privacy": json.dumps(json.loads(held.metadata["privacy"]) | fields)})

    return plant


def constant(run: Run) -> None:
    held = read_release_file(run.release / RELEASE_FILE)
    privacy = json.loads(held.metadata["privacy"])
    privacy["public"]["typical_outcome"] = record(run)
    run.add_tensors({"privacy": json.dumps(privacy)})


PLANTS: dict[str, Callable[[Run], object]] = {
    "outcome in json": lambda run: run.edit_json("note", record(run)),
    "outcome in words": lambda run: run.add_line(f"for instance {record(run)!r} hours"),
    "outcomes rounded": lambda run: run.add_line(" ".join(f"{y:.5f}" for y in run.table["pay"][:12])),
    "two numbers of one record": lambda run: run.add_line(f"{run.table['dose'][3]:.4f}, {record(run):.2f}"),
    "column of records": lambda run: run.add_tensors(y=torch.tensor(run.table["pay"].to_numpy()).float()),
    "records behind the tensors": between_tensors,
    "key given twice": given_twice,
    "constant of the statement": constant,
    "entry of the statement": lambda run: in_statement(note=record(run))(run),
    "theta": lambda run: run.add_tensors(extra=run.theta),
    "theta in print": lambda run: run.edit_json("x", [float(f"{t:.4g}") for t in run.theta]),
    "one coefficient": lambda run: run.add_tensors(extra=run.theta[2]),
    "the noise itself": lambda run: run.add_tensors(
        extra=read_release_file(run.release / RELEASE_FILE).tensors["theta"] - run.theta
    ),
    "noise forgotten": lambda run: run.add_tensors(theta=run.theta),
    "noise too small": lambda run: run.add_tensors(
        theta=run.theta + 1e-4 * torch.randn(run.theta.shape, dtype=torch.float64)
    ),
    "arm size by name": lambda run: run.add_line(f"- treated: {run.table['treat'].sum()}"),
    "arm size as key": lambda run: run.edit_json("treated", int(run.table["treat"].sum())),
    "mean, 7 digits": lambda run: run.add_line(f"mean outcome {run.table['pay'].mean():.6f}"),
    "metadata": lambda run: run.add_tensors({"x": "1.4478861959134479e-13"}),
    "seconds": lambda run: run.edit_json("took", 26.9531874251),
    "PNG text": lambda run: run.add_chunk(b"tEXt", f"Comment\0{record(run)!r}".encode()),
    "PNG zipped text": lambda run: run.add_chunk(b"zTXt", b"Comment\0\0" + zlib.compress(repr(record(run)).encode())),
    "PNG unknown chunk": lambda run: run.add_chunk(b"teSt", b"anything"),
    "PNG in HTML": embedded,
    "half an image": lambda run: (run.release / "effect.png").write_bytes(
        (run.release / "effect.png").read_bytes()[:9000]
    ),
    "another image": lambda run: shutil.copy(run.release / "effect.png", run.release / "b.png"),
    "behind the image": lambda run: (run.release / "effect.png").open("ab").write(b"more"),
    "drawn into the image": lambda run: run.draw(shade),
    "curator's figure": lambda run: save_figure(kept_figure(*np.eye(2), 0.1), run.release / "effect.png"),
    "curator's curve": other_curve,
    "pickle": drop("model.pkl", pickle.dumps([1.0, 2.0])),
    "pickle by another name": drop("facts.json", pickle.dumps([1.0, 2.0])),
    "zip": zipped,
    "csv": frame_to("rows.csv"),
    "table of another task": frame_to("lines.csv"),
    "hidden file": drop(".note", b"text"),
    "file name": lambda run: (run.release / f"effect_{record(run)!r}.md").write_text("text"),
    "folder": lambda run: (run.release / "more").mkdir(),
    "link": lambda run: (run.release / "more.md").symlink_to(run.folder / "curator" / "summary.json"),
    "link of a name that is known": lambda run: (run.release / "release.html").symlink_to(
        run.folder / "curator" / "summary.json"
    ),
    "name in the checksums": lambda run: run.add_line(f"{'0' * 64}  z_{record(run)!r}.md", "SHA256SUMS"),
    "page by hand": lambda run: (run.release / "release.html").write_text(f"<p>{record(run)}</p>"),
    "signature by hand": lambda run: (run.release / f"{RELEASE_FILE}.sig").write_text(json.dumps([record(run)])),
    "path in metadata": lambda run: run.add_tensors({"made_by": "/home/ann/trial/people.csv"}),
    "identifier": lambda run: run.add_line("thanks to QX-00042 for all"),
    **{
        f"word in {where}": lambda run, write=write: run.add_line(write("Jürgen Öztürk"))
        for where, write in {
            "text": str,
            "escaped JSON": json.dumps,
            "HTML": lambda word: html.escape(word).encode("ascii", "xmlcharrefreplace").decode(),
        }.items()
    },
}


@pytest.mark.first(4)
@pytest.mark.parametrize("name", PLANTS)
def test_a_planted_leak_is_found_also_with_checksums_made_anew(name, run):
    PLANTS[name](run)
    assert leaks(run.folder)
    if name != "name in the checksums":
        write_sums(run.release)
    found = leaks(run.folder)
    assert found
    assert not any("is not as in SHA256SUMS" in one for one in found)


def test_a_run_with_all_that_may_lie_there_has_no_leak(run, tmp_path, capsys):
    assert leaks(run.folder) == ()
    assert main(["sign", "--new-key", str(tmp_path / "key"), "--name", "A. Curator"]) == 0
    assert main(["report", str(run.folder)]) == 0
    assert leaks(run.folder) == ()
    assert main(["sign", str(run.folder), "--key", str(tmp_path / "key")]) == 0
    names = {path.name for path in run.release.iterdir()}
    assert names > {"release.html", "effect.png", "privacy.md", f"{RELEASE_FILE}.sig"}
    assert leaks(run.folder) == ()
    capsys.readouterr()
    assert main(["audit", "leak", str(run.folder)]) == 0
    assert "nothing else is there" in capsys.readouterr().out
    run.add_line("<!-- 5.25 -->", "release.html")
    assert [one for one in leaks(run.folder) if "release.html" in one]


def test_a_leak_is_a_failure_in_one_line_that_names_the_file(run, capsys):
    run.add_line("5.25", "effect.png")
    assert main(["audit", "leak", str(run.folder)]) == 1
    error = capsys.readouterr().err
    assert "effect.png is not as in SHA256SUMS" in error
    assert len(error.splitlines()) == 1
    write_sums(run.release)
    assert main(["audit", "leak", str(run.folder)]) == 1
    assert "release/effect.png: is not what its release makes" in capsys.readouterr().err


def test_pixels_whose_shade_is_a_little_different_are_the_figure(run):
    """Coordinates of another processor differ in their last places, and shades of the edges by as little."""

    def little(pixels: np.ndarray) -> np.ndarray:
        edge = (pixels[..., :3] > 60) & (pixels[..., :3] < 200)
        pixels[..., :3][edge] += 1
        return pixels

    before = (run.release / "effect.png").read_bytes()
    from torchdpcate.cli.audit import _same

    picture = Image.open(run.release / "effect.png")
    again = run.release / "again.png"
    from PIL.PngImagePlugin import PngInfo

    info = PngInfo()
    info.add_text("Software", picture.info["Software"])
    Image.fromarray(little(np.asarray(picture).copy())).save(again, dpi=picture.info["dpi"], pnginfo=info)
    assert again.read_bytes() != before
    assert _same(again.read_bytes(), before)


@pytest.mark.slow
def test_a_page_with_a_reference_is_made_again_by_it(run):
    reference = run.folder / "people.csv"
    run.table[["age", "black", "dose", "site"]][:40].to_csv(reference, index=False)
    assert main(["report", str(run.folder), "--reference", str(reference)]) == 0
    assert any("release.html" in one for one in leaks(run.folder))
    assert main(["audit", "leak", str(run.folder), f"reference={reference}"]) == 0


@pytest.mark.parametrize("missing", ["release", "."])
def test_no_run_is_an_input_error(missing, run):
    shutil.rmtree(run.folder / missing)
    with pytest.raises(InputError, match="run ="):
        leaks(run.folder)


def test_a_damaged_curator_leaves_the_comparison(run):
    for name in ("config.yaml", "summary.json"):
        (run.folder / "curator" / name).write_text("{")
    (run.folder / "curator" / "numbers.safetensors").unlink()
    assert leaks(run.folder) == ()


@pytest.mark.slow
def test_a_sweep_is_clean_and_what_is_planted_there_is_found(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    table().to_csv("people.csv", index=False)
    Path("domain.yaml").write_text(yaml.safe_dump(DOMAIN | {"propensity": 0.5}))
    words = ["train", "-m", *TABLE, "privacy.epsilon=1,2"]
    assert main([*words, "run_dir=sweep"]) == 0
    assert main(["report", "sweep"]) == 0
    assert {path.name for path in Path("sweep/0/release").iterdir()} > {"effect.png", "release.html"}
    assert leaks("sweep") == ()
    Path("sweep/release").mkdir()
    Path("sweep/release/note.md").write_text("5.25")
    shutil.copy("sweep/0/curator/balance.png", "sweep/1/release/effect.png")
    found = leaks("sweep")
    wrong = ["1/release/release.safetensors", "release/release.safetensors"]
    assert sorted(one.partition(":")[0] for one in found) == wrong
    write_sums("sweep/1/release")
    assert any(one.startswith("1/release/effect.png: is not what its release makes") for one in leaks("sweep"))


@pytest.mark.slow
def test_noise_of_other_mechanisms_is_no_leak(finished, tmp_path):
    """Coefficients of little noise, beside a scale that is larger still: the check has no power to be wrong."""
    people = table(5000)
    files = {"people.csv": people.to_csv(index=False), "domain.yaml": yaml.safe_dump(DOMAIN | {"propensity": 0.5})}
    for words in (["mechanism=output"], ["privacy.epsilon=50"], ["task=owl"]):
        folder = finished(*TABLE, *([] if words == ["task=owl"] else LINEAR), *words, files=files)
        assert leaks(folder) == ()
        run = Run(Path(shutil.copytree(folder, tmp_path / words[0])), people)
        run.add_tensors(theta=run.theta)
        write_sums(run.release)
        found = leaks(run.folder)
        assert any("far less noise than stated" in one for one in found), words
        save_file({"theta_without_noise": run.theta + 1e3}, run.folder / "curator" / "numbers.safetensors")
        assert not any("far less noise" in one for one in leaks(run.folder))
