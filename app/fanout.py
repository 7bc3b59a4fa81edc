"""How much work a JSON Schema makes: how many subschemas a validator visits, each as often as references, unions and
the like lead to it.

Knows no validator and no text of an error. References are followed inside the schema; one that may mean several places
counts for all of them, so that what is counted here is at least what is done.
"""

import heapq
from collections.abc import Iterable, Iterator, Mapping, Set
from graphlib import CycleError, TopologicalSorter
from typing import Any
from urllib.parse import unquote

_LISTS = ("allOf", "anyOf", "oneOf")
_SINGLE = ("not", "if", "then", "else")
_MAPS = ("dependentSchemas", "dependencies")
_REFERENCES = ("$ref", "$dynamicRef", "$recursiveRef")
_UNEVALUATED = ("unevaluatedProperties", "unevaluatedItems")
_ANCHORS = ("$anchor", "$dynamicAnchor")
_IDS = ("$id", "id")
MAX_VISITS = 10_000  # at one place of a value: unions of unions multiply, and time with them
_MAX_STEPS = 300_000  # of one count; about a third of a second
_MAX_SHAPES = 500  # of places at one depth that are looked at one by one; more are taken for one that is all of them

Counts = dict[int, int]  # how often each subschema is applied; `~n` is the subschema n asked for what it evaluates


class _Members:
    """Which subschemas a subschema applies to the members of a value: by name or index, to all others, to all."""

    __slots__ = ("always", "named", "others")

    def __init__(self, named: Mapping[Any, list[int]], others: list[int], always: list[int]) -> None:
        self.named = named
        self.others = others
        self.always = always

    def of(self, key: Any) -> Iterable[int]:
        """Those for the member of that name or index."""
        return (*self.always, *self.named.get(key, self.others))

    def all(self) -> Iterator[int]:
        """Those for any member."""
        yield from (*self.always, *self.others)
        for numbers in self.named.values():
            yield from numbers


class Fanout:
    """Counts visits of one schema, which must not change meanwhile. `circular`: a subschema leads to itself at the same
    place of a value, so that no count ends."""

    def __init__(self, schema: Mapping[str, Any]) -> None:
        self._targets = _Targets(schema)
        self._nodes: list[Mapping[str, Any]] = []
        self._index: dict[int, int] = {}
        self._here: dict[int, list[int]] = {}
        self._objects: list[_Members] = []
        self._arrays: list[_Members] = []
        self._keys: list[list[int]] = []
        self._referred: set[int] = set()
        self._known(schema)
        for number, node in enumerate(self._nodes):  # it grows by what each one leads to
            self._add(number, node)
        self._rank: dict[int, int] = {}
        try:
            order = list(TopologicalSorter(self._here).static_order())
            self._rank = {state: -at for at, state in enumerate(order)}
        except CycleError:
            pass
        self.circular = not self._rank
        self._kept = self._referred.intersection(self._recursive())
        self._level = {frozenset({(0, 1)})}
        self._widths: list[int] = []

    def at_one_place(self) -> int:
        """The most visits that one subschema leads to before it goes into a value's members."""
        total: Counts = {}
        for state in sorted(self._rank, key=self._rank.__getitem__, reverse=True):
            total[state] = 1 + sum(total[inner] for inner in self._here[state])
        return max((count for state, count in total.items() if state >= 0), default=0)

    def problem(self) -> str | None:
        """Why the schema would make too much work of any value, or None."""
        if self.circular:
            return "a subschema refers to itself (by $ref, anyOf and the like) without going into a member of the value"
        visits = self.at_one_place()
        if visits <= MAX_VISITS:
            return None
        shown = f"{visits:,}" if visits < 10**15 else "far too many"
        return (
            f"references and unions (anyOf, oneOf, allOf …) in each other lead to {shown} subschemas for one value, at "
            f"most {MAX_VISITS:,} are accepted: nest fewer unions in each other"
        )

    def visits(self, value: Any, most: int) -> int:
        """How many visits it takes at most to say whether a value is valid; what is found for a subschema that contains
        itself is kept for the place (`jsonschema_rs` does so). Above `most` counting stops, as it does when it takes
        too long."""
        places, depth = _size(value)
        if self.circular:
            return most + 1
        bound = places * self._width(depth, most)
        return bound if bound <= most else self._counted(value, most, self._kept)

    def steps(self, value: Any, most: int) -> int:
        """How many visits it takes to say all that is wrong with a value, where nothing is kept; as `visits`."""
        return most + 1 if self.circular else self._counted(value, most, frozenset())

    # ── the graph ───────────────────────────────────────────────────────────────────────────────────────────────

    def _number(self, node: Mapping[str, Any]) -> int:
        number = self._index.setdefault(id(node), len(self._nodes))
        if number == len(self._nodes):
            self._nodes.append(node)
        return number

    def _known(self, value: Any) -> list[int]:
        """The number of a subschema in a list; empty for what is none (true and false cost nothing)."""
        if not isinstance(value, Mapping):
            return []
        targets = self._meant(value.get("$ref")) if len(value) == 1 else []
        return targets if len(targets) == 1 else [self._number(value)]  # so that equal references are one subschema

    def _meant(self, reference: Any) -> list[int]:
        found = [self._number(target) for target in self._targets.of(reference) if isinstance(target, Mapping)]
        self._referred.update(found)
        return found

    def _all(self, values: Any) -> list[int]:
        found = values.values() if isinstance(values, Mapping) else values if isinstance(values, list) else ()
        return [number for value in found for number in self._known(value)]

    def _add(self, number: int, node: Mapping[str, Any]) -> None:
        here = [n for key in (*_LISTS, *_MAPS) for n in self._all(node.get(key))]
        here += [n for key in _SINGLE for n in self._known(node.get(key))]
        for key in _REFERENCES:
            here += self._meant(node.get(key))
        unevaluated = [n for key in _UNEVALUATED for n in self._known(node.get(key))]
        # what is evaluated is found by going through everything again, and whatever may fail is tried once more
        self._here[number] = [*here, ~number] if any(key in node for key in _UNEVALUATED) else here
        self._here[~number] = [*here, *(~n for n in here)]
        properties = node.get("properties")
        named = {k: self._known(v) for k, v in properties.items()} if isinstance(properties, Mapping) else {}
        patterns = [*self._all(node.get("patternProperties")), *unevaluated]
        self._objects.append(_Members(named, self._known(node.get("additionalProperties")), patterns))
        items = node.get("items")
        first = items if isinstance(items, list) else node.get("prefixItems")
        prefix = dict(enumerate(map(self._known, first))) if isinstance(first, list) else {}
        rest = [*self._known(items), *self._known(node.get("additionalItems"))]
        self._arrays.append(_Members(prefix, rest, [*self._known(node.get("contains")), *unevaluated]))
        self._keys.append(self._known(node.get("propertyNames")))

    def _recursive(self) -> set[int]:
        """The subschemas that contain themselves, and those between two that do."""
        inner = {
            number: {
                *(state for state in self._here[number] if state >= 0),
                *self._keys[number],
                *(n for members in (self._objects[number], self._arrays[number]) for n in members.all()),
            }
            for number in range(len(self._nodes))
        }
        outer: dict[int, set[int]] = {number: set() for number in inner}
        for number, found in inner.items():
            for n in found:
                outer[n].add(number)
        left = _without_ends(set(inner), inner, outer)  # those that lead to no circle …
        return _without_ends(left, outer, inner)  # … and those to which none leads

    # ── counting ────────────────────────────────────────────────────────────────────────────────────────────────

    def _spread(self, entries: Mapping[int, int], kept: Set[int]) -> Counts:
        """All that is applied at a place to which these are applied; what is `kept` is applied once."""
        counts = dict(entries)
        waiting = [(self._rank[state], state) for state in counts]
        heapq.heapify(waiting)
        while waiting:
            _, state = heapq.heappop(waiting)
            if state in kept:
                counts[state] = 1
            for inner in self._here[state]:
                if inner not in counts:
                    counts[inner] = 0
                    heapq.heappush(waiting, (self._rank[inner], inner))
                counts[inner] += counts[state]
        return counts

    def _counted(self, value: Any, most: int, kept: Set[int]) -> int:
        total = steps = 0
        waiting: list[tuple[Any, Counts]] = [(value, {0: 1})]
        while waiting:
            item, entries = waiting.pop()
            counts = self._spread(entries, kept)
            total += sum(counts.values())
            steps += len(counts)
            if isinstance(item, Mapping | list | tuple):
                steps += len(item) * len(counts)
            if total > most or steps > _MAX_STEPS:
                return most + 1
            waiting.extend(self._members(item, counts))
        return total

    def _members(self, item: Any, counts: Counts) -> Iterator[tuple[Any, Counts]]:
        if isinstance(item, Mapping):
            keys = _summed((number, counts[state]) for state in counts if state >= 0 for number in self._keys[state])
            for key, inner in item.items():
                yield inner, self._applied(self._objects, counts, key)
                yield key, keys
        elif isinstance(item, list | tuple):
            for index, inner in enumerate(item):
                yield inner, self._applied(self._arrays, counts, index)

    def _applied(self, members: list[_Members], counts: Counts, key: Any) -> Counts:
        return _summed((n, count) for state, count in counts.items() if state >= 0 for n in members[state].of(key))

    def _width(self, depth: int, most: int) -> int:
        """The most visits at one place of any value that is nested that deep; above `most` it is not exact."""
        while len(self._widths) <= depth and self._level and (not self._widths or self._widths[-1] <= most):
            places = [self._spread(dict(entries), self._kept) for entries in self._level]
            self._widths.append(max(sum(counts.values()) for counts in places))
            below = {shape for counts in places for shape in self._below(counts)}
            if len(below) > _MAX_SHAPES:
                below = {frozenset(_most(below).items())}
            if below == self._level:
                break  # all further places are like these
            self._level = below
        return max(self._widths[: depth + 1])

    def _below(self, counts: Counts) -> Iterator[frozenset[tuple[int, int]]]:
        """What can be applied to one member, for each name or index that a subschema knows, and for all others."""
        applied = {state: count for state, count in counts.items() if state >= 0}
        yield frozenset(_summed((n, count) for state, count in applied.items() for n in self._keys[state]).items())
        for members in (self._objects, self._arrays):
            base = _summed((n, count) for s, count in applied.items() for n in (*members[s].always, *members[s].others))
            yield frozenset(base.items())
            by_key: dict[Any, list[tuple[int, int]]] = {}
            for state, count in applied.items():
                for key, named in members[state].named.items():
                    changes = by_key.setdefault(key, [])
                    changes.extend((n, count) for n in named)
                    changes.extend((n, -count) for n in members[state].others)
            for changes in by_key.values():
                yield frozenset((n, count) for n, count in _summed((*base.items(), *changes)).items() if count)


class _Targets:
    """What the references in a schema may mean."""

    def __init__(self, schema: Mapping[str, Any]) -> None:
        self._bases: list[Any] = [schema]
        self._anchors: dict[str, list[Any]] = {}
        waiting: list[Any] = [schema]
        while waiting:
            item = waiting.pop()
            if isinstance(item, Mapping):
                self._note(item)
                waiting.extend(item.values())
            elif isinstance(item, list):
                waiting.extend(item)

    def _note(self, item: Mapping[str, Any]) -> None:
        names = [item.get(key) for key in _ANCHORS]
        for key in _IDS:
            name = item.get(key)
            if isinstance(name, str) and name.startswith("#"):  # how older drafts write an anchor
                names.append(name[1:])
            elif isinstance(name, str) and item is not self._bases[0]:
                self._bases.append(item)
        for name in names:
            if isinstance(name, str):
                self._anchors.setdefault(name, []).append(item)

    def of(self, reference: Any) -> Iterator[Any]:
        """The subschemas at which it may point."""
        if not isinstance(reference, str) or not reference.startswith("#"):
            return
        pointer = unquote(reference[1:])
        yield from self._anchors.get(pointer, ())
        if not pointer or pointer.startswith("/"):
            steps = [step.replace("~1", "/").replace("~0", "~") for step in pointer.split("/")[1:]]
            for base in self._bases:
                yield _at(base, steps)


def _at(value: Any, steps: Iterable[str]) -> Any:
    for step in steps:
        if isinstance(value, Mapping):
            value = value.get(step)
        elif isinstance(value, list) and step.isdecimal() and int(step) < len(value):
            value = value[int(step)]
        else:
            return None
    return value


def _without_ends(nodes: Set[int], ahead: Mapping[int, Set[int]], back: Mapping[int, Set[int]]) -> set[int]:
    """The nodes from which one can go ahead for ever."""
    ways = {node: len(ahead[node] & nodes) for node in nodes}
    waiting = [node for node, count in ways.items() if not count]
    while waiting:
        for before in back[waiting.pop()]:
            if before in ways:
                ways[before] -= 1
                if not ways[before]:
                    waiting.append(before)
    return {node for node, count in ways.items() if count}


def _summed(pairs: Iterable[tuple[int, int]]) -> Counts:
    found: Counts = {}
    for number, count in pairs:
        found[number] = found.get(number, 0) + count
    return found


def _most(shapes: Iterable[frozenset[tuple[int, int]]]) -> Counts:
    """As much of each subschema as in the one that has most of it."""
    found: Counts = {}
    for shape in shapes:
        for number, count in shape:
            found[number] = max(found.get(number, 0), count)
    return found


def _size(value: Any) -> tuple[int, int]:
    """How many values there are in a value, names of members with them, and how deep they are nested."""
    places, depth = 0, -1
    level = [value]
    while level:
        depth += 1
        places += len(level)
        inner: list[Any] = []
        for item in level:
            if isinstance(item, Mapping):
                inner.extend(item.values())
                places += len(item)
            elif isinstance(item, list | tuple):
                inner.extend(item)
        level = inner
    return places, depth
