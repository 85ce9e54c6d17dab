"""The words of the commands that have options of their own, and what to say of words that are none of them."""

import argparse
import difflib
import json
from collections.abc import Iterable, Sequence
from importlib.resources import files
from typing import Any, NoReturn

from torchdpcate._text import plain
from torchdpcate._version import version
from torchdpcate.errors import InputError

_GONE = json.loads(files("torchdpcate.cli").joinpath("gone.json").read_text(encoding="utf-8"))
GONE: dict[str, str] = _GONE["settings"]
"""What answers the question of a word that went, by the setting, or by the setting with its value."""
OPTIONS: dict[str, str] = _GONE["options"]
"""The same of options of commands."""
COMMANDS: dict[str, str] = _GONE["commands"]
"""The same of commands."""

PROGRAM = "torchdpcate"
OWN_GRAMMAR = ("train", "plan", "audit", "study")
"""Commands whose words are KEY=VALUE and never pass through argparse."""

FORM: dict[str, dict[str, Any]] = {
    "separator": {"metavar": "NAME", "help": "of csv files, as all that follows: comma, semicolon, tab, bar"},
    "decimal": {"metavar": "NAME", "help": "point or comma"},
    "thousands": {"metavar": "NAME", "help": "comma, point, space or apostrophe between groups of three digits"},
    "encoding": {"metavar": "NAME", "help": "utf-8, latin-1, cp1252, utf-16, ..."},
    "skip_lines": {"type": int, "metavar": "N", "help": "lines before the header"},
    "skip_after_header": {"type": int, "metavar": "N", "help": "rows below it that are no records"},
}
"""Options of the form of a csv file, the settings of ``CsvForm``."""
_TABLE = "table: csv, parquet, or a file of Stata, SPSS or SAS"
_RELEASE = "release file, or run folder"
_OVERWRITE = "write the file anew where it is there already"
_ORDER = (
    "Who holds the records: domain, plan, train, report, sign. Who reads a release: verify, predict, report, combine."
)
_LIKE = 0.6
_ALONE = ("-h", "--help", "--version", "--debug")


class Parser(argparse.ArgumentParser):
    """A parser whose complaints are one line, as those of everything else."""

    def error(self, message: str) -> NoReturn:
        """Raise the complaint as an InputError."""
        command = self.prog.removeprefix(PROGRAM).strip()
        raise InputError(f"{command + ': ' if command else ''}{message}; {self.prog} --help shows what there is")

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        try:
            super()._check_value(action, value)
        except argparse.ArgumentError as error:
            near = nearest(str(value), map(str, action.choices or ()), "")
            raise argparse.ArgumentError(action, f"{error.message}{'; ' if near else ''}{near}") from None


def parsed(words: Sequence[str]) -> dict[str, Any]:
    """Return the command and its options.

    Args:
        words: Words of the command line.

    Raises:
        InputError: No command, or a word that it does not know; says the nearest.
    """
    commands = subparsers()
    first = next((word for word in words if not word.startswith("-")), None)
    strange = [word for word in words if word.startswith("-") and first is None and word not in _ALONE]
    if strange:
        raise InputError(
            f"{plain(strange[0])}: no such option; {nearest(strange[0], _ALONE, f'{PROGRAM} --help shows all')}"
        )
    if first in COMMANDS:
        raise InputError(f"{first}: is no longer there; {COMMANDS[first]}")
    if first is not None and first not in commands:
        raise InputError(f"{plain(first)}: no such command; {nearest(first, commands, f'{PROGRAM} --help shows all')}")
    if first is not None:  # before argparse requests what is required
        known = (*options(commands[first]), *_ALONE)
        for word in words[words.index(first) + 1 :]:
            if word.startswith("--") and not any(option.startswith(word.partition("=")[0]) for option in known):
                raise InputError(_unknown(word, first, commands[first]))
    given, rest = make_parser().parse_known_args(words)
    if rest:
        raise InputError(_unknown(rest[0], given.command, commands[given.command]))
    found = vars(given)
    if not FORM.keys() <= found.keys():
        return found
    from torchdpcate.data._csv import CsvForm  # brings torch, which nothing else here does

    form = {name: value for name in FORM if (value := found.pop(name)) is not None}
    return found | {"form": CsvForm(**form)}


def subparsers() -> dict[str, argparse.ArgumentParser]:
    """Return the parser of each command by its name."""
    actions = make_parser()._actions
    (commands,) = (action for action in actions if isinstance(action, argparse._SubParsersAction))
    return dict(commands.choices)


def options(parser: argparse.ArgumentParser) -> list[str]:
    """Return the long options of a command."""
    return [option for action in parser._actions for option in action.option_strings if option.startswith("--")]


def remedy(key: str, values: list[object]) -> str | None:
    """Return what answers the question of a word that went; None of others.

    Args:
        key: The setting.
        values: Its values.

    Example:
        >>> remedy("screen.most", [3])[:23]
        'second_stage=adaptive, '
        >>> remedy("seed", [3])
    """
    names = [f"{key}={value}" for value in values]
    while key:
        names.append(key)
        key = key.rpartition(".")[0]
    return next((GONE[name] for name in names if name in GONE), None)


def nearest(word: str, known: Iterable[str], otherwise: str) -> str:
    """Return which known words are nearest to one, or what to say where none is near.

    Example:
        >>> nearest("verfiy", ["predict", "verify"], "see --help")
        'the nearest is verify'
        >>> nearest("--force", ["--info"], "see --help")  # dashes make no word like another
        'see --help'
    """
    names = {name.lstrip("-"): name for name in sorted(known)}
    near = [names[name] for name in difflib.get_close_matches(word.lstrip("-"), names, 2, _LIKE)]
    return f"the nearest is {' or '.join(near)}" if near else otherwise


def make_parser() -> Parser:
    """Return the program's parser."""
    parser = Parser(prog=PROGRAM, description="Private treatment effects.", epilog=_ORDER)
    parser.add_argument("--debug", action="store_true", help="show tracebacks, also what libraries say of values")
    parser.add_argument("--version", action="version", version=f"{PROGRAM} {version()}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    commands.add_parser("train", help="train and release (see torchdpcate train --help)", add_help=False)

    commands.add_parser("plan", help="noise to expect, no record read (see torchdpcate plan --help)", add_help=False)

    domain = commands.add_parser("domain", help="write the domain file of a table: asks in a terminal, else drafts")
    domain.add_argument("table", help=_TABLE)
    domain.add_argument("-o", "--output", metavar="YAML", help="file to write, not there yet; printed if left out")
    domain.add_argument("--treatment", metavar="COLUMN", help="the treatment's column")
    domain.add_argument("--outcome", metavar="COLUMN", help="the outcome's column")
    domain.add_argument("--covariates", metavar="A,B,C", help="the covariates' columns; all that may be if left out")
    domain.add_argument("--no-questions", action="store_false", dest="ask", help="draft without asking in a terminal")
    _add_form(domain)

    predict = commands.add_parser("predict", help="effects or decisions of a release at the rows of a table")
    predict.add_argument("release", help=f"{_RELEASE}; RUN/curator/online asks the curator's service")
    predict.add_argument("input", help=f"{_TABLE}, with the covariates' columns")
    predict.add_argument(
        "-o", "--output", required=True, help="csv or parquet file to write, column effect or decision"
    )
    predict.add_argument(
        "--keep", action="append", metavar="COLUMN", help="column of the input to write too; may be given several times"
    )
    predict.add_argument("--interval", action="store_true", help="write each effect's interval, columns low and high")
    predict.add_argument("--level", type=float, help="confidence level of the intervals (default 0.95)")
    predict.add_argument(
        "--outside",
        choices=("refuse", "missing"),
        default="refuse",
        help="rows outside the domain: refuse the table, or leave their answers missing and count them",
    )
    predict.add_argument(
        "--most-bytes", type=int, metavar="N", help="what a row group of a parquet file may unpack to (default 1 GiB)"
    )
    predict.add_argument("--overwrite", "--force", action="store_true", help=_OVERWRITE)
    _add_form(predict)

    verify = commands.add_parser("verify", help="recompute a release's accounting, and say what it guarantees")
    verify.add_argument("release", help=_RELEASE)
    verify.add_argument("--key", metavar="PUBLIC", help="public key in PEM that must have signed it")
    verify.add_argument("--json", action="store_true", dest="as_json", help="print JSON")

    combine = commands.add_parser("combine", help="releases of several sites as one, by released numbers alone")
    combine.add_argument("releases", nargs="+", metavar="release", help="files or run folders, of two or more sites")
    combine.add_argument("-o", "--output", required=True, help="release file to write, effect.png beside it")
    combine.add_argument(
        "--between",
        choices=("fixed", "random"),
        default="random",
        help="effects are the same at all sites, or differ between them (default)",
    )
    combine.add_argument("--names", metavar="A,B,C", help="what the sites are called; by their files if left out")
    combine.add_argument("--overwrite", action="store_true", help=_OVERWRITE)

    sign = commands.add_parser("sign", help="say who released it: sign a release, or make a key")
    sign.add_argument("release", nargs="?", help=_RELEASE)
    sign.add_argument("--key", metavar="FILE", help="private key in PEM (ed25519)")
    sign.add_argument("--name", help="name of the signer, signed too; that of the key's file if left out")
    sign.add_argument("--new-key", metavar="FILE", help="make a private key, and FILE.pub, the public one")
    sign.add_argument("--overwrite", action="store_true", help="sign a release anew that is signed already")

    sites = commands.add_parser("sites", help="add up noisy sums of several sites into one release (extra flower)")
    sites.add_argument("sizes", metavar="SITES", help="yaml file with each site's name and number of records, public")
    sites.add_argument("-o", "--output", required=True, help="folder to write: the release, and all messages")
    sites.add_argument("--host", default="127.0.0.1", help="where Flower's SuperLink listens (default 127.0.0.1)")
    sites.add_argument("--port", type=int, default=8000, help="its port (default 8000)")
    for name, what in (("certfile", "TLS certificate"), ("keyfile", "key of that"), ("cafile", "who signed it")):
        sites.add_argument(f"--{name}", metavar="PEM", help=f"{what}, as of flower-superlink")
    sites.add_argument("--insecure", action="store_true", help="do without TLS beyond the loopback interface")
    sites.add_argument("--wait", type=float, default=600.0, metavar="SECONDS", help="for sites, at each message")

    commands.add_parser("audit", help="attack the mechanisms (see torchdpcate audit --help)", add_help=False)

    commands.add_parser("study", help="a paper's tables beside ours (see torchdpcate study --help)", add_help=False)

    ledger = commands.add_parser("ledger", help="what the runs of a shared ledger have spent, and what is left")
    ledger.add_argument("path", help="the file that budget.shared named (the curator's side)")
    ledger.add_argument("--json", action="store_true", dest="as_json", help="print the entries of any ledger as JSON")

    report = commands.add_parser("report", help="a page for readers of each release, and runs side by side")
    report.add_argument("folder", metavar="run", help="run folder, a folder of run folders, or a release file")
    report.add_argument("--reference", help="csv or parquet table of a public population to average figures over")
    report.add_argument("-o", "--output", help="folder of the page of one release (default: beside it)")
    _add_form(report)

    return parser


def _add_form(parser: argparse.ArgumentParser) -> None:
    for name, how in FORM.items():
        parser.add_argument(f"--{name.replace('_', '-')}", **how)


def _unknown(word: str, command: str, parser: argparse.ArgumentParser) -> str:
    """Return what to say of a word that a command does not know."""
    help_ = f"{PROGRAM} {command} --help shows what there is"
    if word.startswith("-"):
        option = word.partition("=")[0]
        if option in OPTIONS:
            return f"{command}: {option}: is no longer there; {OPTIONS[option]}"
        return f"{command}: {plain(word)}: no such option; {nearest(option, options(parser), help_)}"
    return f"{command}: {plain(word)}: one word too many; {help_}"
