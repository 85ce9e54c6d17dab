"""Imported by the server from which trainees are forked: what each would load and work out is there already."""

import tempfile
from pathlib import Path

import torch

from tests.faults.trainee import JOURNAL, Journal, train

torch.set_num_threads(1)  # a fork would lose the others
with tempfile.TemporaryDirectory() as folder:
    train(Path(folder), Journal(Path(folder) / JOURNAL))
