"""Bodies as text: charsets, and tags taken away, whatever the bytes."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.tools.webtext import cleaned, decoded, plain_text, title_of

CHARSETS = [
    ("text/plain; charset=iso-8859-1", "é€".encode("cp1252"), "é€"),
    ("text/plain; charset=\"Shift_JIS\"", "日本".encode("shift_jis"), "日本"),
    ("text/plain; charset=gb2312", "中文".encode("gb18030"), "中文"),
    ("text/plain; charset=utf-16le", "é".encode("utf-16-le"), "é"),
    ("text/plain; charset=utf-8", b"\xef\xbb\xbfmarked", "marked"),
    ("text/plain; charset=latin1", b"\xff\xfeh\0i\0", "hi"),  # the mark is surer than the header
    ("text/plain", "é".encode(), "é"),
    ("text/plain", b"broken \xff\xc3", "broken \ufffd\ufffd"),
    ("text/plain; charset=no-such", "é".encode(), "é"),
    ("text/plain; charset=rot13", b"abc", "abc"),
    ("text/plain; charset=unicode_escape", rb"\u0041", r"\u0041"),
    ("text/plain; charset=utf-7", b"+ADw-b+AD4-", "+ADw-b+AD4-"),
    ("text/plain; charset=idna", b"xn--bcher-kva", "xn--bcher-kva"),
    ("text/html", b"<meta charset=windows-1251><p>" + "привет".encode("cp1251"), "привет"),
    ("text/html", b"<meta http-equiv=Content-Type content='text/html; charset=euc-jp'>" + "日".encode("euc_jp"), "日"),
    ("text/html; charset=utf-8", b"<meta charset=windows-1251><p>" + "é".encode(), "é"),
    ("application/xml", b"<?xml version='1.0' encoding='koi8-r'?><a>" + "я".encode("koi8-r") + b"</a>", "я"),
]  # fmt: skip


@pytest.mark.spec("7.3")
@pytest.mark.case("B184")
@pytest.mark.parametrize(("kind", "body", "wanted"), CHARSETS)
def test_the_charset_is_that_of_the_mark_else_the_header_else_the_page(kind: str, body: bytes, wanted: str) -> None:
    name, _, charset = kind.partition("; charset=")
    text = decoded(body, name, charset.strip('"'))
    assert text is not None
    assert wanted in text


@pytest.mark.spec("7.3")
@given(st.binary(max_size=200) | st.text(alphabet="<>/!-& ;#pascriptbr\n\0x1\"'=", max_size=120).map(str.encode))
def test_no_bytes_make_reading_fail(body: bytes) -> None:
    for kind in ("text/html", ""):
        text = decoded(body, kind, "utf-8")
        if text is None:
            assert kind == ""
            continue
        assert not re.search("[\0-\x08\x0b-\x1f\x7f\ud800-\udfff]", cleaned(plain_text(text) + title_of(text)))
