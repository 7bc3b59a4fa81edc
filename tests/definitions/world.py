"""Reads one agent file in a line."""

from app.agent.definition import AgentDefinition
from app.definitions import Parsed, parse

NAMED = "name: clerk\ndescription: Keeps the books.\n"


def read(head: str, body: str = "Keep them.") -> Parsed:
    return parse(f"---\n{head.rstrip()}\n---\n{body}\n", path="agents/file.md")


def loaded(head: str, body: str = "Keep them.") -> AgentDefinition:
    definition = read(head, body).definition
    assert definition is not None, read(head, body).problems
    return definition


def said(parsed: Parsed) -> list[str]:
    return [str(problem) for problem in parsed.problems]
