"""Fits: features, losses, convex minimisers and their noise, nuisance networks by DP-SGD, weights."""
