"""Public policies that a selector chooses from: Python functions, and libraries that follow from public facts alone."""

import copy
import importlib
import os
import re
import sys
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from functools import reduce
from itertools import accumulate, permutations
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from torchdpcate.candidates.kinds import (
    Constants,
    LinearPolicies,
    PolicyFamily,
    Thresholds,
    check_actions,
    check_names,
    check_numbers,
    check_source,
    shown,
)
from torchdpcate.data._arrays import listed
from torchdpcate.data._yaml import read_yaml
from torchdpcate.data.covariates import Covariate, Numeric
from torchdpcate.data.domain import Domain
from torchdpcate.data.schema import TableSchema
from torchdpcate.errors import InputError
from torchdpcate.registry import refuse_strings

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
        >>> from torchdpcate.data.domain import Domain
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


POLICY_FAMILIES: dict[str, type[PolicyFamily]] = {
    kind.kind: kind for kind in (Constants, FunctionPolicies, LinearPolicies, Thresholds)
}
"""Families of policies by the kind under which files know them."""

_ONE = "a policy family, a function, an import path 'package.module:function' or entries with a kind"


class PolicyLibrary:
    """Public policies of one kind or several, each once.

    Args:
        families: The families; their policies are counted through in this order.

    Attributes:
        families: The families.
        names: Names of all policies.

    Raises:
        InputError: No policy, a name twice, or a policy twice.

    Example:
        >>> from torchdpcate.candidates.kinds import Constants, LinearPolicies, Thresholds
        >>> from torchdpcate.data.domain import Domain
        >>> library = PolicyLibrary.of([Constants([0, 1]), Thresholds("x0", [0.5])])
        >>> library.names
        ('always 0', 'always 1', 'x0 > 0.5')
        >>> library.setup(Domain([0.0], [1.0], 0.0, 1.0), (0, 1)).decide(torch.tensor([[0.7]])).tolist()
        [[0, 1, 1]]
    """

    def __init__(self, families: Sequence[PolicyFamily]) -> None:
        refuse_strings(PolicyLibrary, {"families": families})
        self.families = tuple(families)
        self.names = tuple(name for family in self.families for name in family.names)
        self._ends = list(accumulate(map(len, self.families)))
        if not self.names:
            raise InputError("policies is empty; give one policy at least")
        self._refuse_twice()

    def __len__(self) -> int:
        return len(self.names)

    def __repr__(self) -> str:
        return f"PolicyLibrary({len(self)} policies)"

    @classmethod
    def of(cls, policies: Any, allow: Collection[str] = ()) -> "PolicyLibrary":
        """Return the library that is meant.

        Args:
            policies: A library, a family, a function of encoded covariates as NumPy [n, q] that gives labels [n], an
                import path ``package.module:function``, entries with a ``kind`` (as in yaml), a list of these, or the
                path of a yaml file with such a list.
            allow: Exact names of the modules whose functions a file, or entries with a ``kind``, may name; without one
                neither makes Python code run.

        Raises:
            InputError: None of these, no such file, a function of a module that is not allowed, or see the class.
        """
        if isinstance(allow, str):
            raise InputError(f"allow = {allow!r}: give a list of names of modules, [{allow!r}]")
        if isinstance(policies, PolicyLibrary):
            return policies
        if isinstance(policies, Path) or (isinstance(policies, str) and not _is_import_path(policies)):
            return cls._read(Path(policies), allow)
        single = isinstance(policies, str | Mapping) or not isinstance(policies, Iterable)
        listed = [policies] if single else list(policies)
        return cls(
            [_family(entry, "policies" if single else f"policies[{i}]", allow) for i, entry in enumerate(listed)]
        )

    def config(self) -> list[dict[str, Any]]:
        """Return the families as plain types: the list that a yaml file holds, and that ``of`` takes."""
        return [family.config() for family in self.families]

    @property
    def fitted_on(self) -> set[str]:
        """Fingerprints of the records that policies were made from."""
        return {family.fitted_on for family in self.families if family.fitted_on is not None}

    def setup(self, domain: Domain, actions: Sequence[int]) -> "PolicyLibrary":
        """Return this library with covariates and actions looked up; arguments and errors are the families'."""
        return PolicyLibrary([family.setup(domain, actions) for family in self.families])

    def decide(self, x: Tensor) -> Tensor:
        """Return the position of each policy's action at encoded covariates x [n, q], int8 [n, M]."""
        return torch.cat([family.decide(x) for family in self.families], 1)

    def one(self, index: int) -> PolicyFamily:
        """Return the family of policy ``index`` alone."""
        index = range(len(self))[index]
        family = bisect_right(self._ends, index)
        return self.families[family].one(index - ([0, *self._ends][family]))

    @classmethod
    def _read(cls, path: Path, allow: Collection[str]) -> "PolicyLibrary":
        """Read a yaml list of policies."""
        if not os.path.isfile(path):
            raise InputError(f"policies = {path}: no such file, and no import path package.module:function")
        try:
            entries = read_yaml(path)
            if not isinstance(entries, list):
                raise InputError("it holds no list; start each policy with '- kind: ...'")
            for place, entry in enumerate(entries):
                kind = entry.get("kind") if isinstance(entry, Mapping) else None
                if not (isinstance(entry, str) and _is_import_path(entry)) and str(kind) not in POLICY_FAMILIES:
                    # the file may hold records: nothing of it is shown before it is known to hold policies
                    kinds = ", ".join(POLICY_FAMILIES)
                    raise InputError(f"policies[{place}] is no policy; start it with '- kind: ...', one of {kinds}")
            # a bare path in a file is the file's word, not the caller's
            listed = [{"kind": "functions", "functions": [e]} if isinstance(e, str) else e for e in entries]
            return cls.of(listed, allow)
        except InputError as error:
            raise InputError(f"policy file {path}: {error}") from None

    def _refuse_twice(self) -> None:
        twice = next((name for name, count in Counter(self.names).items() if count > 1), None)
        if twice is not None:
            raise InputError(f"policies: the name {twice!r} is there twice; give each policy its own by names")
        known: dict[Any, str] = {}
        keys = ((family.kind, key) for family in self.families for key in family.keys())  # noqa: SIM118 - not a dict
        for key, name in zip(keys, self.names, strict=True):
            if key in known:
                raise InputError(f"policies: {known[key]!r} and {name!r} are the same policy; give it once")
            known[key] = name


def policy_family(config: Mapping[str, Any]) -> PolicyFamily:
    """Return the family that ``PolicyFamily.config`` described, not set up.

    Raises:
        InputError: An unknown kind, or see ``PolicyFamily.from_config``.
    """
    kind = config.get("kind")
    if not isinstance(kind, str) or kind not in POLICY_FAMILIES:
        raise InputError(f"kind is {kind!r}; choose one of {', '.join(POLICY_FAMILIES)}; anything else is a function")
    return POLICY_FAMILIES[kind].from_config(config)


def _family(entry: Any, what: str, allow: Collection[str]) -> PolicyFamily:
    if isinstance(entry, PolicyFamily):
        return entry
    if (isinstance(entry, str) and _is_import_path(entry)) or (callable(entry) and not isinstance(entry, type)):
        return FunctionPolicies([entry])
    if not isinstance(entry, Mapping):
        shown = repr(entry) if isinstance(entry, str) else f"of type {type(entry).__name__}"
        raise InputError(f"{what} is {shown}; give {_ONE}")
    try:
        family = policy_family(entry)
        if isinstance(family, FunctionPolicies):
            family = family.allowing(allow)
            family.check_allowed()
        return family
    except InputError as error:
        raise InputError(f"{what}: {error}") from None


def _is_import_path(text: str) -> bool:
    return re.fullmatch(r"[^\W\d][\w.]*:[^\W\d][\w.]*", text) is not None and not text.endswith((".yaml", ".yml"))


def threshold_grid(
    schema: TableSchema, shares: Sequence[float] = (0.2, 0.4, 0.6, 0.8), actions: Sequence[int] | None = None
) -> Thresholds:
    r"""Return thresholds at quantiles of every covariate's public bounds, for every ordered pair of actions.

    Covariate j has the cuts :math:`l_j + s\,(u_j - l_j)` for each share s, or the points that far along its log scale
    or typical range; a column of a category, or of what is missing, has the one cut that separates it, and a missing
    value lies in the middle of its scale otherwise. Two actions are tried in
    both directions, so q numeric covariates make 8 q policies by default.

    Args:
        schema: Public facts of the table.
        shares: Shares of a covariate's bounds, strictly between 0 and 1.
        actions: Labels of the actions; None takes the schema's.

    Raises:
        InputError: No share or one outside (0, 1).

    Example:
        >>> from torchdpcate.data.domain import Domain
        >>> threshold_grid(TableSchema.from_domain(Domain([0.0], [10.0], 0.0, 1.0)), [0.5]).names
        ('x0 > 5', 'x0 <= 5')
    """
    shares = check_numbers("shares", shares)
    if not all(0 < share < 1 for share in shares):
        raise InputError(f"shares = {list(shares)}: give shares of the covariates' bounds strictly between 0 and 1")
    labels = check_actions(schema.actions if actions is None else actions)
    cuts = [
        (column.name, float(f"{cut:.10g}"))
        for covariate in schema.covariates
        for column in covariate.columns
        for cut in _cuts(covariate, column, shares)
    ]
    # with two actions a name says where the second one is taken
    pairs = [(labels[1], labels[0]), (labels[0], labels[1])] if len(labels) == 2 else list(permutations(labels, 2))
    rows = [(name, cut, above, below) for above, below in pairs for name, cut in cuts]
    names = [
        f"{name} {'>' if above > below else '<='} {shown(cut)}"
        if len(labels) == 2
        else f"{name} > {shown(cut)}: {above}, else {below}"
        for name, cut, above, below in rows
    ]
    covariates, places, above, below = zip(*rows, strict=True)
    return Thresholds(covariates, places, above, below, names)


def _cuts(covariate: Covariate, column: Numeric, shares: Sequence[float]) -> list[float]:
    if not isinstance(covariate, Numeric) or column.name != covariate.name:  # a level, or what is missing
        return [0.5]
    if column.linear:
        return [column.low + share * (column.high - column.low) for share in shares]
    return column.decode_unit(torch.tensor(shares, dtype=torch.float64))[:, 0].tolist()


def same_for_all(schema: TableSchema, actions: Sequence[int] | None = None) -> Constants:
    """Return the policies that give everybody the same action: which one is best?

    Args:
        schema: Public facts of the table.
        actions: Labels of the actions; None takes the schema's.

    Example:
        >>> from torchdpcate.data.domain import Domain
        >>> same_for_all(TableSchema.from_domain(Domain([0.0], [10.0], 0.0, 1.0))).names
        ('always 0', 'always 1')
    """
    return Constants(check_actions(schema.actions if actions is None else actions))
