"""What a parent gets of a child's answer: data, not instructions, and of bounded size (spec 2.3).

Knows no surface and no run: texts in, texts out.
"""

import functools
import re
from collections.abc import Callable, Sequence

from app.agent.texts import DEFAULT, LANGUAGES, Texts, filled

# Names of elements that chat templates and agents use for their own frame. Other markup is content and stays.
# These are no words of any other language, so they are frames however they are written, and unclosed as well.
_COMPOUNDS = (
    ("system", "reminder|prompt|message"),
    ("task", "agent|notification"),
    ("tool", "calls?|use|results?|response|output"),
    ("function", "calls?|results?|response"),
)
_FRAME_NAMES = "|".join(rf"{first}[-_]{{1,3}}(?:{second})" for first, second in _COMPOUNDS)
_PREFIXED = "|".join(rf"{first}:(?:{second})" for first, second in _COMPOUNDS)  # `vector<system::message>` is code
# These are also types, components and variables. A frame is a whole tag; one that is written like a type, with a
# capital at the beginning of each word, is code: `List<User>`, `<User name="x"/>`, `<ToolCall>`, and so is a
# comparison: `if (a <user && b > c)`.
_WORDS = r"system|assistant|user|human|tool|function|invoke|parameter|thinking|think|reminder|instructions?"
_JOINED = "|".join(rf"{first}(?:{second})" for first, second in _COMPOUNDS)
_ANY_CASE = rf"(?:(?![A-Z][a-z]++\b)(?i:{_WORDS})|(?![A-Z][a-z]++[A-Z][a-z]++\b)(?i:{_JOINED}))"
# Whatever a search runs through ends at the next `<` and is never gone back over, so that no text makes it slow.
_OPENS = r"\s*+/?+\s*+"
_VALUE = r"""(?:"[^"<]*+"|'[^'<]*+'|[^\s<>"'=]++)"""
_ATTRIBUTES = rf"(?:\s++[\w:.-]++(?:\s*+=\s*+{_VALUE})?+)*+"
_VALUE_WITH_A_TAG = r"""\s*+=\s*+(?:"[^"<]*+|'[^'<]*+|[^\s<>"'=]*+)<"""
_ENDS = rf"(?:{_ATTRIBUTES}(?:\s*+/?>|{_VALUE_WITH_A_TAG})|=[\"']?[\w.-]{{1,100}}[\"']?>)"
_ELEMENT = re.compile(
    rf"<(?={_OPENS}(?:{_FRAME_NAMES}|antml:\w+|(?:start|end)_of_turn)(?![\w-]))"
    rf"|(?<!\w)<(?={_OPENS}(?:{_PREFIXED})(?![\w:-]))",
    re.IGNORECASE,
)
_WORD = re.compile(
    # with attributes only where no blank stands before the name: `x < user and y > z` compares
    rf"<(?=/?{_ANY_CASE}{_ENDS}|{_OPENS}{_ANY_CASE}\s*+/?>)"
    # nobody calls a component like this, but types there are, and those stand in generics
    r"|(?<!\w)<(?=\s*+/?+\s*+System(?:Reminder|Prompt|Message)?\s*+>)"
)
_TOKEN = r"[\w▁]{0,30}[_▁][\w▁]{0,30}|endoftext|system|user|assistant|tool|end"  # noqa: S105  of models
_SPECIAL = re.compile(
    # `x <| y |> z` calls a function
    rf"<(?=[|｜](?:[^|｜<>\s]{{1,40}}|\s*+(?:{_TOKEN}))\s*+[|｜]\s*+>)|<(?=<\s*+/?+\s*+SYS\s*+>>)"
    r"|\[(?=\s{0,8}/?\s{0,8}INST\s{0,8}\]|/?(?:TOOL_CALLS|TOOL_RESULTS|AVAILABLE_TOOLS|SYSTEM_PROMPT)\])",
    re.IGNORECASE,
)
_LINE_ENDS = r"\n\r\v\f\x1c-\x1e\x85\u2028\u2029"
_ROLE = re.compile(rf"(?:\A|(?<=[{_LINE_ENDS}]))[^\S{_LINE_ENDS}]*+(?=(?:Human|Assistant)[:：])")
LOOKALIKE = {"<": "‹", "[": "［"}

# What nobody sees, and what stands for another sign: models read through both.
_UNSEEN = re.compile(
    "[\x00-\x08\x0e-\x1b\x7f-\x84\x86-\x9f\xad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u202a-\u202e"
    "\u2060-\u206f\u3164\ud800-\udfff\ufe00-\ufe0f\ufeff\uffa0\ufff0-\uffff\U000e0000-\U000e0fff]"
)
_WIDE = {ord(wide): ord(plain) for wide, plain in zip("＜＞／＿－＝﹤﹥", "<>/_-=<>", strict=True)}
_WIDE |= {code: code - 0xFEE0 for first in "Ａａ" for code in range(ord(first), ord(first) + 26)}
_HAS_WIDE = re.compile(f"[{''.join(map(chr, _WIDE))}]")


def neutralised(text: str, texts: Texts = DEFAULT) -> str:
    """The text with what imitates system or tool markup made harmless: its first sign is exchanged for one that
    looks alike, so that people read the same and no model takes it for a frame. `texts`: whose headings are frames
    too, besides those of every language."""
    plain = _UNSEEN.sub("", text)
    if _HAS_WIDE.search(plain):
        plain = plain.translate(_WIDE)
    marked = _marked(plain, texts)
    roles = [match.end() for match in _ROLE.finditer(marked)] if ":" in marked or "：" in marked else []
    if marked == plain and not roles:
        return text
    return _carried_over(text, plain, marked, roles)


def _marked(text: str, texts: Texts) -> str:
    """The text with the first sign of every frame exchanged; as long as before."""
    if "<" in text:
        text = _WORD.sub(LOOKALIKE["<"], _ELEMENT.sub(LOOKALIKE["<"], text))
    if "<" in text or "[" in text:
        text = _SPECIAL.sub(_lookalike, text)
        text = _headings(texts).sub(_lookalike, text)
    return text


def _carried_over(text: str, plain: str, marked: str, roles: Sequence[int]) -> str:
    """The text with what was changed in its plain form, and a sign before each role."""
    seen: Sequence[int] = range(len(text))
    if len(plain) != len(text):
        seen = [at for at, sign in enumerate(text) if not _UNSEEN.match(sign)]
    signs = list(text)
    if marked != plain:
        for at, before, after in zip(seen, plain, marked, strict=True):
            if before != after:
                signs[at] = after
    for at in roles:
        signs[seen[at]] = f"| {signs[seen[at]]}"
    return "".join(signs)


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
