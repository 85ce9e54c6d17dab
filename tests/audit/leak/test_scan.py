"""Leaks of every kind planted into a real run are found; clean folders raise nothing; chance is counted right."""

import base64
import io
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
from hypothesis import given
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from tests.release.test_file_bytes import edited
from tests.verify.forgery import write_file
from torchdpcate.audit.leak.chance import Coincidences, coincidences, grid_step, kind_of, multiples_of
from torchdpcate.audit.leak.scan import FALSE_ALARM, drawn, leak_report, scan
from torchdpcate.errors import AuditFailure, InputError
from torchdpcate.evaluation.figures import effect_figure, save_figure

DOMAIN = {
    "treatment": "treat",
    "outcome": {"name": "pay", "low": 0, "high": 10},
    "covariates": {"age": {"low": 0, "high": 100}, "dose": {"low": 0, "high": 1}, "sex": {"categories": [0, 1]}},
}


def marked(rng: np.random.Generator, n: int = 400) -> pd.DataFrame:
    """Records with digits of their own, integer ages, and columns that training never reads."""
    treat, dose = rng.binomial(1, 0.4, n), rng.uniform(0.1, 0.9, n)
    frame = {"treat": treat, "age": rng.integers(18, 90, n), "dose": dose, "sex": rng.integers(0, 2, n)}
    frame |= {"pay": 2 + treat + 3 * dose + rng.uniform(0, 2, n), "person": [f"QX-{i:05d}" for i in range(n)]}
    return pd.DataFrame(frame | {"ward": rng.choice(["Ostflügel", "Westflügel"], n)})


@dataclass
class Run:
    """A run folder with what a test plants into it."""

    folder: Path
    table: pd.DataFrame

    @property
    def release(self) -> Path:
        return self.folder / "release"

    def number(self, name: str) -> torch.Tensor:
        return load_file(self.folder / "curator" / "numbers.safetensors")[name]

    def add_tensors(self, metadata: dict[str, str] | None = None, **tensors: torch.Tensor) -> None:
        path = self.release / "release.safetensors"
        with safe_open(path, "pt") as file:
            known = file.metadata()
        write_file(load_file(path) | tensors, path, known | (metadata or {}))

    def rounded(self, **digits: int) -> pd.DataFrame:
        """Replace the records that the scan loads by rounded ones."""
        table, config = self.table.round(digits), self.folder / "curator" / "config.yaml"
        table.to_csv(self.folder / "people.csv", index=False)
        path = yaml.safe_load(config.read_text())["data"]["path"]
        config.write_text(config.read_text().replace(path, str(self.folder / "people.csv")))
        return table

    def edit_json(self, key: str, value: object) -> None:
        path = self.release / "privacy.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | {key: value}))

    def add_line(self, text: str) -> None:
        with (self.release / "privacy.md").open("a") as file:
            file.write(text + "\n")

    def add_chunk(self, kind: bytes, body: bytes, name: str = "effect.png") -> None:
        data = (self.release / name).read_bytes()
        chunk = struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))
        (self.release / name).write_bytes(data[:33] + chunk + data[33:])  # after IHDR


@pytest.fixture
def run(finished, tmp_path, monkeypatch) -> Run:
    """A copy of a run, where the path of its records leads to them."""
    table = marked(np.random.default_rng(0))
    files = {"people.csv": table.to_csv(index=False), "domain.yaml": yaml.safe_dump(DOMAIN)}
    words = ["data=table", "data.path=people.csv", "data.domain=domain.yaml", "nuisance.batch_size=50"]
    words += ["nuisance.epochs=2", "second_stage.ridge=0.05", "privacy.epsilon=4", "trainer.progress=false"]
    words += [
        "second_stage=linear",
        "features.degree=4",
    ]  # nine coefficients: few of eight bits each could be anybody's
    folder = finished(*words, files=files)
    monkeypatch.chdir(folder.parent)
    return Run(Path(shutil.copytree(folder, tmp_path / "run")), table)


def test_a_real_run_is_clean(run, capsys):
    report = scan(run.folder)
    assert report.leaks == ()
    assert report.suspects == ()
    assert report.notes == ()
    assert report.comparisons[0].against == "these by their names"
    # training writes no short number by a curator's name, so that this search raises no false alarm
    assert sum(report.comparisons[0].expected) < FALSE_ALARM
    assert min(row.pairs for row in report.comparisons[1:]) > 0
    assert sum(report.left_out.values()) > 0
    leak_report(str(run.folder))
    assert "nothing found that chance does not explain" in " ".join(capsys.readouterr().out.split())


# --- planted leaks -------------------------------------------------------------------------------------------


def timed(run: Run) -> float:
    """Give the summary a time of enough digits to be known again, and return it."""
    path = run.folder / "curator" / "summary.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"seconds": 26.9531874251}))
    return 26.9531874251


def theta(run: Run) -> torch.Tensor:
    return run.number("theta_without_noise")


def record(run: Run) -> float:
    return float(run.table["pay"][3])


def drop(name: str, data: bytes) -> Callable[[Run], object]:
    return lambda run: (run.release / name).write_bytes(data)


def zipped(run: Run) -> None:
    with zipfile.ZipFile(run.release / "extra.zip", "w") as archive:
        archive.writestr("deep/facts.json", json.dumps({"value": record(run)}))


def embedded(run: Run) -> None:
    run.add_chunk(b"tEXt", f"Comment\0{record(run)!r}".encode())
    figure = base64.b64encode((run.release / "effect.png").read_bytes()).decode()
    (run.release / "effect.png").unlink()
    (run.release / "card.html").write_text(f'<p>card</p><img src="data:image/png;base64,{figure}">')


def given_twice(run: Run) -> None:
    text = (run.release / "privacy.json").read_text()
    (run.release / "privacy.json").write_text(text.replace('"n": 400', f'"n": {record(run)!r}, "n": 400', 1))


def gradient_norm(run: Run) -> None:
    """One of all digits: a real one may be a small multiple of a power of two, of which there are few."""
    (run.folder / "curator" / "fit.json").write_text(json.dumps({"head_gradient_norm": 1.4478861959134479e-13}))
    run.add_tensors({"x": "1.4478861959134479e-13"})


def frame_to(name: str) -> Callable[[Run], object]:
    def plant(run: Run) -> None:
        frame = run.table[["age", "dose"]].head(3)
        frame.to_csv(run.release / name) if name.endswith("csv") else frame.to_parquet(run.release / name)

    return plant


def curator_curve(run: Run) -> None:
    """Other curves than the run's own, whose noise may be too small to be seen: a figure with both of them."""
    shown, hidden = torch.linspace(-1, 1, 101).double(), torch.linspace(-1, 1, 101).double() ** 2
    numbers = run.folder / "curator" / "numbers.safetensors"
    curves = {"public.effect_in_figure": shown, "effect_in_figure_without_noise": hidden}
    save_file(load_file(numbers) | curves, numbers)
    picture(run.release / "effect.png", shown.numpy(), {"head": hidden.numpy()})


def picture(path: Path, shown: np.ndarray, others: dict[str, np.ndarray]) -> bytes:
    band = np.stack([shown - 0.5, shown + 0.5], axis=1)
    save_figure(effect_figure(np.linspace(0, 100, 101), shown, band, covariate="age", others=others), path)
    return path.read_bytes()


def in_header(run: Run) -> None:
    """Fifty kilobytes of the records in a field of a tensor's entry that no reader of safetensors looks at."""
    path = run.release / "release.safetensors"
    edited(path, lambda header: header["theta"].update(note=run.table.to_csv() * 3))


PLANTS: dict[str, tuple[Callable[[Run], object], str]] = {
    "outcome in json": (lambda run: run.edit_json("note", record(run)), "pay"),
    "outcome in words": (lambda run: run.add_line(f"for instance {record(run)!r} hours"), "pay"),
    "outcome scaled": (lambda run: run.edit_json("note", record(run) / 10), "pay in [0, 1]"),
    "outcomes rounded": (
        lambda run: run.add_line(" ".join(f"{y:.5f}" for y in run.table["pay"][:12])),
        "rounded to 6 digits: ",
    ),
    "column of records": (lambda run: run.add_tensors(y=torch.tensor(run.table["pay"].to_numpy()).float()), "pay"),
    "key given twice": (given_twice, "pay"),
    "theta": (lambda run: run.add_tensors(extra=theta(run)), "theta_without_noise"),
    "theta as float32": (lambda run: run.add_tensors(extra=theta(run).float()), "theta_without_noise"),
    "theta as bfloat16": (
        lambda run: save_file({"extra": theta(run).bfloat16()}, run.release / "more.safetensors"),
        "theta_without_noise",
    ),
    "theta negated": (lambda run: run.add_tensors(extra=-theta(run)), "-1 times theta_without_noise"),
    "theta per record": (lambda run: run.add_tensors(extra=theta(run) / 400), "theta_without_noise"),
    "theta in print": (lambda run: run.edit_json("x", [float(f"{t:.4g}") for t in theta(run)]), "theta_without_noise"),
    "one coefficient": (lambda run: run.add_tensors(extra=theta(run)[2]), "equal: theta_without_noise"),
    "the noise itself": (
        lambda run: run.add_tensors(extra=load_file(run.release / "release.safetensors")["theta"] - theta(run)),
        "the noise of theta",
    ),
    "noise forgotten": (lambda run: run.add_tensors(theta=theta(run)), "theta_without_noise"),
    "noise too small": (
        lambda run: run.add_tensors(theta=theta(run) + 1e-4 * torch.randn(theta(run).shape, dtype=torch.float64)),
        "less noise than stated",
    ),
    "answers": (lambda run: run.add_tensors(extra=run.number("effect_at_queries_without_noise")), "effect_at_queries"),
    "answers, half of them": (
        lambda run: run.add_tensors(extra=run.number("effect_at_queries_without_noise")[::2].clone()),
        "effect_at_queries",
    ),
    "arm size by name": (lambda run: run.add_line(f"- treated: {run.table['treat'].sum()}"), "arm.treated"),
    "arm size as key": (lambda run: run.edit_json("treated", int(run.table["treat"].sum())), "arm.treated"),
    "mean, 7 digits": (lambda run: run.add_line(f"mean outcome {run.table['pay'].mean():.6f}"), "mean.outcome"),
    "mean, all digits": (lambda run: run.add_line(f"see {float(run.number('mean.outcome'))!r}"), "mean.outcome"),
    "sum of outcomes": (lambda run: run.edit_json("x", float(run.number("mean.outcome") * 400)), "times n = 400"),
    "gradient norm": (gradient_norm, "equal: head_gradient_norm"),
    "seconds": (lambda run: run.edit_json("took", timed(run)), "seconds"),
    "PNG text": (lambda run: run.add_chunk(b"tEXt", f"Comment\0{record(run)!r}".encode()), "pay"),
    "PNG zipped text": (
        lambda run: run.add_chunk(b"zTXt", b"Comment\0\0" + zlib.compress(repr(record(run)).encode())),
        "pay",
    ),
    "PNG unknown chunk": (lambda run: run.add_chunk(b"teSt", b"anything"), "cannot be checked"),
    "PNG in HTML": (embedded, "pay"),
    "half an image": (
        lambda run: (run.release / "b.png").write_bytes((run.release / "effect.png").read_bytes()[:9000]),
        "cannot be checked",
    ),
    "behind the image": (
        lambda run: (run.release / "effect.png").open("ab").write(b"more"),
        "cannot be checked",
    ),
    "curator's figure": (
        lambda run: shutil.copy(run.folder / "curator" / "effect.png", run.release / "effect.png"),
        "a copy of a curator's file",
    ),
    "curator's curve": (curator_curve, "the curve effect_in_figure_without_noise"),
    "pickle": (drop("model.pkl", pickle.dumps([1.0, 2.0])), "cannot be checked"),
    "pickle by another name": (drop("facts.json", pickle.dumps([1.0, 2.0])), "cannot be checked"),
    "pickle in an npz": (
        lambda run: np.savez(run.release / "a.npz", x=np.array([{"a": 1}], dtype=object)),
        "cannot be checked",
    ),
    "npz": (lambda run: np.savez(run.release / "a.npz", x=run.table["dose"].to_numpy()[:5]), "dose"),
    "zip": (zipped, "pay"),
    "csv": (frame_to("rows.csv"), "dose"),
    "parquet": (frame_to("rows.parquet"), "dose"),
    "file name": (lambda run: (run.release / f"effect_{record(run)!r}.md").write_text("text"), "pay"),
    "link": (
        lambda run: (run.release / "more.md").symlink_to(run.folder / "curator" / "summary.json"),
        "cannot be checked",
    ),
    "path in metadata": (lambda run: run.add_tensors({"made_by": "/home/ann/trial/people.csv"}), "a place on a"),
    "path of another system": (lambda run: run.add_line(r"from C:\trial\people.csv"), "a place on a machine"),
    "path of the data": (
        lambda run: run.add_line(yaml.safe_load((run.folder / "curator" / "config.yaml").read_text())["data"]["path"]),
        "a place on a machine",
    ),
    "table in the header": (in_header, "cannot be checked"),
    "identifier": (lambda run: run.add_line("thanks to QX-00042 for all"), "a word of the records' table"),
    "category": (lambda run: run.edit_json("note", "mostly Westflügel"), "a word of the records' table"),
}


@pytest.mark.first(6)
@pytest.mark.parametrize("name", PLANTS)
def test_a_planted_leak_is_found(name, run):
    plant, what = PLANTS[name]
    plant(run)
    report = scan(run.folder)
    assert any(what in leak.what for leak in report.leaks), (report.leaks, report.suspects)


def test_a_leak_is_a_failure_that_names_file_place_and_number(run, capsys):
    run.edit_json("note", record(run))
    with pytest.raises(AuditFailure, match=r"release/privacy\.json, note: equal: .*pay"):
        leak_report(str(run.folder))
    assert "leaks: 1 found" in " ".join(capsys.readouterr().out.split())


def test_a_whole_number_without_a_name_is_a_suspect_and_no_leak(run):
    """185 alone may be anything: one of the few curator numbers of that size is 185 once in some hundred times."""
    arm = int(run.table["treat"].sum())
    run.add_line(f"version of {arm} pages")
    report = scan(run.folder)
    assert report.leaks == ()
    assert [(f.value, f.what) for f in report.suspects] == [(str(arm), "equal: arm.treated")]
    assert 1e-3 < report.suspects[0].chance < 0.01


def test_one_outcome_of_few_digits_is_a_suspect_and_several_are_a_leak(run):
    """Outcomes to five decimals: one of 400 in 400,000 cells may be met by chance, ten of them are not."""
    table = run.rounded(pay=5)
    outcomes = [y for y in table["pay"] if len(str(y)) == 7][:10]
    run.add_line(f"{outcomes[0]}")
    report = scan(run.folder)
    assert report.leaks == ()
    assert [(f.value, f.what) for f in report.suspects] == [(str(outcomes[0]), "equal: record's pay")]
    run.add_line(" ".join(map(str, outcomes)))
    assert set(outcomes) <= {float(leak.value) for leak in scan(run.folder).leaks}


def test_two_numbers_of_one_record_are_a_leak_and_of_two_are_not(run):
    """A number of few digits may equal a record's by chance, but hardly two of the same record."""
    table = run.rounded(pay=5, dose=7)
    full = table[(table["pay"].astype(str).str.len() == 7) & (table["dose"].astype(str).str.len() == 9)]
    before = (run.release / "privacy.md").read_text()
    run.add_line(f"a case: {full['dose'].iloc[0]}, {full['pay'].iloc[1]}")
    assert scan(run.folder).leaks == ()
    (run.release / "privacy.md").write_text(before)
    run.add_line(f"a case: {full['dose'].iloc[0]}, {full['pay'].iloc[0]}")
    assert [leak.what for leak in scan(run.folder).leaks] == [
        f"2 numbers of one record (the first such is record {full.index[0]})"
    ]


def test_ages_public_numbers_and_roundings_of_the_release_are_no_leak(run):
    statement = json.loads((run.release / "privacy.json").read_text())
    run.add_line("ages 18, 21, 45.0 and 89; bounds 0, 100; overlap 0.05; 400 records, 200 each; 2026-11-20")
    run.add_line(
        f"tilt {statement['public']['perturbation_scale']:.7g}; one third 0.3333333333333333, 45 % of 100 is 0.45"
    )
    report = scan(run.folder)
    assert report.leaks == ()
    assert report.suspects == ()


def test_queries_that_are_records_are_noted(run, tmp_path):
    from torchdpcate.release.file import load_release
    from torchdpcate.release.release import QueryRelease

    release = load_release(run.release / "release.safetensors")
    rows = torch.tensor(run.table[["age", "dose", "sex"]].to_numpy()[:4])
    requested = QueryRelease(rows, release.effect_tensor(rows), release.schema, release.privacy)
    requested.save(run.release / "release.safetensors", overwrite=True)
    assert any("4 of 4 released queries are records" in note for note in scan(run.folder).notes)


@pytest.mark.slow
def test_curves_are_found_in_pixels_and_not_where_there_are_none(tmp_path):
    rng, x = np.random.default_rng(5), np.linspace(-1, 1, 101)
    for i in range(4):
        shown, hidden, other = (rng.standard_normal((3, 4)) @ [x**0, x, x**2 / 2, np.abs(x - 0.3)])[:3]
        for style in range(3):  # dashed, full, dotted
            others = {str(j): hidden if j == style else other for j in range(3)}
            png = picture(tmp_path / "a.png", shown, others)
            assert set(drawn(png, shown, {"hidden": hidden}) or {}) == {"hidden"}, (i, style)
        assert drawn(picture(tmp_path / "a.png", shown, {}), shown, {"hidden": hidden}) == {}
    blank = picture(tmp_path / "a.png", np.zeros(101), {})
    assert drawn(blank, np.zeros(101), {"hidden": x}) is None  # a flat curve gives no scale


def test_without_the_records_the_scan_says_so_and_goes_on(run):
    config = run.folder / "curator" / "config.yaml"
    config.write_text(config.read_text().replace("people.csv", "gone.csv"))
    run.add_tensors(extra=theta(run))
    run.edit_json("note", record(run))
    report = scan(run.folder)
    assert any("could not be loaded" in note and "gone.csv" in note for note in report.notes)
    assert ["theta_without_noise" in leak.what for leak in report.leaks] == [True]


@pytest.mark.parametrize("missing", ["release", "curator", "."])
def test_no_run_is_an_input_error(missing, run):
    shutil.rmtree(run.folder / missing)
    with pytest.raises(InputError, match="run ="):
        scan(run.folder)


def test_a_damaged_curator_is_noted(run):
    (run.folder / "curator" / "config.yaml").write_text("{")
    (run.folder / "curator" / "fit.json").write_text("{")
    (run.folder / "curator" / "numbers.safetensors").unlink()
    (run.folder / "curator" / "summary.json").write_text("[]")
    notes = " ".join(scan(run.folder).notes)
    for word in ("config.yaml", "fit.json", "numbers.safetensors", "summary.json"):
        assert word in notes


# --- chance --------------------------------------------------------------------------------------------------


def synthetic(folder: Path, rng: np.random.Generator) -> Path:
    """A run of random numbers of the shapes and grids of real ones, with nothing of the curator's in the release."""
    n, p, d = int(rng.integers(100, 3000)), int(rng.integers(3, 60)), int(rng.integers(5, 300))
    table = marked(rng, n)
    (folder / "release").mkdir(parents=True)
    (folder / "curator").mkdir()
    table.to_csv(folder / "people.csv", index=False)
    data = {"_target_": "torchdpcate.data.Table", "path": str(folder / "people.csv"), "domain": DOMAIN}
    config = {"seed": 0} | ({"data": data} if rng.random() < 0.5 else {})
    (folder / "curator" / "config.yaml").write_text(yaml.safe_dump(config))
    summary = {"n": n, "blocks": {"a": n // 2, "b": n - n // 2}, "pehe": 0.71}
    (folder / "curator" / "summary.json").write_text(json.dumps(summary))
    scale, noise = 10.0 ** rng.uniform(-2, 4), 10.0 ** rng.uniform(-4, 1)
    clean, answers = scale * rng.standard_normal(p), scale * rng.standard_normal(d)
    means = {f"mean.{i}": torch.tensor(x) for i, x in enumerate(rng.random(20))}
    vectors = {"theta_without_noise": torch.tensor(clean), "effect_at_queries_without_noise": torch.tensor(answers)}
    save_file(means | vectors, folder / "curator" / "numbers.safetensors")
    step = 2.0 ** np.round(np.log2(scale * noise) - 20)
    released = {
        "theta": np.round((clean + scale * noise * rng.standard_normal(p)) / step) * step,
        "answers": answers + scale * noise * rng.standard_normal(d),
        "weights": rng.standard_normal((p, 40)).astype(np.float32).astype(np.float64),
    }
    save_file({name: torch.tensor(values) for name, values in released.items()}, folder / "release" / "a.safetensors")
    facts = {"noise_scale": float(rng.lognormal()), "count": int(rng.integers(10, 5000)), "share": 64 / n}
    (folder / "release" / "facts.json").write_text(
        json.dumps(facts | {"effects": rng.normal(0, 3, 40).round(4).tolist()})
    )
    return folder


@pytest.mark.slow
def test_clean_folders_raise_nothing(tmp_path):
    """200 random folders. The scan's own rate is below 1e-6 each, so the test fails by chance once in 5,000 runs
    at the very most of random ones; the seed is fixed, so it always gives the same answer."""
    rng = np.random.default_rng(1)
    totals = np.zeros((2, 3))
    for i in range(200):
        folder = synthetic(tmp_path / str(i), rng)
        report = scan(folder)
        assert report.leaks == (), i
        totals[0] += np.sum([row.expected for row in report.comparisons[1:]], axis=0)
        totals[1] += np.sum([row.matches for row in report.comparisons[1:]], axis=0)
        shutil.rmtree(folder)
    # chance matches are never rarer than expected says by much, nor far more frequent
    expected, found = totals[:, 1]
    assert expected > 100
    assert 0.2 * expected < found < expected + 6 * np.sqrt(expected)


@pytest.mark.parametrize("law", ["uniform", "normal", "clustered", "decimal"])
def test_chance_matches_come_about_as_often_as_expected(law):
    """Numbers of 24 bits against 20,000 others: hundreds of chance matches; 6 sigma."""
    rng = np.random.default_rng(2)
    draw = {
        "uniform": lambda k: rng.random(k),
        "normal": lambda k: np.abs(rng.standard_normal(k)),
        "clustered": lambda k: 3 + 1e-3 * rng.standard_normal(k),
        "decimal": lambda k: rng.random(k).round(6),
    }[law]
    pool = np.unique(draw(20_000))
    values = np.unique(draw(20_000).astype(np.float32).astype(np.float64) if law != "decimal" else draw(20_000))
    outcome = coincidences(values, grid_step(values), np.full(len(values), np.inf), pool)
    expected, found = sum(outcome.expected), sum(outcome.found)
    assert found > 10
    assert 0.3 * expected < found + 6 * np.sqrt(expected)
    assert found < expected + 6 * np.sqrt(expected)


@pytest.mark.slow
def test_the_false_alarm_rate_is_kept():
    """Matches drawn with exactly their chances, 20,000 times: alarms at rate alpha = 0.02 or fewer, 6 sigma."""
    rng, alpha, trials = np.random.default_rng(3), 0.02, 20_000
    chance = 10.0 ** rng.uniform(-6, 0, 40)
    alarms = 0
    for hits in rng.random((trials, 40)) < chance:
        outcome = Coincidences(np.where(hits, 0, -1), chance, np.zeros(40, dtype=int), 40)
        alarms += len(outcome.beyond_chance(alpha)) > 0
    assert alarms / trials < alpha + 6 * np.sqrt(alpha / trials)
    assert alarms > 0


def test_many_weak_matches_are_beyond_chance_and_few_are_not():
    chance = np.full(100, 0.01)
    for hits, caught in ((2, False), (40, True)):
        nearest = np.where(np.arange(100) < hits, 0, -1)
        outcome = Coincidences(nearest, chance, np.zeros(100, dtype=int), 100)
        assert (len(outcome.beyond_chance(1e-6)) == hits) is caught


@pytest.mark.slow
@given(st.integers(1, 10**7 - 1), st.integers(-6, 6))
def test_the_grid_of_a_decimal_is_its_last_digit_or_coarser(integer, exponent):
    value = float(f"{integer}e{exponent}")
    step = float(grid_step(np.array([value]))[0])
    assert step >= 0.999 * 10.0**exponent
    ratio = value / step
    assert ratio == pytest.approx(round(ratio), rel=1e-9)


@given(st.floats(1e-6, 1e6))
def test_a_number_is_a_multiple_of_its_grid(value):
    step = float(grid_step(np.array([value]), (300, 7))[0])
    assert value / step == pytest.approx(round(value / step), rel=1e-9)
    narrow = float(np.float32(value))
    assert float(grid_step(np.array([narrow]))[0]) >= 2.0**-24 * narrow * 0.99


def test_kinds_are_told_apart():
    pi = np.pi
    steps = {value: float(grid_step(np.array([value]))[0]) for value in (pi, float(np.float32(pi)), 3.14159)}
    assert kind_of(pi, steps[pi], pi) == "equal"
    assert kind_of(float(np.float32(pi)), steps[float(np.float32(pi))], pi) == "equal as float32"
    assert kind_of(3.14159, steps[3.14159], pi) == "rounded to 6 digits"


def test_a_copy_in_any_unit_is_one_and_a_noisy_one_is_not():
    rng = np.random.default_rng(4)
    other = rng.standard_normal(12)
    rows = np.stack([other, -3.5 * other, other.round(3), other + 1e-4 * rng.standard_normal(12), 2 + other])
    slope, chance = multiples_of(other, rows, np.ones_like(rows, dtype=bool))
    assert slope[:2] == pytest.approx([1, -3.5])
    assert slope[2] == pytest.approx(1, abs=1e-3)
    assert np.isnan(slope[3:]).all()
    assert (chance[:3] < np.log(FALSE_ALARM)).all()


def test_clipped_entries_say_nothing():
    other = np.array([10.0] * 20 + [1.0, 2.0, 3.0])
    slope, _ = multiples_of(other, other[None], (other != 10)[None])
    assert np.isnan(slope).all()


def test_an_archive_that_unfolds_without_end_is_not_unfolded(run, monkeypatch):
    monkeypatch.setattr("torchdpcate.audit.leak.files._LARGEST", 1000)
    with zipfile.ZipFile(run.release / "bomb.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("zeros.txt", "0" * 10_000)
    buffer = io.BytesIO(zlib.compress(b"0" * 10_000))
    run.add_chunk(b"zTXt", b"Comment\0\0" + buffer.getvalue())
    assert {leak.file for leak in scan(run.folder).leaks} == {"bomb.zip", "effect.png"}
