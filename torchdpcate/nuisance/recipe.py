"""What a user chooses of the nuisances: public settings, and how they become trained nuisances."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from torchdpcate.nuisance.model import NuisanceModel
from torchdpcate.privacy.accounting import EventCount
from torchdpcate.privacy.budget import PrivacyBudget
from torchdpcate.privacy.guarantee import Condition, own_code
from torchdpcate.privacy.session import FitSession

if TYPE_CHECKING:
    from lightning.pytorch import Trainer

    from torchdpcate.data.domain import Domain
    from torchdpcate.data.records import CausalData


class NuisanceRecipe(ABC):
    """Public settings of the nuisances."""

    def conditions(self, trainer: Callable[..., Trainer] | None) -> tuple[Condition, ...]:
        """Return what a guarantee rests on where it rests on these nuisances: nothing but that of a user's own class.

        Args:
            trainer: makes a Lightning Trainer from keyword arguments; None is `default_trainer`.
        """
        return own_code("nuisances", self)

    @abstractmethod
    def check(self, n: int, domain: Domain, budget: PrivacyBudget | None, also: Sequence[EventCount]) -> None:
        """Refuse, before anything is trained or spent, what could not be trained on a block of `n` records.

        Args:
            n: records of the block, public.
            domain: public bounds.
            budget: what the block may spend on nuisances and `also`; None trains without privacy.
            also: other charges on the same block, composed jointly.

        Raises:
            InputError: settings that do not fit.
        """

    @abstractmethod
    def fit(
        self,
        records: CausalData,
        domain: Domain,
        *,
        budget: PrivacyBudget | None,
        also: Sequence[EventCount],
        session: FitSession,
        trainer: Callable[..., Trainer],
        seed: int,
    ) -> NuisanceModel:
        """Return nuisances trained on a block, in float64 on the CPU, frozen.

        Args:
            records: the block.
            domain: public bounds.
            budget: see `check`.
            also: see `check`.
            session: pays before any noise is drawn, and is where noise and sampling come from.
            trainer: makes a Lightning Trainer from keyword arguments.
            seed: public seed of initial weights and (without privacy) batches.

        Raises:
            BudgetError: the block cannot pay.
            NumericalError: training diverged.
        """
