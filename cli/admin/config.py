"""``slowrank config``: check the settings and show them, secrets left out."""

import json
import os
import sys
import tomllib
from collections.abc import Iterable
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cli.remote.client import fail

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails

    from slowrank.settings import Settings
    from streams.config.settings import Tuning

FILE = Path("slowrank.toml")

# difflib ratio from which a variable counts as a misspelt setting; chosen: one letter of twelve or more.
_MISSPELT = 0.92

app = typer.Typer(help="Check and show the settings.", no_args_is_help=True, add_completion=False)


@app.command()
def check() -> None:
    """Print each setting with its origin, as every process reads it."""
    settings = load_settings()
    in_file = set(_names_in(FILE))
    for name, value in settings.redacted().items():
        variable = f"SLOWRANK_{name.upper()}"
        origin = variable if variable in os.environ else "slowrank.toml" if name in in_file else "default"
        typer.echo(f"{name} = {json.dumps(value)}  ({origin})")
    load_tuning(settings)


@app.command()
def show(
    redacted: Annotated[
        bool, typer.Option("--redacted", help="No effect: secrets are always redacted.")
    ] = True,
) -> None:
    """Print the settings as JSON; secrets show as ***."""
    typer.echo(json.dumps(load_settings().redacted(), indent=2))


@app.command()
def detectors(
    cluster: Annotated[
        str | None, typer.Option(help="Cluster name; by default that of the settings.")
    ] = None,
    job: Annotated[
        str | None, typer.Option(help="Job id, such as 812345; by default what holds for any job.")
    ] = None,
    config: Annotated[Path, typer.Option(help="File with the detector tables.")] = FILE,
) -> None:
    """Print each detector's mode and settings for a cluster and a job, with the table each comes from."""
    from streams.config.table import table

    settings = load_settings()
    tuning = load_tuning(settings, config)
    for line in table(tuning, cluster or settings.cluster, job):
        typer.echo(line)


def load_settings(**given: Any) -> "Settings":
    """Return the settings of this process; ``given`` (a command's flags) take precedence.

    Exits with the reason when they cannot be read.
    """
    from pydantic import ValidationError
    from pydantic_settings import SettingsError

    from slowrank.settings import Settings

    try:
        settings = Settings(**given)
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        why = f" slowrank.toml: {error}"
    except ValidationError as error:
        problems = ((_named(e["loc"]), _said(e)) for e in error.errors())
        why = "".join(f"\n  {name}: {message}" for name, message in problems)
    except SettingsError as error:
        why = f' {error}\nA list is written in JSON, such as ["hooks.example.org"].'
    else:
        _refuse_unknown(FILE)
        _warn_of_misspelt_variables()
        return settings
    typer.secho(
        f"error: the settings cannot be read:{why}\nFix the named value and run this again.", err=True
    )
    sys.exit(2)


def load_tuning(settings: "Settings", path: Path = FILE) -> "Tuning":
    """Return the detector tables of ``path``; exit with the reason when they cannot be used."""
    from alerts.config import FindingConfig
    from streams.config.settings import Configs
    from streams.config.toml_file import TuningError, read_tuning

    _refuse_unknown(path)
    finding = FindingConfig(gpu_hour_price=settings.gpu_hour_price, runbooks=settings.runbooks())
    base = Configs(finding=finding)
    try:
        return read_tuning(path, base)
    except TuningError as error:
        # The message quotes the file, which may hold control characters: fail() removes them.
        fail(str(error))


def _said(error: "ErrorDetails") -> str:
    if error["type"] == "tuple_type":
        return f"a list is needed, written in JSON: {json.dumps([error['input']], default=str)}"
    return error["msg"].removeprefix("Value error, ")


def _named(location: tuple[int | str, ...]) -> str:
    """Return a setting's name, with its environment variable where that is set."""
    name = ".".join(map(str, location)) or "settings"
    variable = f"SLOWRANK_{name.upper()}"
    return f"{name} ({variable})" if variable in os.environ else name


def _warn_of_misspelt_variables() -> None:
    """Warn of environment variables whose names resemble a setting's: they have no effect.

    An unknown variable is no error: orchestrators add variables named after services.
    """
    from slowrank.settings import Settings

    valid = [f"SLOWRANK_{name.upper()}" for name in Settings.model_fields]
    unknown = sorted(name for name in os.environ if name.startswith("SLOWRANK_") and name not in valid)
    for name in unknown:
        for like in get_close_matches(name, valid, n=1, cutoff=_MISSPELT):
            typer.secho(
                f"warning: {name!r:.100} is set but is not a setting (did you mean {like}?)", err=True
            )


def _refuse_unknown(path: Path) -> None:
    """Exit when ``path`` sets a name that is neither a setting nor a table."""
    from slowrank.settings import TUNING_TABLES, Settings

    valid = [*TUNING_TABLES, *Settings.model_fields]
    unknown = [(name, get_close_matches(name, valid, n=1)) for name in Settings.unknown(_names_in(path))]
    if unknown:
        names = (f"{name!r:.100}" + (f" (did you mean {like[0]}?)" if like else "") for name, like in unknown)
        fail(f"{path} sets {', '.join(names)}: not a setting. Rename or remove it.")


def _names_in(path: Path) -> Iterable[str]:
    try:
        return tomllib.loads(path.read_text()).keys()
    except (OSError, ValueError, RecursionError):
        # Reported where the values are read.
        return ()
