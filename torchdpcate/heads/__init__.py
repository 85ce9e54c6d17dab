"""Second stages: linear, kernel and neural heads, and how far one record moves them."""
