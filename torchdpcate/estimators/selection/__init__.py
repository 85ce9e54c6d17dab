"""Private selection of one public policy."""
