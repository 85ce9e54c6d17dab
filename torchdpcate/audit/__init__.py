"""Attacks on our own claims: empirical bounds, neighbour searches, replay, leak scans."""
