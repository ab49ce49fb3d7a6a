"""Browsers: clients that are signed in by a cookie and send forms as a page does."""

import re
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from urllib.parse import quote, urlencode

import pytest
from chromium import chromium

from api.security.auth import SCOPES
from store.access import sessions

HTML = {"accept": "text/html,application/xhtml+xml,*/*;q=0.8"}
FORM = {"content-type": "application/x-www-form-urlencoded"}


class Browser:
    """A client that accepts HTML and keeps cookies."""

    def __init__(self, client):
        self._client = client
        self.cookies = {}

    def send(self, method, path, *, headers=None, **options):
        jar = "; ".join(f"{name}={value}" for name, value in self.cookies.items())
        sent = HTML | ({"cookie": jar} if jar else {}) | (headers or {})
        answer = self._client.request(method, path, headers=sent, **options)
        for line in answer.headers.get_list("set-cookie"):
            name, _, value = line.partition(";")[0].partition("=")
            self.cookies[name] = value.strip('"')
        return answer

    def get(self, path, **options):
        return self.send("GET", path, **options)

    def post(self, path, fields, **options):
        return self.send("POST", path, content=urlencode(fields), headers=FORM, **options)

    def field(self, path, name):
        """Return the value of a hidden field on a page."""
        found = re.search(f'name="{name}" value="([^"]*)"', self.get(path).text)
        assert found, f"no field {name} on {path}"
        return found[1]

    def sign_in(self, token, to="/"):
        form = self.field("/sign-in", "form")
        return self.post("/sign-in", {"key": token, "form": form, "next": to})

    def submit(self, path, **fields):
        """Send a form with the CSRF token of this session."""
        return self.post(path, {"csrf": self.field("/", "csrf"), **fields})


@pytest.fixture
def visitor(client_with):
    """A browser that is not signed in."""
    return Browser(client_with())


@pytest.fixture
def signed_in(client_with, new_token):
    """Browsers that are signed in: ``signed_in(*scopes, clusters=…)``; without scopes with all."""

    def make(*scopes, **fields):
        browser = Browser(client_with())
        answer = browser.sign_in(new_token(*(scopes or SCOPES), **fields))
        assert answer.status_code == 303, answer.text
        return browser

    return make


@pytest.fixture
def add_nodes(pool):
    """Store nodes as the sink does: ``add_nodes("n1", "n2", rack=…, gpus=8, age=…)``."""

    def add(*names, cluster="prod-a", rack="r1", gpus=8, age=0.0):
        at = datetime.now(UTC) - timedelta(seconds=age)
        with pool.connection() as conn, conn.cursor() as cursor:
            cursor.executemany(
                "INSERT INTO nodes (cluster, node, last_seen_at, boot_id, seq, gpus, nics, rack) "
                "VALUES (%s, %s, %s, '', 1, %s, 8, %s)",
                [(cluster, name, at, gpus, rack) for name in names],
            )

    return add


@pytest.fixture
def add_job(pool):
    """Store a job with its ranks and some minutes of step times: ``add_job("j", ranks=8, slow=3)``."""

    def add(job_id, *, cluster="prod-a", ranks=8, slow=3, age=0.0):
        at = datetime.now(UTC) - timedelta(seconds=age)
        first = at.replace(second=at.second // 10 * 10, microsecond=0) - timedelta(minutes=5)
        buckets = [first + timedelta(seconds=10 * i) for i in range(30)]
        places = [
            (cluster, job_id, r, f"{job_id}-n{r // 4}", r % 4, r % 2, r // 2, first, at) for r in range(ranks)
        ]
        steps = [
            (
                b,
                cluster,
                job_id,
                r,
                f"{job_id}-n{r // 4}",
                13.0 if r == slow and i > 15 else 10.0,
                10 * i,
                10 * i + 9,
            )
            for i, b in enumerate(buckets)
            for r in range(ranks)
        ]
        with pool.connection() as conn, conn.cursor() as cursor:
            cursor.execute(
                "INSERT INTO jobs (cluster, job_id, attempt, world_size, first_step, last_step, "
                "first_seen_at, last_seen_at) VALUES (%s, %s, 0, %s, 0, 299, %s, %s)",
                (cluster, job_id, ranks, first, at),
            )
            cursor.executemany(
                "INSERT INTO ranks (cluster, job_id, attempt, rank, node, gpu_index, pp, dp, first_seen_at, "
                "last_seen_at) VALUES (%s, %s, 0, %s, %s, %s, %s, %s, %s, %s)",
                places,
            )
            cursor.executemany(
                "INSERT INTO steps_10s (bucket, cluster, job_id, attempt, rank, node, n_steps, "
                "step_seconds_sum, step_seconds_max, compute_seconds_sum, compute_seconds_max, "
                "wait_seconds_sum, first_step, last_step) "
                "VALUES (%s, %s, %s, 0, %s, %s, 10, 14, 2, %s, 2, 1, %s, %s)",
                steps,
            )

    yield add
    with pool.connection() as conn:
        conn.execute("TRUNCATE steps_10s")


@pytest.fixture
def tab_at(pool, new_token, tmp_path):
    """A tab of Chromium that is signed in with all scopes: ``tab_at(base)``, the address of a served app."""
    with ExitStack() as opened:

        def show(base):
            key_id = new_token(*SCOPES).split("_")[1]
            with pool.connection() as conn:
                once = sessions.create(conn, key_id, "sign_in", datetime.now(UTC))
            page = opened.enter_context(chromium(tmp_path / "profile"))
            page.show(1280, 800, dark=False)
            page.open(f"{base}/sign-in/{once}?next={quote('/settings')}")
            return page

        yield show


@pytest.fixture
def signed_in_tab(live, tab_at):
    """A tab that is signed in with all scopes, and the address of the app."""
    base = live()
    return tab_at(base), base
