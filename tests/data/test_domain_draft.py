import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import yaml

from torchdpcate.cli.domain import ask_domain, domain
from torchdpcate.cli.main import main
from torchdpcate.data.domain_draft import DATES, IDENTIFIER, draft_domain, left_out
from torchdpcate.data.schema import TableSchema
from torchdpcate.errors import InputError

NAMES = ["name", "treat", "age", "site", "pay", "yes", "a: b", "größe"]


def table(n: int = 60, seed: int = 0) -> pd.DataFrame:
    """Records whose values are nowhere in a file of anything else."""
    rng = np.random.default_rng(seed)
    frame = pd.DataFrame({"name": [f"person {seed} {i}" for i in range(n)], "treat": rng.integers(0, 2, n)})
    frame["age"], frame["site"] = rng.integers(1000, 9000, n), rng.choice([f"site{seed}x", f"site{seed}y"], n)
    frame["pay"], frame["yes"] = rng.normal(77777, 1, n), rng.integers(0, 2, n)
    frame["a: b"], frame["größe"] = rng.random(n), rng.random(n)
    return frame


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("ending", ["csv", "csv.gz", "parquet"])
def test_other_records_have_the_same_draft(here, ending):
    """Nothing of the records is in it: another number of them, other levels and other values change no letter."""
    drafts = []
    for seed, n in enumerate((60, 90)):
        frame, file = table(n, seed), f"people{seed}.{ending}"
        frame.to_parquet(file) if ending == "parquet" else frame.to_csv(file, index=False)
        drafts.append(draft_domain(file, "treat", "pay"))
    assert drafts[0] == drafts[1]
    facts = yaml.safe_load(drafts[0])
    assert facts["treatment"] == "treat"
    assert facts["outcome"] == {"name": "pay", "low": "???", "high": "???", "origin": "???"}
    assert "treat   # if it holds 0 and 1, else {name: treat, categories: [1, 2], words: {3: 2}}" in drafts[0]
    of_words = draft_domain("people0." + ending, "treat", "site")
    assert yaml.safe_load(of_words)["outcome"] == {"name": "site", "categories": "???", "origin": "???"}
    assert "categories: ???   # of which success: [mild, severe]" in of_words
    number, words = {"low": "???", "high": "???"}, {"categories": "???"}
    kinds = {name: words if name in ("name", "site") else number for name in NAMES if name not in ("treat", "pay")}
    assert facts["covariates"] == kinds
    assert facts["overlap"] == facts["origin"] == "???"
    remarks = {".", "0.05", "0.5", "0", "1", "2", "2.5", "3", "10", "24", "89", "90"}
    assert set(re.findall(r"[0-9.]+", drafts[0])) <= remarks


def test_no_record_decides_a_type_alone(here):
    """A word among numbers, and a number among words, change no letter of the draft."""
    frame = table().astype(object)
    frame.to_csv("plain.csv", index=False)
    frame.loc[0, ["age", "pay", "site"]] = ["unknown", "refused", 3]
    frame.to_csv("odd.csv", index=False)
    assert draft_domain("plain.csv") == draft_domain("odd.csv")


def test_parquet_types_decide(here):
    frame = pd.DataFrame({"flag": [True, False], "when": pd.to_datetime(["2020-01-01", "2020-01-02"]), "x": [1, 2]})
    frame["level"] = pd.Categorical(["secret", "b"])
    frame.to_parquet("t.parquet")
    text = draft_domain("t.parquet")
    facts = yaml.safe_load(text)
    assert facts["covariates"]["flag"] == {"categories": [0, 1]}
    assert facts["covariates"]["level"] == {"categories": "???"}
    assert "when" not in facts["covariates"]
    assert "left out: when" in text
    assert "secret" not in text
    assert "2020" not in text


def test_a_draft_that_was_filled_in_trains(here, capsys):
    table().to_csv("people.csv", index=False)
    words = ["--treatment", "treat", "--outcome", "pay", "-o", "domain.yaml"]
    assert main(["domain", "people.csv", *words]) == 0
    assert main(["train", "data=table", "data.path=people.csv", "data.domain=domain.yaml", "run_dir=r"]) == 2
    line = capsys.readouterr().err
    assert "outcome.low is still ???" in line
    assert line.count("\n") == 1
    assert not Path("r").exists()

    text = Path("domain.yaml").read_text().partition("outcome:")[2]
    for fact in ("70000", "80000", "contract"):  # of the outcome
        text = text.replace("???", fact, 1)
    text = re.sub(r"categories: \?\?\?", "categories: [a, b]", text)
    text = re.sub(r"low: \?\?\?", "low: 0", re.sub(r"high: \?\?\?", "high: 9999", text))
    text = re.sub(r"overlap: \?\?\?", "overlap: 0.1", re.sub(r"origin: \?\?\?", "origin: codebook", text))
    Path("filled.yaml").write_text(f"treatment: treat\noutcome:{text}")
    schema = TableSchema.from_yaml("filled.yaml")
    assert schema.columns == tuple(name for name in NAMES if name not in ("treat", "pay"))
    assert schema.origins["pay"] == "contract"


@pytest.mark.parametrize(
    ("content", "words", "why"),
    [
        ("1,2\n3,4\n", [], "name 1 of its columns is a number"),
        ("a,b,\n3,4,5\n", [], "name 3 of its columns is empty"),
        ("a,a,b\n3,4,5\n", ["--outcome", "a"], "outcome = a: the column is there more than once; rename all but one"),
        ("a\n3\n", [], "line 1 has no comma"),
        ("drug,north\nplacebo,south\ndrug,north\n", [], "2 of 2 names in line 1 are values of their columns too"),
        ("drug,north,ann\ndrug,north,bob\n", [], "give the table a header, or where it is there again"),
        ("a;b\n3;4\n", [], "separates columns by semicolons; give data.separator=semicolon"),
        ("a,b\x1b\n3,4\n", [], "cannot be shown"),
        ("", [], "cannot be read"),
        ("a,b\n1,2\n", ["--outcome", "B "], "'b' is there"),
        ("a,b\n1,2\n", ["--treatment", "a", "--outcome", "a"], "a column of its own"),
        ("a,b\n1,2\n", ["--covariates", "a,c"], "covariates = c: is no column"),
        ("a,b\n1,2\n", ["-o", "there.yaml"], "exists already"),
        ("a,b\n1,2\n", ["-o", "none/d.yaml"], "make it first"),
    ],
)
def test_mistakes_are_one_line_and_show_no_record(here, capsys, content, words, why):
    Path("t.csv").write_text(content)
    Path("there.yaml").write_text("mine")
    assert main(["domain", "t.csv", *words]) == 2
    line = capsys.readouterr().err
    assert why in line
    assert line.count("\n") == 1
    assert Path("there.yaml").read_text() == "mine"


def test_a_name_that_one_column_has_among_its_values_is_a_name(here):
    Path("t.csv").write_text("smoker,sex\nsmoker,F\nnone,M\n")
    assert yaml.safe_load(draft_domain("t.csv"))["covariates"].keys() == {"smoker", "sex"}


@pytest.mark.parametrize("ending", ["csv", "parquet"])
def test_identifiers_and_dates_are_left_out_with_a_word(here, ending):
    frame = pd.DataFrame({"patient_id": [1, 2], "when": pd.to_datetime(["2020-01-01", "2021-01-01"]), "x": [1, 2]})
    frame = frame.assign(birth_date=["1", "2"], covid=[0, 1], a=[0, 1], y=[0, 1])
    file = f"t.{ending}"
    frame.to_parquet(file) if ending == "parquet" else frame.to_csv(file, index=False)
    text = draft_domain(file, "a", "y")
    assert list(yaml.safe_load(text)["covariates"]) == ["x", "covid"]
    assert "# left out: patient_id, an identifier by its name; it says who or where a person is" in text
    assert "# left out: when, dates; name it by --covariates" in text
    assert "# left out: birth_date, dates; " in text
    assert list(yaml.safe_load(draft_domain(file, "a", "y", ["patient_id"]))["covariates"]) == ["patient_id"]
    entry = yaml.safe_load(draft_domain(file, "a", "y", ["when"]))["covariates"]["when"]
    assert entry == {"kind": "date", "low": "???", "high": "???"}


@pytest.mark.parametrize(
    ("name", "why"),
    [
        *(
            (name, IDENTIFIER)
            for name in ("id", "ID", "Id", "PatientID", "patient_id", "subjectId", "hadm_id", "studyid", "schoolid")
        ),
        *((name, IDENTIFIER) for name in ("patid", "Patient", "rownames", "Unnamed: 0", "schid", "tchId", "subjno")),
        *((name, DATES) for name in ("date", "admission_date", "dischargeDate", "DOB", "birthdate")),
        *((name, "") for name in ("covid", "acid", "paid", "update_count", "candidate", "identity", "patient age")),
    ],
)
def test_what_a_name_says(name, why):
    assert left_out(name, "numbers") == why


def asked(kinds, answers, **given):
    """Return the file that answers make, and what was shown."""
    said, shown = iter(answers), []

    def answer(question):
        shown.append(question)
        return next(said)

    found = ask_domain(kinds, answer, shown.append, **given)
    assert next(said, None) is None
    return found, "\n".join(map(str, shown))


KINDS = {"id": "numbers", "arm": "words", "pain": "numbers", "age": "numbers", "site": "words", "sex": "truth values"}
ANSWERS = [
    "nobody", "arm", "placebo, drug", "arm", "pain", "ten", "10 0", "0, 10", "", "scale's manual: p. 3",
    "less", "lower", "yes", "0.5", "ward", "clusters site 40", "rule", "clusters site 1.5 0.05",
    "clusters site 40 0.05", "2", ".1", "protocol",
    "age, nobody", "age, site, sex", "18 1e2", "maybe", "yes", "yes, no, NA", "", "no",
]  # fmt: skip


def test_questions_make_a_file_that_is_read(here):
    found, shown = asked(KINDS, ANSWERS)
    assert found.open == 0
    Path("d.yaml").write_text(found.text)
    schema = TableSchema.from_yaml("d.yaml")
    assert schema.columns == ("age", "site", "sex")
    assert schema.origins["pain"] == "scale's manual: p. 3"
    facts = yaml.safe_load(found.text)
    assert facts["treatment"] == {"name": "arm", "categories": ["placebo", "drug"]}
    assert facts["covariates"] == {
        "age": {"low": 18, "high": 100, "missing": "indicator"},
        "site": {"categories": ["yes", "no", "NA"]}, "sex": {"categories": [0, 1]}
    }  # fmt: skip
    assert (facts["overlap"], facts["propensity"], facts["origin"]) == (0.1, 0.5, "protocol")
    assert facts["assignment"] == {"clusters": {"name": "site", "size": 40, "correlation": 0.05}}
    assert shown.count("give clusters, pairs or crossover with a column") == 2
    assert "Are records of the same site or id alike" in shown
    assert "nobody with the same covariates got the other arm" in shown
    assert "size of cluster 'site' is 1.5; give a positive integer" in shown
    assert {name: facts["outcome"][name] for name in ("better", "missing")} == {"better": "lower", "missing": "drop"}
    assert all(words in shown for words in ("left out: id, an identifier", "is no column", "inverted", "no share"))


@pytest.mark.parametrize("broken", [KeyboardInterrupt, EOFError])
def test_nothing_is_written_where_the_questions_are_broken_off(here, broken, capsys):
    pd.DataFrame({"id": [1], "arm": ["x"], "pain": [1], "age": [1], "site": ["x"], "sex": [True]}).to_parquet(
        "t.parquet"
    )
    for count in range(len(ANSWERS) + 1):
        said = iter(ANSWERS[:count])

        def answer(question, said=said):
            try:
                return next(said)
            except StopIteration:
                raise broken from None

        with pytest.raises(InputError, match="nothing is written"):
            domain("t.parquet", answer=answer)
        assert [path.name for path in here.iterdir()] == ["t.parquet"]
    said = iter([*ANSWERS, "t.parquet", ""])
    domain("t.parquet", answer=lambda question: next(said))
    assert TableSchema.from_yaml("domain.yaml").columns == ("age", "site", "sex")
    assert "exists already" in capsys.readouterr().out


@pytest.mark.parametrize(("answer", "entry"), {
    "clusters ward": "{clusters: ward}", "pairs ward name": "{pairs: ward name}", "": "~",
    "clusters ward 40 0.05": "{clusters: {name: ward, size: 40, correlation: 0.05}}",
    "crossover ward age": "{crossover: ward, period: age}",
}.items())  # fmt: skip
def test_a_study_may_say_how_it_was_assigned(answer, entry):
    kinds = dict.fromkeys(["arm", "pain", "age", "dose"], "numbers") | {"ward": "words", "ward name": "words"}
    of_covariates = ["0 99", ""] * (2 - ("age" in answer))  # which has the periods there
    answers = ["", "1 10", "manual", "", "", "0.5", answer, "0.1", "protocol", *of_covariates]
    found, shown = asked(kinds, answers, treatment="arm", outcome="pain", covariates=["age", "dose"])
    assert "Are records of the same ward or ward name alike, or were they treated together" in shown
    facts = yaml.safe_load(found.text)
    assert facts.get("assignment") == yaml.safe_load(entry)
    assert TableSchema.from_dict(facts).to_dict().get("assignment") == facts.get("assignment")


@pytest.mark.parametrize(("outcome", "answers", "entries"), [
    ("falls", "0 20|m 12|years 0|years 1 2|years 10 2.5", "low: 0, exposure: {name: years, high: 10, mean: 2.5}"),
    ("falls", "1 90; > 89 = 90", "low: 1, high: 90, words: {'> 89': 90}"),
    ("years", "state 1 0 5|status 1 1 5|status 1 0 5 chance|status 1 0 5 event_by_horizon",
     "event: {name: status, success: 1, censored: 0}, horizon: 5, kind: event_by_horizon"),
    ("pain", "[none, mild, bad]; bad", "categories: [none, mild, bad], success: [bad]"),
    ("pain", "none = 0; mild = 1", "scores: {none: 0, mild: 1}"),
])  # fmt: skip
def test_each_cell_is_drafted_by_asking(here, capsys, outcome, answers, entries):
    """A column that has a part in the outcome is not offered as a covariate; rows of labels are asked for."""
    names = ["arm", "falls", "years", "status", "age", "pain", "seen"]
    Path("t.csv").write_text(",".join(names) + "\n" + 9 * "0,2,1.5,1,50,none,31 Dec 2016\n")
    rest = ["manual", "", "", "", "", "0.1", "protocol", "age, seen", "18 90; > 89 = 90; <20 = 19", ""]
    said = iter(["one", "1", "", *answers.split("|"), *rest, "2015-01-01 2019-12-31 %d %b %Y", ""])
    shown = []
    domain("t.csv", "d.yaml", "arm", outcome, answer=lambda question: (shown.append(question), next(said))[1])
    assert "data.path=t.csv data.skip_after_header=1 data.domain=d.yaml" in capsys.readouterr().out
    facts, entries = yaml.safe_load(Path("d.yaml").read_text()), yaml.safe_load(f"{{{entries}}}")
    assert {name: facts["outcome"][name] for name in entries} == entries
    part = {"arm", outcome, *(one["name"] for one in entries.values() if isinstance(one, dict) and "name" in one)}
    assert f"(Enter for all {len(names) - len(part)})" in "".join(shown)
    assert TableSchema.from_dict(facts).columns == ("age", "seen")
    assert facts["covariates"]["age"] == {"low": 18, "high": 90, "words": {"> 89": 90, "<20": 19}}
    assert (facts["covariates"]["seen"]["kind"], facts["covariates"]["seen"]["format"]) == ("date", "%d %b %Y")


def test_a_draft_asks_for_clusters_by_names_alone(here):
    """As a remark that states nothing: with its # taken off and bounds given it is read."""
    frame = table()
    frame.to_csv("people.csv", index=False)
    text = draft_domain("people.csv", "treat", "pay")
    assert "# Are records of the same site alike, or were they treated together?" in text
    (line,) = (line for line in text.splitlines() if "clusters:" in line)
    assert line == "# assignment: {clusters: {name: site, size: ???, correlation: ???}}"
    assert "assignment" not in yaml.safe_load(text)
    text = text.replace(line, line.removeprefix("# ").replace("???", "1"))
    assert yaml.safe_load(text)["assignment"] == {"clusters": {"name": "site", "size": 1, "correlation": 1}}
    frame.drop(columns="site").to_csv("others.csv", index=False)
    for other in (draft_domain("others.csv", "treat", "pay"), draft_domain("people.csv", "site", "pay")):
        assert "{clusters: {name: NAME, size:" in other  # where no name says it, as that of the treatment
