"""The program that reads pages: whatever a page or the program does, a bounded text comes and nothing is left."""

import asyncio
import sys
from collections.abc import AsyncIterator, Sequence

import pytest

from app.agent.tools import ToolContext
from app.tools import extraction_child
from app.tools.extraction import Extraction
from tests.net.listening import listening
from tests.net.standin import PUBLIC, net, page
from tests.tools.webworld import ARTICLE, URL, WAIT_S, Web, fenced, tool_in


@pytest.fixture
async def web(context: ToolContext) -> AsyncIterator[Web]:
    async with net() as world:
        yield Web(net=world, tool=tool_in(world), context=context)


HOSTILE = {
    "nested 100,000 deep": b"<div>" * 100_000 + b"inside" + b"</div>" * 100_000,
    "nested lists": b"<ul><li>" * 50_000 + b"inside",
    "attributes": b"<p " + b" ".join(b"a%d=1" % n for n in range(100_000)) + b">inside",
    "never closed": b"<p>inside<a " * 50_000,
    "signs": b"inside" + b"<" * 500_000,
    "entities": b"inside" + b"&#x" * 200_000,
    "comments": b"inside" + b"<!--" * 200_000,
    "scripts": b"inside" + b"<script>" * 100_000,
    "titles": b"<title>" * 50_000 + b"</title><p>inside",
    "nothing": b"<html><body><p>inside</body></html>",
}


@pytest.mark.spec("7.3")
@pytest.mark.parametrize("what", HOSTILE)
async def test_a_hostile_page_becomes_a_bounded_text_in_bounded_time(web: Web, what: str) -> None:
    tool = tool_in(web.net, Extraction(timeout_s=2.0))
    web.net.sites[PUBLIC].answers["/"] = page(HOSTILE[what])
    async with asyncio.timeout(WAIT_S):
        result = await tool.call({"url": URL}, web.context)
    assert len(result.content) < 13_000
    assert "inside" in result.content or what == "titles"


def program(text: str) -> Sequence[str]:
    return (sys.executable, "-I", "-c", text)


@pytest.mark.spec("7.3")
@pytest.mark.parametrize(
    "command",
    [
        program("import sys; sys.exit('no')"),
        program("import os; os.abort()"),
        program("import sys; sys.stdin.close()"),
        program("import sys; sys.stdout.buffer.write(b'half of it'); sys.stdout.flush(); sys.exit(3)"),
        ("/nowhere/at/all",),
    ],
)
async def test_the_plain_text_of_a_page_comes_where_its_readable_part_cannot_be_found(
    web: Web, command: Sequence[str], caplog: pytest.LogCaptureFixture
) -> None:
    web.net.sites[PUBLIC].answers["/"] = page(ARTICLE + b"<p>more</p>" * 50_000)
    result = await tool_in(web.net, Extraction(command=command)).call({"url": URL}, web.context)
    assert "A & B title\n\nMenu\nThe heading\nParagraph 0 tells of a thing" in result.content
    assert "the program that takes texts out of pages" in caplog.text or "stdin.close" in command[-1]


@pytest.mark.spec("7.3", "12.6")
async def test_the_url_of_a_page_is_on_no_command_line(web: Web) -> None:
    shows = program("import sys; print('arguments', sys.argv[1:], 'first line', sys.stdin.readline())")
    web.net.sites[PUBLIC].answers["/?key=in-the-url"] = page(ARTICLE)
    result = await tool_in(web.net, Extraction(command=shows)).call({"url": URL + "?key=in-the-url"}, web.context)
    assert f"arguments [] first line {URL}?key=in-the-url" in result.content


@pytest.mark.spec("7.3")
async def test_links_of_a_page_begin_at_its_host(web: Web) -> None:
    words = " ".join(["It tells of many things, one after another, at length."] * 20)
    body = f'<article><h1>Title</h1><p>{words} <a href="/next.html">the next page</a> {words}</p></article>'
    web.net.sites[PUBLIC].answers["/a/b.html"] = page(body.encode())
    result = await web.tool.call({"url": URL + "a/b.html"}, web.context)
    assert f"({URL}next.html)" in result.content


@pytest.mark.spec("7.3", "7.4")
async def test_a_page_that_keeps_its_reader_busy_holds_up_nobody_and_a_cancelled_call_ends_it(web: Web) -> None:
    came, left = asyncio.Event(), asyncio.Event()

    async def watch(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        came.set()
        await reader.read()
        left.set()
        writer.close()

    async with asyncio.timeout(WAIT_S), listening(watch) as port:
        busy = program(f"import socket\ns = socket.create_connection(('127.0.0.1', {port}))\nwhile True: pass")
        web.net.sites[PUBLIC].answers |= {"/": page(ARTICLE), "/text": page(b"quick", kind="text/plain")}
        tool = tool_in(web.net, Extraction(command=busy))
        slow = asyncio.create_task(tool.call({"url": URL}, web.context))
        await came.wait()
        quick = await tool.call({"url": URL + "text"}, web.context)
        assert (fenced(quick.content), slow.done()) == ("quick", False)
        slow.cancel()
        with pytest.raises(asyncio.CancelledError):
            await slow
        await left.wait()


@pytest.mark.spec("7.3")
async def test_the_program_that_reads_pages_is_bounded_by_itself() -> None:
    code = (
        f"import resource, runpy, sys\nsys.stdin.close()\n"
        f"try: runpy.run_path({extraction_child.__file__!r}, run_name='__main__')\n"
        "except ValueError: pass\n"
        "print(resource.getrlimit(resource.RLIMIT_AS)[0], resource.getrlimit(resource.RLIMIT_CPU)[0])\n"
    )
    process = await asyncio.create_subprocess_exec(sys.executable, "-I", "-c", code, stdout=asyncio.subprocess.PIPE)
    async with asyncio.timeout(WAIT_S):
        told, _ = await process.communicate()
    assert told.split() == [b"%d" % extraction_child.MEMORY_BYTES, b"%d" % extraction_child.CPU_S]
