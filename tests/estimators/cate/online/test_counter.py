"""The counter outside an online service's folder: of all copies of the folder one goes on, and no other."""

import shutil

import numpy as np
import pytest

from tests.estimators.cate.mechanisms.test_gaussian_process import BUDGET
from tests.release.helpers import QUERIES, SCHEMA, nuisances, stage
from torchdpcate.errors import InputError, ReleaseFileError
from torchdpcate.estimators.cate.online.history import Counter
from torchdpcate.estimators.cate.online.service import OnlineService
from torchdpcate.privacy.charge import Charge, Purpose
from torchdpcate.privacy.ledger import Ledger
from torchdpcate.privacy.noise import NoiseSource
from torchdpcate.privacy.session import FitSession
from torchdpcate.release.statement import make_statement


def create(folder, counter=None, ledger=None) -> OnlineService:
    ledger = ledger or Ledger({"second_stage": BUDGET})
    session = FitSession(NoiseSource.system(), BUDGET, ledger, {"second_stage": 400})
    session = session.charging(["second_stage"], Charge(Purpose.RELEASE, "gaussian_process"))

    def statement(terms):
        return make_statement(
            session,
            terms.guarantee,
            own=session.entries,
            mechanism="gaussian_process",
            formula="f",
            public=terms.public,
        )

    return OnlineService.create(
        folder,
        stage(),
        nuisances(),
        SCHEMA,
        budget=BUDGET,
        session=session,
        statement=statement,
        counter=counter,
    )


@pytest.fixture
def service(tmp_path) -> OnlineService:
    return create(tmp_path / "online", tmp_path / "counter.json")


def put_back(folder, copy):
    shutil.rmtree(folder)
    shutil.copytree(copy, folder)


def test_a_folder_put_back_before_its_first_answer_gives_no_second_one(service, tmp_path):
    shutil.copytree(service.folder, tmp_path / "copy")
    first = service.answer(QUERIES[:1])
    for folder in (tmp_path / "copy", service.folder):
        if folder == service.folder:
            put_back(folder, tmp_path / "copy")
        with pytest.raises(ReleaseFileError, match="copy or was put back"):
            OnlineService.open(folder)
    with pytest.raises(ReleaseFileError):
        service.answer(QUERIES[1:2])
    assert service.requested <= 1
    assert np.isfinite(first).all()


def test_without_a_counter_nothing_tells_it(tmp_path):
    """The condition on the page: this is what it is about."""
    service = create(tmp_path / "online")
    shutil.copytree(service.folder, tmp_path / "copy")
    answers = {service.answer(QUERIES[:1])[0], OnlineService.open(tmp_path / "copy").answer(QUERIES[:1])[0]}
    assert len(answers) == 2


def test_of_two_copies_that_are_open_at_once_one_goes_on(service, tmp_path):
    ours = service.answer(QUERIES[:2])
    shutil.copytree(service.folder, tmp_path / "copy")
    copy = OnlineService.open(tmp_path / "copy")
    theirs = copy.answer(QUERIES[2:3])
    with pytest.raises(ReleaseFileError, match="copy or was put back"):
        service.answer(QUERIES[2:3])
    assert np.array_equal(copy.answer(QUERIES[:3]), [*ours, *theirs])


def test_the_newest_folder_goes_on_after_a_restart(service):
    answers = [service.answer(QUERIES[: i + 1]) for i in range(3)]
    again = OnlineService.open(service.folder)
    assert np.array_equal(again.answer(QUERIES[:3]), answers[-1])
    assert again.answer(QUERIES).shape == (8,)
    assert np.array_equal(OnlineService.open(service.folder).answer(QUERIES), again.answer(QUERIES))


def test_an_entry_that_was_not_counted_is_taken_up(service, monkeypatch):
    """Stopped between the history and the counter: the answer never left, and its noise is as good as any."""
    service.answer(QUERIES[:1])

    class Stopped(BaseException):
        pass

    def stop(self, head):
        raise Stopped

    with monkeypatch.context() as patch:
        patch.setattr(Counter, "advance", stop)
        with pytest.raises(Stopped):
            service.answer(QUERIES[1:2])
    again = OnlineService.open(service.folder)
    assert again.requested == 2
    assert np.array_equal(again.answer(QUERIES[:2]), OnlineService.open(service.folder).answer(QUERIES[:2]))


def test_a_counter_that_is_gone_damaged_or_of_another_service_answers_nothing(service, tmp_path):
    path, stored = tmp_path / "counter.json", (tmp_path / "counter.json").read_text()
    other = create(tmp_path / "other", tmp_path / "other.json")
    other.answer(QUERIES)
    for text in ("", "{}", stored.replace('"version": 1', '"version": 9'), stored.replace('"end": 32', '"end": 3'),
                 (tmp_path / "other.json").read_text()):  # fmt: skip
        path.write_text(text)
        with pytest.raises(ReleaseFileError, match="counter"):
            OnlineService.open(service.folder)
    path.unlink()
    with pytest.raises(ReleaseFileError, match="cannot be read"):
        service.answer(QUERIES)
    path.write_text(stored)
    assert service.answer(QUERIES).shape == (8,)


def test_a_counter_that_could_not_help_is_refused_before_anything_is_paid(tmp_path):
    ledger = Ledger({"second_stage": BUDGET})
    (tmp_path / "taken").touch()
    for counter in (tmp_path / "online" / "counter", tmp_path / "taken", tmp_path / "no" / "folder"):
        with pytest.raises(InputError, match="counter"):
            create(tmp_path / "online", counter, ledger)
    assert ledger.entries == ()
    assert not (tmp_path / "online").exists()
