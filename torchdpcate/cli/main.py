"""The program ``torchdpcate``: one line and exit code 2 for a user's mistake, 1 for our own fault."""

import io
import re
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Any

from torchdpcate._files import NO_ROOM
from torchdpcate._process import Terminated, imported, terminable
from torchdpcate._text import plain
from torchdpcate.cli.parser import OWN_GRAMMAR, parsed
from torchdpcate.errors import InputError, TorchDPCateError, place_of

# Hydra's, for settings that nothing would read
_ADVICE = re.compile(r"To append to your [\w ]+ use \+\S+|Or add a second \+ to add or override '[^']*': '[^']*'")
_FAULT = "\n- "  # of several that a table has, each has a line
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
  torchdpcate train task=rule --help   the settings of that task by subject, with their defaults;
                                       ??? must be given, (NAME) is the value of that setting
"""
_PLAN_HELP = """usage: torchdpcate plan [n=NUMBER] [precision=NUMBER] [GROUP=CHOICE | KEY=VALUE ...]

The noise to expect of train with the same words, in outcome units, by public facts: no record is read, nothing spent.
  torchdpcate plan data.n=3000 privacy.epsilon=0.5
  torchdpcate plan task=average_effect data=table data.path=FILE data.domain=DOMAIN.yaml n=4000 precision=0.05
  n=NUMBER          records (data=table: needed, for the table is not read; n=metadata asks a parquet file's metadata)
  precision=NUMBER  noise that is wanted, for the least n and the least epsilon
  run_dir=FOLDER    write plan.json and plan.png
"""
_HELP = {"train": _TRAIN_HELP, "plan": _PLAN_HELP}


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
    first, rest = words[:1], words[1:]
    if first and first[0] in _HELP and {"-h", "--help"} & set(rest):
        print(_HELP[first[0]])
        shown = [word for word in rest if not word.startswith("-")]
        print(import_module("torchdpcate.cli.settings_help").settings_help(shown), end="")
    elif first and first[0] in OWN_GRAMMAR:
        _call(first[0], rest)
    else:
        given = parsed(words)
        _call(given.pop("command"), **{name: value for name, value in given.items() if name != "debug"})


def _call(command: str, *given: Any, **named: Any) -> None:
    """Call a command's function, imported only now."""
    getattr(imported(f"torchdpcate.cli.{command}"), command)(*given, **named)


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
    while error.__cause__ is not None and isinstance(error.__cause__, Exception):
        error = error.__cause__
    # what a library says of a value may be of a record's
    return _complain(f"internal error: {type(error).__name__}{place_of(error)} (--debug shows the rest)", 1)


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
        drafts = "; torchdpcate domain TABLE -o YAML drafts one" if key == "data.domain" else ""
        return f"{key}: has no default; give {key}=VALUE{drafts}"
    text = _ADVICE.sub("", str(error))
    return _FAULT.join(" ".join(part.split()) for part in text.split(_FAULT))


def _complain(message: str, code: int) -> int:
    print(f"torchdpcate: {_FAULT.join(map(plain, message.split(_FAULT)))}", file=sys.stderr)
    return code
