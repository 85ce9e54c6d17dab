"""Records and their public facts: domain, schema, split, readers, and the base of generators with known truth."""
