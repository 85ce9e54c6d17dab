"""The package uses what Lightning, Hydra, PyTorch and Opacus publish: no private module, name or member of theirs.

Members are known by their names: those that begin with one underscore in the classes below. A class of the package may
have a member of such a name of its own, on ``self``.
"""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from hydra.core.config_store import ConfigStore
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import WeightAveraging
from opacus.grad_sample import GradSampleHooks
from opacus.optimizers import DPOptimizer

import torchdpcate

LIBRARIES = ("hydra", "lightning", "lightning_utilities", "omegaconf", "opacus", "torch", "torchmetrics")
PRIVATE = re.compile(r"_[a-zA-Z]\w*")
MAY = {
    # nothing published says whether a module has hooks, or whether a tensor was changed in place; what the chain of
    # linear layers computes rests on both (nuisance.linear_taps)
    "_forward_hooks",
    "_forward_pre_hooks",
    "_backward_hooks",
    "_backward_pre_hooks",
    "_version",
}
PACKAGE = Path(torchdpcate.__file__).parent
SOURCES = sorted(PACKAGE.rglob("*.py"))


def members() -> set[str]:
    """Private names of objects of the libraries that the package is handed."""
    trainer = Trainer(accelerator="cpu", logger=False, enable_checkpointing=False)
    loop = trainer.fit_loop
    known = [trainer, loop, loop.epoch_loop, loop.epoch_loop.automatic_optimization, trainer.strategy]
    known += [LightningModule(), torch.nn.Linear(1, 1), torch.zeros(1), torch.optim.SGD([torch.zeros(1)])]
    known += [torch.utils.data.DataLoader([0]), ConfigStore.instance(), WeightAveraging(), DPOptimizer, GradSampleHooks]
    return {name for thing in known for name in dir(thing) if PRIVATE.fullmatch(name)}


def rooted(node: ast.expr) -> Iterator[str]:
    """Names of a chain of attributes, the first one first; none where it does not begin with a name."""
    if isinstance(node, ast.Name):
        yield node.id
    elif isinstance(node, ast.Attribute):
        yield from rooted(node.value)
        yield node.attr


def imported(tree: ast.Module) -> Iterator[tuple[int, str, str]]:
    """Line, name in the module, and whole name of all that is imported of the libraries."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for part in node.names:
                yield node.lineno, (part.asname or part.name).split(".")[0], part.name
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            for part in node.names:
                yield node.lineno, part.asname or part.name, f"{node.module}.{part.name}"


def found(source: str, private: set[str]) -> list[str]:
    """Uses of private names in a module."""
    tree, names, uses = ast.parse(source), set[str](), list[str]()
    for line, name, whole in imported(tree):
        if whole.split(".")[0] in LIBRARIES:
            names.add(name)
            uses += [f"{line}: {whole}" for part in whole.split(".") if PRIVATE.fullmatch(part)]
    for node in ast.walk(tree):
        if not isinstance(node, ast.Attribute) or not PRIVATE.fullmatch(node.attr) or node.attr in MAY:
            continue
        first = next(rooted(node.value), "")
        if first in names or (node.attr in private and first not in ("self", "cls")):
            uses.append(f"{node.lineno}: {ast.unparse(node)}")
    return uses


@pytest.mark.slow
def test_the_package_has_no_private_member_of_a_library():
    private = members()
    uses = {str(path.relative_to(PACKAGE)): found(path.read_text(), private) for path in SOURCES}
    assert {path: lines for path, lines in uses.items() if lines} == {}


@pytest.mark.parametrize(
    "source",
    [
        "from hydra._internal.utils import get_args_parser",
        "from torch.utils._pytree import tree_map",
        "import torch\ntorch._foreach_add_(a, b)",
        "def f(trainer):\n    trainer.fit_loop.epoch_loop._results.batch = None",
        "def f(module):\n    module._current_fx_name = ''",
        "def f(layer):\n    return layer._parameters",
        "from opacus.optimizers.optimizer import _mark_as_processed",
    ],
)
def test_private_members_are_found(source):
    assert found(source, members())
