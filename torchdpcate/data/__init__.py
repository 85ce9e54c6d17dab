"""Records and their public facts: domain, schema, split, readers and generators with known truth."""

from torchdpcate._lazy import exports

__getattr__, __dir__, __all__ = exports(
    __name__,
    {
        "clinical.studies": ("IntensiveCare", "MimicExtract", "MimicTables"),
        "checked": ("checked_records",),
        "covariates": ("Categorical", "Covariate", "Numeric"),
        "domain": ("Domain",),
        "effect_generators": ("Confounded",),
        "expression": ("Expression", "SumOfGenes"),
        "fingerprint": ("file_fingerprint", "fingerprint"),
        "generated": ("GeneratedStudy",),
        "generators": ("Dataset1", "Dataset2", "OprescuGenerator"),
        "hospital": ("Hospital",),
        "modules": ("RecordsModule",),
        "niu": ("Niu",),
        "persons": ("person_names", "person_rows"),
        "propensity": ("KnownPropensity",),
        "queries": ("read_queries",),
        "record_stream": ("RecordStream",),
        "records": ("CausalData",),
        "rule_generators": ("GaussianRuleStudy", "ITR", "OWL"),
        "schema": ("TableSchema",),
        "selection_generators": ("RareRegion", "RareRegionStudy", "RealRareRegion"),
        "semi_synthetic": ("SemiSynthetic",),
        "split": ("public_generator", "public_permutation", "public_split"),
        "stream": ("stream_effects",),
        "study": ("StreamedStudy", "Study", "StudySource", "record_average"),
        "surfaces": ("GeneratedSurface", "GivenOutcomes", "Surface"),
        "table": ("Table",),
        "table_stream": ("TableStream",),
    },
)
