"""The HTTP application around the services: routes, layers, errors, documentation.

Builds and ends nothing: that is the business of whoever made the services.
"""

from functools import partial

from fastapi import FastAPI
from fastapi.telemetry import TelemetryConfig

from app import __version__
from app.api import docs, errors
from app.api.auth import Identification
from app.api.middleware import Guard
from app.api.routes import all_routes
from app.sessions.services import Services
from app.settings import Settings

# Spans and metrics of this service are readers of its events; the framework's would cost every request, and could send
# what people wrote to wherever the environment says.
NO_TELEMETRY = TelemetryConfig(tracing=False, metrics=False, logs=False, operation_spans=False, auto_configure=False)


def create_app(services: Services, settings: Settings) -> FastAPI:
    """An ASGI application that answers by these services."""
    http = settings.http
    app = FastAPI(
        title=docs.TITLE,
        version=__version__,
        description=docs.DESCRIPTION,
        docs_url="/docs" if http.docs else None,
        redoc_url=None,
        redirect_slashes=False,
        telemetry=NO_TELEMETRY,
    )
    app.state.services = services
    app.state.stream = settings.stream
    app.router.routes.extend(all_routes())
    app.openapi = partial(docs.openapi, app)  # type: ignore[method-assign]
    errors.install(app)
    app.add_middleware(Identification, access=services.access, tickets=services.tickets)
    app.add_middleware(  # the last one added is the first one asked
        Guard,
        host=http.host,
        hosts=http.hosts,
        origins=http.origins,
        max_body_bytes=http.max_body_bytes,
        log_access=http.access_log,
    )
    return app
