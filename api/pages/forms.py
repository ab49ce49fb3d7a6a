"""Reads HTML forms: URL-encoded fields, bounded, and the paths to which they lead back."""

import re
from collections.abc import Mapping
from typing import Annotated, TypeVar
from urllib.parse import parse_qsl

from fastapi import Depends, Request
from pydantic import BaseModel, ValidationError

from api.http.problems import Problem

# The largest form (a webhook) has ten fields.
_MAX_FIELDS = 40
# A path of this site: one slash, then neither another nor a backslash, which browsers take for one.
_PATH = re.compile(r"/(?![/\\])[!-~]{0,1000}")

Body = TypeVar("Body", bound=BaseModel)


async def form_fields(request: Request) -> dict[str, str]:
    """Return the fields of a form; of a repeated one the last. Raises the 422 problem for too many."""
    text = (await request.body()).decode("utf-8", "replace")
    try:
        return dict(parse_qsl(text, keep_blank_values=True, max_num_fields=_MAX_FIELDS))
    except ValueError as error:
        raise Problem(422, "invalid-form", f"a form has at most {_MAX_FIELDS} fields") from error


Fields = Annotated[dict[str, str], Depends(form_fields)]


def checked(model: type[Body], fields: Mapping[str, object]) -> Body:
    """Return the fields as a ``model``. Raises the 422 problem with what is wrong."""
    try:
        return model.model_validate(fields)
    except ValidationError as error:
        wrong = "; ".join(f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in error.errors()[:3])
        raise Problem(422, "invalid-form", f"{wrong[:300]}; go back and change it") from error


def safe_path(text: str) -> str:
    """Return a path on this site to go to after a form, or ``/`` for anything else."""
    return text if _PATH.fullmatch(text) else "/"
