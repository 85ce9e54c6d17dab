"""The page of table 5, from its csv file alone."""

from experiments.policy_selection.calibrations import NAIVE, localised_gradient, printed
from experiments.policy_selection.cells import Cells
from experiments.policy_selection.design import CONTROL, NAMES, N
from experiments.policy_selection.references import APPENDIX_G, SIMULATED_PROPENSITY
from experiments.policy_selection.words import LEARNERS, RUN, both, getter, large, repeats
from experiments.words import paragraph, table

CALIBRATIONS = ("naive, 2 B_psi", "frozen range, 2 S", "sampled x 1.3", "certificate")

RATIOS = ("ratio, naive", "ratio, 2 S", "ratio, certified")


def table5(cells: Cells) -> str:
    """The positive control, and likelihood ratios."""
    least, most = SIMULATED_PROPENSITY
    about = (
        f"With lambda = {CONTROL:g} the nuisances are almost constant (the note's simulation: propensities in "
        f"[{least}, {most}]). Ends of all repetitions."
    )
    return "\n".join(
        [
            "# Table 5: the positive control, and what a reader learns\n",
            RUN,
            "## Appendix G's arithmetic\n",
            f"m = n = {N:,}, R_x^2 = 21, lambda = {CONTROL:g}, zeta = 0.1.\n",
            _arithmetic(),
            "## The control on data\n",
            paragraph(about),
            _control(cells),
            *_ratios(cells),
            *_guided(cells),
        ]
    )


def _arithmetic() -> str:
    bound, loose = printed(), localised_gradient()
    return table(
        [
            ["", "ours", "the note"],
            ["rho*", f"{bound.rho:.9f}", f"{APPENDIX_G['rho']:.9f}"],
            ["Delta_cert = n rho*", f"{bound.paper(N):.6f}", f"{APPENDIX_G['certificate']:.6f}"],
            ["2 B_psi", f"{NAIVE / 2:g}", f"{APPENDIX_G['floor']:g}"],
            [
                "spread of the printed calibration",
                f"{bound.paper_range_sensitivity(N):.4f}",
                f"{APPENDIX_G['spread']:g}",
            ],
            ["spread, bounded range", f"{bound.range_sensitivity(N):.6f}", f"{APPENDIX_G['bounded range']:.6f}"],
            ["spill, localised gradient", f"{loose.indirect(N):.6f}", f"{APPENDIX_G['localised spill']:.6f}"],
            ["spread, localised gradient", f"{loose.range_sensitivity(N):g}", f"{APPENDIX_G['localised']:g}"],
        ]
    )


def _control(cells: Cells) -> str:
    """Almost constant nuisances, and how little they move."""
    heads = ["fitted propensities", "fitted outcome models", "max abs change", "largest", "spread, largest"]
    lines = [["covariates", *heads]]
    for data, title in NAMES.items():
        get = getter(cells, data, "ridge 50", level="stability")
        ends = [f"[{get(f'least {key}').smallest:.4f}, {get(f'most {key}').largest:.4f}]" for key in ("e", "mu")]
        moved = get("movement")
        lines.append([title, *ends, both(moved), large(moved.largest), large(get("spread").largest)])
    return table(lines)


def _ratios(cells: Cells) -> list[str]:
    """The audit by likelihood ratios."""
    about = (
        "Exact, at the widest of twelve targeted training records and the widest of twelve targeted scoring "
        "records; the largest of all repetitions, by the worse of the exponential mechanism and permute-and-flip, "
        "and in brackets the share of repetitions in which it exceeds epsilon. A ratio above 1 refutes the "
        "calibration; one below proves nothing. *Naive*: 2 B_psi two-sided, a spread of 44. *Frozen range*: 2 S = "
        "20. *Sampled*: 1.3 times the largest change by four random training and four random scoring records, "
        "two-sided."
    )
    parts = ["## Log-likelihood ratio of the chosen policy at epsilon = 1\n", paragraph(about)]
    for data, title in NAMES.items():
        lines = [["nuisances", *CALIBRATIONS]]
        lines += [
            [LEARNERS[row], *(_ratio(cells, data, row, calibration) for calibration in CALIBRATIONS)]
            for row in cells.rows(data, "ratio")
        ]
        parts += [f"{title}, {repeats(cells, data, 'ratio')}:\n", table(lines)]
    return parts


def _ratio(cells: Cells, data: str, row: str, calibration: str) -> str:
    keys = {"row": row, "calibration": calibration}
    found = [cell.largest for cell in cells.having(data, "ratio", **keys)]
    if not found:
        return "none, refused"
    share = max(cell.mean for cell in cells.having(data, "exceeds", **keys))
    return f"{max(found):.3g}" + (f" ({share:.0%})" if share else "")


def _guided(cells: Cells) -> list[str]:
    """The audit with guided searches."""
    about = (
        "`spillover_audit`: random, targeted and guided neighbours, 24 refits each. Largest of the repetitions. Ratios "
        "at epsilon = 1, of the widest neighbour: naive (44), with 2 S (20), and with the certificate."
    )
    parts = ["## The whole audit, guided searches included\n", paragraph(about)]
    keys = ("random", "targeted", "guided", "movement", "naive ratio", "range ratio")
    for data, title in NAMES.items():
        lines = [["nuisances", "spread: random", "targeted", "guided", "max abs change", *RATIOS]]
        for row in cells.rows(data, "guided"):
            get = getter(cells, data, row, level="")
            certified = get("certified ratio").largest
            last = f"{certified:.2g}" if certified > 0 else "none"
            lines.append([LEARNERS[row], *(f"{get(key).largest:.3g}" for key in keys), last])
        parts += [f"{title}, {repeats(cells, data, 'guided')}:\n", table(lines)]
    return parts
