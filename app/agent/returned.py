"""What a parent gets of a child's answer: data, not instructions, and of bounded size (spec 2.3).

Knows no surface and no run: texts in, texts out.
"""

import functools
import re
from collections.abc import Callable

from app.agent.texts import DEFAULT, LANGUAGES, Texts, filled

# Names of elements that chat templates and agents use for their own frame. Other markup is content and stays.
# These are no words of any other language, so they are frames however they are written, and unclosed as well.
_FRAME_NAMES = (
    r"system[-_](?:reminder|prompt|message)|tool[-_](?:calls?|use|results?|response|output)"
    r"|function[-_](?:calls?|results?|response)|antml:\w+|task[-_](?:agent|notification)|(?:start|end)_of_turn"
)
# These are also types, components and variables. A frame is a whole tag, in small or in capital letters:
# `List<User>`, `<User name="x"/>` and `if (a <user && b > c)` are code.
_WORDS = r"system|assistant|user|human|tool|function|invoke|parameter|thinking|think|reminder|instructions?"
# Every run of blanks is bounded: what a child wrote must not make a search slow.
_OPENS = r"\s{0,8}/?\s{0,8}"
_VALUE = r"""(?:"[^"<>]{0,400}"|'[^'<>]{0,400}'|[^\s<>"'=]{1,400})"""
_ATTRIBUTE = rf"\s{{1,40}}[\w:.-]{{1,60}}(?:\s{{0,8}}=\s{{0,8}}{_VALUE})?"
_ENDS = rf"(?:(?:{_ATTRIBUTE}){{0,20}}\s{{0,40}}/?>|=[\"']?[\w.-]{{1,100}}[\"']?>)"
_ELEMENT = re.compile(rf"<(?={_OPENS}(?:{_FRAME_NAMES})(?![\w-]))", re.IGNORECASE)
_EITHER_CASE = f"(?:{_WORDS}|{_WORDS.upper()})"
_WORD = re.compile(
    # with attributes only where no blank stands before the name: `x < user and y > z` compares
    rf"<(?={_EITHER_CASE}{_ENDS}|{_OPENS}{_EITHER_CASE}\s{{0,40}}/?>)|(?<!\w)<(?=/?System>)"
)
_SPECIAL = re.compile(
    r"<(?=[|｜][^|｜<>\s]{1,40}[|｜]>)|<(?=<\s{0,8}/?SYS\s{0,8}>>)"
    r"|\[(?=/?INST\]|/?(?:TOOL_CALLS|TOOL_RESULTS|AVAILABLE_TOOLS|SYSTEM_PROMPT)\])",
    re.IGNORECASE,
)
_ROLE = re.compile(r"(?m)^(?=(?:Human|Assistant):)")
LOOKALIKE = {"<": "‹", "[": "［"}


def neutralised(text: str, texts: Texts = DEFAULT) -> str:
    """The text with what imitates system or tool markup made harmless: its first sign is exchanged for one that
    looks alike, so that people read the same and no model takes it for a frame. `texts`: whose headings are frames
    too, besides those of every language."""
    if "<" in text:
        text = _WORD.sub(LOOKALIKE["<"], _ELEMENT.sub(LOOKALIKE["<"], text))
    if "<" in text or "[" in text:
        text = _SPECIAL.sub(_lookalike, text)
        text = _headings(texts).sub(_lookalike, text)
    return _ROLE.sub("| ", text) if ":" in text else text


def _lookalike(match: re.Match[str]) -> str:
    return LOOKALIKE[match[0]]


@functools.lru_cache(maxsize=64)
def _headings(texts: Texts) -> re.Pattern[str]:
    """The first sign of every heading and note that the service itself puts around an answer."""
    found: set[str] = set()
    for each in (texts, *LANGUAGES.values()):
        for whole in (each.heading, each.activity, each.conclusion, each.partial):
            start = whole.partition("{")[0].strip()
            if start[:1] in LOOKALIKE and len(start) > 1:
                found.add(start)
    return re.compile("|".join(rf"{re.escape(start[0])}(?={re.escape(start[1:])})" for start in sorted(found)))


def bounded(text: str, most: int, origin: str, texts: Texts) -> str:
    """The text, or its head and tail with a note that says where the whole is (`origin`: the id of a run); at most
    `most` characters and the note."""
    if len(text) <= most:
        return text
    head = most * 4 // 5
    note = filled(texts.result_cut, left_out=len(text) - most, run_id=origin)
    return f"{text[:head]}\n\n{note}\n\n{text[len(text) - (most - head) :]}"


def fitting(render: Callable[[str], str], text: str, most: int, origin: str, texts: Texts) -> str:
    """The text neutralised and, where `render` would make more than `most` characters of it, cut as little as is
    needed, whatever the form adds: a heading, the escapes of JSON. For a form that is too long by itself, the note."""

    def kept(length: int) -> str:
        # neutralised after the cut: where two ends meet, a frame could come together
        return neutralised(bounded(text, length, origin, texts), texts)

    if len(text) <= most:
        whole = kept(len(text))
        if len(render(whole)) <= most:
            return whole
    fits, too_much = 0, min(len(text), most)
    best = kept(0)
    while too_much - fits > 1:
        length = (fits + too_much) // 2
        tried = kept(length)
        if len(render(tried)) <= most:
            fits, best = length, tried
        else:
            too_much = length
    return best
