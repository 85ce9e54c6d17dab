"""Size of the library and of what a person must hold: ``python -m experiments.benchmarks.house [FOLDER] [--ceilings]``.

FOLDER is another checkout, to compare with. ``--ceilings`` prints the counts of this checkout beside those of
``tests/test_house.py`` and fails where one is larger.
"""

import argparse
import ast
import inspect
import io
import re
import sys
import tempfile
import threading
import tokenize
from collections.abc import Iterator
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import yaml

PACKAGE = "torchdpcate"
_NO_CODE = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENDMARKER,
}
_IMPORTING = "<frozen importlib._bootstrap>"
"""File name of the functions by which Python imports a module."""
_FUNCTIONS = ast.FunctionDef | ast.AsyncFunctionDef


def code_lines(source: str) -> int:
    r"""Return the number of lines that hold code: no docstring, comment or blank line.

    Example:
        >>> code_lines('"Summary."\n\n# why\nx = (1,\n     2)\n')
        2
    """
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    lines = {line for token in tokens if token.type not in _NO_CODE for line in range(token.start[0], token.end[0] + 1)}
    return len(lines - _docstring_lines(ast.parse(source)))


def _docstring_lines(tree: ast.Module) -> set[int]:
    texts = [
        part
        for scope in ast.walk(tree)
        if isinstance(scope, ast.Module | ast.ClassDef | _FUNCTIONS)
        for part in scope.body
        if isinstance(part, ast.Expr) and isinstance(part.value, ast.Constant) and isinstance(part.value.value, str)
    ]
    return {line for text in texts for line in range(text.lineno, (text.end_lineno or text.lineno) + 1)}


def settings(tree: Any) -> int:
    """Return the number of leaf keys of a configuration, classes and lists of defaults left out.

    Example:
        >>> settings({"defaults": ["a"], "ridge": {"_target_": "x.Y", "value": 1.0, "grid": [1, 2]}, "seed": None})
        3
    """
    keys = {key: value for key, value in (tree or {}).items() if key not in ("_target_", "defaults")}
    return sum(settings(value) if isinstance(value, dict) and value else 1 for value in keys.values())


def circles(edges: dict[str, set[str]]) -> list[list[str]]:
    """Return the sets of modules that import each other, directly or by way of others.

    Example:
        >>> circles({"a": {"b"}, "b": {"c"}, "c": {"b"}, "d": {"a"}})
        [['b', 'c']]
    """
    reached: dict[str, set[str]] = {}
    for start in edges:
        seen: set[str] = set()
        waiting = list(edges[start])
        while waiting:
            module = waiting.pop()
            if module not in seen:
                seen.add(module)
                waiting.extend(edges.get(module, ()))
        reached[start] = seen
    groups = {
        tuple(sorted(other for other in seen if start in reached.get(other, ())))
        for start, seen in reached.items()
        if start in seen
    }
    return sorted(map(list, groups))


def imports(package: Path) -> dict[str, set[str]]:
    """Return the modules of a package that each one imports anywhere, also within functions and for types alone."""
    names = {_module(path, package): path for path in package.rglob("*.py")}
    edges: dict[str, set[str]] = {}
    for name, path in names.items():
        found = set()
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(package.name):
                whole = {f"{node.module}.{one.name}" for one in node.names}
                found |= {module if module in names else str(node.module) for module in whole}
            elif isinstance(node, ast.Import):
                found |= {one.name for one in node.names}
        edges[name] = (found & names.keys()) - {name}
    return edges


def _module(path: Path, package: Path) -> str:
    return ".".join(path.relative_to(package.parent).with_suffix("").parts).removesuffix(".__init__")


def sizes(root: Path) -> dict[str, int]:
    """Return what a checkout holds, by name."""
    package = root / PACKAGE
    sources = [path.read_text(encoding="utf-8") for path in package.rglob("*.py")]
    nodes = [node for source in sources for node in ast.walk(ast.parse(source))]
    configs = list((root / "conf").rglob("*.yaml"))
    release = "\n".join(path.read_text(encoding="utf-8") for path in (package / "release").rglob("*.py"))
    pages = [path.read_text(encoding="utf-8") for path in (root / "docs").rglob("*.md")]
    edges = imports(package)
    return {
        "settings in conf/": sum(settings(_yaml(path)) for path in configs if path.parent.name != "domain"),
        "yaml files": len(configs),
        "classes by _target_": len({name for path in configs for name in _targets(path)}),
        "kinds of release": len(re.findall(r'^    kind(?:: [^=]+)? = "', release, re.MULTILINE)),
        "isinstance on releases": sum(len(re.findall(r"isinstance\([^)]*Release", source)) for source in sources),
        "modules in import circles": sum(map(len, circles(edges))),
        "code lines": sum(map(code_lines, sources)),
        "statements": sum(isinstance(node, ast.stmt) for node in nodes),
        "files": len(sources),
        "classes": sum(isinstance(node, ast.ClassDef) for node in nodes),
        "lines of tests": sum(len(_lines(path)) for path in (root / "tests").rglob("*.py")),
        "pages of docs": len(pages),
        "words of docs": sum(len(page.split()) for page in pages),
    }


def _lines(path: Path) -> list[str]:
    return path.read_text(encoding="utf-8").splitlines()


def _yaml(path: Path) -> Any:
    return yaml.safe_load(path.read_text(encoding="utf-8"))


def _targets(path: Path) -> list[str]:
    return re.findall(r"_target_: (\S+)", path.read_text(encoding="utf-8"))


def surface() -> dict[str, int]:
    """Return what the installed package shows a person: names, parameters of their constructors, commands."""
    import torchdpcate
    from torchdpcate.cli.parser import subparsers

    public = [getattr(torchdpcate, name) for name in torchdpcate.__all__]
    classes = [one for one in public if inspect.isclass(one) and not issubclass(one, Exception)]
    return {
        "names of torchdpcate": len(public),
        "parameters of constructors": sum(len(inspect.signature(one).parameters) for one in classes),
        "commands": len(subparsers()),
    }


def csv_run(package: Path) -> dict[str, int]:
    """Return through how many files and functions of the package a run on a csv file goes, and how deep.

    Bodies of classes and what is called while a module is imported do not count.
    """
    from torchdpcate.cli.main import main

    functions: set[CodeType] = set()
    deepest = 0

    def called(frame: FrameType, event: str, _: object) -> None:
        nonlocal deepest
        if event != "call" or not _ours(frame, package) or not frame.f_code.co_flags & inspect.CO_OPTIMIZED:
            return
        below = list(_stack(frame))
        if not any(one.f_code.co_filename == _IMPORTING for one in below):
            functions.add(frame.f_code)
            deepest = max(deepest, sum(_ours(one, package) for one in below))

    with tempfile.TemporaryDirectory() as place:
        table, domain = _trial(Path(place))
        sys.setprofile(called)
        threading.setprofile(called)
        main(["train", f"data.path={table}", f"data.domain={domain}", f"run_dir={place}/run", "trainer.progress=false"])
        sys.setprofile(None)
        threading.setprofile(None)
    return {
        "files of a csv run": len({code.co_filename for code in functions}),
        "functions of a csv run": len(functions),
        "deepest stack of a csv run": deepest,
    }


def _ours(frame: FrameType, package: Path) -> bool:
    return frame.f_code.co_filename.startswith(str(package))


def _stack(frame: FrameType) -> Iterator[FrameType]:
    below: FrameType | None = frame
    while below is not None:
        yield below
        below = below.f_back


def _trial(place: Path) -> tuple[Path, Path]:
    """Write a table of a trial with 2,000 records and its public facts."""
    import numpy as np

    generator = np.random.default_rng(0)
    age, treated = generator.integers(20, 80, 2000), generator.integers(0, 2, 2000)
    outcome = np.clip(50 + treated * (age > 50) + generator.normal(size=2000), 0, 100)
    rows = np.column_stack([age, treated, outcome.round(3)])
    np.savetxt(place / "trial.csv", rows, delimiter=",", header="age,treat,score", comments="", fmt="%g")
    facts = {
        "treatment": "treat",
        "outcome": {"name": "score", "low": 0, "high": 100},
        "covariates": {"age": {"low": 20, "high": 80}},
        "propensity": 0.5,
    }
    (place / "trial.yaml").write_text(yaml.safe_dump(facts), encoding="utf-8")
    return place / "trial.csv", place / "trial.yaml"


def _main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", nargs="?", default=".", type=Path)
    parser.add_argument("--ceilings", action="store_true", help="compare with tests/test_house.py")
    words = parser.parse_args()
    root = words.folder.resolve()
    sys.path.insert(0, str(root))
    counts = sizes(root) | surface() | csv_run(root / PACKAGE)
    ceilings: dict[str, int] = {}
    if words.ceilings:
        from tests.test_house import CEILINGS

        ceilings = CEILINGS
    for name, count in counts.items():
        limit = f"{ceilings[name]:>10,}" if name in ceilings else ""
        print(f"{count:>10,}{limit}  {name}")
    return int(any(counts[name] > most for name, most in ceilings.items()))


if __name__ == "__main__":
    sys.exit(_main())
