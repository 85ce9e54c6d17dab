import contextlib
import math
import re
from dataclasses import replace
from html.parser import HTMLParser

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.release.helpers import QUERIES
from tests.verify.forgery import release, restated, statement
from torchdpcate.data.schema import TableSchema
from torchdpcate.errors import TorchDPCateError, VerificationError
from torchdpcate.privacy.budget import PrivacyBudget
from torchdpcate.privacy.guarantee import Level
from torchdpcate.privacy.shared_ledger import SharedLedger
from torchdpcate.release.file import file_sum, load_release
from torchdpcate.release.release import QueryRelease
from torchdpcate.release.statement import PrivacyStatement
from torchdpcate.verify.card import UNSIGNED, card_html, most_detected, write_card
from torchdpcate.verify.file import verify_release
from torchdpcate.verify.finding import findings

UNCLAIMED = {
    "failing": statement(Level.CONDITIONAL, holds=False),
    "heuristic": statement(Level.HEURISTIC),
    "not private": statement(private=False),
}


class Page(HTMLParser):
    """Tags in balance, their attributes, and the text a reader sees."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: set[str] = set()
        self.attributes: list[tuple[str, str | None]] = []
        self.text = ""
        self.feed(text)
        self.close()
        assert not self.open

    def handle_starttag(self, tag, attrs):
        self.tags.add(tag)
        self.attributes += attrs
        if tag != "meta":
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text += data if self.open and self.open[-1] != "style" else ""


def card(privacy: PrivacyStatement) -> str:
    """Return the text of a card that a reader sees."""
    return " ".join(Page(card_html(release(privacy))).text.split())


def test_a_card_is_statement_findings_and_signature(tmp_path):
    made = release(statement(gaussian=True))
    path = made.save(tmp_path / "release.safetensors")
    page = " ".join(Page(card_html(made, path)).text.split())
    privacy = made.privacy
    for words in (
        *findings(made),
        privacy.claim,
        privacy.adjacency,
        privacy.unit,
        privacy.formula,
        *privacy.not_protected,
        *privacy.assumptions,
        *privacy.accountant.values(),
        *(charge.words for charge in privacy.charges),
        *(f"{name} {number}" for name, number in privacy.versions.items()),
        "the curator did not say who chose it, and why",
        "100 × dp_sgd (noise_multiplier 2.04, sampling_rate 0.05)",
        "nuisance 500, second_stage 501; share of the first 0.5; public seed 7; the records are put into a secret "
        "order, drawn from the system's entropy and kept nowhere",
        f"File release.safetensors, SHA-256 {file_sum(path)}",
        f"Signature: {UNSIGNED}",
        "given in code by the curator",
    ):
        assert words in page, words
    assert "drawn by the fixed seed of its noise" in card(UNCLAIMED["not private"])


def test_a_card_says_what_becomes_of_values_beyond_the_bounds():
    made = release(statement())
    assert "refused, or moved to them record by record" in card_html(made)
    clipped = replace(made, schema=replace(made.schema, out_of_bounds="clip"))
    assert "moved to them, of records and queries alike" in card_html(clipped)


def test_a_conditional_card_lists_its_conditions():
    page = card(statement(Level.CONDITIONAL))
    assert "If the conditions hold: " in page
    assert "could not check all of them" in page
    assert page.count("not checked: ") == 3
    assert "not checked: C2, smooth scale" in page


def test_a_condition_that_fails_is_said_in_the_level():
    page = card(UNCLAIMED["failing"])
    assert "conditional: a condition listed here was checked and fails: nothing is claimed" in page
    assert "could not check" not in page


@pytest.mark.parametrize("number", [1, 3])
def test_the_card_says_which_release_it_is_where_a_shared_ledger_knows(tmp_path, number):
    shared = SharedLedger(tmp_path / "shared.sqlite", "a fingerprint", PrivacyBudget(4.0, 0.0))
    for _ in range(number):
        reservation = shared.reserve(PrivacyBudget(0.5, 0.0), "a run")
    runs, text = reservation.words()
    told = replace(statement(gaussian=True), tuning={"runs": runs, "text": text})
    assert f"run {number} of a ledger over the same records: in all epsilon = {0.5 * number:g}" in card(told)


@pytest.mark.parametrize("kind", UNCLAIMED)
def test_where_nothing_is_claimed_no_epsilon_delta_or_mu_stands_anywhere(kind):
    page = card(UNCLAIMED[kind])
    assert "No privacy guarantee" in page
    forbidden = re.compile(
        r"epsilon|delta|\bmu\b|noise_multiplier|ε|δ|μ|0\.12\b|1e-05|0\.8\b|accountant", re.IGNORECASE
    )
    assert forbidden.search(page) is None, forbidden.search(page)
    if kind == "not private":
        assert "entropy" not in page.replace("Floating point, entropy", "")


def test_a_card_of_a_statement_that_disagrees_with_itself_is_refused(tmp_path):
    path = release(statement()).save(tmp_path / "r.safetensors")
    restated(path, lambda privacy: privacy.update(epsilon=0.1))
    with pytest.raises(VerificationError, match=r"epsilon = 0\.1 is claimed"):
        card_html(load_release(path))


def test_the_best_attacker_is_that_of_the_tradeoff_curve():
    """Kairouz et al.: false alarms alpha and misses beta of an (epsilon, delta)-private test, by its two lines."""
    for epsilon, delta, alpha in ((0.1, 1e-6, 0.05), (1.0, 1e-3, 0.3), (4.0, 0.0, 0.05), (0.0, 0.1, 0.05)):
        misses = max(0.0, 1 - delta - math.exp(epsilon) * alpha, math.exp(-epsilon) * (1 - delta - alpha))
        assert most_detected(epsilon, delta, alpha) == pytest.approx(1 - misses, rel=1e-12)
    assert most_detected(1e5, 1e-5, 0.05) == 1.0


NASTY = "<script>alert(1)</script><img src=x onerror='y'>\"&amp;"


def nasty_release() -> QueryRelease:
    facts = {
        "treatment": NASTY,
        "outcome": {"name": f"y{NASTY}", "low": 0, "high": 1, "origin": NASTY, "better": "higher"},
        "covariates": {
            f"a{NASTY}": {"low": 0, "high": 1, "origin": NASTY},
            f"b{NASTY}": {"categories": [NASTY, "other"]},
        },
        "origin": NASTY,
    }
    fields = statement(Level.CONDITIONAL).to_dict()
    fields["blocks"][0]["name"] = NASTY
    fields["blocks"][0]["charges"][0] |= {"purpose": "other", "text": NASTY}
    fields["blocks"][1]["charges"][0]["mechanism"] = NASTY
    fields["conditions"][0] |= {"name": NASTY, "text": NASTY}
    fields |= {"mechanism": NASTY, "formula": NASTY, "not_protected": [NASTY], "assumptions": [NASTY]}
    fields["public"] |= {NASTY: NASTY, "split": NASTY, "seed": NASTY, "learner": NASTY}
    fields["versions"][NASTY] = fields["accountant"][NASTY] = NASTY
    fields["tuning"] = {"runs": NASTY, "text": NASTY}
    schema = TableSchema.from_dict(facts)
    privacy = PrivacyStatement.from_dict(fields)
    return QueryRelease(QUERIES, torch.zeros(8, dtype=torch.float64), schema, privacy)


def test_everything_on_the_page_is_text(tmp_path):
    made = nasty_release()
    path = made.save(tmp_path / "r.safetensors").rename(tmp_path / f"{NASTY.replace('/', '')}.safetensors")
    page = Page(card_html(made, path))
    assert page.text.count("<script>alert(1)") >= 15
    assert not page.tags & {"script", "img", "link", "iframe", "object", "a", "form", "base", "svg"}
    assert {name for name, _ in page.attributes} <= {"class", "lang", "charset", "http-equiv", "name", "content"}


def test_the_page_fetches_nothing():
    text = card_html(release(statement()))
    Page(text)
    assert "default-src 'none'" in text
    assert not re.search(r"https?:|url\(|@import|src=|href=", text)


def test_a_wide_table_is_cut_and_says_so():
    covariates = {f"c{i}": {"low": 0, "high": 1} for i in range(60)}
    facts = {
        "treatment": "a",
        "outcome": {"name": "y", "low": 0, "high": 1, "better": "higher"},
        "covariates": covariates,
    }
    schema = TableSchema.from_dict(facts)
    made = QueryRelease(schema.grid(8), torch.zeros(8, dtype=torch.float64), schema, statement(gaussian=True))
    assert "48 more covariates are listed by torchdpcate verify" in Page(card_html(made)).text


@pytest.mark.first(1)
@pytest.mark.parametrize("garbage", [b"garbage\n", b"\xff\xfe"])
def test_sums_that_are_none_leave_nothing_behind(garbage, tmp_path):
    path = release(statement()).save(tmp_path / "r.safetensors")
    (tmp_path / "SHA256SUMS").write_bytes(garbage)
    with pytest.raises(VerificationError, match="SHA256SUMS"):
        write_card(path)
    assert {path.name for path in tmp_path.iterdir()} == {"SHA256SUMS", "r.safetensors"}
    assert (tmp_path / "SHA256SUMS").read_bytes() == garbage


JUNK = st.recursive(
    st.none() | st.booleans() | st.integers(-2, 10**20) | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=4,
)


def places(value, here=()):
    """Paths of every value inside."""
    yield here
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        yield from places(inner, (*here, key))


@pytest.mark.faults
@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data(), JUNK)
def test_no_statement_crashes_reader_verifier_or_card(tmp_path, data, junk):
    fields = statement(Level.CONDITIONAL).to_dict()
    *way, last = data.draw(st.sampled_from(sorted(set(places(fields)) - {()}, key=str)))
    inner = fields
    for step in way:
        inner = inner[step]
    inner[last] = junk
    path = release(statement()).save(tmp_path / "r.safetensors", overwrite=True)
    restated(path, lambda privacy: privacy.update(fields))
    for use in (lambda: load_release(path).privacy.to_markdown(), lambda: verify_release(path), lambda: used(path)):
        with contextlib.suppress(TorchDPCateError):
            use()


def used(path):
    Page(card_html(load_release(path), path))
