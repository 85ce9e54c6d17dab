"""``torchdpcate completion``: scripts by which bash, zsh and fish complete the program's words.

A script hands the line up to the cursor to ``torchdpcate __complete``, which prints the words that may stand there.
"""

import argparse
import os
import re
import shlex
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path

from torchdpcate.cli.parser import OWN_GRAMMAR, PROGRAM, make_parser, options, subparsers

_SCRIPTS = {
    "bash": """\
# torchdpcate completion bash: in ~/.bashrc, eval "$(torchdpcate completion bash)"
_torchdpcate() {
    local IFS=$'\\n' line="${COMP_LINE:0:COMP_POINT}"
    COMPREPLY=($("$1" __complete "$line" "$COMP_WORDBREAKS" 2>/dev/null))
    if [[ ${#COMPREPLY[@]} -eq 1 && ${COMPREPLY[0]} == *[=/] ]]; then compopt -o nospace; fi
}
complete -o filenames -o nosort -F _torchdpcate torchdpcate 2>/dev/null ||
    complete -o filenames -F _torchdpcate torchdpcate
""",
    "zsh": """\
#compdef torchdpcate
# torchdpcate completion zsh: in ~/.zshrc after compinit, eval "$(torchdpcate completion zsh)"
_torchdpcate() {
    local -a found open closed
    found=("${(@f)$(${words[1]} __complete "${(j: :)words[1,CURRENT]}" 2>/dev/null)}")
    open=(${(M)found:#*[=/]})
    closed=(${found:#*[=/]})
    (( ${#open} )) && compadd -S '' -- "${open[@]}"
    (( ${#closed} )) && compadd -- "${closed[@]}"
}
compdef _torchdpcate torchdpcate
""",
    "fish": """\
# torchdpcate completion fish: torchdpcate completion fish > ~/.config/fish/completions/torchdpcate.fish
complete -c torchdpcate -f -a '(set -l words (commandline -opc); $words[1] __complete (commandline -cp) 2>/dev/null)'
""",
}
_FILES = ("path", "domain", "run_dir", "shared", "genes", "queries_path", "counter", "folder", "papers", "data")
_CURSOR = "\u2038"  # where the line ends, so that its last blank may belong to a word
_TAKES_FILE = ("output", "key", "new_key", "queries")
_PLAN = ("n=", "precision=")
_SWEEP = ("-m", "--multirun", "--help", "--cfg")


def completion(shell: str) -> None:
    """Print the script of a shell.

    Args:
        shell: ``bash``, ``zsh`` or ``fish``.
    """
    print(_SCRIPTS[shell], end="")


def print_completions(given: Sequence[str]) -> None:
    """Print the words that may stand at the cursor, one a line; nothing where none is known.

    Args:
        given: The line up to the cursor; and the characters at which the shell breaks words besides blanks, if any.
    """
    line, breaks = given[0] if given else "", given[1] if len(given) > 1 else ""
    with suppress(Exception):  # a completion that fails must not disturb the line that is being written
        words = _words(line)
        found = [word for word in candidates(words[:-1], words[-1]) if word.startswith(words[-1])]
        start = max((words[-1].rfind(letter) for letter in breaks if letter in "=:"), default=-1) + 1
        print("".join(f"{word[start:]}\n" for word in found), end="")


def candidates(before: Sequence[str], current: str) -> list[str]:
    """Return the words that may stand after others, those that do not begin as the current one included.

    Args:
        before: The words before, without the program's name.
        current: What is written of the word so far.

    Example:
        >>> candidates(["verify", "r", "--key"], "nowhere/")
        []
        >>> candidates(["train"], "learner=")
        ['learner=dr', 'learner=r']
    """
    words = [word for word in before if word != "--debug"]
    if not words:
        return [*subparsers(), *options(make_parser())]
    command, rest = words[0], words[1:]
    if command in ("train", "plan"):
        return _settings(command, rest, current)
    if command == "audit":
        return _audit(rest, current)
    if command == "study":
        return _study(rest, current)
    parser = subparsers().get(command)
    return [] if parser is None or command in OWN_GRAMMAR else _options(parser, rest, current)


def _words(line: str) -> list[str]:
    """Return the words after the program's name, the last one as far as it is written."""
    words = [""]
    for quote in ("", "'", '"'):  # one may still be open
        with suppress(ValueError):
            words = shlex.split(f"{line}{_CURSOR}{quote}")
            break
    words[-1] = words[-1].removesuffix(_CURSOR)
    places = [place for place, word in enumerate(words) if os.path.basename(word) == PROGRAM]
    return words[places[0] + 1 :] if places else words[1:]


def _options(parser: argparse.ArgumentParser, before: Sequence[str], current: str) -> list[str]:
    """Return the options, choices and files of a command that argparse reads."""
    by_option = {option: action for action in parser._actions for option in action.option_strings}
    previous = by_option.get(before[-1]) if before else None
    if previous is not None and previous.nargs != 0:
        return _files(current) if previous.dest in _TAKES_FILE else [str(choice) for choice in previous.choices or ()]
    if current.startswith("-"):
        return options(parser)
    chosen = [choice for action in parser._actions if not action.option_strings for choice in action.choices or ()]
    return [str(choice) for choice in chosen] or _files(current)


def _settings(command: str, before: Sequence[str], current: str) -> list[str]:
    """Return groups, settings, choices and files of a run."""
    from torchdpcate.cli.overrides import all_groups, choices_of

    if current.startswith("-"):
        return list(_SWEEP)
    key, equals, value = current.partition("=")
    if equals and key in all_groups():
        done = value.rpartition(",")
        return [f"{key}={done[0]}{done[1]}{choice}" for choice in choices_of(key) if choice not in done[0].split(",")]
    if equals:
        return _values(key, value)
    from torchdpcate.cli.overrides import known_settings

    names = known_settings([word for word in before if word.partition("=")[0] in all_groups()])
    names = [name for name in names if current or "." not in name]  # the first list is short
    return [f"{name}=" for name in names] + list(_PLAN if command == "plan" else ())


def _values(key: str, value: str) -> list[str]:
    """Return the files that a setting may name."""
    if not re.search(rf"(?:^|[._])(?:{'|'.join(_FILES)})$", key):
        return []
    shipped: list[str] = []
    if key == "data.domain":
        from torchdpcate.registry import conf_dir

        shipped = sorted(path.stem for path in (conf_dir() / "domain").glob("*.yaml"))
    return [f"{key}={word}" for word in [*_files(value), *shipped]]


def _audit(before: Sequence[str], current: str) -> list[str]:
    from torchdpcate.cli.audit import KEYS

    if before[:1] == ["leak"]:
        return _files(current)
    if current.startswith("mechanism="):
        from torchdpcate.audit.report import registry

        return [f"mechanism={name}" for name in registry()]
    key, equals, value = current.partition("=")
    return _values(key, value) if equals else ["leak", "--all", "--help", *(f"{key}=" for key in KEYS)]


def _study(before: Sequence[str], current: str) -> list[str]:
    from torchdpcate.cli.study import KEYS, NAMES

    if not before:
        return [*NAMES, "--help"]
    key, equals, value = current.partition("=")
    return _values(key, value) if equals else ["--quick", *(f"{key}=" for key in KEYS)]


def _files(begun: str) -> list[str]:
    """Return the files and folders that begin so; folders end in a slash, hidden ones only if they are requested."""
    folder, name = os.path.split(begun)
    place = Path(os.path.expanduser(folder or "."))
    try:
        found: Iterable[os.DirEntry[str]] = sorted(os.scandir(place), key=lambda entry: entry.name)
    except OSError:
        return []
    beside = begun[: len(begun) - len(name)]
    shown = [entry for entry in found if entry.name.startswith(name) and (name or not entry.name.startswith("."))]
    return [f"{beside}{entry.name}{'/' if entry.is_dir() else ''}" for entry in shown]
