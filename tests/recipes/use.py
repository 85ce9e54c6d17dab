"""What a user does with the additions, through the program and the package; run in the folder that has them."""

import json
import os
import sys
from pathlib import Path

import torchdpcate
from torchdpcate.cli.main import main
from torchdpcate.errors import VerificationError
from torchdpcate.release.file import load_release
from torchdpcate.verify.file import verify_release

assert Path(torchdpcate.__file__).is_relative_to(Path.cwd()), torchdpcate.__file__

QUICK = [
    "trainer.progress=false",
    "privacy.epsilon=4",
    "data=dataset1",
    "data.n=800",
    "queries.count=20",
    "nuisance.epochs=1",
    "second_stage=linear",
    "second_stage.ridge=0.05",
]
AVERAGE = ["privacy.epsilon=4", "task=average_effect", "data.n=3000", "privacy.delta=0"]
RUNS = {
    "mechanism": [*QUICK, "second_stage.loss=squared", "mechanism=coarse_output"],
    "learner": [*QUICK, "learner=half"],
    "estimand": [*AVERAGE, "effect=covariate_balancing", "effect.estimand=ATM"],
    "rule_mechanism": ["privacy.epsilon=4", "task=owl", "data.n=1000", "privacy.delta=0", "rule.mechanism=coarse"],
}
AUDITS = {
    "mechanism": "coarse_output",
    "learner": "half_learner",
    "estimator": "laplace_table",
    "rule_mechanism": "coarse_gamma",
}


def used(what: str) -> dict:
    """Train, release, save, load, verify, predict and audit."""
    run = Path(what)
    path = run / "release" / "release.safetensors"
    codes = [main(["train", *RUNS[what], f"run_dir={run}"]), main(["verify", str(path)])]
    release = load_release(path)
    if what in AUDITS:
        codes.append(main(["audit", f"mechanism={AUDITS[what]}", "trials=2000", "confidence=0.9"]))
    if hasattr(release, "effect") and callable(release.effect):
        release.effect(release.domain.grid(5))
    forged = release.save(run / "copy.safetensors")
    verify_release(forged)
    return {"codes": codes, "level": release.privacy.level, "public": release.privacy.public}


def refuses_a_forgery(path: Path) -> bool:
    """Whether the mechanism's own recomputation refuses a noise band that is too narrow."""
    import dataclasses

    release = load_release(path)
    public = {**release.privacy.public, "noise_scale": release.noise_scale / 2}
    privacy = dataclasses.replace(release.privacy, public=public)
    forged = dataclasses.replace(release, noise_scale=release.noise_scale / 2, privacy=privacy)
    try:
        verify_release(forged.save(path.with_name("forged.safetensors")))
    except VerificationError as error:
        return "noise_scale" in str(error)
    return False


if __name__ == "__main__":
    sys.stdout, out = open(os.devnull, "w"), sys.stdout  # noqa: SIM115 - for the rest of the process
    found = {what: used(what) for what in RUNS}
    found["forgery"] = refuses_a_forgery(Path("mechanism/release/release.safetensors"))
    print(json.dumps(found, default=str), file=out, flush=True)
