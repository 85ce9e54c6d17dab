"""Releases of a composition keep the contract of plans."""

import pickle
from typing import ClassVar

from tests.contract import PlanContract, plan_of, pytest_generate_tests  # noqa: F401 - pytest calls it
from tests.verify.test_composed import MADE
from torchdpcate.release.file import load_release

LEFT_OUT = ("fixed noise", "own solver", "queries")
"""Nothing is claimed, a condition is open, or answers follow from a function that is not in the file."""


class TestContract(PlanContract):
    made: ClassVar = {name: MADE[name] for name in MADE if name not in LEFT_OUT}
    default = ("trial",)
    untold = ("learner", "rule", "columns", "features")
    untold_in: ClassVar = {name: ("constant_only",) for name in ("small budget", "pure and constant")}
    followed = ("standardisation", "estimates", "scale", "interval", "curvatures")

    def test_the_plan_is_made_anew_from_the_file(self, case, written):
        release = load_release(written(case))
        plan = plan_of(release)
        assert list(plan.problems(release)) == []
        assert pickle.loads(pickle.dumps(plan)).public() == plan.public()
