"""Checks of a release beside single numbers: stated noise, copied files, drawn curves, queries that are records."""

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from torchdpcate.audit.leak.curator import Curator
from torchdpcate.audit.leak.search import Finding


@dataclass(frozen=True, eq=False)
class Stated:
    """What a release file states of itself, without its checksum.

    Attributes:
        file: Its name.
        tensors: Its tensors by name.
        facts: Shapes and public scales.
        privacy: The privacy statement.
        schema: Columns and bounds.
    """

    file: str
    tensors: dict[str, np.ndarray]
    facts: dict[str, Any]
    privacy: dict[str, Any]
    schema: dict[str, Any]

    @property
    def outcome_range(self) -> float:
        """R, in outcome units."""
        return float(self.schema["outcome"]["high"]) - float(self.schema["outcome"]["low"])


def read_stated(folder: Path) -> Stated | None:
    """Return what the release file of a folder states, or None if none can be read."""
    from safetensors import SafetensorError, safe_open

    for path in sorted(folder.glob("*.safetensors")):
        try:
            with safe_open(path, "pt") as file:
                tensors = {name: file.get_tensor(name).double().numpy() for name in file.keys()}  # noqa: SIM118
                metadata = file.metadata()
            parts = [json.loads(metadata[name]) for name in ("facts", "privacy", "schema")]
            found = Stated(path.name, tensors, *parts)
            if found.outcome_range > 0:
                return found
        except (SafetensorError, OSError, ValueError, KeyError, TypeError):
            continue
    return None


def too_little_noise(stated: Stated | None, curator: Curator, alpha: float) -> list[Finding]:
    r"""Hold the noise of released coefficients against the least that their statement allows.

    Output perturbation states its scale s. Objective perturbation moves theta by at least ||b|| / L, L the largest
    curvature of the objective. For Gaussian noise ||difference||^2 / s^2 is then at least chi-squared with p degrees of
    freedom; for noise of density exp(-||z|| / s), ||difference|| / s is at least Gamma(p).
    """
    from scipy.stats import chi2, gamma

    theta, clean = None if stated is None else stated.tensors.get("theta"), curator.vectors.get("theta_without_noise")
    if stated is None or theta is None or clean is None or theta.shape != clean.shape:
        return []
    law = _head_noise(stated) or _rule_noise(stated, curator)
    if law is None:
        return []
    kind, least = law
    moved, size = float(np.linalg.norm(theta - clean)), len(clean)
    chance = float(chi2.cdf((moved / least) ** 2, size) if kind == "gaussian" else gamma.cdf(moved / least, size))
    if chance > alpha:
        return []
    what = f"coefficients with far less noise than stated: {moved:.3g} where {least:.3g} each is the least"
    return [Finding(stated.file, "theta", what, f"{moved:.6g}", chance)]


def _head_noise(stated: Stated) -> tuple[str, float] | None:
    """Return law and least scale of the noise of a CATE's head: L is at most 2 n (B^2 + ridge), B <= 1."""
    try:
        if stated.privacy["mechanism"] == "output":
            return "gaussian", float(stated.facts["noise_scale"])
        public = stated.privacy["public"]
        n = next(block["n"] for block in stated.privacy["blocks"] if block["name"] == "second_stage")
        return "gaussian", float(public["tilt_scale"]) / (2 * n * (1 + public["ridge"]))
    except (KeyError, TypeError, ValueError, StopIteration):
        return None


def _rule_noise(stated: Stated, curator: Curator) -> tuple[str, float] | None:
    """Return law and least scale of a rule's noise; the curator's folder has L."""
    try:
        kind, public = stated.privacy["mechanism"].rpartition("_")[2], stated.privacy["public"]
        if kind not in ("gamma", "box", "gaussian"):
            return None
        if "noise_scale" in public:
            return kind, float(public["noise_scale"])
        return kind, float(public["tilt_scale"]) / curator.public_vectors["hessian_bound"].item()
    except (KeyError, TypeError, ValueError, AttributeError):
        return None


def copied_files(run: Path) -> list[Finding]:
    """Return files of ``release/`` that are byte for byte one of the curator's."""

    def files(folder: Path, pattern: str = "**/*") -> dict[bytes, Path]:
        paths = [path for path in folder.glob(pattern) if path.is_file() and path.stat().st_size]
        return {hashlib.sha256(path.read_bytes()).digest(): path for path in paths}

    curator, released = files(run / "curator") | files(run, "summary.json"), files(run / "release")
    return [
        Finding(released[key].name, "the file", "a copy of a curator's file", curator[key].name)
        for key in released.keys() & curator.keys()
    ]


def drawn_curves(run: Path, curator: Curator) -> list[Finding]:
    """Return figures of ``release/`` that show a curve of the curator's."""
    from torchdpcate.audit.leak.figures import drawn

    secret, public = (
        curator.vectors.get("effect_in_figure_without_noise"),
        curator.public_vectors.get("public.effect_in_figure"),
    )
    if secret is None or public is None:
        return []
    findings = []
    for path in sorted((run / "release").rglob("*.png")):
        try:
            shown = drawn(path.read_bytes(), public, {"effect_in_figure_without_noise": secret})
        except Exception:  # no image: `read_folder` says so
            continue
        for name, share in (shown or {}).items():
            name_in = path.relative_to(run / "release").as_posix()
            findings.append(Finding(name_in, "its pixels", f"the curve {name}", f"{share:.0%} of it drawn"))
    return findings


def records_asked_for(stated: Stated | None, curator: Curator) -> list[str]:
    """Note released queries that are records: public only by the user's word."""
    queries = None if stated is None else stated.tensors.get("queries")
    if queries is None or curator.rows is None:
        return []
    rows = {row.tobytes() for row in curator.rows[:, :-1] + 0.0}
    same = sum(row.tobytes() in rows for row in queries + 0.0)
    return [f"{same} of {len(queries)} released queries are records: they count as public"] if same else []
