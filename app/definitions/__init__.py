"""Who can be asked: agent definitions from Markdown files, from mappings, and the catalog that finds them by name.

Knows no model, no tool and no HTTP; the kernel's `AgentDefinition` is all that leaves here.
"""

from app.definitions.catalog import Catalog, CatalogReport, Shadowed
from app.definitions.mapping import from_mapping, to_mapping
from app.definitions.markdown import Parsed, Problem, Severity, parse

__all__ = [
    "Catalog",
    "CatalogReport",
    "Parsed",
    "Problem",
    "Severity",
    "Shadowed",
    "from_mapping",
    "parse",
    "to_mapping",
]
