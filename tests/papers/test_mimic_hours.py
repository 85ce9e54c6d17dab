import numpy as np
import pytest

from tests.papers.layouts import USUAL
from torchdpcate.errors import InputError
from torchdpcate.papers.mimic_hours import Hours, Window, plausible, records_at, time_points


def hours_of(lengths: list[int], seed: int = 0, missing: float = 0.5) -> Hours:
    rng = np.random.default_rng(seed)
    stay = np.repeat(np.arange(len(lengths)), lengths)
    values = np.array(USUAL) * rng.uniform(0.9, 1.1, (len(stay), 6))
    values[rng.random(values.shape) < missing] = np.nan
    return Hours(
        stay + 100,
        stay,
        values,
        rng.random(len(stay)) < 0.3,
        np.full(len(lengths), 50.0),
        np.array(["F"] * len(lengths)),
    )


def by_hand(hours: Hours, window: Window) -> dict[int, np.ndarray]:
    """Time points with their six averages and the outcome, one after the other."""
    found = {}
    for t in range(hours.n):
        own = np.flatnonzero(hours.stay == hours.stay[t])
        before = [r for r in own if t - window.before <= r < t]
        after = [r for r in own if t <= r < t + window.after]
        if len(before) < window.before or np.isnan(hours.values[before]).all(0).any():
            continue
        later = hours.values[after, 2]
        if not np.isnan(later).all():
            found[t] = np.append(np.nanmean(hours.values[before], 0), np.nanmean(later))
    return found


@pytest.mark.parametrize(("window", "missing"), [(Window(), 0.8), (Window(3, 2), 0.4), (Window(1, 1), 0.2)])
def test_time_points_and_records_are_those_worked_out_by_hand(window: Window, missing: float) -> None:
    hours = hours_of([30, 4, 25, 1, 12], missing=missing)
    expected = by_hand(hours, window)
    points = time_points(hours, window)
    assert len(points) > 3
    assert points.tolist() == sorted(expected)
    records = records_at(hours, points, window)
    names = ["heart_rate", "sodium", "red_blood_cell_count", "glucose", "hematocrit", "respiratory_rate"]
    found = np.stack([records[name] for name in (*names, "red_blood_cell_count_after")], 1)
    np.testing.assert_allclose(found, np.array([expected[t] for t in points.tolist()]), rtol=1e-12)
    assert (records["vent"] == hours.ventilated[points]).all()


def test_another_person_changes_no_bit_of_a_record() -> None:
    window, one = Window(5, 5), hours_of([20, 30], seed=1)
    other = hours_of([37, 30], seed=2)
    other.values[37:], other.ventilated[37:] = one.values[20:], one.ventilated[20:]
    records = [
        {k: v[h.person[p] == 101] for k, v in records_at(h, p, window).items()}
        for h in (one, other)
        for p in [time_points(h, window)]
    ]
    assert len(records[0]["age"]) > 5
    assert all((records[0][name] == records[1][name]).all() for name in records[0])


def test_rare_implausible_values_are_missing_and_many_are_another_unit() -> None:
    values = np.tile(np.array(USUAL), (1000, 1))
    values[:5, 3] = 5.0  # glucose in mmol/L
    kept = plausible(values, "file")
    assert np.isnan(kept[:5, 3]).all()
    assert np.isfinite(kept).sum() == 6 * 1000 - 5
    values[:200, 3] = 5.0
    with pytest.raises(InputError, match=r"200 values of 'glucose' outside \[33, 2200\] mg/dL"):
        plausible(values, "file")
