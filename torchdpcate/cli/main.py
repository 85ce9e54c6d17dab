"""The program ``torchdpcate``: one line and exit code 2 for a user's mistake, 1 for our own fault."""

import argparse
import io
import re
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Any

from torchdpcate._files import NO_ROOM
from torchdpcate._signals import Terminated, terminable
from torchdpcate._text import plain
from torchdpcate.errors import InputError, TorchDPCateError

# Hydra's, for settings that nothing would read
_ADVICE = re.compile(r"To append to your [\w ]+ use \+\S+|Or add a second \+ to add or override '[^']*': '[^']*'")
_TRAIN_HELP = """usage: torchdpcate train [-m] [GROUP=CHOICE | KEY=VALUE ...]

Train and release. Hydra overrides choose everything; -m sweeps over comma-separated values.
  torchdpcate train data.n=3000 privacy.epsilon=2 run_dir=my_run
  torchdpcate train data=table data.path=FILE data.domain=DOMAIN.yaml
  torchdpcate train second_stage=neural release=queries mechanism=influence
  torchdpcate train task=owl data=table data.path=FILE data.domain=DOMAIN.yaml
  torchdpcate train task=policy_selection policies.path=FILE.yaml data=table data.path=FILE data.domain=DOMAIN.yaml
  torchdpcate train task=average_effect data=table data.path=FILE data.domain=DOMAIN.yaml privacy.delta=0
  torchdpcate train task=subgroups data=table data.path=FILE data.domain=DOMAIN.yaml 'subgroups=[{age: [40, 60]}]'
  torchdpcate train -m seed=0,1,2 privacy.epsilon=0.5,1,4
  torchdpcate train --cfg job          show the configuration and stop
"""
_PLAN_HELP = """usage: torchdpcate plan [n=NUMBER] [precision=NUMBER] [GROUP=CHOICE | KEY=VALUE ...]

The noise to expect of train with the same words, in outcome units, by public facts: no record is read, nothing spent.
  torchdpcate plan data.n=3000 privacy.epsilon=0.5
  torchdpcate plan task=average_effect data=table data.path=FILE data.domain=DOMAIN.yaml n=4000 precision=0.05
  n=NUMBER          records (data=table: needed, for the table is not read; n=metadata asks a parquet file's metadata)
  precision=NUMBER  noise that is wanted, for the least n and the least epsilon
  run_dir=FOLDER    write plan.json and plan.png
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code.

    Args:
        arguments: Command-line words; None takes those of the process.
    """
    words = list(sys.argv[1:] if arguments is None else arguments)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # a terminal without a letter for it must not end the work
    debug = "--debug" in words
    words = [word for word in words if word != "--debug"]
    try:
        with terminable():
            _command(words)
    except KeyboardInterrupt:
        return _complain("interrupted; the run folder's ledger counts what was spent", 130)
    except Terminated:
        return _complain("terminated; the run folder's ledger counts what was spent", Terminated.CODE)
    except BrokenPipeError:
        return 0
    except Exception as error:
        if debug:
            raise
        return _explain(error)
    return 0


def _command(words: list[str]) -> None:
    # Hydra has its own grammar, so its words never pass through argparse.
    if words[:1] == ["train"] and words[1:] in (["-h"], ["--help"]):
        print(_TRAIN_HELP, end="")
    elif words[:1] == ["plan"] and words[1:] in (["-h"], ["--help"]):
        print(_PLAN_HELP, end="")
    elif words[:1] in (["train"], ["plan"], ["audit"], ["study"]):
        _call(words[0], words[1:])
    else:
        given = vars(_parser().parse_args(words))
        _call(given.pop("command"), **{name: value for name, value in given.items() if name != "debug"})


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="torchdpcate", description="Private treatment effects.")
    parser.add_argument("--debug", action="store_true", help="show tracebacks")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    commands.add_parser("train", help="train and release (see torchdpcate train --help)", add_help=False)

    commands.add_parser("plan", help="noise to expect, no record read (see torchdpcate plan --help)", add_help=False)

    predict = commands.add_parser("predict", help="effects or decisions of a release at the rows of a table")
    predict.add_argument("release", help="release file, or run folder")
    predict.add_argument("input", help="csv or parquet table with the covariates' columns")
    predict.add_argument(
        "-o", "--output", required=True, help="csv or parquet file to write, column effect or decision"
    )
    predict.add_argument(
        "--most-bytes", type=int, metavar="N", help="what a row group of a parquet file may unpack to (default 1 GiB)"
    )

    inspect = commands.add_parser("inspect", help="what a release guarantees")
    inspect.add_argument("release", help="release file, or run folder")
    inspect.add_argument("--json", action="store_true", dest="as_json", help="print JSON")
    inspect.add_argument(
        "--card", action="store_true", dest="as_card", help="write the release card, card.json and card.html"
    )
    inspect.add_argument("-o", "--output", help="folder of the card; beside the release if left out")
    inspect.add_argument("--facts", help="yaml file of what only the curator knows (organisation, intended use, ...)")

    verify = commands.add_parser("verify", help="recompute a release's accounting and checksums")
    verify.add_argument("release", help="release file, or run folder")
    verify.add_argument("--key", metavar="PUBLIC", help="public key in PEM that must have signed it")

    sign = commands.add_parser("sign", help="say who released it: sign a release, or make a key")
    sign.add_argument("release", nargs="?", help="release file, or run folder")
    sign.add_argument("--key", metavar="FILE", help="private key in PEM (ed25519)")
    sign.add_argument("--name", help="name of the signer, signed too; that of the key's file if left out")
    sign.add_argument("--new-key", metavar="FILE", help="make a private key, and FILE.pub, the public one")

    explore = commands.add_parser("explore", help="a local page that asks a release (extra explore)")
    explore.add_argument("release", help="release file, or run folder")
    explore.add_argument("--port", type=int, default=8080, help="port on the loopback interface (default 8080)")
    explore.add_argument("--no-browser", action="store_false", dest="show", help="do not open a browser")

    answer = commands.add_parser("answer", help="new queries to a run's online service (the curator's side)")
    answer.add_argument("run", metavar="folder", help="run folder of train release=function mechanism=gaussian_process")
    answer.add_argument("--queries", required=True, help="csv or parquet table with the covariates' columns")
    answer.add_argument("-o", "--output", help="csv or parquet file to write, column effect; printed if left out")

    commands.add_parser("audit", help="attack the mechanisms (see torchdpcate audit --help)", add_help=False)

    commands.add_parser("study", help="a paper's tables beside ours (see torchdpcate study --help)", add_help=False)

    ledger = commands.add_parser("ledger", help="what the runs of a shared ledger have spent, and what is left")
    ledger.add_argument("path", help="the file that budget.shared named (the curator's side)")

    report = commands.add_parser("report", help="table and figure of one run or of a sweep")
    report.add_argument("folder", help="run folder, or a folder of run folders")
    return parser


def _call(command: str, *given: Any, **named: Any) -> None:
    """Call a command's function, imported only now."""
    getattr(import_module(f"torchdpcate.cli.{command}"), command)(*given, **named)


def _explain(error: Exception) -> int:
    if isinstance(error, InputError) or _is_hydra_mistake(error):
        return _complain(_one_line(error), 2)
    if isinstance(error, OSError) and error.errno in NO_ROOM:
        place = "" if error.filename is None else f"{error.filename}: "
        return _complain(
            f"{place}cannot be written or read ({error.strerror}); free space on the disk or choose another place", 2
        )
    if isinstance(error, TorchDPCateError):
        return _complain(_one_line(error), 1)
    return _complain(f"internal error: {type(error).__name__}: {_one_line(error)} (--debug shows where)", 1)


def _is_hydra_mistake(error: Exception) -> bool:
    """Return whether Hydra or OmegaConf refused the user's words; what they failed to build is the library's fault."""
    library = type(error).__module__.split(".")[0]
    if type(error).__name__ == "InstantiationException":
        return isinstance(error.__cause__, InputError)
    return library in ("hydra", "omegaconf")


def _one_line(error: BaseException) -> str:
    while isinstance(error.__cause__, InputError):
        error = error.__cause__
    if type(error).__name__ == "MissingMandatoryValue":  # OmegaConf's, of a setting that has no default
        key = getattr(error, "full_key", None) or str(error).rpartition(" ")[2]
        return f"{key}: has no default; give {key}=VALUE"
    text = _ADVICE.sub("", str(error))
    return " ".join(text.split())


def _complain(message: str, code: int) -> int:
    print(f"torchdpcate: {plain(message)}", file=sys.stderr)
    return code


if __name__ == "__main__":
    sys.exit(main())
