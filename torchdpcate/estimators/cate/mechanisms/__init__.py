"""Mechanisms that release a fitted second stage."""
