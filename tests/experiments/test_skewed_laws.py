"""Laws whose residuals are skewed by arm and covariate: their effects, and what intervals hold of them."""

import pytest
import torch

from experiments.defaults import skewed_arms
from experiments.defaults.skewed_arms import main
from experiments.defaults.skewed_laws import FAMILIES, law

SEED = 1_500


@pytest.mark.parametrize("family", list(FAMILIES))
def test_the_effect_is_the_difference_of_the_arms(family):
    one, n = law(family, SEED), 200_000
    x, a, y = one.records(n, SEED)
    rest = y - one.base[0] - x @ one.base[1:] - a * one.effect(x)
    for arm in (0.0, 1.0):
        own = rest[a == arm]
        assert own.mean().abs() < 5 * own.std() / len(own) ** 0.5 + 0.01
    again = law(family, SEED).records(10, SEED)
    assert torch.equal(again[2], law(family, SEED).records(10, SEED)[2])
    assert law(family, SEED + 1).level != one.level


def test_what_was_held_is_printed(tmp_path, monkeypatch, capsys):
    given = ["--only", "Gamma", "normal", "--draws", "2", "--sizes", "400"]
    paths = ["--work", str(tmp_path / "work"), "--out", str(tmp_path)]
    monkeypatch.setattr("sys.argv", ["skewed_arms", *given, *paths])
    monkeypatch.setattr(skewed_arms, "EPSILONS", (1.0,))
    main()
    table = (tmp_path / "skewed_arms.csv").read_text()
    assert capsys.readouterr().out.count("| 400 | 1 | 2 |") == 2
    main()  # which does nothing twice
    assert (tmp_path / "skewed_arms.csv").read_text() == table
