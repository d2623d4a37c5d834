"""Delete what a stack, or all of them, left on the disk."""

from __future__ import annotations

import shutil

from local_stack import services
from local_stack.instance import Instance, load
from local_stack.layout import Layout
from local_stack.services import NAMES, Progress


def remove(instance: Instance) -> None:
    """Delete the data of a stopped stack."""
    if instance.postgres_base is not None and instance.postgres_base == instance.layout.outside:
        shutil.rmtree(instance.postgres_base / instance.name, ignore_errors=True)
    if instance.folder.exists():
        shutil.rmtree(instance.folder)


def remove_everything(layout: Layout, progress: Progress) -> None:
    """Stop every stack of this clone and delete all of them, with the programs they share."""
    for name in layout.names():
        instance = load(layout, name)
        with instance.locked():
            services.stop(instance, NAMES, progress)
            remove(instance)
    for folder in (layout.outside, layout.stacks):
        if folder.exists():
            shutil.rmtree(folder)
