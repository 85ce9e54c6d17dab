"""Answers online: the curator's service that reveals one noisy function, query by query, for one charge."""

import secrets
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from torchdpcate._files import check_private, reserved
from torchdpcate.data.schema import TableSchema
from torchdpcate.errors import InputError
from torchdpcate.estimators.cate.head import Head
from torchdpcate.estimators.cate.mechanisms.base import Prepared
from torchdpcate.estimators.cate.mechanisms.perturbation import AUDITED, GaussianProcess
from torchdpcate.estimators.cate.mechanisms.worst_pairs import stages_apart
from torchdpcate.estimators.cate.online.path import EXCESS, JITTER, NoisyFunction, Revealed, answer_step
from torchdpcate.estimators.cate.online.state import SERVICE_FILE, ServiceFile, ServiceState, correction_of
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
_AGREE = 1e-6  # of the outcome range, between an answer in the file and the same one worked out anew


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
    revealed before (``SamplePath``). A query always gets the same answer. What was answered is in the service's file
    before an answer leaves (``ServiceFile``), so that neither a crash nor a second process draws new noise for an old
    query; askers of several processes wait for one another.

    Guarantee:
        Certified (epsilon, delta) for any number of queries, chosen adaptively, under the conditions of
        ``GaussianProcess``. Source: theory note ``dp_cate``, row 5; ``docs/guarantees/two_blocks.md``.

    The service is the curator's and trusted: its folder holds f and the noise, and never leaves. Answers may. A
    learner's ``answer_online`` makes it; ``open`` opens it again.

    Args:
        folder: Of the service.
        noise: Draws what is not yet revealed.

    Raises:
        InputError: Its file is missing, damaged or an older one, or the noise has a fixed seed and the service claims
            privacy.
    """

    def __init__(self, folder: Path, noise: NoiseSource) -> None:
        self.folder, self._noise = folder, noise
        self._forget()
        with self._file.exclusive() as database:
            self._catch_up(database)
        if self.privacy.private_noise and not noise.private:
            raise InputError("noise: has a fixed seed, but this service claims privacy; leave it out")

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

        Raises:
            InputError: A second stage without a sensitivity bound, or a folder that is there or cannot be made.
            OSError: The disk has no space for what the service must keep.
            BudgetError: The block cannot pay.
        """
        folder, terms = Path(folder), online_terms(stage, budget)
        law, correction = terms.law, correction_of(stage, nuisances)
        assert isinstance(law, FunctionNoise)
        correction.facts()  # refuses, before anything is paid, a feature map that the service could not read again
        numbers = [*correction.tensors().values(), *named_tensors("nuisances", nuisances).values()]
        try:
            folder.mkdir(mode=0o700, parents=True)
        except OSError as error:
            raise InputError(f"folder = {folder}: cannot be made ({error.strerror}); choose another") from None
        try:
            # what could not be kept is not paid for
            with reserved(folder, _ROOM + 2 * sum(tensor.numel() * tensor.element_size() for tensor in numbers)):
                session.pay(law.event, terms.guarantee.level)
        except BaseException:
            folder.rmdir()
            raise
        state = ServiceState(secrets.token_hex(16), correction, nuisances, schema, statement(terms), law.scale)
        ServiceFile(folder).create(state)
        return cls(folder, session.noise)

    @classmethod
    def open(cls, folder: str | Path, noise: NoiseSource | None = None) -> "OnlineService":
        """Take up the service of a folder.

        Args:
            folder: Where ``create`` made it.
            noise: Where new noise comes from; None takes the operating system's entropy.

        Raises:
            InputError: No service there, a folder that others can read, a file that is damaged or an older one, or
                noise with a fixed seed for a service that claims privacy.
        """
        folder = Path(folder)
        if not (folder / SERVICE_FILE).is_file():
            raise InputError(f"folder = {folder}: no online service in it")
        check_private(folder)
        return cls(folder, noise or NoiseSource.system())

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
                answered then; or the service's file is damaged or an older one.
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
        places = torch.tensor(list({key: i for i, key in enumerate(keys) if key not in self._answers}.values()))
        try:
            for part in x[places].split(_BATCH):
                with self._file.exclusive() as database:
                    self._catch_up(database)
                    new = [i for i, row in enumerate(part.numpy()) if row.tobytes() not in self._answers]
                    if new:
                        self._answer_new(database, part[new])
        except OSError as error:
            self._forget()
            raise InputError(
                f"{self.folder}: the service's file cannot be written ({error.strerror}), so nothing was answered; "
                "free space on the disk and ask again"
            ) from error
        except BaseException:
            self._forget()  # what is in memory may be ahead of the disk
            raise
        return self._answers

    def _answer_new(self, database: sqlite3.Connection, x: Tensor) -> None:
        """Reveal the path at new queries, write it down, and only then keep the answers."""
        lifted = self._lift(x)
        revealed, total = self._function.reveal(lifted)
        answers = self._noise.released(self._finish(x, lifted, total))
        columns = (revealed.values[:, 0], revealed.residual, revealed.retained.double(), total[:, 0], answers)
        self._file.append(database, torch.cat([x, torch.stack(columns, 1)], 1).numpy())
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
        """Begin with nothing in memory; the next question reads the file anew."""
        self._file, self._answers = ServiceFile(self.folder), dict[bytes, float]()

    def _catch_up(self, database: sqlite3.Connection) -> None:
        """Take up what was written since, by this or by other processes."""
        lines = self._file.news(database)
        try:
            if lines and isinstance(lines[0], str):
                self._state, lines = ServiceState.of_lines(*lines[:2]), lines[2:]
                self._function = NoisyFunction(self._state.correction, self._state.scale, self._noise)
            q = self.schema.domain.dimension
            rows = torch.from_numpy(np.frombuffer(b"".join(lines), dtype="<f8").reshape(-1, q + 5).copy())
            for part in rows.split(_BATCH) if len(rows) else ():
                x = part[:, :q]
                lifted, (values, residual, kept, total, answers) = self._lift(x), part[:, q:].unbind(1)
                tolerance = _AGREE * self.schema.domain.outcome_range
                if not torch.allclose(self._finish(x, lifted, total[:, None]), answers, 0, tolerance):
                    raise ValueError("its answers are not those of its state")
                self._function.path.restore(lifted, Revealed(values[:, None], residual, kept == 1))
                self._keep(x, answers)
        except Exception as error:  # whatever Python raises on forged contents
            raise self._file.damaged(error) from error

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
