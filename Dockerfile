# One image for every role: docker run slowrank api run, streams run, exporter run, …
FROM python:3.12-slim-bookworm AS build

ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1 PIP_ROOT_USER_ACTION=ignore
WORKDIR /src
COPY requirements/build.txt requirements/image.txt requirements/
RUN pip install --require-hashes -r requirements/build.txt \
 && python -m venv /opt/slowrank \
 && /opt/slowrank/bin/pip install --require-hashes -r requirements/image.txt
COPY . .
RUN pip wheel --no-build-isolation --no-deps --wheel-dir /wheels ./slowrank . \
 && /opt/slowrank/bin/pip install --no-deps --no-index /wheels/*.whl


FROM python:3.12-slim-bookworm

RUN groupadd --gid 10001 slowrank \
 && useradd --uid 10001 --gid 10001 --no-create-home --home-dir /tmp --shell /usr/sbin/nologin slowrank \
 && install -d -o 10001 -g 10001 -m 1777 /var/lib/slowrank
COPY --from=build /opt/slowrank /opt/slowrank
ENV PATH=/opt/slowrank/bin:$PATH PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 NUMBA_CACHE_DIR=/tmp/numba
USER 10001:10001
WORKDIR /tmp
ENTRYPOINT ["slowrank"]
CMD ["--help"]
