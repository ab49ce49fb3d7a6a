"""``slowrank config``: check the settings and show them, secrets left out."""

import json
import os
import sys
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from slowrank.cli.remote import fail

if TYPE_CHECKING:
    from slowrank.settings import Settings
    from streams.tuning import Tuning

FILE = Path("slowrank.toml")

app = typer.Typer(help="Check and show the settings.", no_args_is_help=True, add_completion=False)


@app.command()
def check() -> None:
    """Read the settings as every process would, and say where each value comes from."""
    settings = load_settings()
    in_file = _toml_names()
    for name, value in settings.redacted().items():
        variable = f"SLOWRANK_{name.upper()}"
        origin = variable if variable in os.environ else "slowrank.toml" if name in in_file else "default"
        typer.echo(f"{name} = {json.dumps(value)}  ({origin})")
    from streams.tuning_file import TABLES

    load_tuning(settings)
    unknown = sorted(in_file - type(settings).model_fields.keys() - set(TABLES))
    if unknown:
        typer.secho(
            f"error: slowrank.toml sets {', '.join(unknown)}, which slowrank does not know; "
            "remove or rename them (`slowrank config show` lists the names)",
            err=True,
        )
        raise typer.Exit(2)


@app.command()
def show(
    redacted: Annotated[
        bool, typer.Option("--redacted", help="The only form there is; said for clarity.")
    ] = True,
) -> None:
    """Print the settings as JSON; secrets show as ***."""
    typer.echo(json.dumps(load_settings().redacted(), indent=2))


@app.command()
def detectors(
    cluster: Annotated[str | None, typer.Option(help="Its name; that of the settings without it.")] = None,
    job: Annotated[str | None, typer.Option(help="Such as 812345; without it, what holds for any.")] = None,
    config: Annotated[Path, typer.Option(help="The file with the tables.")] = FILE,
) -> None:
    """Print each detector's mode and settings as they hold for a cluster and a job, and who says so."""
    from streams.tuning_table import table

    settings = load_settings()
    tuning = load_tuning(settings, config)
    for line in table(tuning, cluster or settings.cluster, job):
        typer.echo(line)


def load_settings(**given: Any) -> "Settings":
    """Return the settings of this process, ``given`` (a command's flags) first.

    When they cannot be read the command ends and says why.
    """
    from pydantic import ValidationError
    from pydantic_settings import SettingsError

    from slowrank.settings import Settings

    try:
        return Settings(**given)
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        why = f"slowrank.toml: {error}"
    except ValidationError as error:
        why = str(error)
    except SettingsError as error:
        why = f'{error}\nA list is written in JSON, such as ["hooks.example.org"].'
    typer.secho(
        f"error: the settings cannot be read: {why}\nFix the named value and run this again.", err=True
    )
    sys.exit(2)


def load_tuning(settings: "Settings", path: Path = FILE) -> "Tuning":
    """Return what ``path`` says of detectors; when it cannot be used the command ends and says why."""
    from alerts.config import FindingConfig
    from streams.tuning import Configs
    from streams.tuning_file import TuningError, read_tuning

    base = Configs(finding=FindingConfig(gpu_hour_price=settings.gpu_hour_price))
    try:
        return read_tuning(path, base)
    except TuningError as error:
        # What stands in the file is shown, and may hold what a terminal would obey.
        fail(str(error))


def _toml_names() -> set[str]:
    try:
        return set(tomllib.loads(FILE.read_text()))
    except OSError:
        return set()
