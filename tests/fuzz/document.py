"""Whether answers are those that the OpenAPI document describes.

Knows the document, not the application.
"""

import json
from collections.abc import Mapping
from typing import Any

import jsonschema_rs

JSON = ("application/json", "application/problem+json")


class Document:
    """The document, ready to be asked."""

    def __init__(self, document: Mapping[str, Any]) -> None:
        self._paths = document["paths"]
        self._components = document["components"]
        self._made: dict[str, Any] = {}
        for operations in self._paths.values():  # all at once, so that later nothing of this adds to the memory
            for operation in operations.values():
                for described in operation["responses"].values():
                    for media in JSON:
                        self._validator(described.get("content", {}).get(media, {}).get("schema", {}))

    def faults(self, method: str, route: str, status: int, kind: str, body: bytes) -> list[str]:
        """What is not described of a complete answer; nothing for methods that the route does not have."""
        operation = self._paths.get(route, {}).get(method.lower())
        if operation is None or not method.isupper():
            return []
        described = operation["responses"].get(str(status))
        if described is None:
            return [f"{status} of {method} {route} is not described: {body[:200]!r}"]
        media = kind.partition(";")[0].strip()
        content = described.get("content", {})
        if media not in content:
            return [] if not content and not body else [f"{media!r} for {status} of {method} {route} is not described"]
        if media not in JSON:
            return []
        validator = self._validator(content[media].get("schema", {}))
        errors = list(validator.iter_errors(json.loads(body)))[:3]
        return [f"{method} {route} {status}: {error.message[:300]} at {error.instance_path}" for error in errors]

    def _validator(self, schema: Mapping[str, Any]) -> Any:
        name = json.dumps(schema)
        if name not in self._made:
            self._made[name] = jsonschema_rs.validator_for({**schema, "components": self._components})
        return self._made[name]
