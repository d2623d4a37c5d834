"""`outboxctl`: the only place that knows click.

A command body parses, calls one library function and renders what came back. Commands are
imported when they are called, so that `outboxctl --help` stays fast.
"""

from __future__ import annotations

import errno
import importlib
import os
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import click

from outbox_connectors.errors import ExitCode, Failed, OutboxError, UsageError
from outbox_pipeline.cli import output
from outbox_pipeline.interruption import PROBLEM, REMEDY, Interruption

if TYPE_CHECKING:
    from outbox_connectors.definition import Definition

# name -> (module:attribute, line in --help). The order is the order of a pipeline's life.
COMMANDS: dict[str, tuple[str, str]] = {
    "init": ("init:init", "Write a commented definition file to start with."),
    "plan": ("provision:plan", "Show what differs between the definition and the live system."),
    "apply": ("provision:apply", "Create what is missing, change what can safely change, prove the way."),
    "destroy": ("provision:destroy", "Remove what apply created, after asking."),
    "render": ("provision:render", "Print the connector's configuration, with the reason of each property."),
    "doctor": ("doctor:doctor", "Check server, privileges, connector and versions for known traps."),
    "connectors": ("connectors:connectors", "Register, inspect and steer connectors."),
    "status": ("status:status", "Say what is the case, why, how long is left, and what to do next."),
    "slots": ("slots:slots", "List every slot of the server and what it costs."),
    "watch": ("watch:watch", "Keep the pipeline alive and under watch."),
    "alerts": ("alerts:alerts", "Print alert rules for Prometheus with this pipeline's names in them."),
    "tail": ("tail:tail", "Print the events that arrive on Kafka, decoded."),
    "send": ("send:send", "Write one event into the outbox."),
    "audit": ("audit:audit_", "Compare the ids of outbox, topics and inbox."),
    "replay": ("replay:replay_", "Publish retained events again, with the same ids."),
    "recover": ("recover:recover_", "Repair a lost slot, a failover or a restore, and prove it by ids."),
    "switch": ("switch:switch_", "Switch a live outbox from the connector to the relay, or back."),
    "prune": ("prune:prune_", "Remove old rows of the outbox that are proven delivered."),
    "relay": ("relay:relay_", "Publish rows of the outbox to Kafka without Connect."),
    "consume": ("consume:consume", "Run a consumer application (module:app)."),
    "inbox": ("inbox:inbox", "Create and inspect a consumer's inbox table."),
    "dead-letters": ("dead_letters:dead_letters", "Look at events that consumers have given up, and decide."),
}


@dataclass(slots=True)
class Invocation:
    """What the global options say, for every command."""

    file: Path
    json: bool
    debug: bool
    _definition: Definition | None = field(default=None, repr=False)

    def definition(self) -> Definition:
        """Load the definition file, once."""
        if self._definition is None:
            from outbox_connectors import loading

            self._definition = loading.load(self.file, os.environ)
        return self._definition


_DEBUG = "--debug shows where it came from"
pass_invocation = click.make_pass_decorator(Invocation)


class LazyGroup(click.Group):
    """A group that imports a command when it is called and knows its help line before."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module, _, attribute = COMMANDS[cmd_name][0].partition(":")
        command = getattr(importlib.import_module(f"{__name__}.{module}"), attribute)
        assert isinstance(command, click.Command)
        return command

    def invoke(self, ctx: click.Context) -> object:
        try:
            return super().invoke(ctx)
        except BrokenPipeError as error:
            # Never stdout, whose reader may leave; click would take it for that and end without a word.
            raise Failed("a connection was closed by its other end", remedy=_DEBUG) from error

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in COMMANDS.items()])


@click.group(
    cls=LazyGroup,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="Exit: 0 ok, 1 failed, 2 usage, 3 different, 4 warning, 5 critical, 6 unreachable, 7 refused.",
)
@click.option(
    "-f",
    "--file",
    type=click.Path(path_type=Path, dir_okay=False),
    envvar="OUTBOX_FILE",
    default=Path("outbox.yaml"),
    show_default=True,
    show_envvar=True,
    help="Definition file.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document on stdout, nothing else.")
@click.option("--debug", is_flag=True, help="Show the traceback of an error.")
@click.version_option(package_name="outbox-pipeline", prog_name="outboxctl")
@click.pass_context
def cli(ctx: click.Context, file: Path, as_json: bool, debug: bool) -> None:
    """Provision, watch and run a transactional outbox: PostgreSQL -> Debezium -> Kafka."""
    ctx.obj = Invocation(file=file, json=as_json, debug=debug)


def _hoisted(arguments: list[str]) -> list[str]:
    """Move --json and --debug to the front, so that they may stand behind the command too."""
    end = arguments.index("--") if "--" in arguments else len(arguments)
    flags = [word for word in arguments[:end] if word in ("--json", "--debug")]
    return [*flags, *(word for word in arguments[:end] if word not in flags), *arguments[end:]]


def _report(error: OutboxError, as_json: bool, code: ExitCode) -> None:
    if as_json:
        document = {"problem": error.problem, "where": error.where, "remedy": error.remedy}
        output.json_document({"error": document, "exit_code": int(code)})
    output.error(str(error))


def _usage(error: click.ClickException) -> UsageError:
    """Say what click says of a wrong command line as everything else is said: in one line."""
    path = error.ctx.command_path if isinstance(error, click.UsageError) and error.ctx else "outboxctl"
    return UsageError(error.format_message().rstrip("."), remedy=f"{path} --help shows how")


def main(argv: list[str] | None = None) -> None:
    """Run `outboxctl` in a process that goes on afterwards, and raise SystemExit with its code."""
    sys.exit(run(sys.argv[1:] if argv is None else argv, Interruption()))


def run(argv: list[str], interruption: Interruption) -> int:
    """Run `outboxctl` and give its exit code: every error becomes one line and a documented code.

    After a Ctrl-C the outcome is "interrupted", whichever error reached us in its place. A command that
    ends by itself on Ctrl-C, as `tail` and `watch` do, keeps its own code.
    """
    arguments = _hoisted(argv)
    # The flags are needed even where click fails before it has parsed them.
    debug, as_json = "--debug" in arguments, "--json" in arguments
    try:
        colour = False if os.environ.get("NO_COLOR") else None
        code = cli.main(arguments, prog_name="outboxctl", standalone_mode=False, color=colour)
    except click.exceptions.Abort:
        return interrupted(as_json=as_json)
    except Exception as error:
        if interruption.came:
            return interrupted(as_json=as_json)
        if debug and not isinstance(error, click.ClickException):
            raise
        return _explain(error, as_json)
    if interruption.came and code:  # something took the interruption for a failure and went on
        return interrupted(as_json=False)  # the document of that failure is out already
    return code if isinstance(code, int) else ExitCode.OK


def interrupted(*, as_json: bool) -> int:
    """Say that the command was broken off, and give the code for it."""
    _report(Failed(PROBLEM, remedy=REMEDY), as_json, ExitCode.FAILED)
    return ExitCode.FAILED


def _spoken(error: Exception) -> Exception:
    """Turn an unexpected error of a driver into one of ours; a driver that is not loaded raised nothing."""
    if "psycopg" in sys.modules:
        import psycopg

        if isinstance(error, psycopg.Error):
            from outbox_pipeline.servers import postgres

            return postgres.failure(error)
    if "confluent_kafka" in sys.modules:
        from confluent_kafka import KafkaException

        if isinstance(error, KafkaException):
            return Failed(error.args[0].str(), where="Kafka", remedy=_DEBUG)
    return error


def _explain(error: Exception, as_json: bool) -> int:
    """Put an error into one line, and give the code for it."""
    if isinstance(error, click.exceptions.NoArgsIsHelpError):
        error.show()
        return ExitCode.USAGE
    if isinstance(error, click.ClickException):
        error = _usage(error)
    error = _spoken(error)
    if isinstance(error, OutboxError):
        _report(error, as_json, error.exit_code)
        return error.exit_code
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EIO, errno.EBADF):
        output.error(f"the result could not be written: {error.strerror}")
    else:
        output.error(f"internal error: {type(error).__name__}: {error}; run again with --debug and report it")
    return ExitCode.FAILED
