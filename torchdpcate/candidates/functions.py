"""Policies that are Python functions, given by import path or as they are."""

import copy
import importlib
import sys
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from functools import reduce
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from torchdpcate.candidates.family import PolicyFamily, check_actions, check_names, check_source
from torchdpcate.data._arrays import listed
from torchdpcate.data.domain import Domain
from torchdpcate.errors import InputError

Function = Callable[[np.ndarray], Any]
"""From encoded covariates, float64 [n, q], to labels of actions [n]."""

_POINTS, _ALONE = 64, 8
"""Public points at which functions are tried, and how many of them one by one."""


class FunctionPolicies(PolicyFamily):
    """Policies that are Python functions of encoded covariates.

    A function must be deterministic and decide row by row: a record's action may depend on its own covariates alone, or
    no guarantee holds. That is tried on public points when the family is set up, and cannot be proved.

    Args:
        functions: Each an import path ``package.module:function``, or a function of encoded covariates as NumPy
            [n, q] that gives labels [n]. A path is imported by ``setup``, not before.
        names: Names of the policies; the functions' own if left out.
        fitted_on: ``fingerprint`` of the records that they were made from, if any; None takes the attribute
            ``fitted_on`` of the functions, where they have one.

    A path in a configuration file is less trusted than one in code: a family that ``from_config`` made imports only
    from modules that ``allowing`` names.

    Raises:
        InputError: No function, or what is none; on ``setup``, a path that leads to none or into a module that is not
            allowed, an action that is none of the labels, or a function that does not decide row by row.

    Example:
        >>> from torchdpcate.data import Domain
        >>> family = FunctionPolicies([lambda x: x[:, 0] > 0.5], names=["upper half"])
        >>> ready = family.setup(Domain([0.0], [1.0], 0.0, 1.0), (0, 1))
        >>> ready.decide(torch.tensor([[0.2], [0.8]])).flatten().tolist()
        [0, 1]
    """

    kind, each = "functions", ("functions",)

    def __init__(
        self,
        functions: Sequence[str | Function | None],
        names: Sequence[str] | None = None,
        fitted_on: str | None = None,
    ) -> None:
        self.functions = tuple([functions] if isinstance(functions, str) or callable(functions) else functions)
        if not self.functions:
            raise InputError("functions is empty; give one import path or function at least")
        for function in self.functions:
            if not (function is None or isinstance(function, str) or callable(function)):
                raise InputError(f"functions holds {function!r}; give import paths package.module:function")
        super().__init__(check_names(names, [_name(f) for f in self.functions]), fitted_on)
        self.fitted_on = self._source(self.functions)
        self._ready: tuple[Function, ...] = ()
        self._allowed: frozenset[str] | None = None

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> Self:
        """Rebuild a family from ``config``, not set up; it imports from no module until ``allowing`` names it."""
        return super().from_config(config).allowing(())

    def allowing(self, modules: Collection[str]) -> Self:
        """Return this family with the modules whose functions its paths may name.

        Args:
            modules: Their exact names.
        """
        allowed = copy.copy(self)
        allowed._allowed = frozenset(modules)
        return allowed

    def check_allowed(self) -> None:
        """Refuse paths into modules that are not allowed, before anything is imported.

        Raises:
            InputError: Such a path, or one that leads through the module to what another one holds.
        """
        if self._allowed is None:
            return
        for function in self.functions:
            if isinstance(function, str):
                _check_allowed(function, self._allowed)

    def bind(self, function: Function) -> Self:
        """Return this family of one with its function given; the import path stays as it was, and is not imported.

        Raises:
            InputError: Several policies, no domain, no function, or see ``setup``.
        """
        if len(self) != 1 or self.domain is None or not callable(function):
            raise InputError(f"bind: give one function, not {function!r}, for one policy that knows its domain")
        bound = copy.copy(self)
        bound._use((function,), self.domain)
        return bound

    def unbound(self, domain: Domain, actions: Sequence[int]) -> Self:
        """Return this family on a domain, its functions known by name alone: nothing is imported, nothing decided."""
        kept = type(self)([_path(f) for f in self.functions], self.names, self.fitted_on)
        kept._allowed = self._allowed
        kept.domain, kept.actions = domain, check_actions(actions)
        return kept

    def one(self, index: int) -> Self:
        """Return the family of policy ``index`` alone: set up, or unbound, if this one is."""
        if self.domain is None or self._ready:
            return super().one(index)
        return self._one(range(len(self))[index]).unbound(self.domain, self.actions)

    def keys(self) -> list[Hashable]:
        """Return import paths; the object itself where there is none."""
        pairs = zip(self.functions, self.names, strict=True)
        return [_path(f) or (name if f is None else id(f)) for f, name in pairs]

    def _look_up(self, domain: Domain, actions: tuple[int, ...]) -> None:
        self.check_allowed()
        own = self._allowed is not None
        self._use(tuple(_load(f, name, own) for f, name in zip(self.functions, self.names, strict=True)), domain)

    def _use(self, functions: tuple[Function, ...], domain: Domain) -> None:
        """Decide by these functions, after they were tried on public points."""
        self._ready, self.fitted_on = functions, self._source(functions)
        points = domain.grid(_POINTS)
        together, turned = self._decide(points), self._decide(points.flip(0)).flip(0)
        alone = torch.cat([self._decide(point) for point in points[:_ALONE].split(1)])
        same = (together == turned).all(0) & (together[:_ALONE] == alone).all(0)
        if not same.all():
            raise InputError(
                f"policy {self.names[int(same.int().argmin())]!r} decides otherwise when it sees other rows; write a "
                "deterministic function of one row at a time"
            )

    def _source(self, functions: Sequence[Any]) -> str | None:
        """Return the records that the family or its functions say they were made from."""
        own = {check_source(getattr(f, "fitted_on", None)) for f in functions} | {self.fitted_on}
        if len(own - {None}) > 1:
            raise InputError("fitted_on: these functions were made from different records; give each a family")
        return next(iter(own - {None}), None)

    def _decide(self, x: Tensor) -> Tensor:
        if not self._ready:
            raise InputError(
                f"policy {self.names[0]!r} is a function, of which a release holds the name alone; give it by "
                "bind(function)"
            )
        return torch.stack([self._labels(f, name, x) for f, name in zip(self._ready, self.names, strict=True)], 1)

    def _labels(self, function: Function, name: str, x: Tensor) -> Tensor:
        """Return the positions of a function's answers, int8 [n]."""
        try:
            labels = torch.from_numpy(np.asarray(function(x.numpy().copy())).astype(np.float64))
        except Exception as error:
            raise InputError(f"policy {name!r} fails with {type(error).__name__}; correct the function") from error
        if labels.shape != (len(x),):
            raise InputError(
                f"policy {name!r} gives shape {tuple(labels.shape)} for {len(x)} rows; give one label a row"
            )
        known = torch.tensor(self.actions, dtype=torch.float64)
        found = torch.searchsorted(known, labels.contiguous()).clamp(max=len(known) - 1)
        other = int((known[found] != labels).sum())
        if other:
            raise InputError(f"policy {name!r}: {other} of {len(x)} actions are none of {listed(self.actions)}")
        return found.to(torch.int8)

    def _one(self, index: int) -> Self:
        one = type(self)([self.functions[index]], [self.names[index]], self.fitted_on)
        one._allowed = self._allowed
        return one

    def _settings(self) -> dict[str, Any]:
        return {"functions": [_path(f) for f in self.functions]}


def _name(function: str | Function | None) -> str:
    return function if isinstance(function, str) else str(getattr(function, "__name__", type(function).__name__))


def _path(function: str | Function | None) -> str | None:
    """Return the path under which a function can be imported; None if there is none."""
    if function is None or isinstance(function, str):
        return function
    module, names = getattr(function, "__module__", None), getattr(function, "__qualname__", "")
    found = reduce(lambda here, name: getattr(here, name, None), names.split("."), sys.modules.get(str(module)))
    return f"{module}:{names}" if found is function else None


def _check_allowed(path: str, allowed: frozenset[str]) -> None:
    module, _, name = path.partition(":")
    if module not in allowed:
        raise InputError(
            f"function {path!r}: Python code of the module {module!r}, named by a file; read that code, and if you "
            f"trust it allow the module by policies.allow=[{module}] (in Python: PolicyLibrary.of(file, "
            f"allow=[{module!r}]))"
        )
    if not name.isidentifier():
        raise InputError(f"function {path!r}: {name!r} is no name of a function of {module}; give {module}:function")


def _load(function: str | Function | None, name: str, own: bool) -> Function:
    """Return a function; of one given by path, ``own`` requires that the module itself defines it."""
    if not isinstance(function, str):
        if function is None:
            raise InputError(f"policy {name!r} is a function without an import path; give it by bind(function)")
        return function
    module, _, names = function.partition(":")
    try:
        loaded: Any = reduce(getattr, names.split("."), importlib.import_module(module))
    except Exception as error:  # whatever the module raises when it is imported
        reason = f"{type(error).__name__}: {' '.join(str(error).split())[:160]}"
        raise InputError(f"policy {name!r}: {function} cannot be imported ({reason}); check the path") from None
    if not callable(loaded):
        raise InputError(f"policy {name!r}: {function} is no function")
    home = getattr(loaded, "__module__", None)
    if own and home != module:
        raise InputError(f"policy {name!r}: {function} is defined in {home}, not in {module}; define a function there")
    return loaded
