"""Exactly k rows of each person, drawn for each alone."""

import numpy as np
import pytest

from torchdpcate.data.persons import keyed_hashes, person_rows
from torchdpcate.errors import InputError


def test_each_person_has_k_rows_in_even_turns() -> None:
    persons = np.repeat(["a", "b", "c"], [7, 3, 1])
    rows = person_rows(persons, per_person=5, seed=3).numpy()
    assert rows.shape == (3, 5)
    assert [sorted(np.unique(row, return_counts=True)[1]) for row in rows] == [[1] * 5, [1, 2, 2], [5]]
    assert all(len(set(persons[row])) == 1 for row in rows)


@pytest.mark.parametrize("seed", range(5))
def test_another_person_changes_no_choice(seed: int) -> None:
    persons = [3, 1, 2, 1, 2, 2, 1, 3, 3, 2]
    before = person_rows(persons, 2, seed)
    moved = [9, 9, 9, *(p for p in persons if p != 3)]  # person 3 is replaced by one with other rows elsewhere
    kept = [i for i, p in enumerate(persons) if p != 3]
    after = person_rows(moved, 2, seed)
    back = {place + 3: row for place, row in enumerate(kept)}
    old = {persons[row[0]]: row for row in before.tolist()}
    new = {moved[row[0]]: [back.get(place, -1) for place in row] for row in after.tolist()}
    assert all(old[p] == new[p] for p in (1, 2))


def test_the_draw_is_uniform() -> None:
    persons = np.repeat(np.arange(8000), 4)
    first = person_rows(persons, 1, 0)[:, 0].numpy() % 4
    counts = np.bincount(first, minlength=4)
    assert (abs(counts - 2000) < 5.5 * np.sqrt(8000 * 3 / 16)).all()
    assert not np.array_equal(first, person_rows(persons, 1, 1)[:, 0].numpy() % 4)
    assert len(np.unique(keyed_hashes(["a", "b"], 0))) == 2


def test_too_many_are_refused_if_wanted_and_missing_names_always() -> None:
    with pytest.raises(InputError, match=r"1 person with more than data\.per_person = 2 records"):
        person_rows([1, 1, 1, 2], 2, too_many="refuse")
    assert person_rows([1, 1, 2], 2, too_many="refuse").shape == (2, 2)
    with pytest.raises(InputError, match="has 2 missing values"):
        person_rows(["a", None, "b", None])


@pytest.mark.parametrize(("setting", "value"), [("per_person", 0), ("per_person", 1.5), ("too_many", "some")])
def test_settings_are_checked(setting: str, value: object) -> None:
    with pytest.raises(InputError, match=rf"data\.{setting} = "):
        person_rows([1, 2], **{setting: value})
