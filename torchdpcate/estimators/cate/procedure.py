"""What a learner of effects does with its budget: one composition on all records, or one budget for each block."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import Tensor

from torchdpcate.data.records import CausalData, RecordStream
from torchdpcate.estimators.cate.mechanisms.base import Mechanism
from torchdpcate.estimators.planned_noise import PlannedNoise
from torchdpcate.plan import Plan
from torchdpcate.privacy.budget import PrivacyBudget
from torchdpcate.privacy.guarantee import Guarantee
from torchdpcate.privacy.session import FitSession
from torchdpcate.release.composed import ComposedRelease
from torchdpcate.release.release import FunctionRelease, QueryRelease
from torchdpcate.release.statement import PrivacyStatement

if TYPE_CHECKING:
    from torchdpcate.estimators.cate.online.service import OnlineService

MakeStatement = Callable[[Mechanism | Plan, Guarantee, Mapping[str, Any], set[int]], PrivacyStatement]
"""Makes a privacy statement of a mechanism or a plan, its guarantee, public facts and its own entries in the ledger."""


class Procedure(ABC):
    """Public settings of a learner's fit, and what they refuse."""

    @abstractmethod
    def blocks(self, n: int) -> Mapping[str, Tensor]:
        """Return the positions of the records of each block.

        Args:
            n: Number of records.

        Raises:
            InputError: Settings that could not be fitted.
        """

    @abstractmethod
    def check(self, n: int, mechanism: "str | Mechanism | None") -> None:
        """Refuse a release that could not be made.

        Args:
            n: Number of records.
            mechanism: The mechanism of the release; None takes the default one.

        Raises:
            InputError: Says why.
        """

    @abstractmethod
    def check_stream(self, n: int) -> None:
        """Refuse what a stream of records does not allow.

        Args:
            n: Number of records.

        Raises:
            InputError: Settings that need all records at once.
        """

    @abstractmethod
    def fit(self, records: CausalData | RecordStream, session: FitSession, statement: MakeStatement) -> "Fitted":
        """Learn from records within the domain.

        Args:
            records: All records.
            session: Pays.
            statement: Makes the releases' privacy statements.
        """

    @abstractmethod
    def expected_noise(
        self, n: int, mechanism: "str | Mechanism | None", queries: Tensor | None, residual_scale: float | None
    ) -> PlannedNoise:
        """Return the noise of the effect at a typical covariate; see ``CATELearner.expected_noise``."""


class Fitted(ABC):
    """What a procedure learnt, the curator's, and the releases that can be made of it."""

    @abstractmethod
    def release_function(
        self, mechanism: "str | Mechanism | None", budget: PrivacyBudget | None
    ) -> "FunctionRelease | ComposedRelease":
        """Release the effect function; see ``CATELearner.release_function``."""

    @abstractmethod
    def release_queries(
        self,
        queries: Tensor,
        mechanism: "str | Mechanism | None",
        budget: PrivacyBudget | None,
        include_nuisances: bool,
    ) -> QueryRelease:
        """Release effects at encoded queries within the domain [d, q]; see ``CATELearner.release_queries``."""

    @abstractmethod
    def answer_online(
        self,
        folder: str | Path,
        mechanism: "str | Mechanism",
        budget: PrivacyBudget | None,
        counter: str | Path | None,
    ) -> "OnlineService":
        """Set up a service that answers query by query; see ``CATELearner.answer_online``."""

    @abstractmethod
    def effect(self, x: Tensor) -> Tensor:
        """Return the effects before the noise of a release at encoded covariates, [m]; the curator's."""
