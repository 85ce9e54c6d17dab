import math
import os
import pickle
import signal
import stat
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

import pytest
import torch
from sklearn.base import clone

from tests.registered import KnownPropensityEffect
from torchdpcate.data.checked import file_fingerprint, fingerprint
from torchdpcate.data.domain import Domain
from torchdpcate.data.records import CausalData
from torchdpcate.data.schema import TableSchema
from torchdpcate.data.streams import RecordStream
from torchdpcate.errors import BudgetError, InputError
from torchdpcate.privacy import ledger_file
from torchdpcate.privacy.budget import PrivacyBudget
from torchdpcate.privacy.calibration import analytic_gaussian_sigma, gaussian_epsilon
from torchdpcate.privacy.charge import THRESHOLD
from torchdpcate.privacy.events import DPSGDEvent, GaussianEvent, PureEvent
from torchdpcate.privacy.ledger import Ledger
from torchdpcate.privacy.noise import NoiseSource
from torchdpcate.privacy.session import FitSession
from torchdpcate.privacy.shared_ledger import Reservation, SharedLedger
from torchdpcate.privacy.unit import RECORD, PrivacyUnit

TOTAL = PrivacyBudget(2.0, 2e-5)
RUN = PrivacyBudget(0.75, 5e-6)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "curator" / "shared.sqlite"


def shared(path, total=TOTAL, records="these", **more) -> SharedLedger:
    return SharedLedger(path, records, total, **more)


def opened(ledger, budget=RUN, path=None, noise=None) -> FitSession:
    return FitSession.open({"records": 5}, budget, noise or NoiseSource.system(), ledger.run(path))


def test_runs_add_up_and_the_one_beyond_the_total_is_refused(path):
    ledger = shared(path)
    for _ in range(2):
        opened(ledger).close()
    left = ledger.left()
    assert (left.epsilon, left.delta) == (pytest.approx(0.5), pytest.approx(1e-5))
    before = path.read_bytes()
    with pytest.raises(BudgetError, match=r"a run of epsilon = 0.75, .* leaves, epsilon = 0.5, delta = 1e-05; lower"):
        opened(ledger, path=path.parent / "run.sqlite")
    assert path.read_bytes() == before
    assert not (path.parent / "run.sqlite").exists()
    opened(ledger, PrivacyBudget(0.5, 1e-5)).close()
    assert ledger.left() is None


def test_gaussian_runs_add_up_by_the_squares_of_mu(path):
    """Theory: M(1, 1e-5) = .2680511232; nine runs of (.3, 1e-5) fit where sums leave three (and of delta one)."""
    ledger = shared(path, PrivacyBudget(1.0, 1e-5), filter="gaussian")
    assert 1 / analytic_gaussian_sigma(1.0, 1e-5) == pytest.approx(0.2680511232, abs=1e-9)
    each = 1 / analytic_gaussian_sigma(0.3, 1e-5)
    fits = int(0.2680511232**2 / each**2)
    for _ in range(fits):
        ledger.reserve(PrivacyBudget(0.3, 1e-5), "run")
    assert fits == 9
    left = 1 / (0.2680511232**2 - fits * each**2) ** 0.5
    assert ledger.left().epsilon == pytest.approx(gaussian_epsilon(left, 1e-5), rel=1e-6)
    with pytest.raises(BudgetError):
        ledger.reserve(PrivacyBudget(0.3, 1e-5), "run")
    pure = shared(path.parent / "pure.sqlite", PrivacyBudget(1.0, 1e-5), filter="gaussian")
    pure.reserve(PrivacyBudget(0.1, 0.0), "first")
    pure.reserve(PrivacyBudget(0.1, 0.0), "second")
    assert pure.runs[1].cost.size == pytest.approx(0.1253090122)


@pytest.mark.parametrize("event", [PureEvent(0.01), DPSGDEvent(50.0, 0.5)])
def test_a_run_that_counts_by_mu_has_gaussian_noise_alone(path, event):
    own = path.parent / "run.sqlite"
    session = opened(shared(path, filter="gaussian"), path=own).charging(["records"], THRESHOLD)
    with pytest.raises(BudgetError, match="for Gaussian noise alone"):
        session.pay(event)
    assert not session.ledger.entries
    session.pay(GaussianEvent(50.0))
    session.pay(DPSGDEvent(200.0, 1.0))
    again = Ledger.load(own)  # so it is for whoever takes the file up
    with pytest.raises(BudgetError, match=r"for Gaussian noise alone|without bound"):
        again.charge("records", "later", event)
    sigma = analytic_gaussian_sigma(RUN.epsilon, RUN.delta)
    with pytest.raises(BudgetError):
        again.charge("records", "later", GaussianEvent(sigma))


def test_a_run_is_charged_before_its_own_ledger_is_made(path, monkeypatch):
    ledger, seen = shared(path), []
    monkeypatch.setattr(Ledger, "open_plan", lambda self: seen.append(ledger.left()))
    opened(ledger)
    assert seen[0].epsilon == pytest.approx(1.25)


def test_what_charged_nothing_gives_its_reservation_back_and_what_charged_does_not(path):
    ledger = shared(path)
    for charged in (False, True):
        session = opened(ledger)
        if charged:
            session.charging(["records"], THRESHOLD).pay(PureEvent(0.1))
        with pytest.raises(RuntimeError), session.kept_if_used():
            raise RuntimeError
    assert [entry.reserved for entry in ledger.runs] == [0, 1]
    assert ledger.left().epsilon == pytest.approx(1.25)
    settled = opened(ledger)
    settled.close()
    settled.close()
    with pytest.raises(RuntimeError), settled.kept_if_used():
        raise RuntimeError  # its outputs may have been seen
    assert ledger.left().epsilon == pytest.approx(0.5)


def test_a_fit_counts_and_a_refused_one_does_not(path):
    X, A = torch.rand(400, 2, dtype=torch.float64), torch.arange(400) % 2
    domain = Domain([0, 0], [1, 1], 0, 2, propensity=0.5)
    ledger = shared(path, records=fingerprint(X, A, X[:, 0] + A))
    learner = KnownPropensityEffect(domain, PrivacyBudget(0.75, 0.0), ledger_path=ledger.run(label="mean"))
    with pytest.raises(InputError):
        learner.fit(X, A, X[:, 0] + 5)
    assert not ledger.runs
    assert learner.fit(X, A, X[:, 0] + A).release().privacy.epsilon == pytest.approx(0.75)
    clone(learner).fit(X, A, X[:, 0] + A)
    assert [entry.label for entry in ledger.runs] == ["mean", "mean"]
    with pytest.raises(BudgetError, match=r"leaves, epsilon = 0\.5"):
        clone(learner).fit(X, A, X[:, 0] + A)


class Batches(RecordStream):
    """Records in two batches."""

    def __init__(self, records: CausalData, domain: Domain) -> None:
        self.schema, self.n, self._records = TableSchema.of(domain), records.n, records

    def __iter__(self):
        yield self._records.subset(slice(0, 200))
        yield self._records.subset(slice(200, None))


def test_a_fit_on_other_records_is_refused(path):
    """The ledger of one table does not count fits on another, nor on a part of it; one of files trusts its caller."""
    X, A = torch.rand(400, 2, dtype=torch.float64), torch.arange(400) % 2
    Y, budget = X[:, 0] + A, PrivacyBudget(0.25, 0.0)
    domain = Domain([0, 0], [1, 1], 0, 2, propensity=0.5)
    ledger = shared(path, records=fingerprint(X, A, Y))
    learner = KnownPropensityEffect(domain, budget, ledger_path=ledger.run())
    learner.fit(X.float(), A.bool(), Y.float()[:, None])
    order = torch.randperm(400)
    clone(learner).fit(X[order], A[order], Y[order])
    before = path.read_bytes()
    others = [(torch.rand(400, 2, dtype=torch.float64), A, Y), (X, 1 - A, Y), (X[:200], A[:200], Y[:200])]
    for other in others:
        with pytest.raises(InputError, match=r"this fit is on other records.*records=file_fingerprint\(files\)"):
            clone(learner).fit(*other)
    one = Domain([0], [1], 0, 2, propensity=0.5)
    same = shared(path, None, fingerprint(X, A, Y))
    with pytest.raises(InputError, match="other columns of them"):
        KnownPropensityEffect(one, budget, ledger_path=same.run()).fit(X[:, :1], A, Y)
    stream = Batches(CausalData.from_arrays(X, A, Y), domain)
    with pytest.raises(InputError, match="a stream is not known by its arrays"):
        clone(learner).fit_stream(stream)
    with pytest.raises(InputError, match="this fit is on other records"):
        KnownPropensityEffect(domain, budget, ledger_path=SharedLedger.load(path).run()).fit(*others[0])
    assert path.read_bytes() == before
    file = path.parent / "table.csv"
    file.write_text("x,a,y\n")
    files = shared(path.with_name("files.sqlite"), records=file_fingerprint(file))
    learner = KnownPropensityEffect(domain, budget, ledger_path=files.run())
    learner.fit(X, A, Y)
    clone(learner).fit(*others[0])
    clone(learner).fit_stream(stream)
    assert len(files.runs) == 3


def test_ledgers_of_others_are_refused(path):
    ledger = shared(path)
    ledger.reserve(RUN, "run")
    with pytest.raises(InputError, match="of other records"):
        shared(path, records="those")
    with pytest.raises(InputError, match="its total is epsilon = 2"):
        shared(path, PrivacyBudget(3.0, 2e-5))
    with pytest.raises(InputError, match="its filter is sums"):
        shared(path, filter="gaussian")
    assert shared(path, None).left().epsilon == pytest.approx(1.25)
    single = path.parent / "single.sqlite"
    Ledger({"records": RUN}, single).charge("records", "a", PureEvent(0.1))
    single.with_name("single.sqlite.key").write_text("0" * 64)
    with pytest.raises(InputError, match="the ledger of one run"):
        shared(single)
    with pytest.raises(InputError, match="is new; state the total"):
        shared(path.parent / "none" / "new.sqlite", None)
    assert not (path.parent / "none").exists()
    with pytest.raises(InputError, match="noise of a fixed seed protects nobody"):
        opened(ledger, noise=NoiseSource.fixed(0))


def test_the_file_holds_no_fingerprint_that_others_could_compute(path):
    shared(path)
    other = path.parent / "other.sqlite"
    shared(other)
    names = [next(iter(Ledger.load(file).blocks)) for file in (path, other)]
    assert names[0] != names[1]  # each has a key of its own
    key = path.with_name("shared.sqlite.key")
    assert all(stat.S_IMODE(file.stat().st_mode) == 0o600 for file in (path, key))
    kept = key.read_text()
    assert kept.strip().encode() not in path.read_bytes()
    key.unlink()
    with pytest.raises(InputError, match=r"its key shared\.sqlite\.key is missing"):
        shared(path)
    key.write_text("abc")
    with pytest.raises(InputError, match="is damaged"):
        shared(path)
    key.write_text(kept)
    path.unlink()
    for _ in range(2):
        with pytest.raises(InputError, match="is missing and its key is there"):
            shared(path)
    key.unlink()
    assert not shared(path).runs


def test_a_copy_that_is_put_back_is_refused(path):
    """In another process 3.0 of 2.0 were granted."""
    run = PrivacyBudget(1.0, 0.0)
    shared(path).reserve(run, "first")
    copy = path.read_bytes()
    shared(path).reserve(run, "second")
    path.write_bytes(copy)
    ledger_file._known.clear()  # as in another process
    for call in (lambda: shared(path), lambda: SharedLedger.load(path)):
        with pytest.raises(InputError, match="is not the one that was changed last"):
            call()


def test_a_mistake_in_a_new_one_leaves_no_key(path):
    for total, more in ((PrivacyBudget(1.0, 0.0), {"filter": "gaussian"}), (TOTAL, {"filter": "most"})):
        with pytest.raises(InputError, match="filter"):
            shared(path, total, **more)
    with pytest.raises(InputError, match="is new; state the total"):
        shared(path, None)
    shared(path)


def test_persons_cost_all_their_records(path):
    """Of a total of (2, 2e-5) by person: four records at (.25, 0) by record, then two at (.25, 1e-6)."""
    four, two = PrivacyUnit.person("subject_id", 4), PrivacyUnit.person("subject_id", 2)
    ledger = shared(path, unit=four)
    ledger.reserve(PrivacyBudget(0.25, 0.0), "four", four)
    assert ledger.left().epsilon == pytest.approx(1.0)
    ledger.reserve(PrivacyBudget(0.25, 1e-6), "two", two)
    assert ledger.left().epsilon == pytest.approx(0.5)
    assert ledger.runs[1].cost.delta == pytest.approx(1e-6 * (1 + math.exp(0.25)))
    assert ledger.protected == "persons by subject_id"
    for other in (RECORD, PrivacyUnit.person("stay_id", 1)):
        with pytest.raises(InputError, match="its total protects persons by subject_id"):
            ledger.reserve(PrivacyBudget(0.25, 0.0), "other", other)
        with pytest.raises(InputError, match="its total protects persons by subject_id"):
            shared(path, unit=other)
    gaussian = shared(path.with_name("gaussian.sqlite"), filter="gaussian", unit=four)
    gaussian.reserve(PrivacyBudget(0.1, 1e-6), "four", four)
    assert gaussian.runs[0].event.noise_multiplier == pytest.approx(analytic_gaussian_sigma(0.1, 1e-6) / 4)


def _reserve(path) -> bool:
    try:
        shared(path).reserve(PrivacyBudget(0.25, 0.0), "run")
    except BudgetError:
        return False
    return True


@pytest.mark.slow
def test_processes_at_once_never_exceed_the_total(path):
    with ProcessPoolExecutor(3, mp_context=get_context("spawn")) as pool:
        accepted = list(pool.map(_reserve, [path] * 12))
    assert sum(accepted) == 8
    assert shared(path).left() is None


def killed(path, point: str) -> None:
    """Run until a point in a process of its own, which is killed there."""
    owner = {"open_plan": Ledger, "settle": Reservation, "charge": Ledger}[point]
    ledger, honest = shared(path), getattr(owner, point)

    def late(self, *given, **named):
        if point != "charge" or self.path != path:
            os.kill(os.getpid(), signal.SIGKILL)
        return honest(self, *given, **named)

    setattr(owner, point, late)
    session = opened(ledger, path=path.with_name("run.sqlite"))
    session.charging(["records"], THRESHOLD).pay(PureEvent(0.1))
    session.close()


@pytest.mark.parametrize("point", ["open_plan", "charge", "settle"])
def test_a_run_that_was_killed_keeps_its_reservation(path, point):
    process = get_context("fork").Process(target=killed, args=(path, point))
    process.start()
    process.join()
    assert process.exitcode == -signal.SIGKILL
    ledger = shared(path)
    assert ledger.left().epsilon == pytest.approx(1.25)
    assert [(entry.used, entry.reserved) for entry in ledger.runs] == [(0, 1)]
    opened(ledger).close()


def test_a_shared_ledger_goes_into_other_processes(path):
    run = shared(path).run(label="one")
    copied = pickle.loads(pickle.dumps(run))
    copied.shared.reserve(RUN, "elsewhere")
    assert run.shared.left().epsilon == pytest.approx(1.25)


def test_files_are_known_by_their_content(tmp_path):
    one, two = tmp_path / "a.csv", tmp_path / "b.csv"
    one.write_text("x\n1\n")
    two.write_text("x\n2\n")
    assert file_fingerprint([one, two]) == file_fingerprint([str(two), str(one)]) == file_fingerprint(tmp_path)
    assert file_fingerprint(one) != file_fingerprint(two)
    two.write_text("x\n1\n")
    assert file_fingerprint(one) == file_fingerprint(two) != file_fingerprint([one, two])
    with pytest.raises(InputError, match="no such file"):
        file_fingerprint(tmp_path / "c.csv")
