import numpy as np

from torchdpcate.evaluation.curator_figures import policy_figure
from torchdpcate.evaluation.figures import save_figure

VALUES, LAW = np.array([0.1, 0.4, 0.3]), np.array([0.1, 0.6, 0.3])


def test_policies_stand_in_the_order_of_their_estimates(tmp_path) -> None:
    names = ["x0 > 0.5", "$x$ <= 1", "always 1"]
    figure = policy_figure(names, VALUES, LAW, 2, regrets=np.array([0.2, 0.0, 0.1]), claim="(1, 0)-private")
    lost, chance = figure.axes
    np.testing.assert_allclose(lost.lines[0].get_ydata(), [0.0, 0.1, 0.3])
    np.testing.assert_allclose(lost.lines[1].get_ydata(), [0.0, 0.1, 0.2])
    bars = [segment[1, 1] for segment in chance.collections[0].get_segments()]
    np.testing.assert_allclose(bars, [0.6, 0.3, 0.1])
    assert [line.get_xdata()[0] for line in chance.lines if line.get_label().startswith("released")] == [2]
    title = lost.get_title()
    assert "curator's, not for publication" in title
    assert "(1, 0)-private" in title
    save_figure(figure, tmp_path / "policies.png")
    assert (tmp_path / "policies.png").stat().st_size > 1000
