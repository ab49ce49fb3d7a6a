"""The least that a FastAPI endpoint does: `python -m benchmarks.api.trivial PORT`."""

import sys

import uvicorn
from fastapi import FastAPI

app = FastAPI()


@app.get("/trivial")
def read_nothing() -> dict[str, bool]:
    """Return the same small object at once."""
    return {"ok": True}


if __name__ == "__main__":
    uvicorn.run(app, port=int(sys.argv[1]), log_level="error")
