"""Run as `python -m local_stack`; scripts/stack does."""

from __future__ import annotations

import sys

from local_stack.cli import main

sys.exit(main(sys.argv[1:]))
