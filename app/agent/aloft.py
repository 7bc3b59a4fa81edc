"""Which runs are in the air or were not long ago, and who is above and below whom.

Begins and ends nothing (`supervisor.py`).
"""

from collections import OrderedDict
from collections.abc import Collection, Iterator

from app.agent.flights import Flight, Found

ENDED_RUNS = 2_000  # that are found without a look into the store


class Aloft:
    """All of them, by their ids. `open` holds those in the air."""

    def __init__(self) -> None:
        self.open: dict[str, Flight] = {}
        self._ended: OrderedDict[str, Found] = OrderedDict()

    def land(self, flight: Flight, ended: int | None) -> None:
        """A run is final. `ended`: the number of its final event, None when it is left to the next process."""
        run = flight.live.run
        self.open.pop(run.id, None)
        self._ended[run.id] = Found(run, flight.first, ended)
        if len(self._ended) > ENDED_RUNS:
            self._ended.popitem(last=False)

    def find(self, run_id: str) -> Found | None:
        """One that is open in this process or was not long ago."""
        flight = self.open.get(run_id)
        return self._ended.get(run_id) if flight is None else Found(flight.live.run, flight.first, None)

    def roots(self, session_id: str | None = None) -> list[str]:
        """The open runs that end with no other one, of a session or of all."""
        return [
            flight.live.run.id
            for flight in self.open.values()
            if flight.heir not in self.open and session_id in (None, flight.live.run.session_id)
        ]

    def upwards(self, run_id: str | None) -> list[str]:
        """A run and those above it, open or not, as far as they are known."""
        found: list[str] = []
        while run_id is not None:
            found.append(run_id)
            if (flight := self.open.get(run_id)) is not None:
                return [*found, *flight.above]
            known = self.find(run_id)
            run_id = known.run.parent_id if known is not None else None
        return found

    def waiting(self, run_id: str | None) -> list[str]:
        """A run and those above it that wait for it: for a background task nobody does."""
        found: list[str] = []
        while run_id is not None and (flight := self.open.get(run_id)) is not None:
            found.append(run_id)
            run_id = None if flight.live.request.background else flight.live.run.parent_id
        return found

    def heir(self, run_id: str) -> str | None:
        """The open run that is responsible for what a run has left: itself, or the nearest one above it."""
        above: str | None = run_id
        while above is not None and above not in self.open:
            known = self._ended.get(above)
            above = known.run.parent_id if known is not None else None
        return above

    def waited_for(self, run_id: str) -> Collection[str]:
        """The open runs that a run has started and waits for."""
        flight = self.open.get(run_id)
        if flight is None:
            return ()
        return [child for child in flight.children if not self.open[child].live.request.background]

    def subtree(self, run_id: str) -> Iterator[Flight]:
        """The run and everything below it, parents first; however deep that is."""
        todo = [run_id]
        while todo:
            flight = self.open.get(todo.pop())
            if flight is not None:
                yield flight
                todo.extend(sorted(flight.children, reverse=True))
