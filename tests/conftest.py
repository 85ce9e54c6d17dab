"""What every test needs of the process."""

import sys

import absl.logging
from hypothesis import settings

# The same examples on every run, and no clock: a busy machine is no failure.
settings.register_profile("steady", deadline=None, derandomize=True)
settings.load_profile("steady")

# absl (which dp_accounting imports) closes the stream it found as stderr whenever logging is configured anew, as Hydra
# does; under pytest that stream is the capture's own file. It never closes the process's real one.
absl.logging.get_absl_handler().python_handler.stream = sys.__stderr__
