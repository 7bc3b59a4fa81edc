"""Generates 1,200 agent files with the oddities of public ones, in the proportions measured over 1,218 of them.

All content is made up here. The same files come out on every call; each carries what a reader has to make of it.
"""

import random
from collections.abc import Iterable
from dataclasses import dataclass, field

FILES = 1_200
MEASURED = 1_218

# Oddity → files in which it was counted. Those counted 0 times are in RARE, one file each.
COUNTED = {
    "no front matter": 44,
    "unquoted colon": 75,
    "star read as alias": 5,
    "raw newline": 1,
    "example tags": 219,
    "literal backslash-n": 191,
    "long description": 210,
    "multi-line description": 59,
    "rules in the body": 133,
    "name differs from file": 275,
    "name not kebab-case": 194,
    "CRLF": 1,
    "tools: comma string": 787,
    "tools: single name": 8,
    "tools: brackets": 3,
    "tools: star": 2,
    "tools: list": 1,
    "tools: mcp": 108,
    "tools: nothing known": 6,
    "model: sonnet": 242,
    "model: inherit": 82,
    "model: opus": 52,
    "model: haiku": 45,
    "model: display text": 13,
    "permissionMode": 5,
    "maxTurns": 1,
    "hooks": 1,
}
SAME_NAME = 22  # names that occur twice

_GOOD = "name: {name}\ndescription: Sorts the harbour lists.\n"
# (what is odd, head, body, expected name, expected description, loads); {name} is the name of the file
RARE = (
    ("BOM", "\ufeff", _GOOD, "Sort them.", "{name}", "Sorts the harbour lists.", True),
    ("tab in head", "", "name: {name}\ndescription:\tSorts lists.\n", "Sort.", "{name}", "Sorts lists.", True),
    ("tab indents a key", "", _GOOD + "\ttools: Read\n", "Sort.", None, None, False),
    ("duplicate description", "", _GOOD + "description: Other.\n", "Sort.", "{name}", "Sorts the harbour lists.", True),
    ("duplicate tools", "", _GOOD + "tools: Read\ntools: Grep, Bash\n", "Sort.", None, None, False),
    ("missing name", "", "description: Sorts lists.\n", "Sort.", "{name}", "Sorts lists.", True),
    ("missing description", "", "name: {name}\n", "Sort.", None, None, False),
    ("empty body", "", _GOOD, "", "{name}", "Sorts the harbour lists.", True),
    ("name is a boolean", "", "name: on\ndescription: Switches.\n", "Do.", "on", "Switches.", True),
    ("name is a number", "", "name: 007\ndescription: Spies.\n", "Do.", "007", "Spies.", True),
    ("comment cuts", "", "name: {name}\ndescription: Knows C # and more\n", "Do.", "{name}", "Knows C", True),
    ("reserved start", "", "name: {name}\ndescription: @harbour duty\n", "Do.", "{name}", "@harbour duty", True),
    ("unclosed flow", "", _GOOD + "tools: [Read, Grep\n", "Do.", "{name}", "Sorts the harbour lists.", True),
    ("inner quotes", "", 'name: {name}\ndescription: "A "deep" look"\n', "Do.", "{name}", 'A "deep" look', True),
    ("empty tools", "", _GOOD + "tools:\n", "Do.", None, None, False),
    ("head is not closed", "", _GOOD.rstrip("\n") + "\nand so on", None, None, None, False),
)


@dataclass(frozen=True, kw_only=True)
class Sample:
    """One file. `loads` False: it must be reported instead. `names_tools`: it has a `tools` key."""

    path: str
    data: bytes
    oddities: frozenset[str]
    loads: bool
    name: str | None = None
    description: str | None = None
    names_tools: bool = False


@dataclass(kw_only=True)
class _Draft:
    stem: str
    name: str
    oddities: set[str] = field(default_factory=set)


def scaled(count: int) -> int:
    """A measured count as a share of FILES, at least one."""
    return max(1, round(count * FILES / MEASURED))


def generate() -> list[Sample]:
    """All files, the rare ones last."""
    rng = random.Random(1_200)
    drafts = [_Draft(stem=f"{_kebab(rng)}-{number}", name="") for number in range(FILES - len(RARE))]
    for draft in drafts:
        draft.name = draft.stem
    _deal(rng, drafts)
    samples = [_sample(rng, draft) for draft in drafts]
    return samples + [_rare(number, *row) for number, row in enumerate(RARE)]


def _deal(rng: random.Random, drafts: list[_Draft]) -> None:
    """Give each oddity to as many files as were counted; those that exclude each other go to different files."""
    without = _give(rng, drafts, ["no front matter"])
    broken = _give(rng, without, ["unquoted colon", "star read as alias", "raw newline"])
    plain = [draft for draft in broken if not draft.oddities & {"unquoted colon", "raw newline"}]
    _give(rng, plain, ["multi-line description"])
    forms = [draft for draft in broken if "star read as alias" not in draft.oddities]
    names = ["tools: comma string", "tools: single name", "tools: brackets", "tools: star", "tools: list"]
    _give(rng, forms, names)
    commas = [draft for draft in forms if "tools: comma string" in draft.oddities]
    _give(rng, commas, ["tools: mcp", "tools: nothing known"])
    _give(rng, broken, [key for key in COUNTED if key.startswith("model:")])
    for single in ("example tags", "literal backslash-n", "long description", "rules in the body", "CRLF"):
        _give(rng, broken, [single])
    for single in ("permissionMode", "maxTurns", "hooks"):
        _give(rng, broken, [single])
    others = [draft for draft in broken if "unquoted colon" not in draft.oddities]
    differing = rng.sample(others, scaled(COUNTED["name differs from file"]))
    for draft in differing:
        draft.oddities.add("name differs from file")
        draft.name = f"{_kebab(rng)}-{rng.randrange(10**6)}"
    for draft in differing[: scaled(COUNTED["name not kebab-case"])]:
        draft.oddities.add("name not kebab-case")
        draft.name = draft.name.replace("-", " ").title()
    pairs = rng.sample(differing, SAME_NAME)
    for draft in pairs:
        twin = rng.choice([other for other in others if other not in differing and "same name" not in other.oddities])
        twin.name = draft.name
        twin.oddities.add("same name")


def _give(rng: random.Random, drafts: list[_Draft], oddities: list[str]) -> list[_Draft]:
    """Hand out oddities so that no file gets two of these; returns the drafts that have a head."""
    free = rng.sample(drafts, len(drafts))
    for oddity in oddities:
        for _ in range(scaled(COUNTED[oddity])):
            free.pop().oddities.add(oddity)
    return [draft for draft in drafts if "no front matter" not in draft.oddities]


# ── content ─────────────────────────────────────────────────────────────────────────────────────────────────────

_NOUNS = ["harbour", "ledger", "bridge", "orchard", "lantern", "archive", "quarry", "mill", "ferry", "garden", "kiln"]
_VERBS = ["sorts", "checks", "counts", "mends", "draws", "weighs", "files", "copies", "measures", "traces"]
_TOOLS = ["Read", "Write", "Edit", "MultiEdit", "Glob", "Grep", "Bash", "WebFetch", "LS"]


def _kebab(rng: random.Random) -> str:
    return f"{rng.choice(_NOUNS)}-{rng.choice(_NOUNS)}"


def _sentence(rng: random.Random) -> str:
    return f"{rng.choice(_VERBS).title()} the {rng.choice(_NOUNS)} and {rng.choice(_VERBS)} each {rng.choice(_NOUNS)}."


def _description(rng: random.Random, oddities: Iterable[str]) -> tuple[str, str]:
    """The YAML after `description:` and the text that has to come out of it."""
    text = _sentence(rng)
    if "unquoted colon" in oddities:
        text = f'Use when: the {rng.choice(_NOUNS)} fails. {text} user: "mend it"'
    if "literal backslash-n" in oddities:
        text = f"{text}\\nThen {_sentence(rng)}"
    if "example tags" in oddities:
        text = f"{text} <example>{_sentence(rng)}</example>"
    if "long description" in oddities:
        while len(text) <= rng.choice((1_100, 2_600, 5_700)):
            text = f"{text} {_sentence(rng)}"
    if "raw newline" in oddities:
        text = f"{text}\n<example> {_sentence(rng)}"
        return f" {text}", text
    if "multi-line description" in oddities:
        lines = [text, _sentence(rng), "", f"user: {_sentence(rng)}"]
        return " |\n" + "\n".join(f"  {line}" if line else "" for line in lines), "\n".join(lines)
    return f" {text}", text


def _tools(rng: random.Random, oddities: Iterable[str]) -> str | None:
    names = rng.sample(_TOOLS, rng.randrange(1, 5))
    if "tools: nothing known" in oddities:
        return " edit/editFiles, runCommands, search/usages"
    if "tools: mcp" in oddities:
        names.append(f"mcp__{rng.choice(_NOUNS)}__{rng.choice(_VERBS)}")
    if "tools: comma string" in oddities:
        return " " + ", ".join(names)
    if "tools: single name" in oddities:
        return f" {names[0]}"
    if "tools: brackets" in oddities:
        return f' "[{", ".join(names)}]"'
    if "tools: star" in oddities:
        return ' "*"'
    if "tools: list" in oddities:
        return "".join(f"\n  - {name}" for name in names)
    return " *" if "star read as alias" in oddities else None


def _sample(rng: random.Random, draft: _Draft) -> Sample:
    odd = draft.oddities
    body = "\n\n".join(f"You are careful. {_sentence(rng)}" for _ in range(rng.randrange(1, 6)))
    if "rules in the body" in odd:
        body = f"{body}\n\n---\n\n{_sentence(rng)}\n---\nname: not a head\n---\n"
    if "no front matter" in odd:
        return Sample(
            path=f"{draft.stem}.md", data=f"# {draft.stem}\n\n{body}".encode(), oddities=frozenset(odd), loads=False
        )
    written, description = _description(rng, odd)
    tools = _tools(rng, odd)
    lines = [f"name: {draft.name}", f"description:{written}"]
    lines += [f"tools:{tools}"] if tools is not None else []
    model = next((key.removeprefix("model: ") for key in sorted(odd) if key.startswith("model:")), None)
    lines += [f"model: {model.replace('display text', 'Claude Sonnet 4.5')}"] if model else []
    lines += ["permissionMode: acceptEdits"] if "permissionMode" in odd else []
    lines += ["maxTurns: 12"] if "maxTurns" in odd else []
    lines += ["hooks:\n  Stop:\n    - hooks: [{type: command, command: ls}]"] if "hooks" in odd else []
    lines += ["color: blue", "emoji: ⚓"] if rng.random() < 0.3 else []
    text = "---\n" + "\n".join(lines) + f"\n---\n\n{body}\n"
    return Sample(
        path=f"{draft.stem}.md",
        data=(text.replace("\n", "\r\n") if "CRLF" in odd else text).encode(),
        oddities=frozenset(odd),
        loads="tools: nothing known" not in odd,
        name=draft.name,
        description=description,
        names_tools=tools is not None,
    )


def _rare(
    number: int,
    oddity: str,
    before: str,
    head: str,
    body: str | None,
    name: str | None,
    description: str | None,
    loads: bool,
) -> Sample:
    stem = f"rare-{number}"
    end = "" if body is None else f"---\n{body}\n"
    return Sample(
        path=f"{stem}.md",
        data=f"{before}---\n{head.format(name=stem)}{end}".encode(),
        oddities=frozenset({oddity}),
        loads=loads,
        name=None if name is None else name.format(name=stem),
        description=description,
        names_tools="\ntools:" in head,
    )
