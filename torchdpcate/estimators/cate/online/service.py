"""Answers online: the curator's service that reveals one noisy function, query by query, for one charge."""

import os
import secrets
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from torchdpcate._files import check_private, reserved
from torchdpcate.data.schema import TableSchema
from torchdpcate.errors import InputError, NumericalError, ReleaseFileError
from torchdpcate.estimators.cate.head import Head
from torchdpcate.estimators.cate.mechanisms.base import Prepared
from torchdpcate.estimators.cate.mechanisms.perturbation import AUDITED, GaussianProcess
from torchdpcate.estimators.cate.mechanisms.worst_pairs import stages_apart
from torchdpcate.estimators.cate.online.history import Counter, History
from torchdpcate.estimators.cate.online.path import EXCESS, JITTER, NoisyFunction, Revealed, answer_step
from torchdpcate.estimators.cate.online.state import STATE_FILE, Correction, ServiceState, correction_of
from torchdpcate.fit.nuisances import NuisanceModel
from torchdpcate.heads.stage import FittedStage
from torchdpcate.laws import FunctionNoise
from torchdpcate.privacy.budget import PrivacyBudget
from torchdpcate.privacy.charge import Charge, Purpose
from torchdpcate.privacy.noise import NoiseSource
from torchdpcate.privacy.session import FitSession
from torchdpcate.privacy.worst_case import Game, Target, function_evidence, worst_case
from torchdpcate.release.parts import named_tensors
from torchdpcate.release.release import QueryRelease
from torchdpcate.release.statement import PrivacyStatement

_BATCH = 4_096  # answers worked out at once
_ROOM = 1 << 20  # bytes of a service besides its tensors
_AGREE = 1e-6  # of the outcome range, between an answer in the history and the same one worked out anew


def online_terms(stage: FittedStage, budget: PrivacyBudget) -> Prepared:
    """Return what a service costs and what it promises, for a fitted stage.

    Raises:
        InputError: A second stage without a sensitivity bound.
    """
    mechanism = GaussianProcess()
    head = Head.of(mechanism.fitted(stage))
    law = mechanism.law(head, budget, EXCESS)
    guarantee = mechanism.guarantee(stage, budget, 0).resting_on(stage.conditions)
    return Prepared(law, head, budget, guarantee, mechanism.public(head, law))


class OnlineService:
    r"""Answers g0(x) + f(x) + s u(x), clipped to [-R, R], at any queries, as often as wanted, for one charge.

    The noise u is one path of a Gaussian process, revealed as queries come; each has the law given all that was
    revealed before (``SamplePath``). A query always gets the same answer. The history is on the disk before an
    answer leaves (``history``), so that neither a crash nor a second process draws new noise for an old query;
    askers of several processes wait for one another.

    Guarantee:
        Certified (epsilon, delta) for any number of queries, chosen adaptively, under the conditions of
        ``GaussianProcess``. Source: theory note ``dp_cate``, row 5; ``docs/guarantees/two_blocks.md``.

    The service is the curator's and trusted: its folder holds f and the noise, and never leaves. Answers may. A
    learner's ``answer_online`` makes it; ``open`` opens it again.

    Args:
        folder: Of the service.
        state: What the folder holds: the function, the noise's law and the statement.
        noise: Draws what is not yet revealed.
    """

    def __init__(self, folder: Path, state: ServiceState, noise: NoiseSource) -> None:
        self.folder, self._state, self._noise = folder, state, noise
        self._forget()

    @classmethod
    def create(
        cls,
        folder: str | Path,
        stage: FittedStage,
        nuisances: NuisanceModel,
        schema: TableSchema,
        *,
        budget: PrivacyBudget,
        session: FitSession,
        statement: Callable[[Prepared], PrivacyStatement],
        counter: str | Path | None = None,
    ) -> "OnlineService":
        """Pay once, and set up a service in a new folder.

        Args:
            folder: Made here; it must not exist.
            stage: The fitted second stage, the curator's.
            nuisances: Trained nuisances, paid for, on the CPU.
            schema: Columns and public bounds.
            budget: What the service may spend of the second-stage block's budget.
            session: Pays, and draws the noise.
            statement: Makes the privacy statement of the answers, after the charge.
            counter: File outside the folder by which a folder that was copied or put back is recognised; it must not
                exist. With None nothing recognises it, see ``docs/guarantees/two_blocks.md``.

        Raises:
            InputError: A second stage without a sensitivity bound, or a folder or counter that is there or cannot be
                made.
            OSError: The disk has no space for what the service must keep.
            BudgetError: The block cannot pay.
        """
        folder, terms, run = Path(folder), online_terms(stage, budget), secrets.token_hex(16)
        law, counter = terms.law, None if counter is None else os.path.realpath(counter)
        assert isinstance(law, FunctionNoise)
        _refuse_counter(counter, run, folder)
        correction = correction_of(stage, nuisances)
        correction.facts()  # refuses, before anything is paid, a feature map that the service could not read again
        try:
            folder.mkdir(mode=0o700, parents=True)
        except OSError as error:
            raise InputError(f"folder = {folder}: cannot be made ({error.strerror}); choose another") from None
        try:
            # what could not be kept is not paid for
            with reserved(folder, _size(correction, nuisances)):
                session.pay(law.event, terms.guarantee.level)
        except BaseException:
            folder.rmdir()
            raise
        state = ServiceState(run, correction, nuisances, schema, statement(terms), law.scale, counter)
        _history(folder, state).create()
        state.save(folder / STATE_FILE)  # last: a folder without it is no service
        return cls(folder, state, session.noise)

    @classmethod
    def open(cls, folder: str | Path, noise: NoiseSource | None = None) -> "OnlineService":
        """Take up the service of a folder.

        Args:
            folder: Where ``create`` made it.
            noise: Where new noise comes from; None takes the operating system's entropy.

        Raises:
            InputError: No service there, a folder that others can read, or noise with a fixed seed for one that claims
                privacy.
            ReleaseFileError: Its state or its history is damaged, changed, or of another run.
        """
        folder, noise = Path(folder), noise or NoiseSource.system()
        if not (folder / STATE_FILE).is_file():
            raise InputError(f"folder = {folder}: no online service in it")
        check_private(folder)
        state = ServiceState.load(folder / STATE_FILE)
        if state.privacy.private_noise and not noise.private:
            raise InputError("noise: has a fixed seed, but this service claims privacy; leave it out")
        service = cls(folder, state, noise)
        with service._history.lock:
            service._catch_up()
        return service

    @property
    def privacy(self) -> PrivacyStatement:
        """The privacy statement of all answers together."""
        return self._state.privacy

    @property
    def schema(self) -> TableSchema:
        """Columns and public bounds."""
        return self._state.schema

    @property
    def requested(self) -> int:
        """Number of different queries answered so far, as far as this object knows."""
        return len(self._answers)

    def answer(self, X: Any) -> np.ndarray:
        """Return the private effects at X, float64 [m], in outcome units.

        Args:
            X: Covariates [m, q]: a frame with the schema's columns, or encoded columns.

        Raises:
            InputError: Wrong columns, missing values, points outside the domain, or a disk that is full; nothing is
                answered then.
            ReleaseFileError: The history is damaged, changed or of another run.
        """
        x = self.schema.within(self.schema.matrix(X, "query"), "query") + 0.0  # there is one zero
        keys = [row.tobytes() for row in x.numpy()]
        known = self._answers
        if not known.keys() >= set(keys):
            known = self._ask(x, keys)
        return np.array([known[key] for key in keys], dtype=np.float64)

    def answer_tensor(self, X: Any) -> Tensor:
        """Return ``answer`` as a tensor, [m]."""
        return torch.from_numpy(self.answer(X))

    def release(self, X: Any) -> QueryRelease:
        """Return the answers at X as a release for readers, with their public noise scales."""
        answers = self.answer_tensor(X)
        x = self.schema.matrix(X, "query") + 0.0
        scales = torch.cat([self._function.noise_scales(self._lift(part)) for part in x.split(_BATCH)])
        head = self._state.correction.facts()
        return QueryRelease(x, answers, self.schema, self.privacy, scales, head=head)

    def _ask(self, x: Tensor, keys: list[bytes]) -> dict[bytes, float]:
        """Return all answers so far, after those to these queries are among them."""
        try:
            with self._history.lock:
                self._catch_up()
                places = {key: i for i, key in enumerate(keys) if key not in self._answers}
                new = x[list(places.values())]
                for part in new.split(_BATCH):
                    self._answer_new(part)
                return self._answers
        except OSError as error:
            self._forget()
            raise InputError(
                f"{self.folder}: the history cannot be written ({error.strerror}), so nothing was answered; "
                "free space on the disk and ask again"
            ) from error
        except BaseException:
            self._forget()  # what is in memory may be ahead of the disk
            raise

    def _answer_new(self, x: Tensor) -> None:
        """Reveal the path at new queries, write it down, and only then keep the answers."""
        lifted = self._lift(x)
        revealed, total = self._function.reveal(lifted)
        answers = self._noise.released(self._finish(x, lifted, total))
        columns = (revealed.values[:, 0], revealed.residual, revealed.retained.double(), total[:, 0], answers)
        self._history.append(torch.cat([x, torch.stack(columns, 1)], 1).numpy())
        self._keep(x, answers)

    def _finish(self, x: Tensor, lifted: Tensor, total: Tensor) -> Tensor:
        """Return the answers, rounded to the public grid and clipped, [b]."""
        domain = self.schema.domain
        with torch.no_grad():
            effect = self._state.nuisances.effect(x) + self._function.value(lifted, total)[:, 0]
        bound, step = domain.outcome_range, answer_step(domain, self._state.scale)
        return (torch.round(effect / step) * step).clamp(-bound, bound)

    def _lift(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            return self._state.correction.lift(x)

    def _keep(self, x: Tensor, answers: Tensor) -> None:
        self._answers.update(zip((row.tobytes() for row in x.numpy()), answers.tolist(), strict=True))

    def _forget(self) -> None:
        """Begin with nothing in memory; the next question reads the history anew."""
        self._history = _history(self.folder, self._state)
        self._function = NoisyFunction(self._state.correction, self._state.scale, self._noise)
        self._answers: dict[bytes, float] = {}

    def _catch_up(self) -> None:
        """Take up what was answered since, by this or by other processes."""
        rows = torch.from_numpy(self._history.new_rows().copy())
        q = self.schema.domain.dimension
        for part in rows.split(_BATCH) if len(rows) else ():
            x, (values, residual, kept, total, answers) = part[:, :q], part[:, q:].unbind(1)
            lifted = self._lift(x)
            if not torch.allclose(self._finish(x, lifted, total[:, None]), answers, 0, self._tolerance):
                raise ReleaseFileError(f"{self.folder}: its answers are not those of its state; nothing is answered")
            try:
                self._function.path.restore(lifted, Revealed(values[:, None], residual, kept == 1))
            except NumericalError as error:
                raise ReleaseFileError(f"{self.folder}: {error}; nothing is answered") from None
            self._keep(x, answers)

    @property
    def _tolerance(self) -> float:
        return _AGREE * self.schema.domain.outcome_range

    @worst_case(
        "online",
        attacks=[Target(Charge(Purpose.RELEASE, GaussianProcess.name), {"answers": "online"})],
        pair="one treated record apart from all others, its outcome at either end; requested beside it, then there",
    )
    @staticmethod
    def worst_neighbours(budget: PrivacyBudget) -> Game:
        """Return the attack on them."""
        stages = stages_apart(ridge=0.1)
        terms, datasets = online_terms(stages[0], budget), [correction_of(stage) for stage in stages]
        law = terms.law
        assert isinstance(law, FunctionNoise)
        queries = AUDITED.flip(0)
        shift = stages[1].correction(queries) - stages[0].correction(queries)
        covariance = stages[0].covariance(queries, queries) + JITTER * torch.eye(len(queries), dtype=torch.float64)

        def draw(dataset: int, runs: int, noise: NoiseSource) -> Tensor:
            function, answers = NoisyFunction(datasets[dataset], law.scale, noise), []
            for lifted in datasets[dataset].lift(queries).split(1):
                answers.append(function.value(lifted, function.reveal(lifted, runs)[1]))
            return torch.cat(answers).T

        return Game(draw, law.event, terms.guarantee, function_evidence(shift, covariance))


def _size(correction: Correction, nuisances: NuisanceModel) -> int:
    """Return more bytes than a service's state and its first answers take."""
    tensors = [*correction.tensors().values(), *named_tensors("nuisances", nuisances).values()]
    return _ROOM + 2 * sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def _history(folder: Path, state: ServiceState) -> History:
    counter = None if state.counter is None else Counter(Path(state.counter), state.run, folder)
    return History(folder, state.run, state.schema.domain.dimension + 5, counter)


def _refuse_counter(path: str | None, run: str, folder: Path) -> None:
    """Refuse, before anything is paid, a counter that could not be made."""
    if path is None:
        return
    Counter(Path(path), run, folder)
    if os.path.lexists(path) or not os.access(os.path.dirname(path), os.W_OK):
        raise InputError(f"counter = {path}: exists already, or its folder cannot be written to; choose another")
