"""The task ``policy_selection``: from records to a released policy of a public library."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from hydra.utils import instantiate
from omegaconf import DictConfig, OmegaConf
from torch import Tensor

from torchdpcate._files import PRIVATE, atomic_path
from torchdpcate._text import spreadsheet_cell
from torchdpcate.candidates.library import PolicyLibrary
from torchdpcate.cli.task import Figures, Measure, TaskSpec
from torchdpcate.data.schema import TableSchema
from torchdpcate.data.study import Study
from torchdpcate.errors import InputError
from torchdpcate.estimators.planned_noise import shown
from torchdpcate.evaluation.curator_figures import ESTIMATED, bars_figure
from torchdpcate.privacy.budget import PrivacyBudget
from torchdpcate.release.rule import SCORING, PolicyRelease

if TYPE_CHECKING:
    import pandas as pd

    from torchdpcate.estimators.selection.selector import PolicySelector

_SURE = 0.95  # probability of the sentence about the choice
_TABLE_FILE = "policies.csv"
_MOST_FIGURES = 12
_LONGEST = 60  # letters of a file's name in a summary


class Policies(TaskSpec):
    """Choices of a policy, compared by what the choice is expected to come to."""

    heading = "Choices of a policy side by side"
    note = "What the choice is expected to come to by its exact law; without a known truth regret is a dash."
    settings = ("nuisance_guarantee", "policies")
    measures = (
        Measure(
            key="regret_expected",
            title="regret",
            note="True mean outcome lost against the library's best policy, expected of the choice: mean ± standard "
            "error over runs. Non-private: the policy of the best estimate.",
            references={"regret_nonprivate": "non-private", "regret_uniform": "uniform choice"},
        ),
        Measure(
            key="value_expected",
            title="value",
            note="Mean outcome if the policy decided, estimated by the same doubly robust scores, expected of the "
            "choice: mean ± standard error over runs.",
            references={"value_nonprivate": "non-private", "value_uniform": "uniform choice"},
        ),
    )
    numbers = ("regret", "value", "estimated_regret", "spread")
    also_shown: ClassVar = {name: f"unreleased: {name} of the policy" for name in ("value", "regret")}
    study: Study
    learner: PolicySelector
    release: PolicyRelease

    def make(self, budget: PrivacyBudget | None, **rest: Any) -> PolicySelector:
        """Return the selector; see the class above."""
        config, schema = self.config, self.study.schema
        # Before the selector, for a mistake in it is answered without scikit-learn, which the selector imports.
        library = make_library(config, schema)
        from torchdpcate.estimators.selection.selector import PolicySelector

        return PolicySelector(schema, budget, policies=library, **rest)

    def size(self) -> int:
        """Return more than the letters of the library, once it is made."""
        library = getattr(self.learner, "library_", None)
        return 0 if library is None else len(json.dumps(library.config()))

    def choices(self) -> dict[str, str | None]:
        """Return the choices of groups, the scores that public facts picked, and the name of a file of policies."""
        path = self.config.policies.path
        picked = {"nuisance_guarantee": self.learner.nuisances().guarantee}
        return (
            super().choices() | picked | ({} if path is None else {"policies": os.path.basename(str(path))[:_LONGEST]})
        )

    def results(self) -> dict[str, Any]:
        """Return value, and known regret, of the release, its expectation, a uniform and the best choice."""
        table, chosen, best = self._table, self._chosen, self._table["utility"].argmax()
        expected = {name: table["probability"] @ table[name] for name in ("value", "regret") if name in table}
        found = {
            name: float(value)
            for column, mean in expected.items()
            for name, value in {
                column: table[column][chosen],
                f"{column}_expected": mean,
                f"{column}_uniform": table[column].mean(),
                f"{column}_nonprivate": table[column][best],
            }.items()
        }
        estimated = self.study.domain.direction * float(table["value"][best] - expected["value"])
        return {
            "policy": self.release.name,
            "clip": self.learner.settings_.get("clip"),
            "spread": self.learner.range_sensitivity_,
            **found,
            "estimated_regret": estimated,
        }

    def write(self, summary: Mapping[str, Any]) -> Figures:
        """Write what the curator knows of each policy, and return its figure."""
        table, folder = self._table, self.folder / "curator"
        with self.attempt(f"curator/{_TABLE_FILE}"), atomic_path(folder / _TABLE_FILE, PRIVATE) as temporary:
            table.assign(policy=table["policy"].map(spreadsheet_cell)).to_csv(temporary, index=False)
        best = table.sort_values("utility", ascending=False, kind="stable")
        lost, released = (best["value"] - best["value"].iloc[0]).abs(), {self._chosen: "released: "}
        rows = zip(best["policy"], lost, best.index, strict=True)
        names = [f"{released.get(k, '')}{name}, {loss:.3g} lost" for name, loss, k in rows]
        chances, label = (100 * best["probability"]).tolist(), "chance of being chosen, %"
        return {"policies.png": lambda: bars_figure(names, chances, label, title=ESTIMATED)}

    def closing(self, summary: Mapping[str, Any]) -> list[str]:
        """Return the policy's name, where its scores came from, and how far it may be behind by chance."""
        learner, public = self.learner, self.learner.settings_
        clip = f", clipped at {shown(public['clip'])}" if "clip" in public else ", unclipped"
        assert learner.mechanism_ is not None
        behind = learner.mechanism_.behind(len(learner.library_), _SURE) / learner.sizes_[SCORING]
        return [
            f"policy: {self.release.title}",
            f"scores: {public['nuisance_guarantee']}{clip}; with probability {_SURE:g} its estimated mean outcome is "
            f"within {shown(behind)} (outcome units) of the library's best",
        ]

    @property
    def mechanism_name(self) -> str:
        """See ``TaskSpec``: the one that the scores decide on."""
        return self.learner.chance.name

    @property
    def _chosen(self) -> int:
        return self.learner.library_.names.index(self.release.name)

    @cached_property
    def _table(self) -> pd.DataFrame:
        """What the curator knows of each policy: U, estimated value, chance, and the true regret where known."""
        import pandas as pd

        selector = self.learner
        assert selector.mechanism_ is not None
        scores = selector.utilities_
        table = {
            "policy": list(selector.library_.names),
            "utility": scores.numpy(),
            "value": (
                self.study.domain.direction * scores / (selector.mass_ or selector.sizes_[SCORING]) + selector.baseline_
            ).numpy(),
            "probability": selector.mechanism_.probabilities(scores).numpy(),
        }
        gains = self._true_gains()
        return pd.DataFrame(table if gains is None else {**table, "regret": (gains.max() - gains).numpy()})

    def _true_gains(self) -> Tensor | None:
        """Return the true gain of each policy in mean outcome over treating no one, [M]; None where it is not known.

        At the records' covariates, or, where the truth is known at the queries alone, there.
        """
        from torchdpcate.estimators.selection.scores import utilities

        study, library = self.study, self.learner.library_
        if len(library.families[0].actions) > 2:
            return None
        effect = None if study.truth is None else study.truth(study.records.x)
        x = study.queries if effect is None else study.records.x
        effect = study.effect if effect is None else effect
        if x is None or effect is None:
            return None
        gains = study.domain.direction * effect
        return utilities(torch.stack([torch.zeros_like(gains), gains], dim=1), library, x) / len(x)


def make_library(config: DictConfig, schema: TableSchema) -> PolicyLibrary:
    """Return the policies of a configuration: those of ``policies.path``, or what the group makes of public facts.

    Args:
        config: The composed configuration.
        schema: Columns and public bounds.

    Raises:
        InputError: No such file, or no library.
    """
    if config.policies.path is not None:
        return PolicyLibrary.of(Path(str(config.policies.path)), _modules(config.policies.allow))
    return PolicyLibrary.of(instantiate(config.policies.make)(schema))


def _modules(allow: Any) -> list[str]:
    """Return the modules whose functions a policies file may name."""
    if not OmegaConf.is_list(allow) or not all(isinstance(name, str) for name in allow):
        raise InputError(f"policies.allow = {allow}: give a list of names of modules, as policies.allow=[guidelines]")
    return list(allow)
