"""The DP-CATE paper's cohort as data: MIMIC-Extract's output, or MIMIC's tables as downloaded."""

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from torchdpcate.data._frames import about
from torchdpcate.data.checked import encode_records
from torchdpcate.data.domain import Domain
from torchdpcate.data.persons import check_contribution, person_rows
from torchdpcate.data.records import check_treatment
from torchdpcate.data.schema import TableSchema
from torchdpcate.data.study import PublicStudy, Study, StudySource
from torchdpcate.errors import InputError
from torchdpcate.papers.mimic_extract import read_extract
from torchdpcate.papers.mimic_hours import Hours, Window, records_at, time_points
from torchdpcate.papers.mimic_tables import read_tables
from torchdpcate.privacy.unit import PrivacyUnit

PERSON = "subject_id"
"""MIMIC's number of a person."""


@dataclass(eq=False, repr=False)
class IntensiveCare(StudySource):
    """Records of intensive-care patients at random time points: k of each person.

    Covariates are heart rate, sodium, red blood cell count, glucose, hematocrit and respiratory rate, averaged over the
    hours before a time point, age and gender; the treatment is ventilation at that time; the outcome is the red blood
    cell count averaged over the hours after (Schroder et al. 2025, section 6). A person has a record at every full hour
    at which all of them are known; ``per_person`` of these are drawn by hashes of the seed and her number, for her
    alone, so that the draw is part of the preparation of her record and costs nothing.

    Args:
        path: Where the data are.
        domain: Public bounds of the cohort's columns.
        before: Hours before the time point over which covariates are averaged.
        after: Hours from the time point on over which the outcome is averaged.
        per_person: k, records of each person.
        too_many: ``"draw"``, or ``"refuse"`` persons with more time points than k.
        out_of_bounds: ``"refuse"`` averages outside their bounds, or ``"clip"`` them; what the domain says is kept.
        queries: Size of the public grid.
        queries_path: File of public queries; replaces the grid.
        seed: Public seed of the time points.

    Raises:
        InputError: On ``load``, whatever in the data is not of the layout, or nobody has a record.
    """

    path: str | Path
    domain: TableSchema | Domain | Mapping[str, Any] | str | Path = "mimic"
    before: int = 10
    after: int = 24
    per_person: int = 1
    too_many: str = "draw"
    out_of_bounds: str = "refuse"
    queries: int = 300
    queries_path: str | Path | None = None
    seed: int = 0

    name: ClassVar[str]

    @abstractmethod
    def hours(self) -> Hours:
        """Read the stays hour by hour.

        Raises:
            InputError: The data are not of the layout.
        """

    @property
    def unit(self) -> PrivacyUnit:
        """A person, with k records."""
        check_contribution(self.per_person, self.too_many)
        return PrivacyUnit.person(PERSON, self.per_person)

    def public(self) -> PublicStudy:
        """Return schema, public queries and unit; neither the data nor their size is looked at."""
        schema = self._schema()
        return PublicStudy(schema, self.name, None, self._points(schema), unit=self.unit)

    def load(self) -> Study:
        """Read the data, and make k records of each person."""
        import pandas as pd

        schema, unit, window = self._schema(), self.unit, Window(self.before, self.after)
        hours = self.hours()
        points = time_points(hours, window)
        if not len(points):
            raise InputError(
                f"data.path = {self.path}: nobody has a time point with all measurements before and after it; raise "
                "data.before or data.after, or bring more stays"
            )
        rows = person_rows(hours.person[points], self.per_person, self.seed, self.too_many).flatten().numpy()
        frame = pd.DataFrame(records_at(hours, points[rows], window))
        with about(self.path):
            records = encode_records(frame, schema)
            records.clipped.warn(schema)
            check_treatment(records.a, f"treatment column {schema.treatment!r}")
        return Study(records, schema, self._points(schema), None, self.name, unit=unit)

    def _schema(self) -> TableSchema:
        return TableSchema.of(self.domain).handling(self.out_of_bounds)


class MimicExtract(IntensiveCare):
    """The cohort from MIMIC-Extract's output (Wang et al. 2020): its HDF5 file, or a folder of parquet exports.

    See ``IntensiveCare`` for the arguments.

    Example:
        >>> study = MimicExtract("all_hourly_data.h5").load()  # doctest: +SKIP
        >>> study.unit.records, study.schema.outcome  # doctest: +SKIP
        (1, 'red_blood_cell_count_after')
    """

    name = "mimic"

    def hours(self) -> Hours:
        """Read MIMIC-Extract's hourly tables."""
        return read_extract(self.path)


@dataclass(eq=False, repr=False)
class MimicTables(IntensiveCare):
    """The cohort from MIMIC's tables as downloaded, csv or csv.gz, streamed.

    Args:
        path: The folder of the tables.
        version: ``"iv"`` or ``"iii"``; other arguments see ``IntensiveCare``.

    Example:
        >>> study = MimicTables("mimiciv/3.1", per_person=4).load()  # doctest: +SKIP
        >>> study.unit.records  # doctest: +SKIP
        4
    """

    version: str = "iv"

    @property
    def name(self) -> str:  # type: ignore[override]
        """Name of the data, for summaries and figures."""
        return f"mimic_{self.version}"

    def hours(self) -> Hours:
        """Read MIMIC's tables."""
        return read_tables(self.path, self.version)
