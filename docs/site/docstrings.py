"""A griffe extension: the section that docstrings call Example is the one that griffe calls Examples."""

import re
from typing import Any

from griffe import Extension, Object

_TITLE = re.compile(r"^(\s*)Example:$", re.MULTILINE)


class ExampleSections(Extension):
    """Show examples as code."""

    def on_object(self, *, obj: Object, **kwargs: Any) -> None:
        """Rename the section in an object's docstring."""
        if obj.docstring is not None:
            obj.docstring.value = _TITLE.sub(r"\1Examples:", obj.docstring.value)
