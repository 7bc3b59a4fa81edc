# Two stages: the first has the build tools, the second only what runs. Everything comes as a wheel, checked against
# the hashes of the lock files.
FROM python:3.13-slim AS build

ENV PIP_DISABLE_PIP_VERSION_CHECK=1 \
    PIP_NO_CACHE_DIR=1 \
    PIP_ONLY_BINARY=:all:

# What changes rarely comes first: a change in app/ then costs only the last step.
COPY requirements.lock requirements-build.lock /src/
RUN python -m venv /build \
    && /build/bin/pip install --require-hashes -r /src/requirements-build.lock \
    && python -m venv --without-pip /opt/subagentd \
    && /build/bin/pip --python /opt/subagentd/bin/python install --require-hashes -r /src/requirements.lock

COPY pyproject.toml README.md LICENSE /src/
COPY app /src/app
COPY migrations /src/migrations
RUN /build/bin/pip wheel --no-deps --no-build-isolation --wheel-dir /src/dist /src \
    && /build/bin/pip --python /opt/subagentd/bin/python install --no-deps /src/dist/*.whl


FROM python:3.13-slim

# What holds the commands of agents, where they are switched on: docs/sandbox.md.
RUN apt-get update \
    && apt-get install --yes --no-install-recommends bubblewrap \
    && rm -rf /var/lib/apt/lists/*

# A fixed number, so that the owner of a mounted directory can be set from outside.
RUN useradd --uid 10001 --create-home --shell /usr/sbin/nologin subagentd \
    && install --directory --owner subagentd --group subagentd --mode 0700 /data

COPY --from=build /opt/subagentd /opt/subagentd
COPY --chmod=0755 docker/entrypoint.sh /usr/local/bin/entrypoint.sh

# The port and the workspace are changed by these two names: they win over the nested ones and over subagentd.toml. The
# database has none here, so that any source can place it: otherwise it is subagentd.db in the working directory, where
# subagentd.toml is looked for as well.
ENV PATH=/opt/subagentd/bin:$PATH \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1 \
    SUBAGENTD_PORT=8080 \
    SUBAGENTD_WORKSPACE=/data/workspace

# Inside a container the service binds loopback like anywhere else. To be reached from outside it needs
# SUBAGENTD_HOST=0.0.0.0 and with it SUBAGENTD_KEY, without which it refuses to start: see compose.yaml.
EXPOSE 8080

# As numbers: a cluster that refuses root cannot look a name up.
USER 10001:10001
WORKDIR /data
VOLUME /data
STOPSIGNAL SIGTERM

# http.client, since urllib would go through a proxy that the environment names.
HEALTHCHECK --interval=15s --timeout=5s --start-period=20s --retries=3 \
    CMD ["python", "-c", "import http.client, os, sys; c = http.client.HTTPConnection('127.0.0.1', int(os.environ['SUBAGENTD_PORT']), timeout=4); c.request('GET', '/healthz'); sys.exit(c.getresponse().status != 200)"]

ENTRYPOINT ["entrypoint.sh"]
