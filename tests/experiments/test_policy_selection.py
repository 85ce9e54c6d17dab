"""The tables of private policy selection say what their numbers say, and the code still gives these numbers."""

from pathlib import Path

import pytest
import torch

from experiments.policy_selection import calibrations, design, pages, tables
from experiments.policy_selection.cells import Cells
from experiments.policy_selection.choice import choice_rows, scored
from experiments.policy_selection.references import APPENDIX_G
from torchdpcate.estimators.selection.utilities import utilities
from torchdpcate.nuisance.arms.fixed import FixedNuisances
from torchdpcate.nuisance.arms.stable import StableNuisances

FOLDER = Path(tables.__file__).parent
GAUSSIAN = design.Population("gaussian")


@pytest.fixture(scope="module")
def committed() -> dict[str, Cells]:
    return {table: Cells.read(FOLDER / f"{table}.csv") for table in pages.PAGES}


@pytest.mark.parametrize("table", pages.PAGES)
def test_pages_show_their_csv_files(table, committed):
    shown = (FOLDER / f"{table}.md").read_text(encoding="utf-8").partition("\n## Reading it")[0]
    assert shown == pages.PAGES[table](committed[table])


def test_the_readme_tells_the_tables_numbers(committed):
    told = " ".join((FOLDER / "README.md").read_text(encoding="utf-8").split())

    def shown(row, epsilon="1", mechanism="permute_and_flip", data="acic"):
        keys = {"row": row, "mechanism": mechanism, "epsilon": epsilon}
        return f"{committed['table3'].find(data, 'regret', **keys).mean:.4f}"

    names = ("as printed", "bounded range", "localised gradient", "localised fits")
    printed, bounded, gradient, fits = (shown(f"control, {name}") for name in names)
    assert f"{printed} with the noise as printed, {bounded} with the bounded range, {gradient} with the" in told
    assert f"gradient and {fits} with the library's" in told
    constants, everybody = shown("constants"), shown("constants, all records")
    assert f"regret {constants}, and {everybody} if all 3,000 records score" in told
    assert f"regret is {shown('constants, target 0.4')}, and {shown('constants, target 0')} with 0" in told
    ridges = shown("ridge, smallest"), shown("ridge, private target")
    assert "no extra noise has regret {}, about a private target, the library's default, {},".format(*ridges) in told
    assert f"({shown('private, convex')} convex, {shown('private, DP-SGD')} DP-SGD)" in told
    assert f"({shown('private, convex', '8')} and {shown('private, DP-SGD', '8')} at 8)" in told
    assert f"at the same spread are far better ({shown('truth, bounded range', '4')})" in told
    half = shown("constants", "0.5"), shown("constants", "0.5", "exponential")
    assert "{} against {})".format(*half) in told
    beside = [shown(f"control, {name}", "1", "exponential", "gaussian") for name in names[:3]]
    assert (
        "as printed {} (note 0.0262), bounded range {} (0.0234), localised gradient {} (0.0214)".format(*beside) in told
    )
    movement, ratios = committed["table1"], committed["table5"]
    tree, near = (movement.find("acic", "movement", row=row) for row in ("deep tree", "1 neighbour"))
    share = [f"{movement.find('acic', 'above floor', row=cell.row).mean:.0%}" for cell in (tree, near)]
    assert f"up to {tree.largest:.1f}, three times 2 B_psi = 22, in {share[0]} of the data sets" in told
    assert f"Nearest neighbours did so in {share[1]}" in told
    assert f"The ridge moved by at most {movement.find('acic', 'movement', row='ridge 50').largest:.4f}" in told
    naive = ratios.having("acic", "ratio", row="deep tree", calibration="naive, 2 B_psi")
    assert f"the deep tree loses up to {max(cell.largest for cell in naive):.2f} times epsilon" in told


def test_appendix_g_and_the_note_have_our_constants():
    bound, loose = calibrations.printed(), calibrations.localised_gradient()
    assert bound.rho == pytest.approx(APPENDIX_G["rho"], abs=5e-10)
    assert bound.paper(1500) == pytest.approx(APPENDIX_G["certificate"], abs=5e-7)
    assert bound.paper_range_sensitivity(1500) == pytest.approx(APPENDIX_G["spread"], abs=0.05)
    assert pytest.approx(2 * APPENDIX_G["floor"]) == calibrations.NAIVE
    assert bound.range_sensitivity(1500) == pytest.approx(27.200361, abs=5e-7)
    assert loose.indirect(1500) == pytest.approx(17.946135, abs=5e-7)
    assert loose.range_sensitivity(1500) == pytest.approx(20)


def test_committed_spreads_are_those_of_the_library(committed):
    facts = GAUSSIAN.facts()
    expected = {f"control, {name}": width for name, width in calibrations.spreads(design.CONTROL, facts).items()}
    expected["ridge, smallest"] = StableNuisances(target=None).bound(facts).range_sensitivity(design.N)
    expected |= {"constants": 2.0, "constants, target 0.4": 2.4, "constants, target 0": 4.0}
    for data in design.NAMES:
        for row, width in expected.items():
            cells = committed["table3"].having(data, "width", row=row)
            assert cells
            assert all(cell.smallest == pytest.approx(width, rel=1e-5) == cell.largest for cell in cells), row
    for row in committed["table2"].rows("acic", "movement"):
        for name, width in calibrations.spreads(float(row), facts).items():
            assert committed["table2"].find("acic", name, row=row).mean == pytest.approx(width, rel=1e-5)


def test_the_first_repetition_can_be_had_again(committed):
    draw, table = GAUSSIAN.draw(0), committed["table3"]
    widths = {"constants": (FixedNuisances(), 2.0), "control, as printed": (design.ridge(50.0), 57.2282)}
    for row, (recipe, width) in widths.items():
        for cell in choice_rows(row, "certified", scored(recipe, GAUSSIAN, draw), width, GAUSSIAN.regrets, (1.0, 2.0)):
            keys = {"row": row, "mechanism": cell["mechanism"], "epsilon": f"{cell['epsilon']:g}"}
            assert cell["regret"] == pytest.approx(table.find("gaussian", "regret", **keys).first, rel=1e-4)


def test_regrets_of_gaussian_policies_are_those_of_a_large_sample():
    study = GAUSSIAN.study(0).__class__(n=100_000, seed=5)
    x = study.draw_covariates()
    values = utilities(study.outcome(x), GAUSSIAN.library, x) / len(x)
    # 100,000 values of range 0.56: six standard errors of a difference are below 0.006
    assert torch.allclose(values.max() - values, GAUSSIAN.regrets, atol=0.006)
    assert GAUSSIAN.regrets.mean() == pytest.approx(0.0299, abs=5e-5)


def test_permute_and_flip_is_never_worse_and_certificates_hold(committed):
    for cell in committed["table3"]:
        if (cell.measure, cell.mechanism) == ("by the scores", "permute_and_flip"):
            keys = {"row": cell.row, "mechanism": "exponential", "epsilon": cell.epsilon}
            assert cell.mean <= committed["table3"].find(cell.data, cell.measure, **keys).mean * (1 + 1e-6)
    ratios = [cell for cell in committed["table5"] if cell.measure == "ratio"]
    assert all(cell.largest <= 1 for cell in ratios if cell.calibration == "certificate")
    naive = [cell for cell in ratios if cell.calibration == "naive, 2 B_psi"]
    assert max(cell.largest for cell in naive) > 1
    for cell in committed["table1"]:
        if cell.measure == "spread" and cell.level == "stability":
            assert cell.largest <= committed["table1"].find(cell.data, "certified spread", row=cell.row).mean
