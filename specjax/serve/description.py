"""The description of the server in OpenAPI: its routes and the fields of their bodies.

The routes read their bodies themselves, so FastAPI does not know these.
"""

from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

_PLACE = "#/components/schemas/{model}"


def with_body(kind: type[BaseModel]) -> dict[str, Any]:
    """The arguments of a route whose body is ``kind``."""
    content = {"application/json": {"schema": {"$ref": _PLACE.format(model=kind.__name__)}}}
    return {"methods": ["POST"], "openapi_extra": {"requestBody": {"required": True, "content": content}}}


def describe(app: FastAPI, kinds: tuple[type[BaseModel], ...], version: str) -> None:
    """Gives the application a description that has the fields of ``kinds``."""

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            found = get_openapi(title="specjax", version=version, routes=app.routes)
            _, schemas = models_json_schema([(kind, "validation") for kind in kinds], ref_template=_PLACE)
            found.setdefault("components", {}).setdefault("schemas", {}).update(schemas["$defs"])
            app.openapi_schema = found
        return app.openapi_schema

    app.openapi = openapi
