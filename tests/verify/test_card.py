import math
import re
from html.parser import HTMLParser

import pytest
import torch

from tests.release.helpers import QUERIES
from tests.verify.forgery import card_html, release, restated, statement
from torchdpcate.data.schema import TableSchema
from torchdpcate.errors import VerificationError
from torchdpcate.privacy.guarantee import Level
from torchdpcate.release.file import file_sum, load_release
from torchdpcate.release.release import QueryRelease
from torchdpcate.release.statement import PrivacyStatement
from torchdpcate.verify.card import most_detected

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


def test_a_card_is_the_statement(tmp_path):
    made = release(statement(gaussian=True))
    path = made.save(tmp_path / "release.safetensors")
    page = " ".join(Page(card_html(made, path)).text.split())
    privacy = made.privacy
    for words in (
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
        "given in code by the curator",
    ):
        assert words in page, words
    assert "drawn by the fixed seed of its noise" in card(UNCLAIMED["not private"])


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
    assert {name for name, _ in page.attributes} <= {
        *("class", "lang", "charset", "http-equiv", "name", "content", "scope"),
    }
