"""The program `outboxctl`, also as `python -m outbox_pipeline`.

Apart from the command line so that it imports next to nothing: a Ctrl-C while click and the commands
are still being imported must end like any other.
"""

from __future__ import annotations

import sys

from outbox_connectors.crash_trace import trace_crashes
from outbox_pipeline.interruption import Interruption
from outbox_pipeline.standard_output import outlive_readers


def main() -> None:
    """Run `outboxctl` and exit."""
    trace_crashes()
    interruption = Interruption()
    try:
        interruption.watch()
        outlive_readers()
        from outbox_pipeline import cli

        code = cli.run(sys.argv[1:], interruption)
        interruption.over()
    except BaseException:
        # Outside of a command: while modules are imported, or an error is printed. Not always as
        # KeyboardInterrupt: one that comes in a __set_name__ arrives as a RuntimeError (Python 3.11).
        if not interruption.came:
            raise
        interruption.over()
        code = _interrupted()
    sys.exit(code)


def _interrupted() -> int:
    from outbox_pipeline import cli

    return cli.interrupted(as_json="--json" in sys.argv)


if __name__ == "__main__":
    main()
