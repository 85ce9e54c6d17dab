"""What every test needs of the process."""

import sys

import absl.logging

# absl (which dp_accounting imports) closes the stream it found as stderr whenever logging is configured anew, as Hydra
# does; under pytest that stream is the capture's own file. It never closes the process's real one.
absl.logging.get_absl_handler().python_handler.stream = sys.__stderr__
