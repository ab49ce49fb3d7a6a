"""The ``slowrank`` command: a table of names and modules, each imported only when it is called."""

import importlib
import sys
from typing import Annotated, Any

import typer
import typer.core

# name -> (module:attribute, one-line help). A module holds either a typer app or one command function.
COMMANDS: dict[str, tuple[str, str]] = {
    "init": ("cli.admin.init:init", "Write .env and secrets/ for docker compose."),
    "demo": ("cli.run.demo:demo", "Find a simulated straggler, on this machine, in a minute."),
    "up": ("cli.run.up:up", "Run everything in one process with an embedded database."),
    "replay": ("cli.files.replay:replay", "Run recorded telemetry through the detectors."),
    "backtest": ("cli.files.replay:backtest", "Write the findings of recorded telemetry."),
    "hang": ("cli.files.hang:hang", "Name the ranks that a hung job waits for."),
    "gray": ("cli.files.gray:gray", "Fit the model of healthy nodes."),
    "simulate": ("cli.files.simulate:simulate", "Send a simulated cluster's telemetry to Kafka."),
    "topics": ("cli.admin.topics:app", "Create and describe the Kafka topics."),
    "migrate": ("cli.admin.migrate:migrate", "Migrate the database schema."),
    "exporter": ("cli.run.exporter:app", "Collect this node's telemetry."),
    "streams": ("cli.run.streams:app", "Run the stream workers."),
    "api": ("cli.run.api:app", "Run the HTTP API."),
    "notifier": ("cli.run.notifier:app", "Run the notifier, which delivers webhooks."),
    "healthcheck": ("cli.run.healthcheck:healthcheck", "Check the health of one process."),
    "findings": ("cli.remote.findings:app", "List and handle findings over the API."),
    "lemons": ("cli.remote.lemons:lemons", "List machines that fail repeatedly."),
    "chronic": ("cli.remote.chronic:chronic", "List GPUs that are slightly slow in many jobs."),
    "silence": ("cli.remote.silence:app", "Add, list and expire silences over the API."),
    "inhibition": ("cli.remote.inhibition:app", "Hold findings back while another explains them."),
    "webhook": ("cli.remote.webhook:app", "Add, test and inspect webhooks over the API."),
    "key": ("cli.remote.key:app", "Create, list and revoke API keys."),
    "audit": ("cli.remote.audit:app", "Verify and list the audit log."),
    "doctor": ("cli.admin.doctor:doctor", "Check what is configured, reachable and blind."),
    "dlq": ("cli.admin.dlq:app", "Inspect dead letters: messages that could not be read."),
    "config": ("cli.admin.config:app", "Check and show the settings."),
    "version": ("cli.admin.version:version", "Print the version."),
}

# A missing module of slowrank is a bug, not a package of another role.
_OWN = ("slowrank", "cli", "exporters", "detectors", "streams", "alerts", "store", "api", "simulator")


class LazyGroup(typer.core.TyperGroup):
    """Lists commands from the table, and imports a command only to run it."""

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
        """Write the help of the table: reading it from each command would import them all."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, help_text) for name, (_, help_text) in COMMANDS.items()])


app = typer.Typer(
    cls=LazyGroup,
    no_args_is_help=True,
    # Measured: formatting help with rich takes four times as long as the rest of --help.
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
    # Local variables include passwords and keys.
    pretty_exceptions_show_locals=False,
)


def _print_version(wanted: bool) -> None:
    if wanted:
        from slowrank import __version__

        typer.echo(f"slowrank {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool,
        typer.Option("--version", help="Print the version.", callback=_print_version, is_eager=True),
    ] = False,
) -> None:
    """Find the slow rank of a GPU training job: which, since when, why, at what cost, what to do."""


def main() -> None:
    """Run the command line; exit with code 2 where a package of another role is missing."""
    try:
        app()
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if not package or package in _OWN:
            raise
        typer.secho(
            f"error: this command needs {package}, which is not installed: {sys.prefix} has the packages of "
            "other commands only, as that of `make demo` has.\nFor all, in a checkout of slowrank: "
            f"{sys.executable} -m pip install ./slowrank '.[all]'",
            err=True,
            fg=typer.colors.RED,
        )
        sys.exit(2)
