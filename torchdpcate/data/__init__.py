"""Records and their public facts: domain, schema, split, readers, and the base of generators with known truth."""

from torchdpcate._lazy import exports

__getattr__, __dir__, __all__ = exports(
    __name__,
    {
        "checked": ("checked_records",),
        "covariates": ("Categorical", "Covariate", "Numeric"),
        "domain": ("Domain",),
        "fingerprint": ("file_fingerprint", "fingerprint"),
        "persons": ("person_names", "person_rows"),
        "propensity": ("KnownPropensity",),
        "records": ("CausalData", "RecordStream"),
        "schema": ("TableSchema",),
        "split": ("public_generator", "public_permutation", "public_split"),
        "stream": ("stream_effects",),
        "study": ("GeneratedStudy", "StreamedStudy", "Study", "StudySource", "read_queries", "record_average"),
        "table": ("Table", "TableStream"),
        ".papers.confounded": ("Confounded",),
        ".papers.expression": ("Expression", "SumOfGenes"),
        ".papers.hospital": ("Hospital",),
        ".papers.mimic": ("IntensiveCare", "MimicExtract", "MimicTables"),
        ".papers.niu": ("Niu",),
        ".papers.oprescu": ("Dataset1", "Dataset2", "OprescuGenerator"),
        ".papers.rare_region": ("RareRegion", "RareRegionStudy", "RealRareRegion"),
        ".papers.rules": ("GaussianRuleStudy", "ITR", "OWL"),
        ".papers.semi_synthetic": ("GeneratedSurface", "GivenOutcomes", "SemiSynthetic", "Surface"),
    },
)
