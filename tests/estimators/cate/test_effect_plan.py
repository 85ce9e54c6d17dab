"""Releases of effects by a second stage keep the contract of plans."""

from typing import ClassVar

from tests.contract import PlanContract, plan_of, pytest_generate_tests  # noqa: F401 - pytest calls it
from tests.verify.test_file import MADE

KINDS = (
    *(
        "output",
        "objective",
        "queries",
        "gaussian_process",
        "smooth_sensitivity",
    ),
    *("kernel", "public threshold", "fourier", "representation", "holding influence"),
)


class TestContract(PlanContract):
    made: ClassVar = {name: MADE[name] for name in KINDS} | {}
    default = ("output",)
    untold = ("seed", "nuisances", "features", "head")
    untold_in: ClassVar = {
        "holding influence": ("ridge",),  # the scale of its noise is secret, and nothing public follows from it
    }
    worked_out = ("noise_scales",)
    untold_charges = ("nuisances", "threshold")
    concludes = False
