"""One run of ``torchdpcate train`` that writes down each use of noise before it happens. Usage: whole_run.py FOLDER."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.faults.trainee import JOURNAL, Journal, JournalNoise, journal_steps
from torchdpcate.cli.main import main
from torchdpcate.privacy.noise import NoiseSource

if __name__ == "__main__":
    folder = Path(sys.argv[1])
    journal = Journal(folder / JOURNAL)
    journal.write("imported")
    journal_steps(journal)
    NoiseSource.system = staticmethod(lambda: JournalNoise(journal))  # type: ignore[method-assign]
    words = ["data=dataset1", "data.n=2000", "nuisance.epochs=150", "nuisance.batch_size=64"]
    words += ["second_stage=linear", "mechanism=output"]
    code = main(["train", *words, "trainer.progress=false", f"run_dir={folder / 'run'}"])
    journal.write(f"ended with {code}")
    sys.exit(code)
