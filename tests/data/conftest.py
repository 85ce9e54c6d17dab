from pathlib import Path

import numpy as np
import pandas as pd
import pytest

SHARED = Path(__file__).resolve().parents[3] / "shared" / "data"

DOMAIN = """
treatment: treat
outcome: {name: y, low: 0, high: 10}
covariates:
  age: {low: 16, high: 60}
  sex: {categories: [0, 1]}
  race: {categories: [black, white, NA]}
overlap: 0.1
"""


@pytest.fixture
def domain_file(tmp_path: Path) -> Path:
    path = tmp_path / "trial.yaml"
    path.write_text(DOMAIN)
    return path


@pytest.fixture
def frame() -> pd.DataFrame:
    rng = np.random.default_rng(0)
    n = 40
    return pd.DataFrame(
        {
            "note": ["not, read"] * n,
            "treat": rng.permutation(np.arange(n) % 2),
            "y": rng.uniform(0, 10, n),
            "age": rng.integers(16, 61, n),
            "sex": rng.integers(0, 2, n),
            "race": rng.choice(["black", "white", "NA"], n),
        }
    )


@pytest.fixture
def shared_data() -> Path:
    if not SHARED.is_dir():
        pytest.skip("../shared/data is not there")
    return SHARED
