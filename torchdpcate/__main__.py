"""``python -m torchdpcate``: the program ``torchdpcate``."""

import sys

from torchdpcate.cli.main import main

sys.exit(main())
