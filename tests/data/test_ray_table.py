import importlib.util
import json
import os
import signal
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from tests.data.test_cells import READ, TABLES, write
from tests.registered import CovariateBalancingEffect
from torchdpcate import NoiseSource, PrivacyBudget, load_release
from torchdpcate.cli.audit import leaks
from torchdpcate.cli.main import main
from torchdpcate.data._csv import PLAIN
from torchdpcate.data._frames import MOST_BYTES
from torchdpcate.data.ray_table import RayCluster, RayTable, _read, spans
from torchdpcate.data.schema import TableSchema
from torchdpcate.data.table_stream import TableStream
from torchdpcate.errors import InputError
from torchdpcate.estimators.cate.learner import RLearner
from torchdpcate.privacy.ledger import Ledger

N, GROUP = 12_000, 1_000
ray_installed = pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="needs Ray: extra ray")
cluster = [pytest.mark.slow, ray_installed, pytest.mark.xdist_group("ray")]
UNIT = {"low": 0, "high": 1}
DOMAIN = {
    "treatment": "a",
    "outcome": {"name": "y", "low": -2, "high": 4},
    "covariates": {"x0": UNIT, "x1": UNIT},
    "overlap": 0.1,
}


def drawn():
    random = np.random.default_rng(0)
    x = random.random((N, 2))
    a = (random.random(N) < 0.3 + 0.4 * x[:, 0]).astype(float)
    a[: N // 2] = np.sort(a[: N // 2])  # a first part with hardly any treated
    y = np.clip(0.3 * x[:, 1] + a * (x[:, 0] - 0.4) + 0.2 * random.standard_normal(N), -2, 4)
    return pd.DataFrame({"x0": x[:, 0], "x1": x[:, 1], "a": a, "y": y})


@pytest.fixture(scope="module")
def records():
    return drawn()


@pytest.fixture(scope="module")
def parquet(records, tmp_path_factory):
    path = tmp_path_factory.mktemp("table") / "t.parquet"
    records.to_parquet(path, row_group_size=GROUP)
    return path


@pytest.fixture(scope="module")
def table(parquet):
    with RayCluster(None, 4) as own, RayTable(parquet, DOMAIN, parts=2) as made:
        yield made, own


def effect(stream, kind=CovariateBalancingEffect, budget=PrivacyBudget(1.0, 0.0), ledger=None):  # noqa: B008
    return kind(DOMAIN, budget, noise=NoiseSource.fixed(0), ledger_path=ledger).fit_stream(stream)


def numbers(learner):
    release = learner.release()
    return release.theta if isinstance(learner, RLearner) else torch.tensor(list(release.numbers.values()))


def pids(parts):
    return parts.ask(lambda held: os.getpid())


@contextmanager
def dying(parts, at):
    """Let an actor die before some of the requests, by their numbers."""
    asked, before = 0, parts._actors.each

    def each(request):
        nonlocal asked
        asked += 1
        if asked in at:
            os.kill(before(("ask", lambda held: os.getpid(), "records"))[1], signal.SIGKILL)
        return before(request)

    parts._actors.each = each
    try:
        yield
    finally:
        del parts._actors.each


def spoilt(held):
    raise ValueError(f"{held.first().y[0]}")


def stored():
    """Yield what of the object store is in this process's memory."""
    with open("/proc/self/maps") as maps, open("/proc/self/mem", "rb") as memory:
        for line in maps:
            if "/plasma" in line:
                first, last = (int(end, 16) for end in line.split()[0].split("-"))
                memory.seek(first)
                yield memory.read(last - first)


def logs(cluster):
    paths = (os.path.join(place, name) for place, _, names in os.walk(cluster._folder) for name in names)
    return b"".join(open(path, "rb").read() for path in paths if os.path.isfile(path))


def test_a_run_without_its_cluster_ends_with_one_line_and_leaves_nothing(parquet, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("domain.yaml").write_text(json.dumps(DOMAIN))
    given = f"data.path={parquet}", "data.domain=domain.yaml", "data.stream=true", "data.engine=ray"
    assert main(["train", *given, "data.address=127.0.0.1:1", "run_dir=r"]) == 2
    assert "data.address = 127.0.0.1:1: no cluster can be reached" in capsys.readouterr().err
    assert not Path("r").exists()


def test_a_part_tells_the_rows_of_its_file_and_refuses_a_file_that_has_changed(records, tmp_path):
    path, schema = tmp_path / "t.parquet", TableSchema.of(DOMAIN)
    records.to_parquet(path, row_group_size=GROUP)
    _, second = spans([[GROUP] * (N // GROUP)], 2)
    with _read([path], second, schema, MOST_BYTES, PLAIN) as part:
        assert torch.equal(torch.cat([batch.y for batch in part]), torch.tensor(records["y"].to_numpy())[N // 2 :])
    with _read([path], second, schema, MOST_BYTES, PLAIN, part.counted) as again:
        assert again.n == N // 2
        os.utime(path, (0, 0))
        with pytest.raises(InputError, match=rf"^data file '{path}' has changed since it was first read"):
            next(iter(again))
    spoilt = records.assign(y=np.where(np.arange(N) == N - 1, 99.0, records["y"]))
    spoilt.to_parquet(path, row_group_size=GROUP)
    with pytest.raises(InputError, match=rf"^{path}, rows 6001 to 12000: outcome"):
        _read([path], second, schema, MOST_BYTES, PLAIN).__enter__()


class TestOnACluster:
    pytestmark = cluster

    @pytest.mark.parametrize("cells", TABLES)
    def test_cells_are_read_as_a_table_reads_them(self, table, tmp_path, cells):
        frame, schema = TABLES[cells]
        write(frame, tmp_path / "t.dta")
        with RayTable(tmp_path / "t.dta", schema, parts=1) as whole, whole.copied(tmp_path) as one:
            found = one.ask(lambda held: [(part.x.tolist(), part.y.tolist(), part.weight.tolist()) for part in held])
        assert found == [[READ]]

    def test_one_part_is_the_stream_to_the_bit_and_two_agree_with_the_same_charges(self, table, parquet, tmp_path):
        settings = RLearner, PrivacyBudget(2.0, 1e-5)
        with TableStream(parquet, DOMAIN).copied(tmp_path) as copy:
            stream = effect(copy, *settings)
        with RayTable(parquet, DOMAIN, parts=1) as whole, whole.copied(tmp_path) as one:
            single = effect(one, *settings)
        with table[0].copied(tmp_path) as two:
            assert len(set(pids(two))) == two.parts == 2
            several = effect(two, *settings)
        assert torch.equal(numbers(single), numbers(stream))
        torch.testing.assert_close(numbers(several), numbers(stream), rtol=1e-9, atol=1e-12)
        assert several.release().privacy.to_dict() == stream.release().privacy.to_dict()
        assert list(tmp_path.iterdir()) == []

    def test_a_run_of_the_command_line_converts_other_files_once(
        self, records, table, parquet, tmp_path, monkeypatch, capsys
    ):
        monkeypatch.chdir(tmp_path)
        Path("domain.yaml").write_text(json.dumps(DOMAIN))
        records.to_csv("t.csv", index=False)
        words = "task=average_effect", "effect=covariate_balancing", "data.domain=domain.yaml", "data.stream=true"
        for name, more in (("stream", [f"data.path={parquet}"]), ("parts", ["data.path=t.csv", "data.engine=ray"])):
            parts = ["data.parts=2"] if name == "parts" else []
            assert main(["train", *words, *more, *parts, "privacy.noise_seed=1", f"run_dir={name}"]) == 0
        stream, parts = (load_release(f"{name}/release/release.safetensors") for name in ("stream", "parts"))
        assert parts.numbers == pytest.approx(stream.numbers, rel=1e-9)
        assert parts.privacy.to_dict() == stream.privacy.to_dict()
        assert not [path for path in Path("parts/curator").iterdir() if path.is_dir()]
        assert leaks("parts") == ()

    def test_copies_are_their_owners_and_nothing_of_a_record_is_in_logs_or_the_object_store(
        self, records, table, tmp_path
    ):
        with table[0].copied(tmp_path) as parts:
            folders = [path for path in tmp_path.iterdir() if path.is_dir()]
            assert [path.stat().st_mode & 0o777 for path in folders] == [0o700, 0o700]
            files = [file for folder in folders for file in folder.iterdir()]
            assert [file.stat().st_mode & 0o777 for file in files] == [0o600, 0o600]
            effect(parts)
            with pytest.raises(InputError, match="ValueError in a part") as error:
                parts.ask(spoilt)
            assert str(records["y"][0]) not in str(error.value)
        ray = table[1].ray
        ray.get(ray.put(bytes(1 << 20)))  # maps the store
        found = b"".join(stored()) + logs(table[1])
        assert len(found) > 1 << 20
        for row in (0, 1, N // 2, N - 1):
            values = records.iloc[row]
            assert values[["x0", "x1"]].to_numpy().tobytes() not in found
            assert not any(str(values[name]).encode() in found for name in ("x0", "x1", "y"))

    def test_an_actor_that_dies_is_started_again_and_at_the_third_time_the_fit_ends_in_one_line(self, table, tmp_path):
        path, words = tmp_path / "ledger.sqlite", r"^ray: the actor of part 2 of 2 died 3 times"
        with table[0].copied(tmp_path) as parts:
            expected, before = effect(parts), pids(parts)
            with dying(parts, {1}):
                again = effect(parts)
            assert torch.equal(numbers(again), numbers(expected))
            assert [now == old for now, old in zip(pids(parts), before, strict=True)] == [True, False]
            assert [e.reserved for e in again.ledger_.entries] == [e.reserved for e in expected.ledger_.entries]
            refused = pytest.raises(InputError, match=words)
            with dying(parts, {6, 7}), refused:
                effect(parts, RLearner, PrivacyBudget(1.0, 0.0), path)
        assert any(entry.reserved for entry in Ledger.load(path).entries)
        assert [path.name for path in tmp_path.iterdir() if path.is_dir()] == []
        with pytest.raises(InputError, match=r"^stream: the copy of its parts was removed"):
            pids(parts)
