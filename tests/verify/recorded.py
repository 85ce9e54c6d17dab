"""Numbers of a release of each kind under fixed noise, which no change of the code's structure may move.

Made anew, where a change is meant to move them, by ``python -m tests.verify.recorded``.
"""

import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from tests.registered import AverageEffect, EffectRule, PolicySelector, RLearner
from tests.verify import forgeries as forge
from tests.verify import test_average, test_subgroups
from tests.verify.kinds import KINDS
from torchdpcate.candidates.kinds import Constants, Thresholds
from torchdpcate.data.domain import Domain
from torchdpcate.data.facts import OUTCOME_KINDS
from torchdpcate.privacy.budget import PrivacyBudget
from torchdpcate.privacy.noise import FixedNoise, NoiseSource

FILE = Path(__file__).parents[1] / "data" / "recorded.safetensors"
N = 600
FEW, SOME = PrivacyBudget(2.0, 0.0), PrivacyBudget(6.0, 1e-5)


def observed(kind: str = "continuous", arms: int = 2) -> tuple[Domain, Tensor, Tensor, Tensor]:
    random = torch.Generator().manual_seed(11)
    x = torch.rand(N, 3, generator=random, dtype=torch.float64)
    a = (torch.rand(N, generator=random, dtype=torch.float64) * arms).floor()
    y = 0.2 + 0.3 * x[:, 1] + 0.3 * a * (x[:, 0] > 0.4) + 0.1 * torch.rand(N, generator=random, dtype=torch.float64)
    y = (y > 0.5).double() if kind == "binary" else (4 * y).round() if kind == "count" else y
    high = {"binary": 1.0, "count": 9.0}.get(kind, 2.0)
    return Domain([0.0] * 3, [1.0] * 3, 0.0, high, overlap=0.2, outcome_kind=kind, better="higher"), x, a, y


def fitted(learner: Any, kind: str = "continuous", budget: PrivacyBudget = SOME, arms: int = 2, **settings: Any) -> Any:
    domain, x, a, y = observed(kind, arms)
    return learner(domain, budget, **settings).fit(x, a, y)


POLICIES = [Thresholds("x0", [0.2, 0.4, 0.6])]
MORE: dict[str, Callable[[], Any]] = {
    **{
        f"average, {name}": lambda name=name: test_average.fitted(test_average.LEARNERS[name]())
        for name in test_average.LEARNERS
    },
    **{f"effect, {kind}": lambda kind=kind: fitted(RLearner, kind).release_function() for kind in OUTCOME_KINDS},
    **{f"pure, {kind}": lambda kind=kind: fitted(RLearner, kind, FEW).release_function() for kind in OUTCOME_KINDS},
    **{f"rule, {kind}": lambda kind=kind: fitted(EffectRule, kind).release() for kind in OUTCOME_KINDS},
    **{f"mean, {kind}": lambda kind=kind: fitted(AverageEffect, kind).release() for kind in OUTCOME_KINDS},
    **{  # another test of the process may have made one of those that are kept
        f"subgroups, {name}": lambda name=name: test_subgroups.released.__wrapped__(name)
        for name in test_subgroups.SETTINGS
    },
    "rule, pure": lambda: fitted(EffectRule, budget=FEW).release(),
    "selection": lambda: fitted(PolicySelector, policies=POLICIES).release(),
    "selection, pure": lambda: fitted(PolicySelector, budget=FEW, policies=POLICIES).release(),
    "selection of three arms": lambda: fitted(
        PolicySelector, arms=3, actions=[0, 1, 2], policies=[Constants([0, 1, 2])]
    ).release(),
}
LEFT_OUT = (
    *("fixed", "composed, fixed noise"),
    # whose numbers tests/estimators/test_weights.py compares with those of other tables
    *("average, trial with weights", "average, strata of ATT with weights"),
    "subgroups, weights",
)
"""Kinds that bring a source of noise of their own."""
EVERY = KINDS | MORE


class Repeated(FixedNoise):
    """Fixed noise that passes for the system's, so that releases are charged and stated as theirs."""

    private = True


def numbers(kind: str) -> tuple[dict[str, Tensor], dict[str, Any]]:
    with tempfile.TemporaryDirectory() as folder, patch.object(NoiseSource, "system", lambda: Repeated(7)):
        torch.manual_seed(0)
        draft = forge.opened(forge.written(EVERY, Path(folder))(kind))
    facts = {"charges": draft.charges, "facts": draft.facts, "public": draft.privacy["public"]}
    return draft.tensors, json.loads(json.dumps(facts))


def kinds() -> list[str]:
    return [kind for kind in EVERY if kind not in LEFT_OUT]


def recorded() -> dict[str, tuple[dict[str, Tensor], dict[str, Any]]]:
    """Return what ``numbers`` was of each kind when the file was made."""
    with safe_open(FILE, "pt") as file:
        found: dict[str, Any] = {kind: ({}, json.loads(facts)) for kind, facts in file.metadata().items()}
        for name in file.keys():  # noqa: SIM118
            kind, _, tensor = name.rpartition("/")
            found[kind][0][tensor] = file.get_tensor(name)
    return found


def write() -> None:
    tensors: dict[str, Tensor] = {}
    stated: dict[str, str] = {}
    for kind in kinds():
        found, facts = numbers(kind)
        tensors |= {f"{kind}/{name}": value.contiguous().clone() for name, value in found.items()}
        stated[kind] = json.dumps(facts)
        print(kind, len(found))
    save_file(tensors, FILE, stated)


if __name__ == "__main__":
    write()
