"""Designs, data sets and cohorts of papers and peers, by which methods are compared: one module a source."""
