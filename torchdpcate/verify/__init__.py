"""Verification of release files, and the cards made from them."""
