"""Delete the files of a stack. Run as a program (scripts/clean), it deletes all stacks and the downloads."""

from __future__ import annotations

import shutil
import sys
import time

from local_stack import services
from local_stack.errors import StackError
from local_stack.instance import Instance, file_lock, load
from local_stack.layout import Layout
from local_stack.services import NAMES, ProgressLog


def remove(instance: Instance) -> None:
    """Delete the data of a stopped stack, and the folder outside the clone if no other stack uses it."""
    if instance.folder.exists():
        shutil.rmtree(instance.folder)
    layout = instance.layout
    shutil.rmtree(layout.outside / instance.name, ignore_errors=True)
    with file_lock(layout.outside_lock):
        others = (load(layout, name, damaged=True) for name in layout.names())
        if layout.outside.exists() and not any(other.postgres_base == layout.outside for other in others):
            shutil.rmtree(layout.outside)


def remove_everything(layout: Layout, progress: ProgressLog) -> None:
    """Stop every stack of this clone and delete all of them, with the programs they share."""
    for name in layout.names():
        instance = load(layout, name, damaged=True)
        with instance.locked():
            services.stop(instance, NAMES, progress)
            remove(instance)
    for folder in (layout.outside, layout.stacks):
        if folder.exists():
            shutil.rmtree(folder)


def main() -> int:
    """Remove everything. Reports a failure in one line."""
    try:
        remove_everything(Layout(), ProgressLog(sys.stdout, time.monotonic()))
    except (StackError, OSError) as error:
        print(f"clean: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
