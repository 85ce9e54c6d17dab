"""Records and their public facts: domain, schema, split, readers, and the base of generators with known truth."""

from torchdpcate._lazy import exports

__getattr__, __dir__, __all__ = exports(
    __name__,
    {
        "_csv": ("CsvForm",),
        "checked": (
            "checked_records",
            "file_fingerprint",
            "fingerprint",
        ),
        "covariates": (
            "Categorical",
            "Covariate",
            "Numeric",
        ),
        "domain": ("Domain",),
        "persons": (
            "person_names",
            "person_rows",
        ),
        "propensity": ("KnownPropensity",),
        "ray_table": ("RayTable",),
        "records": ("CausalData",),
        "schema": ("TableSchema",),
        "split": (
            "public_generator",
            "public_permutation",
            "public_split",
        ),
        "stream": ("stream_answers",),
        "streams": ("RecordStream",),
        "study": (
            "GeneratedStudy",
            "StreamedStudy",
            "Study",
            "StudySource",
            "read_queries",
            "record_average",
        ),
        "table": ("Table",),
        "table_stream": ("TableStream",),
    },
)
