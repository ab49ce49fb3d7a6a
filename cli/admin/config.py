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

from slowrank.cli.remote import fail

if TYPE_CHECKING:
    from slowrank.settings import Settings
    from streams.tuning import Tuning

FILE = Path("slowrank.toml")

_MISSPELT = 0.92
"""How like a setting's a variable's name must be (difflib's ratio) to be taken for a mistyped one."""

app = typer.Typer(help="Check and show the settings.", no_args_is_help=True, add_completion=False)


@app.command()
def check() -> None:
    """Read the settings as every process would, and say where each value comes from."""
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
        settings = Settings(**given)
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        why = f" slowrank.toml: {error}"
    except ValidationError as error:
        said = ((_named(e["loc"]), e["msg"].removeprefix("Value error, ")) for e in error.errors())
        why = "".join(f"\n  {name}: {message}" for name, message in said)
    except SettingsError as error:
        why = f' {error}\nA list is written in JSON, such as ["hooks.example.org"].'
    else:
        _refuse_unknown(FILE)
        _tell_misspelt()
        return settings
    typer.secho(
        f"error: the settings cannot be read:{why}\nFix the named value and run this again.", err=True
    )
    sys.exit(2)


def load_tuning(settings: "Settings", path: Path = FILE) -> "Tuning":
    """Return what ``path`` says of detectors; when it cannot be used the command ends and says why."""
    from alerts.config import FindingConfig
    from streams.tuning import Configs
    from streams.tuning_file import TuningError, read_tuning

    _refuse_unknown(path)
    base = Configs(finding=FindingConfig(gpu_hour_price=settings.gpu_hour_price))
    try:
        return read_tuning(path, base)
    except TuningError as error:
        # What stands in the file is shown, and may hold what a terminal would obey.
        fail(str(error))


def _named(place: tuple[int | str, ...]) -> str:
    """Return a setting's name, and its variable when that is where the value comes from."""
    name = ".".join(map(str, place)) or "settings"
    variable = f"SLOWRANK_{name.upper()}"
    return f"{name} ({variable})" if variable in os.environ else name


def _tell_misspelt() -> None:
    """Warn of variables whose names are nearly a setting's: they change nothing.

    The environment is not slowrank's alone (an orchestrator adds variables by a service's name), so an
    unknown one is no error.
    """
    from slowrank.settings import Settings

    known = [f"SLOWRANK_{name.upper()}" for name in Settings.model_fields]
    strange = sorted(name for name in os.environ if name.startswith("SLOWRANK_") and name not in known)
    for name in strange:
        for like in get_close_matches(name, known, n=1, cutoff=_MISSPELT):
            typer.secho(f"warning: {name!r:.100} is set and is no setting (is it {like}?)", err=True)


def _refuse_unknown(path: Path) -> None:
    """End the command when ``path`` sets what is neither a setting nor a table: it would change nothing."""
    from slowrank.settings import TUNING_TABLES, Settings

    known = [*TUNING_TABLES, *Settings.model_fields]
    unknown = [(name, get_close_matches(name, known, n=1)) for name in Settings.unknown(_names_in(path))]
    if unknown:
        told = (f"{name!r:.100}" + (f" (is it {like[0]}?)" if like else "") for name, like in unknown)
        fail(f"{path} sets {', '.join(told)}, which slowrank does not know. Rename or remove it.")


def _names_in(path: Path) -> Iterable[str]:
    try:
        return tomllib.loads(path.read_text()).keys()
    except (OSError, ValueError, RecursionError):
        # Whoever reads it for its values says what is wrong with it.
        return ()
