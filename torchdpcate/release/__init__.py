"""Releases: mechanisms, files, the privacy statement."""
