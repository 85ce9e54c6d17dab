"""A library of public policies, what a selector chooses from; libraries that follow from public facts alone."""

import os
import re
from bisect import bisect_right
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import accumulate, permutations
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from torchdpcate.candidates.family import PolicyFamily, check_actions, check_numbers, shown
from torchdpcate.candidates.functions import FunctionPolicies
from torchdpcate.candidates.kinds import Constants, Thresholds
from torchdpcate.data._yaml import read_yaml
from torchdpcate.data.covariates import Covariate, Numeric
from torchdpcate.data.domain import Domain
from torchdpcate.data.schema import TableSchema
from torchdpcate.errors import InputError
from torchdpcate.registry import Registry

POLICY_FAMILIES = Registry("policy_family")
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
        >>> from torchdpcate.candidates import Constants, Thresholds
        >>> from torchdpcate.data import Domain
        >>> library = PolicyLibrary.of([Constants([0, 1]), Thresholds("x0", [0.5])])
        >>> library.names
        ('always 0', 'always 1', 'x0 > 0.5')
        >>> library.setup(Domain([0.0], [1.0], 0.0, 1.0), (0, 1)).decide(torch.tensor([[0.7]])).tolist()
        [[0, 1, 1]]
    """

    def __init__(self, families: Sequence[PolicyFamily]) -> None:
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
        seen: set[str] = set()
        for name in self.names:
            if name in seen:
                raise InputError(f"policies: the name {name!r} is there twice; give each policy its own by names")
            seen.add(name)
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
        raise InputError(f"kind is {kind!r}; choose one of {', '.join(POLICY_FAMILIES)}")
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
        >>> from torchdpcate.data import Domain
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
        >>> from torchdpcate.data import Domain
        >>> same_for_all(TableSchema.from_domain(Domain([0.0], [10.0], 0.0, 1.0))).names
        ('always 0', 'always 1')
    """
    return Constants(check_actions(schema.actions if actions is None else actions))
