"""Curves drawn in a figure, as far as the pixels give them back."""

import io

import numpy as np

_BLUE = np.array([31, 119, 180])  # C0, the colour of the released effect
_MARGIN = 0.05 / 1.1  # of the axes' width, left free at either side of a curve
_APART = 4.0  # pixels between two curves before they can be distinguished
_SHIFTS = np.array([shift for shift in range(-80, 81, 5) if abs(shift) >= 10])
_FEWEST = 30  # columns
_TRIES, _BEST = 1000, 20


def drawn(png: bytes, released: np.ndarray, curves: dict[str, np.ndarray]) -> dict[str, float] | None:
    """Return which of the curator's curves an effect figure shows besides the released one.

    The released curve is known and calibrates the axes: its own pixels give the row of every effect. Along a
    curator's curve the share of columns with ink is then held against the shares along the same curve shifted
    up and down, which letters and frames fill as often.

    Args:
        png: The figure, as ``effect_figure`` draws it.
        released: Released effects, evenly spaced from the curve's left end to its right, [m].
        curves: The curator's effects there by name, each [m].

    Returns:
        Share of ink of every curve that is drawn, or None where the figure has no curve to calibrate by.
    """
    from PIL import Image

    image = np.asarray(Image.open(io.BytesIO(png)).convert("RGB")).astype(int)
    far = np.abs(image - _BLUE).max(2)
    blue, ink = far < 40, (image.min(2) < 140) & (far >= 60)
    columns = _curve_columns(ink)
    if len(columns) < _FEWEST:
        return None
    at = np.linspace(0, 1, len(columns))
    middle = np.interp(at, np.linspace(0, 1, len(released)), released)
    line = _rows_of_effects(blue[:, columns], middle)
    if line is None:
        return None
    found = {}
    for name, values in curves.items():
        effect = np.interp(at, np.linspace(0, 1, len(values)), values)
        path = line[0] + line[1] * effect
        apart = (np.abs(line[1] * (effect - middle)) > _APART) & (path > 1) & (path < len(image) - 2)
        if apart.sum() < _FEWEST:
            continue
        near = ink[:, columns[apart]]
        share = _filled(near, path[apart]).mean()
        usual = np.median([_filled(near, path[apart] + shift).mean() for shift in _SHIFTS])
        if share >= max(0.25, usual + 0.2):
            found[name] = float(share)
    return found


def _curve_columns(ink: np.ndarray) -> np.ndarray:
    """Return the columns that a curve spans: the axes', which the lower frame shows, without their margins."""
    row = np.flatnonzero(ink[ink.sum(1).argmax()])
    runs = np.split(row, np.flatnonzero(np.diff(row) > 1) + 1)
    frame = max(runs, key=len)
    if not len(frame):
        return frame
    margin = _MARGIN * (frame[-1] - frame[0])
    return np.arange(round(frame[0] + margin), round(frame[-1] - margin) + 1)


def _rows_of_effects(blue: np.ndarray, effect: np.ndarray) -> tuple[float, float] | None:
    """Return (a, b) with row = a + b effect along the released curve, from pairs of blue pixels [rows, columns].

    Other curves cross it and the legend repeats its colour, so the pair that explains most columns wins.
    """
    rows, columns = np.nonzero(blue)
    if len(rows) < _FEWEST:
        return None
    first, second = np.random.default_rng(0).integers(0, len(rows), (2, _TRIES))
    gap = effect[columns[second]] - effect[columns[first]]
    usable = np.abs(gap) > 0.3 * np.ptp(effect)
    first, second, gap = first[usable], second[usable], gap[usable]
    if not len(gap):
        return None
    b = (rows[second] - rows[first]) / gap
    a = rows[first] - b * effect[columns[first]]
    hits = np.array([_filled(blue, path).sum() for path in a[:, None] + b[:, None] * effect])
    refined = [_refined(rows, effect[columns], a[i], b[i]) for i in np.argsort(hits)[-_BEST:]]
    hits = np.array([_filled(blue, start + slope * effect).sum() for start, slope in refined])
    start, slope = refined[int(hits.argmax())]
    # a flat curve does not give the scale of its axis
    enough = hits.max() >= len(effect) / 3 and np.abs(slope) * np.ptp(effect) > 10
    return (start, slope) if enough else None


def _refined(rows: np.ndarray, effect: np.ndarray, start: float, slope: float) -> tuple[float, float]:
    """Fit the line anew to the pixels near it, a few times."""
    for reach in (6.0, 4.0, 3.0, 3.0):
        near = np.abs(rows - start - slope * effect) <= reach
        if np.ptp(effect[near]) == 0:
            break
        slope, start = (float(part) for part in np.polyfit(effect[near], rows[near], 1))
    return start, slope


def _filled(ink: np.ndarray, path: np.ndarray) -> np.ndarray:
    """Return in which columns there is ink within a pixel and a half of the path."""
    near = np.clip(np.rint(path).astype(int) + np.arange(-1, 2)[:, None], 0, len(ink) - 1)
    return ink[near, np.arange(len(path))].any(0)
