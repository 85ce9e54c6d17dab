"""Whole commands on a run whose files were damaged or made up: an exit code, one line, and never a traceback."""

import shutil

import lightning.pytorch  # noqa: F401 - before no_pickle replaces what some of its modules derive classes from
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.faults.guards import bounded
from tests.faults.mutations import byte_faults, examples
from torchdpcate.cli.main import main

pytestmark = [pytest.mark.usefixtures("no_pickle"), pytest.mark.filterwarnings("ignore")]

QUICK = ["data=dataset1", "data.n=300", "nuisance.batch_size=50", "nuisance.epochs=1"]
QUICK += ["second_stage=linear", "second_stage.ridge=0.2"]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("run") / "r"
    assert main(["train", *QUICK, "trainer.progress=false", f"run_dir={folder}"]) == 0
    return folder


def outcome(capsys, *words: str) -> int:
    """The exit code of a command, which prints one line on stderr if it is not 0."""
    with bounded():
        code = main(list(words))
    error = capsys.readouterr().err
    assert code in (0, 1, 2)
    assert "internal error" not in error
    assert len(error.strip().splitlines()) == (code != 0), error
    return code


@pytest.mark.parametrize(
    "name",
    [
        "release/release.safetensors",
        "release/privacy.json",
        "release/effect.png",
        "release/SHA256SUMS",
        "curator/config.yaml",
        "curator/ledger.sqlite",
        "curator/numbers.safetensors",
        "curator/summary.json",
    ],
)
def test_damage_to_any_file_of_a_run(run, tmp_path, capsys, name):
    copy = tmp_path / "r"
    shutil.copytree(run, copy)
    path = str(copy / "release" / "release.safetensors")
    commands = (["verify", path], ["report", str(copy)], ["audit", "leak", str(copy)])
    assert [outcome(capsys, *words) for words in commands[:3]] == [0, 0, 0]

    @examples(3)
    @given(byte_faults((run / name).read_bytes()) | st.binary(max_size=200))
    @example(b"")
    def check(data):
        (copy / name).write_bytes(data)
        for words in commands:
            outcome(capsys, *words)

    check()
