"""Find a consumer application by name: `module:attribute`."""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import TypeAlias

from outbox_connectors.errors import OutboxError
from outbox_consumers.consumer import Consumer
from outbox_consumers.durable import DurableInbox
from outbox_consumers.errors import UsageError

Application: TypeAlias = Consumer | DurableInbox


def load(reference: str) -> Application:
    """Import `module` and return its attribute, a Consumer or a DurableInbox.

    Raises UsageError that says which part is wrong. An OutboxError that the module itself raises (a refused
    setting, a handler with a wrong signature) is raised unchanged.
    """
    module_name, colon, attribute = reference.partition(":")
    if not colon or not module_name or not attribute:
        raise UsageError(f"{reference!r} is not module:attribute", remedy="write for example billing:app")
    module = _module(module_name)
    found = _attribute(module, attribute)
    if not isinstance(found, Application):
        raise UsageError(
            f"{reference} is a {type(found).__name__}, neither a Consumer nor a DurableInbox",
            remedy=_hint(module),
        )
    return found


def _module(name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except OutboxError:
        raise
    except ModuleNotFoundError as error:
        # Only the requested name is the caller's mistake; any other module is missing inside that one.
        if error.name is not None and (name == error.name or name.startswith(f"{error.name}.")):
            raise UsageError(
                f"no module named {error.name}", remedy="run the command in its folder, or set PYTHONPATH"
            ) from None
        raise UsageError(f"module {name} needs {error.name}, which is not installed") from error
    except Exception as error:
        raise UsageError(f"module {name} cannot be imported: {type(error).__name__}: {error}") from error


def _attribute(module: ModuleType, path: str) -> object:
    found: object = module
    for name in path.split("."):
        if not hasattr(found, name):
            raise UsageError(f"module {module.__name__} has no {path}", remedy=_hint(module))
        found = getattr(found, name)
    return found


def _hint(module: ModuleType) -> str:
    names = sorted(name for name, value in vars(module).items() if isinstance(value, Application))
    if not names:
        return f"{module.__name__} has no Consumer: write app = Consumer(...)"
    return "the applications in it are " + ", ".join(f"{module.__name__}:{name}" for name in names)
