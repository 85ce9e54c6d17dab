"""The measurements of the DP-CATE paper's cohort: MIMIC's items, their units, and what is plausible of them."""

from collections.abc import Mapping
from dataclasses import dataclass, field

RED_CELLS = "red_blood_cell_count"
"""The variable whose later values are the outcome."""


@dataclass(frozen=True)
class Variable:
    """A measurement.

    Attributes:
        name: Its column.
        extract: Its name in MIMIC-Extract.
        unit: What it is measured in.
        low: Values below are errors of measurement or of unit, and count as missing.
        high: Values above, likewise.
        chart: Items of CHARTEVENTS, of CareVue (MIMIC-III alone) and of MetaVision (both).
        lab: Items of LABEVENTS.
        units: Factor to ``unit`` by the unit that the tables write, in lower case; a missing one is ``unit``.
    """

    name: str
    extract: str
    unit: str
    low: float
    high: float
    chart: tuple[int, ...]
    lab: tuple[int, ...] = ()
    units: Mapping[str, float] = field(default_factory=dict)


# Items as MIMIC-Extract groups them (Wang et al. 2020, resources/itemid_to_variable_map.csv), without settings of the
# ventilator and spontaneous breaths beside mechanical ones. Plausible ranges are the widest of a living patient.
VARIABLES = (
    Variable(
        "heart_rate", "heart rate", "beats/min", 10, 350, (211, 220045), units={"bpm": 1, "beats/min": 1, "/min": 1}
    ),
    Variable(
        "sodium", "sodium", "mEq/L", 80, 225, (837, 1536, 220645, 226534), (50824, 50983), {"meq/l": 1, "mmol/l": 1}
    ),
    Variable(
        RED_CELLS,
        "red blood cell count",
        "10^6/uL",
        0.3,
        10,
        (833,),
        (51279,),
        {"m/ul": 1, "/mic l": 1, "10^6/ul": 1, "10^12/l": 1, "x10^6/ul": 1},
    ),
    Variable(
        "glucose",
        "glucose",
        "mg/dL",
        33,
        2200,
        (807, 811, 1529, 220621, 225664, 226537),
        (50809, 50931),
        {"mg/dl": 1, "mmol/l": 18.016},
    ),
    Variable("hematocrit", "hematocrit", "%", 5, 75, (813, 220545), (50810, 51221), {"%": 1, "l/l": 100}),
    Variable(
        "respiratory_rate",
        "respiratory rate",
        "breaths/min",
        1,
        200,
        (618, 615, 220210, 224690),
        units={"bpm": 1, "insp/min": 1, "breaths/min": 1, "/min": 1},
    ),
)
"""In the order of the columns of ``Hours.values``."""

INVASIVE_VENTILATION = 225792
"""Item of PROCEDUREEVENTS: from when to when a person was ventilated through a tube."""

VENTILATOR_SETTINGS = (
    *(445, 448, 449, 450, 1340, 1486, 1600, 224687),  # minute volume
    *(639, 654, 681, 682, 683, 684, 224684, 224685, 224686),  # tidal volume
    *(218, 436, 444, 459, 535, 224695, 224696, 224697, 224746, 224747),  # airway pressure
    *(221, 1, 1211, 1655, 2000, 226873, 224738, 224419, 224750, 227187),  # inspiratory pressure and time
    *(543, 5865, 5866, 224707, 224709, 224705, 224706),  # plateau pressure, release ventilation
    *(60, 437, 505, 506, 686, 220339, 224700, 3459),  # end-expiratory pressure, high pressure relief
    *(501, 502, 503, 224702, 223, 667, 668, 669, 670, 671, 672, 224701),  # pressure control and support
)
"""Items of CHARTEVENTS that are charted of a ventilated person alone (mimic-code, concepts/durations)."""
