"""Damage to files: bytes that changed on the way, and JSON or yaml whose values somebody replaced."""

import json
import os
from collections.abc import Callable, Iterator
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

_TIMES = int(os.environ.get("TORCHDPCATE_FUZZ", "1"))

_HERE = "@here@"

# Written into the text as they are: json.dumps would refuse some and recurse on others.
NASTY_TEXTS = (
    "NaN",
    "Infinity",
    "-Infinity",
    "1e999",
    "-0.0",
    "1e308",
    "1e-308",
    "9" * 400,
    "9" * 5000,
    "-1",
    "0",
    "1.5",
    "1e9",
    "100000000000",
    "true",
    "null",
    '""',
    '"\\u0000"',
    '"\\ud800"',
    '"[/b]\\u001b[31m\\n"',
    '"' + "x" * 20_000 + '"',
    "[]",
    "[[1], [2]]",
    "[null, 1, 2]",
    "[NaN, Infinity]",
    "{}",
    '{"": {}}',
    "[" * 3000 + "]" * 3000,
    '{"a":' * 3000 + "1" + "}" * 3000,
)


def examples(count: int) -> settings:
    """Settings of a test of so many examples; of as many times more as TORCHDPCATE_FUZZ says."""
    return settings(max_examples=count * _TIMES)


def paths(value: Any, here: tuple = ()) -> Iterator[tuple]:
    """Yield the way to each value in a JSON document, the document's own first."""
    yield here
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        yield from paths(inner, (*here, key))


def replaced(document: Any, path: tuple, text: str) -> str:
    """Return the JSON text of a document with the value at the path replaced by ``text``."""
    if not path:
        return text
    copy = json.loads(json.dumps(document))
    parent = copy
    for key in path[:-1]:
        parent = parent[key]
    parent[path[-1]] = _HERE
    return json.dumps(copy).replace(json.dumps(_HERE), text, 1)


def without(document: Any, path: tuple) -> str:
    """Return the JSON text of a document without the value at the path."""
    if not path:
        return ""
    copy = json.loads(json.dumps(document))
    parent = copy
    for key in path[:-1]:
        parent = parent[key]
    del parent[path[-1]]
    return json.dumps(copy)


def twice(document: Any, path: tuple, text: str) -> str:
    """Return the JSON text in which an entry of an object is there twice, the second time as ``text``."""
    if not path or not isinstance(path[-1], str):
        return replaced(document, path, text)
    value = document
    for key in path:
        value = value[key]
    return replaced(document, path, f"{json.dumps(value)}, {json.dumps(path[-1])}: {text}")


def json_faults(document: Any) -> st.SearchStrategy[str]:
    """Draw the text of a document with one value replaced, gone, or there twice."""
    where, text = st.sampled_from(list(paths(document))), st.sampled_from(NASTY_TEXTS)
    return st.one_of(
        st.builds(replaced, st.just(document), where, text),
        st.builds(without, st.just(document), where),
        st.builds(twice, st.just(document), where, text),
    )


@st.composite
def byte_faults(draw: st.DrawFn, data: bytes, most: int = 3) -> bytes:
    """Draw the data with up to ``most`` pieces overwritten, lost, repeated or put in, or cut short."""
    result = bytearray(data)
    for _ in range(draw(st.integers(1, most))):
        start = draw(st.integers(0, len(result)))
        stop = min(len(result), start + draw(st.integers(0, 40)))
        kind = draw(st.sampled_from(["bit", "write", "insert", "delete", "repeat", "cut"]))
        if kind == "bit" and start < len(result):
            result[start] ^= 1 << draw(st.integers(0, 7))
        elif kind == "write":
            result[start:stop] = draw(st.binary(min_size=stop - start, max_size=stop - start))
        elif kind == "insert":
            result[start:start] = draw(st.binary(max_size=20))
        elif kind == "delete":
            del result[start:stop]
        elif kind == "repeat":
            result[start:start] = result[start:stop] * draw(st.integers(1, 50))
        elif kind == "cut":
            del result[start:]
    return bytes(result)


def met_both(faults: st.SearchStrategy[Any], count: int, answers: Callable[[Any], bool]) -> None:
    """Try drawn faults; some must be answered and some refused: a reader that refuses everything checks nothing."""
    seen = set()

    @examples(count)
    @given(faults)
    def check(fault: Any) -> None:
        seen.add(answers(fault))

    check()
    assert seen == {True, False}
