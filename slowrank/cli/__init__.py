"""The ``slowrank`` command: a table of names and modules, each imported only when it is called."""

import importlib
import sys
from typing import Any

import typer
import typer.core

# name -> (module:attribute, one-line help). A module holds either a typer app or one command function.
COMMANDS: dict[str, tuple[str, str]] = {
    "init": ("slowrank.cli.init:init", "Write .env and secrets/ for docker compose."),
    "demo": ("slowrank.cli.demo:demo", "Find a simulated straggler, on this machine, in a minute."),
    "up": ("slowrank.cli.up:up", "Run everything in one process with an embedded database."),
    "replay": ("slowrank.cli.replay:replay", "Feed recorded telemetry through the detectors."),
    "backtest": ("slowrank.cli.replay:backtest", "Write the findings that files would have given."),
    "gray": ("slowrank.cli.gray:gray", "Learn how healthy nodes look beside each other."),
    "simulate": ("slowrank.cli.simulate:simulate", "Send a simulated cluster's telemetry to Kafka."),
    "topics": ("slowrank.cli.topics:app", "Create and describe the Kafka topics."),
    "migrate": ("slowrank.cli.migrate:migrate", "Bring the database schema up to date."),
    "exporter": ("slowrank.cli.exporter:app", "Collect this node's telemetry."),
    "streams": ("slowrank.cli.streams:app", "Run the stream workers."),
    "api": ("slowrank.cli.api:app", "Run the HTTP API."),
    "notifier": ("slowrank.cli.notifier:app", "Run the webhook deliverer."),
    "healthcheck": ("slowrank.cli.healthcheck:healthcheck", "Ask one process whether it is well."),
    "findings": ("slowrank.cli.findings:app", "List and handle findings over the API."),
    "lemons": ("slowrank.cli.lemons:lemons", "Name machines that fail again and again."),
    "chronic": ("slowrank.cli.chronic:chronic", "Name GPUs that are a little slow in job after job."),
    "webhook": ("slowrank.cli.webhook:app", "Add, test and inspect webhooks over the API."),
    "key": ("slowrank.cli.key:app", "Create, list and revoke API keys."),
    "audit": ("slowrank.cli.audit:audit", "Check that the audit log was not tampered with."),
    "dlq": ("slowrank.cli.dlq:app", "Look at what could not be read."),
    "config": ("slowrank.cli.config:app", "Check and show the settings."),
    "version": ("slowrank.cli.version:version", "Print the version."),
}

# A module of ours that is missing is a bug, not another role's package.
_OWN = ("slowrank", "exporters", "detectors", "streams", "alerts", "store", "api", "simulator")


class LazyGroup(typer.core.TyperGroup):
    """Knows every command's name and help, and imports a command only to run it."""

    def list_commands(self, ctx: Any) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name not in COMMANDS:
            return None
        module, attribute = COMMANDS[cmd_name][0].split(":")
        found = getattr(importlib.import_module(module), attribute)
        if not isinstance(found, typer.Typer):
            app = typer.Typer(add_completion=False)
            app.command(name=cmd_name)(found)
            found = app
        found.rich_markup_mode = None
        command = typer.main.get_command(found)
        command.name = cmd_name
        return command

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write the table's own words: to ask each command for its help would import them all."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, help_text) for name, (_, help_text) in COMMANDS.items()])


app = typer.Typer(
    cls=LazyGroup,
    no_args_is_help=True,
    add_completion=False,
    # Formatting help with rich takes four times as long as everything else about it.
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
    # Among a frame's variables are passwords and keys.
    pretty_exceptions_show_locals=False,
)


@app.callback()
def _root() -> None:
    """Finds the slow rank of a GPU training job: which, since when, why, at what cost, what to do."""


def main() -> None:
    """Run the command line; where a package of another role is missing it ends with code 2."""
    try:
        app()
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if not package or package in _OWN:
            raise
        typer.secho(
            f"error: this command needs {package}, which is not installed here: this environment is for "
            "another role.\nFor every role, in a checkout of slowrank: pip install '.[all]'",
            err=True,
            fg=typer.colors.RED,
        )
        sys.exit(2)
