"""What came from the web as text: which content types are text, in which charset, and HTML without its tags.

Knows no network. Everything here is linear in its input.
"""

import codecs
import html
import re
from collections.abc import Iterator

from app.tools.text import SNIFF_BYTES, STAND_IN, encoding_of

HTML_KINDS = frozenset({"text/html", "application/xhtml+xml"})
_TEXT_KINDS = frozenset(
    f"application/{name}"
    for name in (
        *("json", "ld+json", "x-ndjson", "jsonl", "xml", "javascript", "ecmascript", "x-javascript", "typescript"),
        *("yaml", "x-yaml", "toml", "x-sh", "sql", "graphql", "x-tex", "x-latex", "rtf", "x-httpd-php"),
    )
)
_MAYBE = frozenset({"", "application/octet-stream", "binary/octet-stream", "application/x-download"})

_META_BYTES = 2_048
_META = re.compile(
    rb"""<(?:meta|\?xml)[^>]{0,200}?(?:charset|encoding)\s{0,8}=\s{0,8}["']?\s{0,8}([\w.:-]{2,40})""",
    re.IGNORECASE,
)
# Of Python's codecs those of the web (WHATWG Encoding); others turn bytes into code, or take quadratic time.
_CHARSETS = frozenset(
    {
        *("utf-8", "utf-16", "utf-16-le", "utf-16-be", "gb18030", "big5", "big5hkscs", "euc_jp", "shift_jis", "cp932"),
        *(
            "iso2022_jp",
            "euc_kr",
            "cp949",
            "koi8-r",
            "koi8-u",
            "mac-roman",
            "mac-cyrillic",
            "cp866",
            "cp874",
            "tis-620",
        ),
        *(f"cp125{n}" for n in range(9)),
        *(f"iso8859-{n}" for n in range(1, 17)),
    }
)
_WIDER = {"ascii": "cp1252", "iso8859-1": "cp1252", "gb2312": "gb18030", "gbk": "gb18030", "iso8859-9": "cp1254"}
_CONTROL = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")

_TAG = re.compile(r"<(?:(!--)|(/?)([a-zA-Z][a-zA-Z0-9]{0,20})|[!?])")
_UNREAD = frozenset({"script", "style", "noscript", "template", "svg", "head", "iframe", "object", "textarea"})
_ENDS = {name: re.compile(rf"</{name}(?=[\s/>])", re.IGNORECASE) for name in _UNREAD}
_BREAKS = frozenset(
    {
        *(
            "p",
            "div",
            "br",
            "li",
            "ul",
            "ol",
            "dl",
            "dt",
            "dd",
            "tr",
            "table",
            "section",
            "article",
            "header",
            "footer",
        ),
        *("main", "nav", "aside", "h1", "h2", "h3", "h4", "h5", "h6", "pre", "blockquote", "figure", "figcaption"),
        *("form", "hr", "option"),
    }
)
_TITLE = re.compile(r"<title(?:\s[^<>]{0,500})?>([^<]{0,1000})", re.IGNORECASE)
_TITLE_CHARS = 64 * 1024


def is_html(kind: str) -> bool:
    """Whether a body of this content type is HTML."""
    return kind in HTML_KINDS


def may_be_text(kind: str) -> bool:
    """Whether a body of this content type is worth reading: it is text, or does not say what it is."""
    known = kind.startswith("text/") or kind in HTML_KINDS or kind in _TEXT_KINDS or kind in _MAYBE
    return known or kind.endswith(("+json", "+xml", "+yaml"))


def decoded(body: bytes, kind: str, charset: str) -> str | None:
    """The text of a body. None when it does not say that it is text, and is none.

    Charset: a byte order mark, else what the header says, else the document itself, else UTF-8. What cannot be decoded
    or shown is replaced.
    """
    marked = encoding_of(body[:SNIFF_BYTES])
    if kind in _MAYBE and marked is None:
        return None
    name, start = marked if marked is not None and marked[1] else ("", 0)
    chosen = name or _known(charset) or _declared(body) or "utf-8"
    text = body[start:].decode(chosen, "replace")
    return cleaned(text)


def cleaned(text: str) -> str:
    """The text with line feeds alone at its line ends, and what cannot be shown replaced."""
    return _CONTROL.sub(STAND_IN, text.replace("\r\n", "\n").replace("\r", "\n"))


def looks_like_html(text: str) -> bool:
    """Whether a text that does not say what it is begins like HTML."""
    return text[:200].lstrip().lower().startswith(("<!doctype html", "<html"))


def _declared(body: bytes) -> str | None:
    found = _META.search(body[:_META_BYTES])
    name = _known(found[1].decode("ascii", "replace")) if found else None
    return "utf-8" if name is not None and name.startswith("utf-16") else name  # it was read as ASCII just now


def _known(charset: str) -> str | None:
    try:
        name = codecs.lookup(charset.strip()).name
    except (LookupError, ValueError):  # ValueError: a NUL in it
        return None
    name = _WIDER.get(name, name)
    return name if name in _CHARSETS else None


# ── HTML ────────────────────────────────────────────────────────────────────────────────────────────────────────


def title_of(page: str) -> str:
    """The title of a page in one line; empty if it has none."""
    found = _TITLE.search(page[:_TITLE_CHARS])
    return " ".join(html.unescape(found[1]).split())[:200] if found else ""


def plain_text(page: str) -> str:
    """All that is written on a page, block by block; nothing is judged to be the important part."""
    lines = (" ".join(line.split()) for line in html.unescape("".join(_pieces(page))).split("\n"))
    return "\n".join(line for line in lines if line)


def _pieces(page: str) -> Iterator[str]:
    at = 0
    while (tag := _TAG.search(page, at)) is not None:
        yield page[at : tag.start()].replace("\n", " ")
        name = (tag[3] or "").lower()
        if tag[1]:
            end = page.find("-->", tag.end())
        elif name in _UNREAD and not tag[2]:
            close = _ENDS[name].search(page, tag.end())
            end = page.find(">", close.end()) if close else -1
        else:
            end = page.find(">", tag.end())
        if end < 0:  # never closed: browsers show nothing of the rest
            return
        if name in _BREAKS:
            yield "\n"
        at = end + (3 if tag[1] else 1)
    yield page[at:].replace("\n", " ")
