"""``torchdpcate sites``: messages between the coordinator and the runs of sites, and what is refused."""

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.composition.test_sites import BUDGET, DOMAIN, SIZES, records, together
from torchdpcate.cli.coordinator import MESSAGES, coordinated
from torchdpcate.cli.main import main
from torchdpcate.cli.site_link import SocketLink, carried
from torchdpcate.composition.constants import PlanConstants
from torchdpcate.composition.settings import AdaptiveSecondStage
from torchdpcate.composition.sites import Meeting, Site
from torchdpcate.errors import InputError
from torchdpcate.estimators.cate.learner import RLearner
from torchdpcate.privacy.budget import PrivacyBudget
from torchdpcate.privacy.shared_ledger import SharedLedger
from torchdpcate.release.file import load_release

FEW = PlanConstants(step_bounds=(2, 2), quantile_levels=2)


@pytest.fixture
def short() -> Iterator[Path]:
    """A folder whose name is short, as those of sockets must be."""
    folder = Path(f"/tmp/tdp-{os.getpid()}-{threading.get_native_id()}")
    folder.mkdir(mode=0o700)
    yield folder
    shutil.rmtree(folder)


def fit(
    short: Path, name: str, seed: int, n: int | None = None, budget: PrivacyBudget = BUDGET, wait: float = 20.0
) -> Any:
    """Fit one site over a socket, and send its release."""
    link = SocketLink(name, short / f"{name}.sock", wait)
    stage = AdaptiveSecondStage(constant_only=True, constants=FEW, site=Site(name, SIZES, link, again=True))
    release = RLearner(DOMAIN, budget, second_stage=stage).fit(*records(n or SIZES[name], seed)).release_function()
    release.save(short / f"{name}.safetensors")
    link.finish(short / f"{name}.safetensors")
    return release


def asked(short: Path, wait: float, number: int, message: bytes, last: bool) -> dict[str, bytes]:
    """What all sites answer to a message."""
    found: dict[str, bytes] = {}

    def carry(name: str) -> None:
        found[name] = carried(str(short / f"{name}.sock"), message, wait)

    threads = [threading.Thread(target=carry, args=(name,)) for name in SIZES]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found


def run(short: Path, sizes: Mapping[str, int] = SIZES, wait: float = 20, **sites: Mapping[str, Any]) -> dict[str, Any]:
    """What coordinator and sites return or raise."""
    fits = {name: partial(fit, short, name, seed, **sites.get(name, {})) for seed, name in enumerate(SIZES)}
    (short / "all").mkdir()
    fits["coordinator"] = partial(coordinated, partial(asked, short, wait), sizes, short / "all")
    return together(Meeting(["nobody"]), fits)


def test_all_sites_and_the_coordinator_have_one_release(short):
    found = run(short)
    release = load_release(found["coordinator"])
    assert release.privacy.public["sites"] == 3
    assert all(found[name].theta.tolist() == release.theta.tolist() for name in SIZES)
    lines = [json.loads(line) for line in (short / "all" / MESSAGES).read_text().splitlines()]
    assert {frozenset(line) for line in lines} == {
        frozenset({"site", "plan"}),
        frozenset({"site", "step", "values"}),
        frozenset({"site", "release"}),
    }
    assert not list(short.glob("*.sock"))


def test_a_plan_that_differs_is_told_to_all(short):
    found = run(short, south={"budget": PrivacyBudget(2.0, 1e-5)})
    why = "sites: requested_epsilon is 1.0 at north and 2.0 at south; all sites need the same plan and domain"
    assert str(found.pop("coordinator")) == why
    assert {str(error) for error in found.values()} == {
        f"{why} (from the coordinator; what was spent is in this site's ledger)"
    }


def test_a_site_that_refuses_its_records_is_named_without_a_number(short):
    found = run(short, west={"n": 499}, wait=1.0)
    assert str(found["coordinator"]) == "sites: west has no run; nothing is released"
    assert "said 500 to all sites" in str(found["west"])
    assert "west has no run" in str(found["north"])


def test_a_message_that_is_brought_again_has_the_same_answer(short):
    link, path = SocketLink("north", short / "n.sock", 20.0), str(short / "n.sock")
    values = torch.tensor([0.1, 1 / 3], dtype=torch.float64)
    site = threading.Thread(target=lambda: link.total("moments", values))
    site.start()
    first = json.dumps({"round": 0, "answer": {}}).encode()
    answers = {carried(path, first, 20.0) for _ in range(3)}
    assert [json.loads(answer)["values"] for answer in answers] == [values.tolist()]  # to the bit
    threading.Thread(target=carried, args=(path, b'{"round": 1, "answer": {"total": [0.0, 0.0]}}', 1.0)).start()
    site.join()


def test_a_socket_is_of_its_owner_and_group_alone(short):
    link = SocketLink("north", short / "n.sock", 0.05)
    with pytest.raises(InputError):
        link.agree({})
    assert (short / "n.sock").stat().st_mode & 0o117 == 0
    with pytest.raises(InputError, match="is there already"):
        SocketLink("north", short / "n.sock", 1.0)
    with pytest.raises(InputError, match="longer than 100 bytes"):
        SocketLink("north", short / ("n" * 100), 1.0)


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["list.yaml"], "sites = list.yaml: give lines such as north: 1200"),
        (["sites.yaml", "--certfile", "a.pem"], "sites: TLS needs all of --certfile, --keyfile and --cafile"),
        (["sites.yaml", "--host", "0.0.0.0"], "host = 0.0.0.0: give --certfile"),
    ],
)
def test_words_that_do_not_fit_are_refused(words, why, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("list.yaml").write_text("- north\n")
    Path("sites.yaml").write_text("north: 300\nsouth: 400\n")
    assert main(["sites", *words, "-o", "all"]) == 2
    assert why in capsys.readouterr().err
    assert not Path("all").exists()


def test_the_extra_is_named_where_flower_is_not_there(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("torchdpcate.cli.sites.find_spec", lambda name: None)
    (tmp_path / "sites.yaml").write_text("north: 300\nsouth: 400\n")
    assert main(["sites", str(tmp_path / "sites.yaml"), "-o", str(tmp_path / "all")]) == 2
    assert capsys.readouterr().err == "torchdpcate: sites: needs Flower (extra flower); pip install flwr\n"


TABLE = (
    *("train", "data=table", "data.path=north.csv", "data.domain=domain.yaml"),
    *("run_dir=run", "sites.path=sites.yaml", "force=true"),
)
SHARED = ["budget.shared=own/shared.sqlite", "budget.total.epsilon=1", "budget.total.delta=1e-5"]


@pytest.fixture
def north(tmp_path, monkeypatch) -> Path:
    """A folder with the table of one site of two."""
    monkeypatch.chdir(tmp_path)
    Path("sites.yaml").write_text("north: 20\nsouth: 400\n")
    facts = "treatment: t\noutcome: {name: y, low: 0, high: 1, origin: protocol}\n"
    Path("domain.yaml").write_text(f"{facts}covariates:\n  x: {{low: 0, high: 1, origin: protocol}}\npropensity: 0.5\n")
    Path("north.csv").write_text("x,t,y\n" + "".join(f"{row / 20},{row % 2},{row / 20}\n" for row in range(20)))
    return tmp_path


@pytest.mark.parametrize(
    ("words", "why"),
    [
        ([], "sites.name: has no default; give sites.name=VALUE beside sites.path"),
        (["sites.name=east", "sites.socket=s"], "site = east: is none of the sites"),
        (["sites.name=north", "sites.socket=s", "second_stage=linear"], "sites.path: sites add up the sums of one"),
        (["sites.name=north", "sites.socket=s", "sites.wait=0.05"], "no word from the coordinator for 0.05 s"),
    ],
)
@pytest.mark.usefixtures("north")
def test_a_run_of_a_site_refuses_in_one_line(words, why, capsys):
    assert main([*TABLE, *SHARED, *words]) == 2
    assert why in capsys.readouterr().err
    assert not Path("run/release").exists()


@pytest.mark.usefixtures("north")
def test_a_site_names_a_ledger_over_all_its_starts(capsys):
    assert main([*TABLE, "sites.name=north", "sites.socket=s"]) == 2
    assert "budget.shared: a site counts all its starts in one ledger" in capsys.readouterr().err
    assert not Path("run").exists()


def test_a_site_that_is_asked_to_begin_again_refuses_what_its_total_does_not_cover(north, short, capsys):
    """A coordinator that takes the first sums and is silent then, and would have others."""
    path, seen = str(short / "n.sock"), []
    words = [*TABLE, *SHARED, "sites.name=north", f"sites.socket={path}", "sites.wait=2"]

    def coordinator() -> None:
        seen.append(json.loads(carried(path, b'{"round": 0, "answer": {}}', 60.0)))
        seen.append(json.loads(carried(path, b'{"round": 1, "answer": {"agreed": true}}', 60.0)))

    asking = threading.Thread(target=coordinator)
    asking.start()
    assert main(words) == 2
    asking.join()
    assert [set(said) for said in seen] == [{"site", "plan"}, {"site", "step", "values"}]
    assert "what was spent is in the ledger" in capsys.readouterr().err
    assert main([*words, "run_dir=second", f"sites.socket={short / 'second.sock'}"]) == 2
    line = capsys.readouterr().err
    assert line.count("\n") == 1
    assert "a run of epsilon = 1, delta = 1e-05 exceeds what the total of epsilon = 1, delta = 1e-05 leaves" in line
    assert not (short / "second.sock").exists()
    (run,) = [run for run in SharedLedger.load("own/shared.sqlite").runs if run.reserved]
    assert run.label == "run"


@pytest.mark.slow
def test_flower_carries_the_messages_of_five_sites(short):
    pytest.importorskip("flwr", reason="Flower (extra flower) is not installed")
    sizes, port = dict.fromkeys(("north", "south", "west", "east", "middle"), 240), 18_900
    meeting, wait = Meeting(sizes), 120.0

    def released(seed: int, name: str) -> Any:
        stage = AdaptiveSecondStage(
            constant_only=True, constants=FEW, site=Site(name, sizes, meeting.link(name), again=True)
        )
        return RLearner(DOMAIN, BUDGET, second_stage=stage).fit(*records(240, seed)).release_function()

    fits = {name: partial(released, seed, name) for seed, name in enumerate(sizes)}
    for name, release in together(meeting, fits).items():
        release.save(short / f"{name}.safetensors")

    def site(place: int, name: str) -> torch.Tensor:
        link = SocketLink(name, short / f"{name}.sock", wait)
        link.agree({"sizes": sizes})
        total = link.total("moments", torch.tensor([place, 1 / 3], dtype=torch.float64))
        link.finish(short / f"{name}.safetensors")
        return total

    from torchdpcate.cli.sites import ENVIRONMENT

    programs = Path(sys.executable).parent
    path = f"{programs}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, **ENVIRONMENT, "PATH": path, "FLWR_HOME": str(short / "flower")}
    (short / "sites.yaml").write_text("".join(f"{name}: {n}\n" for name, n in sizes.items()))
    words = ["sites", str(short / "sites.yaml"), "-o", str(short / "all"), "--port", str(port), "--wait", str(wait)]
    with ExitStack() as stack:

        def started(*words: str) -> subprocess.Popen:
            process = subprocess.Popen(words, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            stack.callback(process.wait)
            stack.callback(process.send_signal, signal.SIGTERM)
            return process

        coordinator = started(sys.executable, "-m", "torchdpcate", *words)
        for place, name in enumerate(sizes, 1):
            own = ["--port", str(port + place), "--node-config", f'socket="{short / name}.sock"']
            started(str(programs / "flower-supernode"), "--insecure", "--superlink", f"127.0.0.1:{port}", *own)
        totals = together(Meeting(["nobody"]), {n: partial(site, place, n) for place, n in enumerate(sizes)})
        assert coordinator.wait(wait) == 0
    assert all(total.tolist() == [10.0, sum([1 / 3] * 5)] for total in totals.values())
    assert len((short / "all" / MESSAGES).read_text().splitlines()) == 3 * len(sizes)
    assert load_release(short / "all" / "release.safetensors").privacy.public["sites"] == 5
