"""The online service: one noisy function, whoever asks, in whatever order, before and after whatever crash."""

import dataclasses
import os
import shutil
import sqlite3
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from scipy.stats import chi2

from tests.estimators.cate.mechanisms.test_gaussian_process import BUDGET, kernel_stage
from tests.faults.test_disk import full_after
from tests.release.helpers import DOMAIN, QUERIES, SCHEMA, nuisances, stage
from torchdpcate._chain import chained
from torchdpcate.errors import BudgetError, InputError
from torchdpcate.estimators.cate.effect_plan import EffectPlan
from torchdpcate.estimators.cate.mechanisms.base import public_step
from torchdpcate.estimators.cate.mechanisms.perturbation import GaussianProcess
from torchdpcate.estimators.cate.online.path import JITTER, NoisyFunction
from torchdpcate.estimators.cate.online.service import OnlineService, online_terms
from torchdpcate.estimators.cate.online.state import SERVICE_FILE, ServiceState, correction_from, correction_of
from torchdpcate.fit.feature_maps import Fourier, Representation
from torchdpcate.privacy.accounting import dp_sgd_noise_multiplier
from torchdpcate.privacy.charge import DP_SGD, Charge, Purpose
from torchdpcate.privacy.events import DPSGDEvent
from torchdpcate.privacy.ledger import Ledger
from torchdpcate.privacy.noise import NoiseSource
from torchdpcate.privacy.session import FitSession
from torchdpcate.release.file import load_release
from torchdpcate.release.release import QueryRelease
from torchdpcate.release.statement import bounds_of, make_statement
from torchdpcate.verify.file import verify_release

MANY = DOMAIN.grid(40)


def create(folder, fitted=None, noise=None, ledger=None, eta=None) -> OnlineService:
    """A service with a ledger and a statement, as a learner makes it."""
    noise = noise or NoiseSource.system()
    ledger = ledger or Ledger({"nuisance": BUDGET, "second_stage": BUDGET}, private=noise.private)
    sizes, charge = {"nuisance": 100, "second_stage": 400}, Charge(Purpose.RELEASE, "gaussian_process")
    session = FitSession(noise, BUDGET, ledger, sizes).charging(["second_stage"], charge)

    def statement(terms):
        return make_statement(
            session,
            terms.guarantee,
            own=session.entries,
            mechanism=GaussianProcess.name,
            formula=GaussianProcess.formula,
            public=EffectPlan(GaussianProcess(), terms.law, terms.head, BUDGET, "RLearner", 0.2, 0, sizes).public(),
            bounds_origin=SCHEMA.domain.origin,
            bounds=bounds_of(SCHEMA.domain),
        )

    fitted = kernel_stage() if fitted is None else fitted
    parts = {"budget": BUDGET, "session": session, "statement": statement}
    return OnlineService.create(folder, fitted, eta or nuisances(), SCHEMA, **parts)


def content(folder) -> bytes:
    assert {path.name for path in folder.iterdir()} == {SERVICE_FILE}
    return (folder / SERVICE_FILE).read_bytes()


@pytest.fixture
def service(tmp_path) -> OnlineService:
    return create(tmp_path / "online")


@pytest.mark.parametrize("fitted", [stage(), kernel_stage()], ids=["linear", "kernel"])
def test_answers_are_the_effect_plus_noise_of_the_stated_scale(fitted, tmp_path):
    service = create(tmp_path / "online", fitted)
    release, scale = service.release(MANY), service.privacy.public["noise_scale"]
    variance = fitted.covariance(MANY, MANY).diagonal()
    torch.testing.assert_close(release.noise_scales, scale * (variance + JITTER).sqrt())
    assert scale == pytest.approx(GaussianProcess().prepare(fitted, MANY, BUDGET).public["noise_scale"], rel=1e-3)
    noise = release.answers - (nuisances().effect(MANY) + fitted.correction(MANY))
    K = (fitted.covariance(MANY, MANY) + JITTER * torch.eye(len(MANY))) * scale**2
    inside = release.answers.abs() < DOMAIN.outcome_range
    K, noise = K[inside][:, inside], noise[inside]
    low, high = chi2.ppf([5e-8, 1 - 5e-8], len(noise))
    assert low < noise @ torch.linalg.solve(K, noise) < high


def test_answers_are_clipped_and_lie_on_the_public_grid(tmp_path):
    service = create(tmp_path / "online", stage(ridge=2e-4))  # noise of many outcome ranges
    answers = service.answer(MANY)
    assert np.abs(answers).max() == DOMAIN.outcome_range
    steps = answers / public_step(DOMAIN)
    assert np.array_equal(steps, np.round(steps))


def test_a_ledger_that_cannot_pay_leaves_nothing(tmp_path):
    ledger = Ledger({"nuisance": BUDGET, "second_stage": BUDGET})
    create(tmp_path / "first", ledger=ledger)
    with pytest.raises(BudgetError):
        create(tmp_path / "second", ledger=ledger)
    assert not (tmp_path / "second").exists()
    create(tmp_path / "second")


def test_the_same_query_gets_the_same_answer_in_any_order_and_after_a_restart(service):
    first = service.answer(QUERIES)
    assert np.array_equal(service.answer(QUERIES.flip(0)), first[::-1])
    assert np.array_equal(service.answer(QUERIES[[2, 2, 5]]), first[[2, 2, 5]])
    for _ in range(2):
        again = OnlineService.open(service.folder)
        assert again.requested == 8
        assert np.array_equal(again.answer(QUERIES), first)
        assert np.array_equal(again.answer(pd.DataFrame(QUERIES.numpy(), columns=["x0", "x1"])), first)
    zero = torch.tensor([[0.0, 0.0], [-0.0, -0.0]], dtype=torch.float64)
    assert len(set(again.answer(zero).tolist())) == 1


def test_a_close_query_gets_a_close_answer_also_after_a_restart(tmp_path):
    """Within 8 standard deviations of the jitter of both, by which alone they differ."""
    service = create(tmp_path / "online", stage(threshold=0.05))
    before = service.answer(QUERIES)
    after = OnlineService.open(tmp_path / "online").answer((QUERIES + 1e-7).clamp(max=1.0))
    scale = service.privacy.public["noise_scale"]
    assert np.abs(before - after).max() < 8 * scale * (2 * JITTER) ** 0.5 + 1e-5
    assert np.abs(before - after).min() > 0


def test_two_services_see_what_the_other_answered(service):
    other = OnlineService.open(service.folder)
    mine = service.answer(MANY[:10])
    theirs = other.answer(MANY[:20])
    assert np.array_equal(theirs[:10], mine)
    assert np.array_equal(service.answer(MANY[:20]), theirs)
    assert service.requested == other.requested == 20


def test_threads_that_ask_at_once_get_one_function(service):
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda i: service.answer(MANY[i % 4 : i % 4 + 20]), range(24)))
    for i, some in enumerate(answers):
        assert np.array_equal(some, answers[i % 4])
    assert OnlineService.open(service.folder).requested == 23


@pytest.mark.slow
@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(requested=st.lists(st.integers(0, 11), min_size=1, max_size=20), restart=st.sets(st.integers(0, 19)))
def test_whatever_is_asked_when_the_answers_are_those_of_one_function(tmp_path_factory, requested, restart):
    service, known = create(tmp_path_factory.mktemp("s") / "online", stage()), {}
    for step, i in enumerate(requested):
        service = OnlineService.open(service.folder) if step in restart else service
        answers = service.answer(MANY[i : i + 3]).tolist()
        for j, answer in enumerate(answers, start=i):
            assert known.setdefault(j, answer) == answer


BAD = {
    "missing": (np.array([[0.5, np.nan]]), "missing"),
    "outside": (np.array([[0.5, 0.0], [1.5, 0.0]]), "outside its declared bounds"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_queries_are_refused_before_anything_is_written(service, name):
    before = content(service.folder)
    with pytest.raises(InputError, match=BAD[name][1]):
        service.answer(BAD[name][0])
    assert content(service.folder) == before


def test_a_full_disk_answers_nothing_and_keeps_the_service(service):
    first = service.answer(QUERIES)
    size = len(content(service.folder))
    for limit in (0, 100, size - 4096, size):
        with full_after(limit), pytest.raises(InputError, match="nothing was answered"):
            service.answer(MANY)
        again = OnlineService.open(service.folder)
        assert np.array_equal(again.answer(QUERIES), first)
        assert again.requested == 8
    assert np.array_equal(service.answer(MANY), OnlineService.open(service.folder).answer(MANY))


def lines_of(folder) -> list:
    with closing(sqlite3.connect(folder / SERVICE_FILE)) as database:
        return [line for (line,) in database.execute("SELECT line FROM service ORDER BY revision")]


def forge(folder, lines) -> None:
    """Write these lines as a service writes its own, with their digests."""
    digest = ""
    with closing(sqlite3.connect(folder / SERVICE_FILE, isolation_level=None)) as database:
        database.execute("DELETE FROM service")
        for revision, line in enumerate(lines):
            digest = chained(digest, line)
            database.execute("INSERT INTO service VALUES (?, ?, ?)", (revision, line, digest))


def by_sql(command: str):
    def change(folder) -> None:
        with closing(sqlite3.connect(folder / SERVICE_FILE, isolation_level=None)) as database:
            database.execute(command)

    return change


def of_another_fit(folder) -> None:
    """With the same answers, of coefficients ten per cent larger."""
    text, data, *rows = lines_of(folder)
    state = ServiceState.of_lines(text, data)
    moved = dataclasses.replace(state.correction, coefficients=state.correction.coefficients * 1.1)
    forge(folder, [*dataclasses.replace(state, correction=moved).lines(), *rows])


DAMAGES = {
    "gone": lambda folder: (folder / SERVICE_FILE).unlink(),
    "another file": lambda folder: (folder / SERVICE_FILE).write_bytes(b"words " * 900),
    "cut": lambda folder: os.truncate(folder / SERVICE_FILE, 4096),
    "a line short": by_sql("DELETE FROM service WHERE revision = 3"),
    "a line changed": by_sql("UPDATE service SET line = zeroblob(length(line)) WHERE revision = 2"),
    "lines exchanged": by_sql("UPDATE service SET revision = 9 - revision WHERE revision > 1"),
    "lines cut, and their digests made anew": lambda folder: forge(folder, lines_of(folder)[:-1]),
    "a state without its facts": lambda folder: forge(folder, ["{}", *lines_of(folder)[1:]]),
    "a state of another fit": of_another_fit,
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_file_that_is_not_as_it_was_written_is_refused(service, damage, tmp_path, monkeypatch):
    """Also where no note of the user's says how far it had come, but for lines that are cut off."""
    service.answer(QUERIES[:4])
    service.answer(QUERIES)
    DAMAGES[damage](service.folder)
    with pytest.raises(InputError):
        OnlineService.open(service.folder)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "elsewhere"))
    if "short" not in damage and "lines cut" not in damage:
        with pytest.raises(InputError):
            OnlineService.open(service.folder)


@pytest.mark.parametrize("answered", [0, 1])
def test_a_copy_that_is_put_back_is_refused(service, tmp_path, answered):
    """Else a query would have two answers."""
    service.answer(QUERIES[:answered])
    shutil.copytree(service.folder, tmp_path / "copy")
    service.answer(QUERIES[answered : answered + 1])
    with pytest.raises(InputError, match=r"is not the one that was changed last .* restore the newest"):
        OnlineService.open(tmp_path / "copy")
    shutil.copyfile(tmp_path / "copy" / SERVICE_FILE, service.folder / SERVICE_FILE)
    for ask in (lambda: service.answer(QUERIES), lambda: OnlineService.open(service.folder)):
        with pytest.raises(InputError, match=r"lost lines|not the one that was changed last"):
            ask()


def test_of_two_copies_that_are_open_at_once_one_goes_on(service, tmp_path):
    ours = service.answer(QUERIES[:2])
    shutil.copytree(service.folder, tmp_path / "copy")
    copy = OnlineService.open(tmp_path / "copy")
    theirs = copy.answer(QUERIES[2:3])
    with pytest.raises(InputError, match="not the one that was changed last"):
        service.answer(QUERIES[2:3])
    assert np.array_equal(copy.answer(QUERIES[:3]), [*ours, *theirs])


def test_where_nothing_notes_it_nothing_tells_a_copy(service, tmp_path, monkeypatch):
    """The condition on the page: this is what it is about."""
    shutil.copytree(service.folder, tmp_path / "copy")
    ours = service.answer(QUERIES[:1])
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "another machine"))
    assert OnlineService.open(tmp_path / "copy").answer(QUERIES[:1]) != ours


def test_a_seed_serves_tests_alone(tmp_path, service):
    with pytest.raises(InputError, match="fixed seed"):
        OnlineService.open(service.folder, NoiseSource.fixed(0))
    fixed = create(tmp_path / "test", noise=NoiseSource.fixed(0))
    assert not fixed.privacy.claims
    assert OnlineService.open(fixed.folder, NoiseSource.fixed(0)).answer(QUERIES).shape == (8,)


def test_answers_make_a_release_for_readers(tmp_path):
    ledger = Ledger({"nuisance": BUDGET, "second_stage": BUDGET})
    multiplier = dp_sgd_noise_multiplier(BUDGET.epsilon, BUDGET.delta, 0.2, 20)
    ledger.charge("nuisance", DP_SGD, DPSGDEvent(multiplier, 0.2), 20)
    service = create(tmp_path / "service", ledger=ledger)
    release = service.release(QUERIES)
    assert isinstance(release, QueryRelease)
    path = release.save(tmp_path / "answers.safetensors")
    verify_release(path)
    loaded = load_release(path)
    assert np.array_equal(loaded.effect(QUERIES), service.answer(QUERIES))
    assert loaded.noise_band(QUERIES).shape == (8, 2)
    held = path.read_bytes()
    points = service._state.correction.points
    assert not any(row.numpy().tobytes() in held for row in points)
    assert set(loaded.tensors()) == {"queries", "answers", "noise_scales"}


@pytest.mark.parametrize("features", [Fourier(pairs=3_000), Representation(), Fourier(pairs=4)])
def test_a_correction_answers_alike_away_from_its_block(features):
    fitted = dataclasses.replace(stage(), features=features.setup(DOMAIN, nuisances()))
    for one in (fitted, kernel_stage()):
        made = correction_of(one, nuisances())
        for correction in (made, correction_from(made.tensors(), made.facts(), DOMAIN, nuisances())):
            lifted = correction.lift(QUERIES)
            torch.testing.assert_close(correction.value(lifted), one.correction(QUERIES))
            torch.testing.assert_close(correction.covariance(lifted, lifted[:3]), one.covariance(QUERIES, QUERIES[:3]))
            diagonal = one.covariance(QUERIES, QUERIES).diagonal()
            torch.testing.assert_close(correction.variance(lifted), diagonal)


@pytest.mark.slow
def test_online_noise_has_the_law_of_the_batch():
    """20,000 noisy functions, asked one query after the other: means and covariances of 8 answers, 44 entries within 6
    standard errors of the batch's, which chance misses with a probability of 9e-8."""
    fitted, runs = kernel_stage(), 20_000
    batch = GaussianProcess().prepare(fitted, QUERIES, BUDGET)
    correction = correction_of(fitted)
    function = NoisyFunction(correction, online_terms(fitted, BUDGET).law.scale, NoiseSource.system())
    totals = [function.reveal(x, runs)[1] for x in correction.lift(QUERIES).split(1)]
    values = function.scale * torch.cat(totals) / batch.public["noise_scale"]
    K = fitted.covariance(QUERIES, QUERIES) + JITTER * torch.eye(8, dtype=torch.float64)
    variance = K.diagonal()
    assert bool((values.mean(1).abs() < 6 * (variance / runs).sqrt()).all())
    error = ((variance[:, None] * variance + K**2) / runs).sqrt()
    assert bool(((values @ values.T / runs - K).abs() < 6 * error).all())


def test_it_pays_once_whatever_is_asked(tmp_path):
    ledger = Ledger({"nuisance": BUDGET, "second_stage": BUDGET})
    service = create(tmp_path / "online", ledger=ledger)
    service.answer(MANY)
    OnlineService.open(tmp_path / "online").answer(QUERIES)
    assert [(e.block, e.count) for e in ledger.entries] == [("second_stage", 1)]
    assert service.privacy.epsilon == pytest.approx(1.0, rel=1e-6)


def test_a_folder_that_is_there_is_refused_before_anything_is_paid(tmp_path):
    ledger = Ledger({"nuisance": BUDGET, "second_stage": BUDGET})
    with pytest.raises(InputError, match="cannot be made"):
        create(tmp_path, ledger=ledger)
    assert ledger.entries == ()
