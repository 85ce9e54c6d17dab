"""Scikit-learn's manners without its import, which takes longer than a small fit."""

from inspect import Parameter, signature
from typing import Any, Self, TypeVar

from torchdpcate._html import html_table_of
from torchdpcate.errors import InputError

_Any = TypeVar("_Any")


class Parameters:
    """A class whose constructor stores its arguments, which are read and set by name, as scikit-learn has it.

    ``sklearn.base.clone``, ``check_is_fitted`` and other estimators' ``get_params`` take such an object for one of
    theirs; it is no instance of ``BaseEstimator``, for whose module scikit-learn imports SciPy's statistics and pandas.

    Example:
        >>> class Ridge(Parameters):
        ...     def __init__(self, strength=1.0, inner=None):
        ...         self.strength, self.inner = strength, inner
        >>> outer = Ridge(inner=Ridge(2.0)).set_params(strength=3.0, inner__strength=4.0)
        >>> outer, outer.get_params()["inner__strength"]
        (Ridge(strength=3.0, inner=Ridge(strength=4.0)), 4.0)
    """

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Return the constructor's arguments by name.

        Args:
            deep: Whether also those of arguments that have some themselves, as ``argument__name``.
        """
        found: dict[str, Any] = {}
        for name in _arguments(type(self)):
            value = found[name] = getattr(self, name)
            if deep and hasattr(value, "get_params") and not isinstance(value, type):
                found |= {f"{name}__{key}": inner for key, inner in value.get_params().items()}
        return found

    def set_params(self, **params: Any) -> Self:
        """Set arguments by name, those of an argument as ``argument__name``, and return the object.

        Raises:
            InputError: No such argument.
        """
        known, inner = _arguments(type(self)), dict[str, dict[str, Any]]()
        for key, value in params.items():
            name, _, rest = key.partition("__")
            if name not in known:
                raise InputError(f"{key}: {type(self).__name__} has no such parameter; it has {', '.join(known)}")
            if rest:
                inner.setdefault(name, {})[rest] = value
            else:
                setattr(self, name, value)
        for name, own in inner.items():
            getattr(self, name).set_params(**own)
        return self

    def __repr__(self) -> str:
        """Return the arguments that are not at their defaults."""
        shown = []
        for name, argument in _arguments(type(self)).items():
            value = repr(getattr(self, name))
            if argument.default is Parameter.empty or value != repr(argument.default):
                shown.append(f"{name}={value}")
        return f"{type(self).__name__}({', '.join(shown)})"

    def _repr_html_(self) -> str:
        rows = [(name, getattr(self, name)) for name in _arguments(type(self))]
        return html_table_of(type(self).__name__, [(name, value) for name, value in rows if value is not None])

    def __sklearn_tags__(self) -> Any:
        from sklearn.base import BaseEstimator

        return BaseEstimator.__sklearn_tags__(self)


def clone(estimator: _Any) -> _Any:
    """Return another one with the same parameters, not fitted: ``sklearn.base.clone``, imported when it is needed."""
    from sklearn import base

    copied: _Any = base.clone(estimator)
    return copied


def _arguments(kind: type) -> dict[str, Parameter]:
    """Return the named arguments of a class's constructor."""
    own = signature(kind).parameters.values()
    return {argument.name: argument for argument in own if argument.kind is not Parameter.VAR_KEYWORD}
