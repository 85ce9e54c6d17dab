import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import yaml

from torchdpcate.cli.domain import ask_domain
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
    number, words = {"low": "???", "high": "???"}, {"categories": "???"}
    kinds = {name: words if name in ("name", "site") else number for name in NAMES if name not in ("treat", "pay")}
    assert facts["covariates"] == kinds
    assert facts["overlap"] == facts["origin"] == "???"
    assert set(re.findall(r"[0-9.]+", drafts[0])) <= {".", "0.05", "0.5", "0", "1", "2", "3"}  # those of its remarks


def test_what_an_entry_may_have_is_said_once(here):
    table().to_csv("people.csv", index=False)
    draft = draft_domain("people.csv", "treat", "pay")
    for remark in ("typical: [ , ]", "scale: log", "missing: indicator", "categories: [1, 2, 3]", "kind: date"):
        assert draft.count(f"  #   {remark}   ") == 1  # said once, for all covariates
    assert "  age:\n    low: ???\n    high: ???\n" in draft


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
    ("entry", "named"),
    [
        ({"overlap": "???"}, "overlap is still"),
        ({"origin": "???"}, "origin is still"),
        ({"treatment": "???"}, "treatment is still"),
        ({"treatment": {"name": "a", "categories": ["???", "b"]}}, "treatment.categories is still"),
        ({"covariates": {"x": {"low": 0, "high": "???"}}}, "covariates.x.high is still"),
        (
            {"covariates": {"x": {"low": "???", "high": "???"}}},
            "covariates.x.low is still ???, and so is covariates.x.h",
        ),
    ],
)
def test_what_is_open_is_refused_by_name(here, entry, named):
    facts = {
        "treatment": "a",
        "outcome": {"name": "y", "low": 0, "high": 1},
        "covariates": {"x": {"low": 0, "high": 1}},
    }
    Path("d.yaml").write_text(yaml.safe_dump(facts | entry, sort_keys=False))
    for made in (lambda: TableSchema.from_dict(facts | entry), lambda: TableSchema.from_yaml("d.yaml")):
        with pytest.raises(InputError, match=re.escape(named)):
            made()


@pytest.mark.parametrize(
    ("content", "words", "why"),
    [
        ("1,2\n3,4\n", [], "name 1 of its columns is a number"),
        ("a,b,\n3,4,5\n", [], "name 3 of its columns is empty"),
        ("a,a\n3,4\n", [], "no column that can be a covariate"),
        ("a,a,b\n3,4,5\n", ["--outcome", "a"], "outcome = a: the column is there more than once; rename all but one"),
        ("a\n3\n", [], "line 1 has no comma"),
        ("drug,north\nplacebo,south\ndrug,north\n", [], "2 of 2 names in line 1 are values of their columns too"),
        ("drug,north,ann\ndrug,north,bob\n", [], "give the table a header, or where it is there again"),
        (
            "a;b\n3;4\n",
            [],
            "separates columns by semicolons; give data.separator=semicolon (predict, domain: --separator semicolon)",
        ),
        ("a|b\n3|4\n", [], "separates columns by bars"),
        ("a;b;c,d;e\n3;4;5,6;7\n", [], "separates columns by semicolons"),
        ("a,b\x1b\n3,4\n", [], "cannot be shown"),
        ("", [], "cannot be read"),
        ("a,b\n1,2\n", ["--outcome", "B "], "'b' is there"),
        ("a,b\n1,2\n", ["--outcome", "c"], "is no column"),
        ("a,b\n1,2\n", ["--treatment", "a", "--outcome", "a"], "a column of its own"),
        ("a,b\n1,2\n", ["--treatment", "a", "--outcome", "b"], "no column that can be a covariate"),
        ("a,b\n1,2\n", ["--covariates", "a,c"], "covariates = c: is no column"),
        ("a,b\n1,2\n", ["--covariates", "a,a"], "names a column twice"),
        ("a,b\n1,2\n", ["--covariates", "a", "--outcome", "a"], "is the treatment or the outcome"),
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


def wide(n: int = 67) -> pd.DataFrame:
    return pd.DataFrame({f"x{i}": [0.5, 1.5] for i in range(n)}).assign(a=[0, 1], y=[1.0, 2.0])


def test_many_columns_are_remarks_to_choose_from(here, capsys):
    wide().to_csv("t.csv", index=False)
    text = draft_domain("t.csv", "a", "y")
    lines = [line for line in text.splitlines() if not line.lstrip().startswith("#")]
    assert sum("???" in line for line in lines) < 7
    assert "  # 67 columns may be covariates" in text
    filled = text.replace("origin: ???", "origin: here").replace("overlap: ???", "overlap: 0.1")
    Path("d.yaml").write_text(re.sub(r"high: \?\?\?( |\n)", r"high: 1\1", filled.replace("low: ???\n", "low: 0\n")))
    with pytest.raises(InputError, match="covariates"):
        TableSchema.from_yaml("d.yaml")
    chosen = re.sub(r"# (x[34]): .*", r"\1: {low: 0, high: 2}", Path("d.yaml").read_text())
    Path("e.yaml").write_text(chosen)
    assert TableSchema.from_yaml("e.yaml").columns == ("x3", "x4")
    assert main(["domain", "t.csv", "--treatment", "a", "--outcome", "y", "--covariates", "x7, x9"]) == 0
    assert list(yaml.safe_load(capsys.readouterr().out)["covariates"]) == ["x7", "x9"]


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
        *((name, DATES) for name in ("date", "admission_date", "dischargeDate", "DOB", "birthdate")),
        *((name, "") for name in ("covid", "acid", "paid", "update_count", "candidate", "age", "identity", "name")),
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
    "nobody", "arm", "placebo, drug", "arm", "pain", "ten", "10 0", "0, 10", "scale's manual: p. 3",
    "less", "lower", "yes", "age, nobody", "age, site, sex", "18 1e2", "maybe", "yes", "yes, no, NA", "",
    "no", "0.5", "2", ".1", "protocol",
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
    assert {name: facts["outcome"][name] for name in ("better", "missing")} == {"better": "lower", "missing": "drop"}
    for words in (
        "left out: id, an identifier",
        "is no column",
        "inverted",
        "no share",
        "Noise grows",
        "say yes or no",
    ):
        assert words in shown


def test_answers_may_be_left_for_later_and_columns_out(here):
    answers = ["", "?", "?", "", "", "-", "north, south", "", "", "?", "?"]
    given = {"treatment": "sex", "outcome": "pain", "covariates": ["age", "site"]}
    found, _ = asked(KINDS, answers, **given)
    assert found.open == 5
    facts = yaml.safe_load(found.text)
    assert facts["covariates"] == {"site": {"categories": ["north", "south"]}}
    assert facts["treatment"] == "sex"
    assert facts["outcome"]["low"] == "???"
    assert "propensity" not in facts


def test_of_dates_the_first_and_the_last_are_asked_for(here):
    answers = [
        "",
        "0 1",
        "manual",
        "",
        "",
        "2021-01-01 2020-01-01",
        "2020-01-01, 2021-01-01",
        "",
        "",
        "0.1",
        "protocol",
    ]
    found, shown = asked(
        {"a": "numbers", "y": "numbers", "when": "dates"}, answers, treatment="a", outcome="y", covariates=["when"]
    )
    assert "give the earlier date as low" in shown
    entry = {"when": {"kind": "date", "low": "2020-01-01", "high": "2021-01-01"}}
    Path("d.yaml").write_text(found.text)
    assert TableSchema.from_yaml("d.yaml").to_dict()["covariates"] == entry


@pytest.mark.parametrize("broken", [KeyboardInterrupt, EOFError])
def test_nothing_is_written_where_the_questions_are_broken_off(here, broken, capsys):
    from torchdpcate.cli.domain import domain

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
