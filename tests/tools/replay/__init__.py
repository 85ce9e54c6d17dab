"""Pipelines run again: on a neighbour, with the charged outputs kept; and on the same records with fresh noise."""
