"""Sites that add up noisy sums: what each pays, what leaves it, and what all of them find."""

import math
import threading
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.sessions import noted
from torchdpcate.composition.rows import InMemory
from torchdpcate.composition.settings import AdaptiveSecondStage, Additive, WideAndDeep
from torchdpcate.composition.sites import Meeting, Site, SiteSteps, added_up
from torchdpcate.composition.steps import NoisySteps, Shares, Statistic
from torchdpcate.data.checked import fingerprint
from torchdpcate.data.domain import Domain
from torchdpcate.data.records import CausalData
from torchdpcate.errors import InputError
from torchdpcate.estimators.cate.learner import RLearner
from torchdpcate.privacy.budget import PrivacyBudget
from torchdpcate.privacy.noise import NoiseSource
from torchdpcate.privacy.shared_ledger import SharedLedger

DOMAIN = Domain([0.0, 0.0], [1.0, 1.0], -1.0, 1.0, overlap=0.25)
BUDGET = PrivacyBudget(1.0, 1e-5)
SIZES = {"north": 300, "south": 400, "west": 500}


def records(n: int, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """Covariates, arms and outcomes of one site."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.rand(n, 2, generator=generator, dtype=torch.float64)
    a = (torch.rand(n, generator=generator) < 0.3 + 0.4 * x[:, 1]).double()
    return x, a, torch.rand(n, generator=generator, dtype=torch.float64) * 2 ** (a * x[:, 0]) - 1


class Zeros(Statistic):
    """Many numbers that no record moves."""

    def moved(self) -> tuple[float, float, float]:
        return 1.0, 0.0, 0.0

    def __call__(self, batch: CausalData) -> Tensor:
        return torch.zeros(20_000, dtype=torch.float64)


def together(meeting: Meeting, runs: Mapping[str, Callable[[], Any]]) -> dict[str, Any]:
    """What each site's run returns or raises; one that fails leaves the meeting."""
    found: dict[str, Any] = {}

    def run(name: str) -> None:
        try:
            found[name] = runs[name]()
        except InputError as error:
            found[name] = error
            meeting.leave()

    threads = [threading.Thread(target=run, args=(name,), name=name) for name in runs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found


def fitted(
    meeting: Meeting, learner: type = RLearner, again: bool = True, **other: Mapping[str, Any]
) -> dict[str, Any]:
    """A learner of each site, fitted, or its error; ``other`` has settings of single sites."""

    def fit(seed: int, name: str) -> Any:
        own = {"domain": DOMAIN, "budget": BUDGET, **other.get(name, {})}
        n = own.pop("n", SIZES[name])
        stage = AdaptiveSecondStage(site=Site(name, SIZES, meeting.link(name), again), nuisance=Additive())
        found = learner(**own, second_stage=stage)
        learners[name] = found
        return found.fit(*records(n, seed))

    learners: dict[str, Any] = {}
    found = together(meeting, {name: partial(fit, seed, name) for seed, name in enumerate(SIZES)})
    return {name: (found[name], learners.get(name)) for name in SIZES}


def test_all_sites_find_the_same_and_each_pays_its_budget():
    found = [fit for fit, _ in fitted(Meeting(SIZES)).values()]
    releases = [fit.release_function() for fit in found]
    for fit, release in zip(found, releases, strict=True):
        assert release.privacy.n == sum(SIZES.values())
        assert release.privacy.level == "certified"
        assert release.privacy.public["sites"] == len(SIZES)
        assert fit.ledger_.spent()["records"]["epsilon"] == pytest.approx(BUDGET.epsilon, rel=1e-6)
        assert release.theta.tolist() == releases[0].theta.tolist()


def test_only_noisy_sums_leave_a_site(monkeypatch):
    exact: dict[str, list[tuple[Tensor, float]]] = {name: [] for name in SIZES}
    for name in ("noisy", "noisy_gradient"):
        drawn = getattr(NoisySteps, name)

        def drawing(steps: Any, values: Tensor, sensitivity: float, event: Any, drawn: Any = drawn) -> Tensor:
            scale = sensitivity * event.noise_multiplier
            exact[threading.current_thread().name].append((values.detach().double().clone(), scale))
            return drawn(steps, values, sensitivity, event)

        monkeypatch.setattr(NoisySteps, name, drawing)
    meeting = Meeting(SIZES)
    fitted(meeting)
    plans, *messages = meeting.seen
    assert all(plans[name]["sizes"] == SIZES for name in SIZES)  # public, as all that is said before
    for name in SIZES:
        assert len(exact[name]) == len(messages)
        noise = [(sent[name][1] - sums) / scale for sent, (sums, scale) in zip(messages, exact[name], strict=True)]
        assert float(torch.cat(noise).std()) == pytest.approx(1.0, rel=0.15)  # in each number that leaves
        assert min(float(each.abs().max()) for each in noise) > 0


@pytest.mark.slow
def test_the_total_has_the_noise_of_all_sites():
    sites, mu, n = 4, 0.5, 10
    names = [f"s{place}" for place in range(sites)]
    meeting, paid = Meeting(names), []
    shares = Shares(mu / math.sqrt(sites), {"moments": 1.0}, sites)

    def run(name: str) -> Tensor:
        session = noted(NoiseSource.system(), lambda part, event, level, count: paid.append(event))
        steps = SiteSteps(session, shares, link=meeting.link(name))
        none = torch.zeros(n, dtype=torch.float64)
        return steps.total("moments", InMemory(CausalData(none[:, None], none, none)), Zeros())

    totals = list(together(meeting, {name: partial(run, name) for name in names}).values())
    assert [1 / event.noise_multiplier for event in paid] == pytest.approx([mu] * sites)  # each pays all of it
    assert all(torch.equal(total, totals[0]) for total in totals)
    assert float(totals[0].std()) == pytest.approx(math.sqrt(sites) / mu, rel=0.03)
    assert shares.deviation("moments") == pytest.approx(math.sqrt(sites) / mu)  # what the plan reckons with
    sent = torch.stack([meeting.seen[0][name][1] for name in names])
    assert sent.std(1).tolist() == pytest.approx([1 / mu] * sites, rel=0.03)


def test_a_plan_that_differs_is_named_before_anything_is_paid():
    found = fitted(Meeting(SIZES), south={"budget": PrivacyBudget(2.0, 1e-5)})
    for error, learner in found.values():
        assert "sites: requested_epsilon is 1.0 at north and 2.0 at south" in str(error)
        assert len(learner.ledger_.entries) == 0


def test_a_site_with_other_records_than_it_said_stops_all():
    found = fitted(Meeting(SIZES), west={"n": 499})
    assert str(found["west"][0]).startswith("site = west: has 499 records, and said 500 to all sites; give")
    assert str(found["north"][0]) == "sites: a site stopped or did not answer; nothing is released"
    assert [len(found[name][1].ledger_.entries) for name in ("north", "south")] == [0, 0]
    assert not hasattr(found["west"][1], "ledger_")


def test_a_site_that_does_not_come_is_waited_for_no_longer_than_said():
    with pytest.raises(InputError, match="did not answer"):
        Meeting(["north", "south"], wait=0.05).link("north").agree({})


def test_what_was_spent_is_in_the_ledger_where_a_site_stops(monkeypatch):
    meeting, calls = Meeting(SIZES), []
    total = type(meeting.link("west")).total

    def stopping(link: Any, step: str, values: Tensor) -> Tensor:
        calls.append(step)
        if link.name == "west" and step == "moments":
            raise InputError("west stops")
        return total(link, step, values)

    monkeypatch.setattr(type(meeting.link("west")), "total", stopping)
    for error, learner in fitted(meeting).values():
        assert isinstance(error, InputError)
        assert 0 < learner.ledger_.spent()["records"]["epsilon"] < BUDGET.epsilon


def test_a_second_start_is_refused_unless_a_ledger_counts_both_or_it_is_meant(monkeypatch, tmp_path):
    monkeypatch.setattr("torchdpcate.composition.sites._STARTED", set())
    assert all(hasattr(fit, "ledger_") for fit, _ in fitted(Meeting(SIZES), again=False).values())
    meeting = Meeting(SIZES)
    refused = fitted(meeting, again=False)
    assert not meeting.seen
    assert any(str(error).startswith("site = ") for error, _ in refused.values())
    assert not any(learner.ledger_.entries for _, learner in refused.values())
    shared = {
        name: SharedLedger(tmp_path / name, fingerprint(*records(n, seed)), BUDGET)
        for seed, (name, n) in enumerate(SIZES.items())
    }
    counted = {name: {"ledger_path": shared[name].run()} for name in SIZES}
    assert all(hasattr(fit, "ledger_") for fit, _ in fitted(Meeting(SIZES), again=False, **counted).values())
    third = fitted(Meeting(SIZES), again=False, **counted)
    assert any("exceeds what the total of epsilon = 1" in str(error) for error, _ in third.values())
    assert all(one.left() is None for one in shared.values())


def test_numbers_of_other_steps_are_not_added_up():
    one = torch.ones(2, dtype=torch.float64)
    with pytest.raises(InputError, match="south sent 2 numbers of step 'effect', and north 2 of 'moments'"):
        added_up({"north": ("moments", one), "south": ("effect", one)})
    with pytest.raises(InputError, match="south sent 1 numbers"):
        added_up({"north": ("moments", one), "south": ("moments", one[:1])})


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"budget": PrivacyBudget(1.0, 0.0)}, "delta = 0: sites add up Gaussian noise"),
        ({"budget": None}, "sites: send each other noisy sums alone"),
        ({"domain": Domain([0.0] * 51, [1.0] * 51, 0.0, 1.0)}, "covariates = 51: sites choose none"),
        ({"second_stage": {"nuisance": WideAndDeep()}}, "sites: add up sums over their records alone; nuisance Wide"),
    ],
)
def test_what_sites_cannot_do_is_refused(settings, why):
    def check() -> None:
        site = Site("north", SIZES, Meeting(SIZES).link("north"))
        stage = AdaptiveSecondStage(site=site, **settings.get("second_stage", {}))
        RLearner(settings.get("domain", DOMAIN), settings.get("budget", BUDGET), second_stage=stage).check(300)

    with pytest.raises(InputError, match=why.replace(".", r"\.")):
        check()


@pytest.mark.parametrize("total", [torch.zeros(1), torch.tensor([0.0, torch.nan]), torch.tensor([0.0, 1e16])])
def test_a_total_that_noisy_sums_do_not_make_is_refused(total):
    class Strange:
        def total(self, step: str, values: Tensor) -> Tensor:
            return total.double()

    session = noted(NoiseSource.system(), lambda *_: None)
    steps = SiteSteps(session, Shares(0.5, {"moments": 1.0}, 2), link=Strange())
    with pytest.raises(InputError, match="sites: the total of step 'moments' is none of 2 noisy sums"):
        steps.noisy(torch.zeros(2), 1.0, steps.pay("moments"))
