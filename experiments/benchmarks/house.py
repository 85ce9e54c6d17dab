"""Size of the library, and what a default run goes through: ``python -m experiments.benchmarks.house [FOLDER]``.

Code lines are those without docstrings, comments and blank lines. FOLDER is another checkout, to
compare with.
"""

import ast
import io
import sys
import tempfile
import threading
import tokenize
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

PACKAGE = "torchdpcate"
_NO_CODE = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENDMARKER,
}


def code_lines(source: str) -> int:
    r"""Return the number of lines that hold code.

    Example:
        >>> code_lines('"Summary."\n\n# why\nx = (1,\n     2)\n')
        2
    """
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    lines = {line for token in tokens if token.type not in _NO_CODE for line in range(token.start[0], token.end[0] + 1)}
    return len(lines - _docstring_lines(ast.parse(source)))


def _docstring_lines(tree: ast.Module) -> set[int]:
    scopes = [node for node in ast.walk(tree) if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef)]
    texts = [
        part
        for scope in scopes
        for part in scope.body
        if isinstance(part, ast.Expr) and isinstance(part.value, ast.Constant) and isinstance(part.value.value, str)
    ]
    return {line for text in texts for line in range(text.lineno, (text.end_lineno or text.lineno) + 1)}


def sizes(package: Path) -> dict[str, int | float]:
    """Return what the files of a package hold, by name."""
    sources = [path.read_text(encoding="utf-8") for path in package.rglob("*.py")]
    trees = [ast.parse(source) for source in sources]
    nodes = [node for tree in trees for node in ast.walk(tree)]
    classes = [node for node in nodes if isinstance(node, ast.ClassDef)]
    code = sum(map(code_lines, sources))
    imports = sum(
        (node.end_lineno or node.lineno) - node.lineno + 1
        for node in nodes
        if isinstance(node, ast.Import | ast.ImportFrom)
    )
    names = Counter(one.name for one in classes)
    return {
        "code lines": code,
        "lines": sum(source.count("\n") for source in sources),
        "files": len(sources),
        "modules of more than 500 lines": sum(source.count("\n") > 500 for source in sources),
        "classes": len(classes),
        "abstract bases and protocols": _having(classes, lambda one: map(ast.unparse, one.bases), ("ABC", "Protocol")),
        "dataclasses": _having(classes, lambda one: map(ast.unparse, one.decorator_list), ("dataclass",)),
        "classes called *Plan": sum(one.name.endswith("Plan") for one in classes),
        "class names that exist twice": sum(count > 1 for count in names.values()),
        "import statements, % of code lines": round(100 * imports / code, 1),
    }


def _having(classes: Iterable[ast.ClassDef], words: Any, wanted: tuple[str, ...]) -> int:
    return sum(any(word.startswith(wanted) for word in words(one)) for one in classes)


def default_run(package: Path) -> dict[str, int]:
    """Return through how many files and functions of the package a default run goes, and how deep."""
    from torchdpcate.cli.main import main

    functions: set[CodeType] = set()
    deepest = 0

    def ours(frame: FrameType) -> bool:
        return frame.f_code.co_filename.startswith(str(package))

    def called(frame: FrameType, event: str, _: object) -> None:
        nonlocal deepest
        if event == "call" and ours(frame) and frame.f_code.co_name != "<module>":
            functions.add(frame.f_code)
            depth, below = 0, frame
            while below is not None:
                depth += ours(below)
                below = below.f_back
            deepest = max(deepest, depth)

    with tempfile.TemporaryDirectory() as folder:
        sys.setprofile(called)
        threading.setprofile(called)
        main(["train", "data.n=2000", f"run_dir={folder}/run"])
        sys.setprofile(None)
        threading.setprofile(None)
    return {
        "files of a default run": len({code.co_filename for code in functions}),
        "functions of a default run": len(functions),
        "deepest stack of a default run": deepest,
    }


if __name__ == "__main__":
    root = Path(sys.argv[1] if len(sys.argv) > 1 else ".").resolve()
    sys.path.insert(0, str(root))
    measured = sizes(root / PACKAGE) | default_run(root / PACKAGE)
    print("\n".join(f"{value:>10,}  {name}" for name, value in measured.items()))
