"""The page of the study of rules on the papers' designs and on real trials, from the lines of its csv files."""

from collections import defaultdict
from statistics import fmean, median

from experiments.csv_files import Lines
from experiments.tables import standard_error

FIELDS = ("design", "n", "epsilon", "seed", "method", "regret", "accuracy", "seconds")
TRIAL_FIELDS = ("trial", "epsilon", "seed", "method", "n", "value", "over_all", "error_all", "over_none")
TRIAL_FIELDS += ("error_none", "treated", "seconds")
WANTED = ("OWL's trial", 1_000, 1.0), 0.97  # the cell in which the issue asks for this share of right decisions

HEAD = """\
# Treatment rules on the papers' designs and on real trials

Written by `python -m experiments.rules_and_selection.designs`.

`task=rule` beside the method that is named after the design's paper (OWL where the propensity is known, the two-stage
rule else), all by default on the same records; delta = 1e-05. Nothing was tuned on any of these. Beyond n = 1,000 no
version of the plan had been compared on them; up to there a first version lost to the papers' methods in 15 cells, for
which the reduced plan was made, by generated data: its figures are of seeds from 2,000 on, run once. *Right*: share of
right decisions among 3,000 fresh records. *Regret*: over that of the best constant rule, mean over seeds ± its standard
error, {seeds} seeds. *Time*: user time of the default over the other's, median. A miss is a cell in which the default's
mean regret is above the other's, a star one by more than two standard errors of the paired difference.

- *OWL's trial*: Giddens et al. (2023), as `data=owl`; in brackets OWL with a centre and clip that are public knowledge.
- *two-stage*: the laws of [`experiments/dp_2erm/own_laws.py`](../dp_2erm/own_laws.py), ours after Lee and Chen (2026).
- *ITR*: `ITR`, ten covariates of which two or three matter; a trial whose coin the domain knows, or confounded.
- *rare region*: `RareRegion`; treating the 5.9 % for whom it helps needs two thresholds at once.

"""
"""What stands above the table of the designs."""

READING = """\
**Reading it.** With ten covariates the default is ahead from 400 records on, by far where the best rule is not linear;
with four from n epsilon = 500. Up to n mu of about 80 with four covariates and 250 with ten its plan is reduced: no
outcome regression, a propensity of one number, and all covariates. (The plan before kept three of ten at n = 1,000,
chosen by their outcome's slope, which the effect here does not show.) OWL is as good or better in its own trial of 200
and 500 at epsilon = .5. No rule finds the rare region, they treat nobody (`task=policy_selection` [finds
it](README.md)). Time is two to twenty times that of the other method, in a median of at most 0.93 s.

"""
"""What stands below the table of the designs."""

TRIALS = """\
## Real trials

Made by `python -m experiments.rules_and_selection.trials --data FOLDER`.

Value of rules on records that their fit has not seen: five folds, inverse-probability-weighted means with the design's
propensity, self-normalised; mean over seeds of folds and noise, {seeds} seeds, ± the standard error over records of one
seed's difference; delta = 1e-05. Hillstrom's women's e-mail against none: visits in per cent, and the same less a cost
of 4.5 points an e-mail (`COST` in `trials.py`: near the mean effect, so that neither constant rule is much better),
which `task=rule` takes as `cost` and OWL within the outcome. The NSW trial in Dehejia and Wahba's sample: earnings in
1978 in dollars, clipped at 60,000. Priors of binary outcomes were made smaller after a first version had lost .39 ± .13
points on the visits, by generated data (`tune --kind binary`). A miss is a value below OWL's or the better constant's;
the
star: below a constant's by more than two standard errors.

"""
"""What stands above the table of the trials."""

TRIALS_READING = """\

**Reading it.** The e-mail's effect on visits is 7.3 points among those who bought women's merchandise and 1.1 among
others. At a cost between the two the default finds them: 0.9 and 1.1 points over either constant rule, OWL hardly any.
Without a cost treating everybody is best, and noise at other covariates makes the default leave out 17 and 14 % of the
customers, who would gain 2 points: a clear miss. Its plan expects effects of the size of the residual's scale, which
for an outcome of two values is its range; those here are a tenth of it and less. On the 356 records that NSW leaves to
a fit no rule of either method beats treating everybody.
"""
"""What stands below the table of the trials."""


def page(lines: Lines, trials: Lines) -> str:
    """Return the page: a table of the designs with its misses, and one of the trials."""
    seeds = len({line["seed"] for line in lines if int(line["n"]) > 1_000})
    return HEAD.format(seeds=seeds) + _designs(lines) + READING + (_trials(trials) if trials else "")


def _designs(lines: Lines) -> str:
    Key = tuple[str, int, float]
    found: dict[Key, dict[str, dict[str, Lines]]] = defaultdict(lambda: defaultdict(dict))
    for line in lines:
        key = line["design"], int(line["n"]), float(line["epsilon"])
        found[key][line["method"]].setdefault(line["seed"], []).append(line)
    rows = [
        "| design | n | epsilon | regret | today's | right | today's | time | |",
        "| --- |" + " ---: |" * 7 + " --- |",
    ]
    missed, above = [], []
    for key, methods in found.items():
        values = {m: _values(methods.get(m, {}), "regret") for m in ("rule", "today", "public")}
        right = {m: _values(methods.get(m, {}), "accuracy") for m in values}
        seconds = {m: _values(methods.get(m, {}), "seconds") for m in values}
        difference = [new - old for new, old in zip(values["rule"], values["today"], strict=True)]
        place = f"{key[0]} at {key[1]:,}, epsilon {key[2]:g}"
        mark = ""
        if fmean(difference) > 0.0005:
            mark = "miss *" if fmean(difference) > 2 * standard_error(difference) else "miss"
            missed.append(f"{place} ({fmean(values['rule']):.4f}, wanted {fmean(values['today']):.4f})")
        if fmean(values["rule"]) > 1.05:
            above.append(place)
        public = f" ({100 * fmean(right['public']):.1f})" if right["public"] else ""
        ratio = median(new / old for new, old in zip(seconds["rule"], seconds["today"], strict=True))
        rows.append(
            f"| {key[0]} | {key[1]:,} | {key[2]:g} | {_shown(values['rule'])} | {_shown(values['today'])} | "
            f"{100 * fmean(right['rule']):.1f} | {100 * fmean(right['today']):.1f}{public} | {ratio:.1f} | {mark} |"
        )
    rows += ["", f"Misses, {len(missed)} of {len(found)} cells: {'; '.join(missed) or 'none'}.", ""]
    rows += [f"Cells above 1.05 of the best constant's regret: {'; '.join(above) or 'none'}.", ""]
    if WANTED[0] in found:
        share = fmean(_values(found[WANTED[0]]["rule"], "accuracy"))
        rows += [f"{WANTED[0][0]} at n = 1,000 and epsilon = 1: {share:.1%} right, wanted {WANTED[1]:.0%} or more.", ""]
    return "\n".join([*rows, ""])


def _values(seeds: dict[str, Lines], field: str) -> list[float]:
    """Return a field by seed."""
    return [float(line[field]) for _, same in sorted(seeds.items()) for line in same]


def _shown(values: list[float]) -> str:
    return f"{fmean(values):.3f} ± {standard_error(values):.3f}"


def _trials(lines: Lines) -> str:
    found: dict[tuple[str, str, str], Lines] = defaultdict(list)
    for line in lines:
        found[line["trial"], line["epsilon"], line["method"]].append(line)
    rows = ["| trial | n | epsilon | rule | value | over treating all | over treating none | treated | time, s | |"]
    rows += ["| --- | ---: | ---: | --- |" + " ---: |" * 5 + " --- |"]
    for (trial, epsilon, method), same in found.items():
        mean = {name: fmean(float(line[name]) for line in same) for name in TRIAL_FIELDS[4:]}
        digits = 0 if trial.startswith("NSW") else 2
        name, mark = {"rule": "task=rule", "today": "OWL"}[method], ""
        if method == "rule":
            other = fmean(float(line["value"]) for line in found[trial, epsilon, "today"])
            least = min(mean["over_all"], mean["over_none"])
            clear = any(mean[f"over_{arm}"] < -2 * mean[f"error_{arm}"] for arm in ("all", "none"))
            mark = "miss *" if clear else "miss" if least < 0 or mean["value"] < other else ""
        rows.append(
            f"| {trial} | {int(mean['n']):,} | {epsilon} | {name} | {mean['value']:,.{digits}f} | "
            f"{mean['over_all']:+,.{digits}f} ± {mean['error_all']:,.{digits}f} | "
            f"{mean['over_none']:+,.{digits}f} ± {mean['error_none']:,.{digits}f} | {mean['treated']:.0%} | "
            f"{mean['seconds']:.2f} | {mark} |"
        )
    return TRIALS.format(seeds=len({line["seed"] for line in lines})) + "\n".join(rows) + "\n" + TRIALS_READING
