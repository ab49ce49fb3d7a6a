"""``slowrank init``: write the settings and random secrets that ``docker compose`` requires."""

import base64
import os
import secrets
import uuid
from pathlib import Path
from typing import Annotated

import typer

from cli.admin.private_file import write_private

# Compose mounts a secret's file with its owner and mode, so the containers run as that owner; when root
# writes the files, as the user of the image.
IMAGE_UID = 10001
# Role -> database login (deploy/db/roles.sh creates all but the first).
LOGINS = {"admin": "postgres", "streams": "streams", "api": "api", "notifier": "notifier"}


def secret_files() -> dict[str, str]:
    """Return files by name: 256-bit passwords and URLs of the database roles, the API's signing key."""
    files = {"api_secret": secrets.token_urlsafe(32)}
    for role, user in LOGINS.items():
        password = secrets.token_urlsafe(32)
        files[f"db_{role}_password"] = password
        files[f"db_{role}_url"] = f"postgresql://{user}:{password}@db:5432/slowrank"
    return files


def settings(uid: int, gid: int) -> str:
    """Return the content of ``.env``: settings of this machine that are not secret."""
    # Kafka reads an id that begins with a dash as an option.
    cluster_id = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=").replace("-", "A")
    return (
        "# Written by `slowrank init` for docker-compose.yml. The secrets are files below secrets/.\n"
        f"SLOWRANK_UID={uid}\nSLOWRANK_GID={gid}\nKAFKA_CLUSTER_ID={cluster_id}\n"
        "SLOWRANK_CLUSTER=default\n"
    )


def init(
    directory: Annotated[
        Path, typer.Option(help="Where docker-compose.yml is.", file_okay=False, exists=True)
    ] = Path(),
) -> None:
    """Write .env and secrets/ (random, readable by their owner only) for docker compose."""
    folder = directory / "secrets"
    # Dangling links too: they would be replaced.
    taken = [str(path) for path in (directory / ".env", folder) if path.exists() or path.is_symlink()]
    if taken:
        typer.echo(
            f"slowrank init: {' and '.join(taken)} already there, nothing written: the database keeps "
            "the passwords it was created with. To start over, `docker compose down -v` and delete them.",
            err=True,
        )
        raise typer.Exit(1)
    uid, gid = (os.getuid(), os.getgid()) if os.getuid() else (IMAGE_UID, IMAGE_UID)
    folder.mkdir(mode=0o700)
    for name, content in secret_files().items():
        write_private(folder / name, content, owner=(uid, gid))
    write_private(directory / ".env", settings(uid, gid))
    typer.echo(f"wrote {directory / '.env'} and {folder}/. Next: docker compose up -d --wait")
