"""The card: every field the registry and the curator need, no number where nothing is claimed, nothing but text."""

import contextlib
import json
import math
import re
from dataclasses import replace
from html.parser import HTMLParser

import pytest
import torch
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.release.helpers import QUERIES
from tests.verify.forgery import BUDGET, SIZES, release, restated, statement
from torchdpcate.audit.report import shipped_results
from torchdpcate.data.schema import TableSchema
from torchdpcate.errors import InputError, TorchDPCateError, VerificationError
from torchdpcate.privacy.budget import PrivacyBudget
from torchdpcate.privacy.charge import Charge, Purpose
from torchdpcate.privacy.guarantee import Level
from torchdpcate.privacy.mechanisms import GaussianMechanism
from torchdpcate.privacy.shared_ledger import SharedLedger
from torchdpcate.release.blocks import StatedCharge
from torchdpcate.release.composed import _example
from torchdpcate.release.file import check_sums, file_sum, load_release, write_sums
from torchdpcate.release.release import QueryRelease
from torchdpcate.release.statement import TUNING, PrivacyStatement, claim_sentence
from torchdpcate.verify.card import card_html, make_card, write_card
from torchdpcate.verify.card_words import most_detected, summary_rows
from torchdpcate.verify.deployments import FIELDS, read_facts
from torchdpcate.verify.file import verify_release
from torchdpcate.verify.statement import is_tuning

AUDIT = {
    "output": {
        "claimed": 1.0,
        "delta": 1e-5,
        "bound": 0.93,
        "confidence": 0.95,
        "attack": "Neyman-Pearson",
        "trials": 200_000,
        "level": "certified",
    },
    "influence": {"claimed": None, "delta": 1e-5, "bound": 3.5, "confidence": 0.95},
    "dp_sgd": {"claimed": 1.0, "delta": 1e-5, "bound": 0.8, "confidence": 0.95},
    "laplace": {"claimed": 1.0, "bound": 0.99},
    "output_squared": {"claimed": 1.0, "delta": 1e-5, "bound": 0.88, "confidence": 0.95},
    "nuisances": {"claimed": 1.0, "delta": 1e-5, "bound": 0.35, "confidence": 0.95},
    "influence_truth": {"linear, ridge 1/n": 1.72, "linear, empty": math.inf, "neural, ridge 1/n": 17.5},
}
for _name in AUDIT.keys() - {"influence_truth"}:
    AUDIT[_name]["attacks"] = shipped_results()[_name]["attacks"]
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


def test_a_certified_card_has_what_the_issue_asks_for():
    card = make_card(release(statement(gaussian=True)), audit=AUDIT)
    guarantee, tree = card["guarantee"], card["event_tree"]
    assert (guarantee["level"], guarantee["epsilon"], guarantee["delta"]) == ("certified", guarantee["epsilon"], 1e-5)
    assert guarantee["epsilon"] == max(block["epsilon"] for block in tree["blocks"])
    assert "replace one record" in guarantee["adjacency"]
    assert "row" in guarantee["unit_of_privacy"]
    split = card["split"]
    assert split == {
        "block_sizes": SIZES,
        "share_of_the_first_block": 0.5,
        "public_seed": 7,
        "how": "the records are put into a secret order, drawn from the system's entropy and kept nowhere; positions "
        "in that order, and no values, say which block a record is in, by the public seed",
    }
    assert f"share of the first 0.5; public seed 7; {split['how']}".replace("'", "&#39;") in card_html(card)
    assert "drawn by the fixed seed of its noise" in make_card(release(UNCLAIMED["not private"]))["split"]["how"]
    assert set(card["accountant"]) == {"name", "version", "neighbouring_relation"}
    assert card["tuning"]["runs"] == 1
    assert any("float64" in text for text in card["assumptions"])
    assert any("entropy" in text for text in card["assumptions"])
    assert card["not_protected"]
    nuisance = tree["blocks"][0]
    assert nuisance["charges"][0] == {
        "label": "nuisances by dp_sgd",
        "level": "certified",
        "event": {"kind": "dp_sgd", "noise_multiplier": 2.04, "sampling_rate": 0.05},
        "count": 100,
    }
    assert list(card["audit"]["lower_bounds"]) == ["output", "dp_sgd", "nuisances"]
    assert card["audit"]["lower_bounds"]["output"]["bound"] == 0.93
    assert "not on this release" in card["audit"]["what_it_is"]
    assert "within the family of such mechanisms" in card["audit"]["what_it_is"]
    page = Page(card_html(card)).text
    assert "The attacks ran at their own budget" in page
    assert "Claimed in the attack" in page
    assert "Claimed epsilon" not in page
    assert "influence_versus_truth" not in card["audit"]
    assert {entry["name"]: entry["origin"] for entry in card["bounds"]["covariates"]}[
        "x0"
    ] == "given in code by the curator"


def test_mu_is_exact_for_gaussians_bounded_for_steps_and_the_largest_of_the_blocks():
    card = make_card(release(statement(gaussian=True)))
    steps, gaussian = (block["mu_gdp"] for block in card["event_tree"]["blocks"])
    assert gaussian["mu"] == pytest.approx(1 / GaussianMechanism(BUDGET, 1.0).event.noise_multiplier, rel=1e-12)
    assert gaussian["kind"].startswith("exact")
    assert steps["kind"].startswith("upper bound over the accountant's curve down to")
    assert steps["down_to_delta"] == 1e-5
    total = card["guarantee"]["mu_gdp"]
    assert total["mu"] == max(steps["mu"], gaussian["mu"])
    assert total["kind"] == steps["kind"]
    assert total["down_to_delta"] == 1e-5


def test_an_approximate_event_has_no_mu_and_the_card_says_why():
    card = make_card(release(statement()))
    assert card["guarantee"]["mu_gdp"] == {
        "mu": None,
        "kind": "not available: an (epsilon, delta) event has no Gaussian curve",
    }
    assert card["event_tree"]["blocks"][0]["mu_gdp"]["mu"] > 0
    assert "has no Gaussian curve" in card_html(card)


def test_a_conditional_card_lists_its_conditions_and_the_truth_of_influences():
    card = make_card(release(statement(Level.CONDITIONAL)), audit=AUDIT)
    assert [c["holds"] for c in card["guarantee"]["conditions"]] == [None] * 3
    assert card["guarantee"]["in_words"].startswith("If the conditions hold: ")
    assert "could not check all of them" in card["guarantee"]["level_in_words"]
    assert card["audit"]["influence_versus_truth"] == {"linear, ridge 1/n": 1.72, "linear, empty": "inf"}
    html = card_html(card)
    page = Page(html).text
    assert "not checked: C2, smooth scale" in page
    assert "<tr><td>linear, ridge 1/n</td><td>1.72</td></tr>" in html
    assert "above 1 the noise was scaled for too little" in page


def test_a_neural_release_shows_the_truth_of_neural_heads_alone():
    card = make_card(release(UNCLAIMED["heuristic"]), audit=AUDIT)
    assert card["audit"]["influence_versus_truth"] == {"neural, ridge 1/n": 17.5}


def test_one_block_has_no_split():
    made = statement(gaussian=True)
    one = replace(made, blocks=made.blocks[1:], n=made.blocks[1].n, epsilon=made.blocks[1].epsilon)
    one = replace(one, claim=claim_sentence(one.epsilon, one.delta, one.level))
    card = make_card(release(one))
    sizes = {made.blocks[1].name: one.n}
    assert card["split"] == {"block_sizes": sizes, "how": "all records are in one block"}
    assert card["event_tree"]["composition"].startswith("All charges are on the same records")
    page = Page(card_html(card)).text
    assert f"{one.n:,}; all records are in one block." in page
    assert "disjoint" not in page


@pytest.mark.parametrize("budget", [None, 0.3])
def test_what_is_not_there_is_said_in_words(budget):
    rule = _example().effect.rule(budget=budget, population=None if budget is None else [[0.25], [0.75]])
    shown = dict(summary_rows(rule.summary()))
    assert shown.get("largest share treated") == budget
    assert dict(summary_rows({"interval": None})) == {"interval": "none"}


def test_a_condition_that_fails_is_said_in_the_level():
    card = make_card(release(UNCLAIMED["failing"]))
    said = card["guarantee"]["level_in_words"]
    assert said == "a condition listed here was checked and fails: nothing is claimed"
    page = Page(card_html(card)).text
    assert f"conditional: {said}" in page
    assert "could not check" not in page


SWEEP = {"runs": None, "text": "run 2 (counted from 0) of a sweep over the same records"}


def use_of(privacy):
    """What the registry's record says of the use of the records."""
    model = make_card(release(privacy))["registry"]["deployment"]["deployment_model"]
    return [model[key] for key in ("release_type", "release_type_details", "data_source_type_details")]


@pytest.mark.slow
def test_the_record_counts_the_releases_and_knows_a_sweep():
    kind, details, source = use_of(statement(gaussian=True))
    assert kind is None  # which the curator knows
    assert details.startswith("Release 1 of this run; nothing is known of other runs on the same records;")
    assert "by the releases of the event tree, and by whatever else was fitted to it" in source

    kind, details, source = use_of(replace(statement(gaussian=True), tuning=SWEEP))
    assert kind == "Many releases"
    assert "one of the runs of a sweep over the same records" in details
    assert source == "One table, used by every run of a sweep."

    second = statement(Level.HEURISTIC)
    first, last = second.blocks
    more = StatedCharge(Charge(Purpose.RELEASE, "output"), Level.CERTIFIED)
    second = replace(second, blocks=(first, replace(last, charges=(*last.charges, more))))
    kind, details, _ = use_of(second)
    assert (kind, details.startswith("Release 2 of this run;")) == ("Many releases", True)


@pytest.mark.first(1)
@pytest.mark.parametrize("number", [1, 3])
def test_the_record_says_which_release_it_is_where_a_shared_ledger_knows(tmp_path, number):
    records, budget = "a fingerprint", PrivacyBudget(0.5, 0.0)
    shared = SharedLedger(tmp_path / "shared.sqlite", records, PrivacyBudget(4.0, 0.0))
    for _ in range(number):
        reservation = shared.reserve(budget, "a run")
    runs, text = reservation.words()
    told = replace(statement(gaussian=True), tuning={"runs": runs, "text": text})
    kind, details, source = use_of(told)
    assert kind == ("Many releases" if number > 1 else None)
    cost = f"epsilon = {0.5 * number:g}, delta = 0"
    assert details.startswith(f"Release {number} of these records by their shared ledger; in all {cost} spent;")
    assert source == "One table, used by every run of that ledger."
    assert is_tuning(told.tuning)
    assert not is_tuning({"runs": number + 1, "text": text})


@pytest.mark.slow
@pytest.mark.parametrize("tuning", [TUNING, SWEEP])
def test_the_first_sentence_speaks_of_this_release_alone(tuning):
    alone = "of this release alone; what else is published from the same records adds up"
    found = make_card(release(replace(statement(), tuning=tuning)))["guarantee"]["in_words"]
    assert alone in found.split(". ")[0]


def words(value):
    """Every key and every word of a card."""
    if isinstance(value, dict):
        return " ".join(f"{key} {words(entry)}" for key, entry in value.items())
    return " ".join(map(words, value)) if isinstance(value, list) else str(value)


@pytest.mark.parametrize("kind", UNCLAIMED)
def test_where_nothing_is_claimed_no_epsilon_delta_or_mu_stands_anywhere(kind):
    card = make_card(release(UNCLAIMED[kind]), audit=AUDIT)
    page = Page(card_html(card)).text
    assert "No privacy guarantee" in page
    forbidden = re.compile(r"epsilon|delta|\bmu\b|mu_gdp|noise_multiplier|ε|δ|μ|0\.12\b|1e-05|0\.93|3\.5|0\.8\b", re.I)
    for shown in (words(card), page):
        assert forbidden.search(shown) is None, forbidden.search(shown)
    deployment = card["registry"]["deployment"]
    assert deployment["dp_variant"]["variant_name"] is None
    assert deployment["privacy_loss"]["privacy_parameters"] is None
    assert "accountant" not in card
    assert {"failing": "1.72", "heuristic": "17.5", "not private": "1.72"}[kind] in page
    assert "own budget" not in page  # no table shows it
    if kind == "not private":
        assert "entropy" not in page.replace("Floating point, entropy", "")


def test_a_card_of_a_statement_that_disagrees_with_itself_is_refused(tmp_path):
    path = release(statement()).save(tmp_path / "r.safetensors")
    restated(path, lambda privacy: privacy.update(epsilon=0.1))
    with pytest.raises(VerificationError, match=r"epsilon = 0\.1 is claimed"):
        make_card(load_release(path))


def test_the_best_attacker_is_that_of_the_tradeoff_curve():
    """Kairouz et al.: false alarms alpha and misses beta of an (epsilon, delta)-private test, by its two lines."""
    for epsilon, delta, alpha in ((0.1, 1e-6, 0.05), (1.0, 1e-3, 0.3), (4.0, 0.0, 0.05), (0.0, 0.1, 0.05)):
        misses = max(0.0, 1 - delta - math.exp(epsilon) * alpha, math.exp(-epsilon) * (1 - delta - alpha))
        assert most_detected(epsilon, delta, alpha) == pytest.approx(1 - misses, rel=1e-12)
    assert most_detected(1e5, 1e-5, 0.05) == 1.0


REGISTRY = """
url_slug basic.name basic.data_curators basic.description basic.intended_use basic.data_product_type
basic.data_product_region basic.data_product_sector basic.publication_date dp_variant.variant_name
dp_variant.data_domain dp_variant.unprotected_quantities privacy_loss.privacy_unit privacy_loss.privacy_unit_details
privacy_loss.number_of_privacy_units privacy_loss.privacy_parameters privacy_loss.privacy_parameters_details
deployment_model.model_name deployment_model.model_name_details deployment_model.trust_assumptions
deployment_model.actors deployment_model.release_type deployment_model.release_type_details
deployment_model.data_source_type deployment_model.data_source_type_details deployment_model.access_type
deployment_model.access_type_details implementation.preprocessing_and_hyperparameter_tuning
implementation.mechanisms implementation.composition implementation.post_processing implementation.justification
implementation.utility implementation.additional_information administrative.evidence_sources administrative.status
administrative.registry_authors
"""
FACTS = {
    "url_slug": "job-training-2026",
    "deployment": {
        "basic": {
            "name": "Job training effects",
            "data_curators": [{"data_curator_name": "An Agency", "data_curator_type": "Government"}],
            "intended_use": "Choose whom to offer training.",
            "data_product_region": "Nowhere",
            "publication_date": "2026-01-02",
        },
        "deployment_model": {"release_type": "One release"},
        "implementation": {
            "justification": "Defaults.",
            "preprocessing_and_hyperparameter_tuning": "Two pilots on public data.",
        },
        "administrative": {"registry_authors": ["A. Author"]},
    },
}


def facts_file(folder, change=None):
    facts = json.loads(json.dumps(FACTS))
    if change is not None:
        change(facts)
    (folder / "facts.yaml").write_text(yaml.safe_dump(facts))
    return folder / "facts.yaml"


def test_the_fields_are_those_of_the_registrys_schema():
    assert sorted(FIELDS) == sorted(REGISTRY.split())


@pytest.mark.slow
def test_facts_fill_the_registrys_record_up_to_tier_3(tmp_path):
    bare = make_card(release(statement()))
    assert bare["registry"]["deployment"]["administrative"]["tier"] is None
    assert bare["registry"]["deployment"]["basic"]["name"] is None
    assert "deployment.basic.intended_use" in bare["to_be_filled_in_by_the_curator"]
    facts = read_facts(facts_file(tmp_path))
    card = make_card(release(statement()), facts=facts)
    deployment = card["registry"]["deployment"]
    assert deployment["administrative"]["tier"] == 3
    assert deployment["basic"]["publication_date"] == "2026-01-02"
    assert deployment["basic"]["data_curators"][0]["data_curator_name"] == "An Agency"
    tuning = deployment["implementation"]["preprocessing_and_hyperparameter_tuning"]
    assert tuning.endswith("The curator adds: Two pilots on public data.")
    assert tuning.startswith("Values outside")
    assert card["to_be_filled_in_by_the_curator"] == [
        "deployment.basic.data_product_sector",
        "deployment.implementation.utility",
        "deployment.implementation.additional_information",
        "deployment.administrative.evidence_sources",
    ]
    assert "basic.name" in card["stated_by_the_curator"]
    assert deployment["privacy_loss"]["privacy_parameters"] == {"epsilon": 2.0, "delta": 1e-5}


def test_without_a_claim_no_facts_reach_tier_2(tmp_path):
    card = make_card(release(UNCLAIMED["heuristic"]), facts=read_facts(facts_file(tmp_path)))
    assert card["registry"]["deployment"]["administrative"]["tier"] == 1


def set_in(section, key, value):
    return lambda facts: facts["deployment"].setdefault(section, {}).update({key: value})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda f: f.update(color="red"), "an unknown field at the top; .*deployment.basic"),
        (set_in("basic", "naem", "x"), "unknown field 'basic.naem'; .*basic.name"),
        (set_in("surprise", "name", "x"), "unknown field 'surprise'"),
        (
            set_in("privacy_loss", "privacy_parameters", {"epsilon": 0.1}),
            "privacy_parameters is computed from the release",
        ),
        (set_in("dp_variant", "variant_name", "Pure DP"), "variant_name is computed from the release"),
        (set_in("administrative", "tier", 3), "unknown field 'administrative.tier'"),
        (set_in("administrative", "status", "Approved"), "status is computed"),
        (set_in("basic", "name", 3), "basic.name is 3; give words"),
        (set_in("basic", "name", " "), "basic.name is ' '; give words"),
        (set_in("basic", "publication_date", "1/2/2026"), "write YYYY-MM-DD"),
        (set_in("basic", "data_product_sector", "Sport"), "choose one of Technology, Healthcare"),
        (set_in("basic", "data_curators", ["An Agency"]), "data_curator_name and data_curator_type"),
        (
            set_in("basic", "data_curators", [{"data_curator_name": "A", "data_curator_type": "Club"}]),
            "choose one of Government",
        ),
        (set_in("administrative", "registry_authors", "A. Author"), "give a list of names"),
        (set_in("administrative", "evidence_sources", {"a": {"misc": {}}}), "evidence_source_type"),
        (lambda f: f.update(deployment=3), "deployment. is 3"),
    ],
)
def test_facts_that_the_registry_has_no_place_for_are_refused_in_one_line(change, message, tmp_path):
    with pytest.raises(InputError, match=message) as caught:
        read_facts(facts_file(tmp_path, change))
    assert "facts.yaml" in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "content",
    [b"a: [", b"[" * 9999, b"a: 2026-13-45", b"\xff\xfe", b"", b"just words", b"!!python/object/apply:os.getcwd []"],
)
def test_a_facts_file_that_is_none_is_refused(content, tmp_path):
    (tmp_path / "f.yaml").write_bytes(content)
    with pytest.raises(InputError, match=r"f\.yaml"):
        read_facts(tmp_path / "f.yaml")
    with pytest.raises(InputError, match="no such file"):
        read_facts(tmp_path / "absent.yaml")


def test_evidence_is_kept(tmp_path):
    source = {"evidence_source_type": "Other public source", "misc": {"title": "T", "year": 2026}}
    facts = read_facts(facts_file(tmp_path, set_in("administrative", "evidence_sources", {"report": source})))
    assert facts["administrative.evidence_sources"]["report"]["misc"] == {"title": "T", "year": "2026"}


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
    facts = dict.fromkeys((name for name, field in FIELDS.items() if field.by_curator and field.kind == "words"), NASTY)
    facts["basic.data_curators"] = [{"data_curator_name": NASTY, "data_curator_type": NASTY}]
    audit = {NASTY: {"bound": NASTY, "attack": NASTY}, "influence_truth": {NASTY: NASTY}}
    made = nasty_release()
    path = made.save(tmp_path / "r.safetensors")
    nasty_path = path.rename(tmp_path / f"{NASTY.replace('/', '')}.safetensors")
    page = Page(card_html(make_card(made, path=nasty_path, facts=facts, audit=audit)))
    assert page.text.count("<script>alert(1)") >= 25
    assert not page.tags & {"script", "img", "link", "iframe", "object", "a", "form", "base", "svg"}
    assert {name for name, _ in page.attributes} <= {"class", "lang", "charset", "http-equiv", "name", "content"}


def test_the_page_fetches_nothing():
    text = card_html(make_card(release(statement())))
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
    card = make_card(
        QueryRelease(schema.grid(8), torch.zeros(8, dtype=torch.float64), schema, statement(gaussian=True))
    )
    assert len(card["bounds"]["covariates"]) == 60
    assert "48 more covariates are in card.json" in Page(card_html(card)).text


@pytest.mark.slow
def test_writing_keeps_the_sums_of_the_folder_in_step(tmp_path):
    path = release(statement()).save(tmp_path / "release.safetensors")
    write_sums(tmp_path)
    made = make_card(load_release(path), path=path)
    assert made["release"]["sha256"] == file_sum(path)
    json_file, html_file = write_card(made, tmp_path)
    assert json.loads(json_file.read_text()) == made
    assert html_file.read_text().startswith("<!doctype html>")
    assert check_sums(tmp_path) == (["card.html", "card.json", "release.safetensors"], [], [], [])
    verify_release(path)


def test_a_folder_that_is_a_file_is_refused(tmp_path):
    (tmp_path / "f").write_text("")
    with pytest.raises(InputError, match="cannot be written to"):
        write_card(make_card(release(statement())), tmp_path / "f")


@pytest.mark.first(1)
@pytest.mark.parametrize("garbage", [b"garbage\n", b"\xff\xfe"])
def test_sums_that_are_none_leave_nothing_behind(garbage, tmp_path):
    (tmp_path / "SHA256SUMS").write_bytes(garbage)
    with pytest.raises(VerificationError, match="SHA256SUMS"):
        write_card(make_card(release(statement())), tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["SHA256SUMS"]
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
    Page(card_html(json.loads(json.dumps(make_card(load_release(path), path=path), allow_nan=False))))
