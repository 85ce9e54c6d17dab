"""What an online service knows besides its history, and its file."""

import json
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from torchdpcate._files import PRIVATE, atomic_path
from torchdpcate.data.schema import TableSchema
from torchdpcate.errors import ReleaseFileError
from torchdpcate.estimators.cate.online.correction import Correction, correction_from
from torchdpcate.nuisance.model import NuisanceModel
from torchdpcate.release.file import DIGEST_KEY, release_digest
from torchdpcate.release.parts import load_nuisances, named_tensors
from torchdpcate.release.statement import PrivacyStatement

STATE_FILE = "state.safetensors"
_FORMAT, _FORMAT_VERSION = "torchdpcate-online", "1"


@dataclass(frozen=True, eq=False)
class ServiceState:
    """What the service knows besides its history. The curator's."""

    run: str
    correction: Correction
    nuisances: NuisanceModel
    schema: TableSchema
    privacy: PrivacyStatement
    scale: float
    columns: tuple[int, ...] | None = None
    counter: str | None = None

    def view(self, x: Tensor) -> Tensor:
        """Return the columns of the covariates that nuisances and f see."""
        return x if self.columns is None else x[:, list(self.columns)]

    def save(self, path: Path) -> None:
        """Write it for its owner alone, as a complete file or not at all."""
        from safetensors.torch import save_file

        facts = {**self.correction.facts(), "nuisances": self.nuisances.config()}
        facts |= {"scale": self.scale, "columns": self.columns, "counter": self.counter}
        metadata = {
            "format": _FORMAT,
            "format_version": _FORMAT_VERSION,
            "run": self.run,
            "facts": json.dumps(facts),
            "schema": json.dumps(self.schema.to_dict()),
            "privacy": json.dumps(self.privacy.to_dict()),
        }
        own = {f"correction.{name}": tensor for name, tensor in self.correction.tensors().items()}
        tensors = {
            name: t.contiguous().clone() for name, t in (own | named_tensors("nuisances", self.nuisances)).items()
        }
        metadata[DIGEST_KEY] = release_digest(metadata, tensors)
        with atomic_path(path, PRIVATE) as temporary:
            save_file(tensors, temporary, metadata=metadata)

    @classmethod
    def load(cls, path: Path) -> "ServiceState":
        """Read it.

        Raises:
            ReleaseFileError: A file that is damaged, changed, or none of a service.
        """
        from safetensors import safe_open

        try:
            with safe_open(path, framework="pt") as file:
                metadata = file.metadata() or {}
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a dict
            if metadata["format"] != _FORMAT or metadata["format_version"] != _FORMAT_VERSION:
                raise ValueError("not of this format")
            if metadata[DIGEST_KEY] != release_digest(metadata, tensors):
                raise ValueError("it does not match its checksum")
            facts = json.loads(metadata["facts"])
            schema = TableSchema.from_dict(json.loads(metadata["schema"]))
            nuisances = load_nuisances(tensors, facts["nuisances"])
            own = {n.removeprefix("correction."): t for n, t in tensors.items() if n.startswith("correction.")}
            columns = None if facts["columns"] is None else tuple(map(int, facts["columns"]))
            domain = schema.domain if columns is None else schema.domain.select(columns)
            correction = correction_from(own, facts, domain, nuisances)
            privacy = PrivacyStatement.from_dict(json.loads(metadata["privacy"]))
            counter = None if facts.get("counter") is None else str(facts["counter"])
            scale = float(facts["scale"])
            return cls(metadata["run"], correction, nuisances, schema, privacy, scale, columns, counter)
        except Exception as error:  # whatever Python raises on forged contents
            raise ReleaseFileError(f"{path}: damaged or changed ({type(error).__name__}: {error})") from error
