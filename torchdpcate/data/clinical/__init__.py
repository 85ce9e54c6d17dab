"""Intensive-care records hour by hour, and the cohort of the DP-CATE paper: MIMIC-Extract, MIMIC-III and MIMIC-IV."""
