"""The paper's estimator on LaLonde's data without privacy, for the study covariate_balancing and the note's numbers.

Outcome 1 where earnings in 1978 are above 0; eight covariates over their largest values. No intercept, as the published
numbers have it.
"""

from collections.abc import Iterator
from pathlib import Path

import pandas as pd
import torch
from torch import Tensor

from experiments.average_effects.literal import hajek
from experiments.average_effects.references import LALONDE

COVARIATES = ["age", "education", "black", "hispanic", "married", "nodegree", "re74", "re75"]


def samples(folder: Path) -> dict[str, pd.DataFrame]:
    """The randomised sample of Dehejia and Wahba, and its treated with the controls of PSID-1."""
    trial, survey = (pd.read_csv(folder / name) for name in ("nsw_dw.csv", "psid_controls.csv"))
    return {"NSW": trial, "NSW treated and PSID": pd.concat([trial[trial["treat"] == 1], survey])}


def estimates(folder: Path) -> Iterator[tuple[str, str, int, float, float, float]]:
    """Sample, features, records, estimate and interval of every estimate that the note has."""
    frames = samples(folder)
    for sample, features in LALONDE:
        frame = frames[sample]
        x, z, y = arrays(frame)
        phi = torch.cat([torch.ones_like(x[:, :1]), x], 1) if features.startswith("with") else x
        eta = float(features.rpartition(" ")[2]) if "clipped" in features else 0.0
        (estimate,), (half,) = (part.tolist() for part in hajek(phi[None], z[None], y[None], eta))
        yield sample, features, len(frame), estimate, estimate - half, estimate + half


def arrays(frame: pd.DataFrame) -> tuple[Tensor, Tensor, Tensor]:
    """Covariates over their largest values [n, 8], treatment [n] and outcome [n]."""
    columns = frame[COVARIATES] / frame[COVARIATES].max()
    x, z = (torch.tensor(part.to_numpy(float)) for part in (columns, frame["treat"]))
    return x, z, torch.tensor((frame["re78"] > 0).to_numpy(float))
