"""Records and their public facts: domain, schema, split, readers and generators with known truth."""

from typing import TYPE_CHECKING, Any

from torchdpcate.data.checked import checked_records
from torchdpcate.data.domain import Domain
from torchdpcate.data.effect_generators import Confounded
from torchdpcate.data.fingerprint import fingerprint
from torchdpcate.data.generated import GeneratedStudy
from torchdpcate.data.generators import Dataset1, Dataset2, OprescuGenerator
from torchdpcate.data.queries import read_queries
from torchdpcate.data.record_stream import RecordStream
from torchdpcate.data.records import CausalData
from torchdpcate.data.rule_generators import ITR, OWL, GaussianRuleStudy
from torchdpcate.data.schema import Categorical, Covariate, Numeric, TableSchema
from torchdpcate.data.selection_generators import RareRegion, RareRegionStudy, RealRareRegion
from torchdpcate.data.semi_synthetic import SemiSynthetic
from torchdpcate.data.split import public_generator, public_permutation, public_split
from torchdpcate.data.stream import stream_effects
from torchdpcate.data.study import StreamedStudy, Study, StudySource, record_average
from torchdpcate.data.surfaces import GeneratedSurface, GivenOutcomes, Surface
from torchdpcate.data.table import Table
from torchdpcate.data.table_stream import TableStream

if TYPE_CHECKING:
    from torchdpcate.data.modules import RecordsModule

__all__ = [
    "ITR",
    "OWL",
    "Categorical",
    "CausalData",
    "Confounded",
    "Covariate",
    "Dataset1",
    "Dataset2",
    "Domain",
    "GaussianRuleStudy",
    "GeneratedStudy",
    "GeneratedSurface",
    "GivenOutcomes",
    "Numeric",
    "OprescuGenerator",
    "RareRegion",
    "RareRegionStudy",
    "RealRareRegion",
    "RecordStream",
    "RecordsModule",
    "SemiSynthetic",
    "StreamedStudy",
    "Study",
    "StudySource",
    "Surface",
    "Table",
    "TableSchema",
    "TableStream",
    "checked_records",
    "fingerprint",
    "public_generator",
    "public_permutation",
    "public_split",
    "read_queries",
    "record_average",
    "stream_effects",
]


def __getattr__(name: str) -> Any:
    # Lightning takes seconds to import, and a reader of releases needs none of it.
    if name == "RecordsModule":
        from torchdpcate.data.modules import RecordsModule

        return RecordsModule
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
