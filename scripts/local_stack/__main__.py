"""Run as `python -m local_stack`; scripts/stack does."""

from __future__ import annotations

import sys

try:
    from local_stack.cli import main

    code = main(sys.argv[1:])
except KeyboardInterrupt:  # Ctrl-C during the imports
    code = 130
sys.exit(code)
