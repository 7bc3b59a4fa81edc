"""A model of runs that share memories: what should happen is simulated, and held against `SharedMemories`."""

import asyncio
from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass

from app.agent.errors import Unavailable
from app.agent.messages import Message, Role
from app.agent.runs import MemoryState
from app.agent.shared_memories import MemorySeat, SharedMemories

TENANT = "default"
FIRST_TURN = 7  # of a memory that was used before


class Store:
    """Memories as they were left; counts how often each is read."""

    def __init__(self) -> None:
        self.kept: dict[tuple[str, str], MemoryState] = {}
        self.reads: Counter[str] = Counter()
        self.broken = False
        self.gate = asyncio.Event()
        self.gate.set()

    async def load(self, tenant: str, memory_id: str) -> MemoryState:
        self.reads[memory_id] += 1
        await self.gate.wait()
        if self.broken:
            raise Unavailable("the store is away")
        return self.kept.get((tenant, memory_id), MemoryState(next_turn=FIRST_TURN))


def childless(_run_id: str) -> Collection[str]:
    return ()


def state(text: str) -> MemoryState:
    return MemoryState(messages=(Message(role=Role.USER, content=text),))


def taken(memories: SharedMemories, memory_id: str = "M", tenant: str = TENANT) -> MemorySeat:
    seat = memories.take(tenant, memory_id, None, ())
    assert seat is not None
    return seat


async def settled() -> None:
    """Let everybody run who can."""
    for _ in range(6):
        await asyncio.sleep(0)


@dataclass(eq=False)
class Node:
    """A run of the model, or (`launched` False) a place in a queue whose run is not there yet."""

    name: str
    parent: "Node | None"
    memory: str | None = None
    seat: MemorySeat | None = None
    hold: asyncio.Task[MemoryState] | None = None
    launched: bool = True

    @property
    def works(self) -> bool:
        return self.launched and (self.hold is None or self.hold.done())

    def lineage(self) -> list[str]:
        return [self.name, *(self.parent.lineage() if self.parent is not None else [])]


class Forest:
    """Runs that delegate, wait and end: says what should be so, and checks that it is."""

    def __init__(self) -> None:
        self.nodes: list[Node] = []
        self.queues: dict[str, list[Node]] = {}
        self.left: dict[str, str] = {}  # who left a memory last, as long as it has a queue
        self.made = 0
        self.refused = 0
        self.memories = SharedMemories(Store().load, self._children)

    def _children(self, run_id: str) -> list[str]:
        return [node.name for node in self.nodes if node.launched and node.parent and node.parent.name == run_id]

    def parents(self) -> set[Node]:
        return {node.parent for node in self.nodes if node.parent is not None}

    def all_can_end(self, more: Node) -> bool:
        """Whether everybody could end, one after the other, if `more` waited at the end of its queue."""
        nodes = [*self.nodes, more]
        queues = {memory: list(queue) for memory, queue in self.queues.items()}
        queues.setdefault(str(more.memory), []).append(more)
        while nodes:
            waited_for = {node.parent for node in nodes}
            ended = [n for n in nodes if n not in waited_for and (n.memory is None or queues[n.memory][0] is n)]
            if not ended:
                return False
            for node in ended:
                nodes.remove(node)
                if node.memory is not None:
                    queues[node.memory].remove(node)
        return True

    def delegate(self, parent: Node | None, memory: str | None) -> None:
        """A run, or a caller who is none, asks for a child."""
        self.made += 1
        node = Node(name=f"run_{self.made}", parent=parent, memory=memory)
        if memory is not None:
            above = parent.lineage() if parent is not None else []
            node.seat = self.memories.take(TENANT, memory, above[0] if above else None, above)
            assert (node.seat is not None) == self.all_can_end(node), f"{parent} asks for {memory}"
            if node.seat is None:
                self.refused += 1
                return
            node.launched = False
            self.queues.setdefault(memory, []).append(node)
        self.nodes.append(node)

    async def launch(self, node: Node) -> None:
        """The run of a place in a queue begins to wait for its turn."""
        assert node.seat is not None
        await node.seat.opened()
        self.memories.sit(node.seat, node.name)
        node.launched = True
        node.hold = asyncio.create_task(node.seat.hold())

    async def end(self, node: Node) -> None:
        """Somebody without children ends: it has worked, or is cancelled while it waits or before its run was there."""
        self.nodes.remove(node)
        if node.seat is None or node.memory is None:
            return
        held = node.hold is not None and node.works
        if node.hold is not None and not held:
            node.hold.cancel()
            await asyncio.wait([node.hold])
        node.seat.leave(state(node.name) if held else None)
        queue = self.queues[node.memory]
        queue.remove(node)
        if held:
            self.left[node.memory] = node.name
        if not queue:
            self.left.pop(node.memory, None)

    async def check(self) -> None:
        """Exactly the first of each queue holds the memory, and has what was left there."""
        await settled()
        for memory, queue in self.queues.items():
            for at, node in enumerate(queue):
                assert node.hold is None or node.hold.done() == (at == 0), f"{node.name} is number {at} at {memory}"
            first = queue[0].hold if queue else None
            if first is not None and memory in self.left:
                assert first.result() == state(self.left[memory])
            turns = [node.seat.turn for node in queue if node.seat is not None and node.launched]
            assert turns == sorted(set(turns))

    async def step(self, kind: str, number: int, memory: str | None) -> None:
        """One thing happens, to the one among those to whom it can happen that the number says."""
        busy = self.parents()
        able = {
            "root": [],
            "delegate": [node for node in self.nodes if node.works],
            "ask": [node for node in self.nodes if node.works],
            "launch": [node for node in self.nodes if not node.launched],
            "end": [node for node in self.nodes if node not in busy],
        }[kind]
        node = able[number % len(able)] if able else None
        if kind == "root":
            self.delegate(None, memory)
        elif node is not None and kind in ("ask", "delegate"):
            self.delegate(node, memory)
            if kind == "delegate" and not self.nodes[-1].launched:
                await self.launch(self.nodes[-1])
        elif node is not None and kind == "launch":
            await self.launch(node)
        elif node is not None:
            await self.end(node)
