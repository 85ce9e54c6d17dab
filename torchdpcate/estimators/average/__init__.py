"""Average effects with intervals."""
