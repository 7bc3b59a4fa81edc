"""`web_fetch` in a net with one page, and what it gave."""

import asyncio
import re
from dataclasses import dataclass
from typing import Any

import pytest

from app.agent.errors import ToolError
from app.agent.tools import ToolContext, ToolResult
from app.tools.extraction import Extraction
from app.tools.threads import DaemonThreads
from app.tools.web import WebFetch
from tests.net.standin import PUBLIC, Answer, Net

URL = "http://page.example/"
WAIT_S = 30.0
ARTICLE = (
    "<!doctype html><html><head><title>A &amp; B\n  title</title><script>var hidden = 1;</script></head><body>"
    "<nav><a href=/>Menu</a></nav><article><h1>The heading</h1>"
    + "".join(
        f"<p>Paragraph {n} tells of a <a href='/more/{n}'>thing</a> at some length, in words.</p>" for n in range(9)
    )
    + "<table><tr><th>Name</th><th>Size</th></tr><tr><td>one</td><td>17</td></tr></table>"
    "<pre><code>for x in y:\n    print(x)</code></pre></article></body></html>"
).encode()


@dataclass(kw_only=True)
class Web:
    """The tool in a net with one page."""

    net: Net
    tool: WebFetch
    context: ToolContext

    async def result(self, answer: Answer | None = None, **arguments: Any) -> ToolResult:
        """Call it; `answer` is what the page says."""
        if answer is not None:
            self.net.sites[PUBLIC].answers["/"] = answer
        async with asyncio.timeout(WAIT_S):
            return await self.tool.call({"url": URL, **arguments}, self.context)

    async def text(self, answer: Answer | None = None, **arguments: Any) -> str:
        """What stands between the marks."""
        return fenced((await self.result(answer, **arguments)).content)

    async def error(self, answer: Answer | None = None, **arguments: Any) -> str:
        """What the model is told instead."""
        with pytest.raises(ToolError) as caught:
            await self.result(answer, **arguments)
        return caught.value.message


def fenced(content: str) -> str:
    """The text between the marks of a result."""
    found = re.search(r"the two marks (\w{16}) .*?\n--- \1 ---\n(.*)\n--- end \1 ---\Z", content, re.DOTALL)
    assert found is not None, content
    return found[2]


def tool_in(world: Net, extraction: Extraction | None = None) -> WebFetch:
    """The tool, with its own way to read pages."""
    return WebFetch(world.fetcher(), DaemonThreads(2, "web"), extraction or Extraction())
