"""Metrics for Prometheus, counted from published events (a listener of the journal).

Counting is a dictionary entry for each event, under a microsecond; everything else happens when somebody looks.
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate

from prometheus_client import CollectorRegistry, GCCollector, PlatformCollector, ProcessCollector, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from prometheus_client.metrics_core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from app import __version__
from app.agent.events import FINAL_TYPES, Event

PREFIX = "subagentd"
# Seconds a run takes: from one short answer to the better part of an hour.
DURATIONS = (0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600, 1800)
TOKENS = ("input_tokens", "output_tokens", "cached_tokens", "reasoning_tokens")
GAUGES = {
    "open_streams": "Event streams that are open.",
    "runs_in_flight": "Runs that have not ended.",
    "runs_queued": "Of these, runs that have not begun.",
    "runs_at_work": "Places of limits.concurrent_runs that are taken.",
    "tasks_open": "Background tasks that have not ended.",
    "journal_waiting_bytes": "Bytes of facts that wait to be stored.",
    "store_up": "1 while facts can be stored, 0 while the store is away.",
}
COUNTERS = {"store_failures_total": "Attempts to store a batch that failed."}


class _Durations:
    """One histogram."""

    __slots__ = ("buckets", "sum")

    def __init__(self) -> None:
        self.buckets = [0] * (len(DURATIONS) + 1)
        self.sum = 0.0

    def add(self, seconds: float) -> None:
        self.buckets[bisect_left(DURATIONS, seconds)] += 1
        self.sum += seconds

    def cumulative(self) -> list[tuple[str, float]]:
        names = [*(f"{bound:g}" for bound in DURATIONS), "+Inf"]
        return list(zip(names, (float(n) for n in accumulate(self.buckets)), strict=True))


class Metrics:
    """Counts events and shows the counts. One per process; `observe` is called on the event loop only."""

    content_type = CONTENT_TYPE_LATEST

    def __init__(self) -> None:
        self._events: Counter[str] = Counter()
        self._runs: Counter[tuple[str, str]] = Counter()
        self._tokens: Counter[str] = Counter()
        self._model_calls = 0
        self._handoffs: Counter[str] = Counter()
        self._tool_calls: Counter[str] = Counter()
        self._webhooks: Counter[str] = Counter()
        self._streams: Counter[str] = Counter()
        self._forced = 0
        self._durations = {"root": _Durations(), "subagent": _Durations()}
        self._registry = CollectorRegistry()
        self._collector = _Counts(self)
        self._registry.register(self._collector)
        ProcessCollector(registry=self._registry)
        PlatformCollector(registry=self._registry)
        GCCollector(registry=self._registry)

    def observe(self, events: Sequence[Event]) -> None:
        """Count a batch of published events."""
        counts = self._events
        for event in events:
            kind = event.type
            counts[kind] += 1
            if kind == "tool.result":
                self._tool_calls[event.payload["status"]] += 1
            elif kind == "handoff.end":
                self._handoffs[event.payload["status"]] += 1
            elif kind in FINAL_TYPES:
                self._run_ended(event)

    def webhook(self, outcome: str) -> None:
        """Count a try to tell somebody of the end of a run: `delivered`, `failed` or `given_up`."""
        self._webhooks[outcome] += 1

    def stream_ended(self, reason: str) -> None:
        """Count the end of an event stream: `ended`, `client_left`, `not_read`, or why the server ended it."""
        self._streams[reason] += 1

    def _run_ended(self, event: Event) -> None:
        payload = event.payload
        level = "subagent" if event.run is not None and event.run.depth else "root"
        self._runs[level, payload["status"]] += 1
        self._durations[level].add(payload["duration_ms"] / 1000)
        self._forced += bool(payload["forced"])
        usage = payload["usage"]
        self._model_calls += usage["model_calls"]
        for name in TOKENS:
            self._tokens[name] += usage[name]

    def text(self, gauges: Mapping[str, float]) -> bytes:
        """Everything in the text format; `gauges` by the names in `GAUGES` and `COUNTERS`."""
        self._collector.gauges = gauges
        return generate_latest(self._registry)

    def families(self, gauges: Mapping[str, float]) -> Iterator[Metric]:
        """The counts as metric families."""
        yield InfoMetricFamily(PREFIX, "The version of the service.", {"version": __version__})
        yield _counter("events", "Events published, by type.", "type", self._events)
        runs = CounterMetricFamily(f"{PREFIX}_runs", "Runs that ended.", labels=("level", "status"))
        for (level, status), count in self._runs.items():
            runs.add_metric((level, status), count)
        yield runs
        yield _counter("handoffs", "Handoffs that ended, by status.", "status", self._handoffs)
        yield _counter("tool_calls", "Results of tool calls, by status.", "status", self._tool_calls)
        yield _counter("webhooks", "Tries to deliver completion webhooks, by outcome.", "outcome", self._webhooks)
        yield _counter("streams_ended", "Event streams that ended, by reason.", "reason", self._streams)
        tokens = {name.removesuffix("_tokens"): count for name, count in self._tokens.items()}
        yield _counter("tokens", "Tokens of ended runs; cached and reasoning are parts.", "kind", tokens)
        yield CounterMetricFamily(f"{PREFIX}_model_calls", "Model calls of ended runs.", value=self._model_calls)
        yield CounterMetricFamily(f"{PREFIX}_forced_answers", "Runs made to answer at a limit.", value=self._forced)
        durations = HistogramMetricFamily(f"{PREFIX}_run_duration_seconds", "How long runs took.", labels=("level",))
        for level, measured in self._durations.items():
            durations.add_metric((level,), measured.cumulative(), measured.sum)
        yield durations
        for name, text in GAUGES.items():
            yield GaugeMetricFamily(f"{PREFIX}_{name}", text, value=gauges.get(name, 0))
        for name, text in COUNTERS.items():
            yield CounterMetricFamily(f"{PREFIX}_{name}", text, value=gauges.get(name, 0))


class _Counts(Collector):
    """How prometheus-client asks: at each look, for everything."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self.gauges: Mapping[str, float] = {}

    def collect(self) -> Iterator[Metric]:
        """The metric families."""
        return self._metrics.families(self.gauges)


def _counter(name: str, text: str, label: str, counts: Mapping[str, int]) -> Metric:
    family = CounterMetricFamily(f"{PREFIX}_{name}", text, labels=(label,))
    for value, count in counts.items():
        family.add_metric((value,), count)
    return family
