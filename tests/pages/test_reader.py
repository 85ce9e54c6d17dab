import html
import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from experiments.pages import RELEASES as SIX
from tests.pages.releases import cohort
from tests.pages.test_labels import made
from tests.release.test_population import release as composed_effect
from tests.release.test_reader import DRAWN, RELEASES
from tests.verify import test_subgroups
from torchdpcate.data.schema import TableSchema
from torchdpcate.errors import InputError
from torchdpcate.evaluation.figures import OF_REGRESSION
from torchdpcate.pages.reader import PAGE, reader_page, write_page
from torchdpcate.release import average_effect, rule
from torchdpcate.release.file import SUMS_FILE, check_sums, write_sums

LABELS, NAMES = ("age", "sex", "pain at entry"), re.compile(r"\b(alter|sx|vas0|vas12|eur)\b")
ARMS = r"(drug|10 mg or 20 mg) instead of placebo"
INTERVAL = r"95% interval \+?\u2212?[0-9.,]+ to \+?\u2212?[0-9.,]+"
QUESTIONS = {
    "what was compared?": f"Compared {ARMS}",
    "on what outcome, between which bounds?": r"Outcome [^.]+, 0 to [0-9,]+ (points|EUR|days)",
    "is more of it good or bad?": "(lower|higher) is better",
    "in how many people?": r"2[01],000 records",
    "in which people?": "age:? 18 to 90 years; sex:? men, women",
    "what was known of each?": "Known of each age: .* pain at entry: 0 to 10 points",
    "how large is it?": r"(raises|lowers|better than treating nobody)[^.]* by [0-9.,]+ (points|EUR|days)",
    "how sure is it?": INTERVAL,
    "better or worse, for which arm?": "this speaks for|is better than treating",
    "for whom more?": "Groups and comparisons|The average|What the rule gains|By site",
    "by what is nothing seen?": r"(No difference of the effect is shown|hardly changes) by .*(age|sex)",
    "how many records is each number of?": r"Records, about .*[0-9],[0-9]{3}",
    "what of it is noise?": "privacy noise",
    "was it randomised?": "Treatment was randomised|Nothing unmeasured drives both",
    "what if a cause was not measured?": "Treatment was randomised|would have to explain [0-9]+%",
    "may I use it for one patient?": "no forecast for one patient|does not count",
    "what am I to do with one person's number?": "Read it with its interval|do not act|does not count",
    "how is a record protected?": "Each record is protected by epsilon = [24]",
    "was that proven?": "a proof covers all",
    "who vouches for it?": "torchdpcate verify, with the curator's public key",
}

OWN = rule._example().privacy  # that of the examples does not agree with itself, and such releases get no page
HOSTILE = "<script>alert(1)</script>&\"'"


@pytest.mark.parametrize("kind", DRAWN)
def test_every_kind_has_a_page_that_fetches_nothing(kind: str) -> None:
    page = reader_page(replace(RELEASES[kind](), privacy=OWN))
    assert "default-src 'none'" in page
    assert not re.search(r"https?://(?!www\.w3\.org)", page.split("<details")[0])
    assert len(page) < 1_000_000


def text_of(page: str) -> str:
    """Return what a reader sees above the card, without controls' scripts and pictures."""
    shown = re.sub(r"<script.*?</script>|<style.*?</style>", " ", page.split("<details")[0], flags=re.DOTALL)
    return html.unescape(re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", shown)))


@pytest.mark.parametrize("name", SIX)
def test_a_reader_can_answer_from_the_page_alone(name: str) -> None:
    page = reader_page(SIX[name]())
    text = text_of(page)
    assert {asked for asked, answer in QUESTIONS.items() if not re.search(answer, text)} == set()
    assert not NAMES.search(text)
    assert all(label in page for label in LABELS)
    assert "nan" not in text
    said = re.findall(r"<(?:p|li)>(.*?)</", page.split("<details")[0])
    assert max(len(part.split()) for words in said for part in re.split(r"[.;] ", words)) <= 25


def test_a_rule_s_page_says_its_cost_and_a_cohort_s_the_strongest_assumption_first() -> None:
    assert "Gains count a cost of 1.5 points a treatment." in text_of(reader_page(SIX["rule"]()))
    assert "What it rests on Nothing unmeasured drives both" in text_of(reader_page(SIX["cohort"]()))


def test_the_page_follows_from_the_file_alone(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    first = rule._example().save(tmp_path / "a" / "release.safetensors")
    second = tmp_path / "b" / "release.safetensors"
    second.write_bytes(first.read_bytes())
    pages = [write_page(path) for path in (first, second)]
    assert [page.name for page in pages] == [PAGE] * 2
    assert pages[0].read_bytes() == pages[1].read_bytes()


def test_names_are_text() -> None:
    schema = TableSchema.from_dict(
        {
            "treatment": HOSTILE,
            "outcome": {"name": HOSTILE + "y", "low": -1.0, "high": 1.0},
            "covariates": {HOSTILE + "x": {"low": 0.0, "high": 1.0}},
            "overlap": 0.1,
        }
    )
    found = rule._example()
    page = reader_page(type(found)(found.theta, found.features, schema, found.privacy))
    assert "<script>alert" not in page
    assert page.count("<script") == page.count("</script>") == 2  # the numbers, and the library's own


def test_one_script_is_allowed_and_it_is_the_library_s() -> None:
    page = reader_page(rule._example())
    assert re.search(r"script-src 'sha256-[A-Za-z0-9+/]{43}='", page)
    assert "unsafe-inline'; script" not in page
    assert "script-src" not in reader_page(average_effect._example())


def test_a_reference_changes_the_shares() -> None:
    given = torch.tensor([[0.1], [0.2], [0.3], [0.9]], dtype=torch.float64)
    page = reader_page(rule._example(), reference=given)
    assert "gives a = 1 to 25% of the reference population and a = 0 to 75%" in page
    assert "the 4 people of the public table" in page


def test_a_curve_is_drawn_where_its_band_leaves_out_that_effects_are_the_same() -> None:
    page = reader_page(SIX["trial"]())
    (shown,) = re.findall(r'alt="effect on [^"]* against ([^"]*)"', page)
    assert re.fullmatch(r"pain at entry, points: \+[0-9.]+ at 0, \u2212[0-9.]+ at 10\.", shown)
    assert "No difference of the effect is shown by age, sex." in page
    flat = reader_page(SIX["cohort"]())
    assert " against " not in "".join(re.findall(r'alt="([^"]*)"', flat))
    assert "effect is shown by age, sex, pain at entry." in flat


def test_an_effect_without_a_band_is_not_drawn() -> None:
    page = reader_page(replace(composed_effect(), privacy=OWN))
    assert " against " not in "".join(re.findall(r'alt="([^"]*)"', page))
    assert "No difference of the effect is shown by age, sex, site." in page


def test_an_effect_without_intervals_has_a_band_and_words_for_it() -> None:
    page = reader_page(cohort()).replace("&#39;", "'").replace("\\u0027", "'")
    assert " against x1: " in page
    assert page.count(f"95% {OF_REGRESSION}") == 2  # below the answer, and above the figures


def test_one_line_has_one_interval_and_its_share_of_noise_is_no_more_than_it_is() -> None:
    page = text_of(reader_page(replace(RELEASES["subgroups"](), privacy=OWN)))
    assert "95%, all at once" in page
    assert "noise in the line's own sums" in page
    assert "privacy may cost more" in page
    records = test_subgroups.released("laplace").lines().groupby("group")["records"].sum()
    assert records.tolist() == [1500.0] * 2
    assert "all at once" not in text_of(reader_page(made("everybody")))


def test_a_thirteenth_covariate_is_named_and_not_counted() -> None:
    found = average_effect._example()
    for count, said in ((13, "x12: 0 to 1"), (14, "and 2 more")):
        facts = found.schema.to_dict() | {"covariates": {f"x{k}": {"low": 0, "high": 1} for k in range(count)}}
        text = text_of(reader_page(replace(found, schema=TableSchema.from_dict(facts), privacy=OWN)))
        assert said in text
        assert "and 1 more" not in text.split("Known of each")[1]


def test_checksums_of_the_folder_are_renewed(tmp_path: Path) -> None:
    path = rule._example().save(tmp_path / "release.safetensors")
    write_sums(tmp_path)
    write_page(path)
    report = check_sums(tmp_path)
    assert set(report.matching) == {"release.safetensors", PAGE}
    assert (tmp_path / SUMS_FILE).is_file()


def test_a_reference_of_other_columns_and_a_file_as_folder_are_refused(tmp_path: Path) -> None:
    path = rule._example().save(tmp_path / "release.safetensors")
    (tmp_path / "other.csv").write_text("age\n40\n")
    with pytest.raises(InputError, match="x0"):
        write_page(path, reference=str(tmp_path / "other.csv"))
    with pytest.raises(InputError, match="choose another folder"):
        write_page(path, folder=tmp_path / "other.csv")
    assert sorted(found.name for found in tmp_path.iterdir()) == ["other.csv", "release.safetensors"]
