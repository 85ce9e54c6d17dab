"""Answers of one fit on random laws, beside peers: coverage, width over the non-private one, and bias.

``python -m experiments.hospital.study --out ROWS.csv [--method NAME] [--seeds 1000:1040] [--records N] [--epsilon 1]
[--law NAME] [--lines NAME ...]`` adds rows of methods, one fit's if none is named, to a file and prints what they say;
what the file has of a law, seed, n, epsilon and method is not made again. ``--table PAGE`` makes no rows: it puts what
they say into ``found.csv``, in the place of what that has of the same, and its tables into the page. Seeds 0 to 199 are
for tuning, 1,000 to 1,199 for reporting.
"""

import argparse
import warnings
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pandas as pd
import torch

from experiments.frame.study import seed_of
from experiments.hospital.cases import Case
from experiments.hospital.laws import LAWS
from experiments.hospital.methods import EFFECTS, PEERS, Method, found, ours
from experiments.hospital.tables import paste, renewed, summary, tables
from torchdpcate.release.averages import PARTS, RULE

FOUND = Path(__file__).parent / "found.csv"
KEY = ["law", "seed", "n", "epsilon", "method"]
COLUMNS = [*KEY, "line", "estimate", "low", "high", "truth", "np", "np_error", "held", "width", "error", "regret"]
COLUMNS += [*PARTS, "refused"]
RECORDS = 5_000
SIZES = dict.fromkeys(("linear", "hump", "product"), (1_000, 2_000, RECORDS))
"""Numbers of records of laws that are judged at several."""


def rows_of(law: str, seed: int, n: int, epsilon: float, of: dict[str, Method]) -> Iterator[pd.DataFrame]:
    """Yield the rows of each method on the same records; epsilon of those without privacy is infinite."""
    case = Case.of(law, seed, n)
    for name, method in of.items():
        spent = epsilon if method.private else np.inf
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of fixed seeds, and of plans with more noise than a user would want
            rows = pd.DataFrame(found(method, case, epsilon, seed_of(law, seed, n, epsilon, name)))
        yield rows.assign(law=law, seed=seed, n=n, epsilon=spent, method=name).reindex(columns=COLUMNS)


def missing(path: Path, law: str, seed: int, n: int, epsilon: float, of: dict[str, Method]) -> dict[str, Method]:
    """Return the methods of which a file lacks a law's rows."""
    done = set(pd.read_csv(path, usecols=KEY).itertuples(index=False, name=None)) if path.exists() else set()
    key = (law, seed, n)
    return {name: m for name, m in of.items() if (*key, epsilon if m.private else np.inf, name) not in done}


def run(path: Path, seeds: range, laws: list[str], sizes: list[int], epsilon: float, of: dict[str, Method]) -> None:
    """Add to a csv file the rows that it lacks, law by law.

    Args:
        path: The file.
        seeds: Of the laws.
        laws: Names of ``LAWS``.
        sizes: Numbers of records; none takes each law's own.
        epsilon: Of each fit.
        of: What is run.
    """
    for seed in seeds:
        for law in laws:
            for n in sizes or SIZES.get(law, (RECORDS,)):
                for rows in rows_of(law, seed, n, epsilon, missing(path, law, seed, n, epsilon, of)):
                    rows.to_csv(path, mode="a", header=not path.exists(), index=False, float_format="%.4g")


def _main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--method", action="append", choices=[*ours(), *EFFECTS, *PEERS], metavar="NAME")
    parser.add_argument("--seeds", default="1000:1040")
    parser.add_argument("--records", type=int, action="append", default=[])
    parser.add_argument("--epsilon", type=float, default=1.0)
    parser.add_argument("--law", action="append", choices=LAWS, metavar="NAME")
    parser.add_argument("--lines", nargs="*", default=[RULE])
    parser.add_argument("--table", type=Path, metavar="PAGE")
    words = parser.parse_args()
    if words.table is not None:
        found = renewed(pd.read_csv(FOUND) if FOUND.exists() else None, summary(pd.read_csv(words.out)))
        found.to_csv(FOUND, index=False)
        paste(words.table, tables(found))
        return
    torch.set_num_threads(1)
    answers = ours(tuple(words.lines))
    every = {name: method for name, method in (answers | EFFECTS | PEERS).items() if name in (words.method or answers)}
    of = {name: method for name, method in every.items() if not lacks(method)}
    for library in sorted({method.library for method in every.values() if lacks(method)}):
        print(f"{library} is not installed, its rows are left out: pip install 'torchdpcate[peers-{library}]'")
    seeds = range(*map(int, words.seeds.split(":")))
    run(words.out, seeds, words.law or list(LAWS), words.records, words.epsilon, of)
    print(summary(pd.read_csv(words.out)).to_string())


def lacks(method: Method) -> bool:
    """Return whether the library of a method is not installed."""
    return bool(method.library) and find_spec(method.library) is None


if __name__ == "__main__":
    _main()
