"""All routes, most used first: the router tries one after the other."""

from fastapi.routing import APIRoute

from app.api.routes import (
    agents,
    artifacts,
    audit,
    catalog,
    delegations,
    health,
    keys,
    permissions,
    runs,
    sessions,
    tasks,
)


def all_routes() -> list[APIRoute]:
    """The routes of all modules. Put flat into the application: an included router is matched twice."""
    modules = (runs, sessions, delegations, tasks, permissions, audit, artifacts, agents, catalog, keys, health)
    return [route for module in modules for route in module.router.routes if isinstance(route, APIRoute)]
