"""May this tree still spend: reserve before, settle after. One budget per session and per run with limits, chained.

Reserving is synchronous, so that runs side by side cannot pass a limit together. Knows neither runs nor providers.
"""

import asyncio
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, fields

from app.agent.admission import Slots
from app.agent.chat import Prices
from app.agent.errors import BudgetSpent, InvalidRequest
from app.agent.messages import Message, Usage
from app.agent.policy import BudgetLimits
from app.agent.tokens import Count, rough_messages, rough_tokens, rough_tools
from app.agent.tools import ToolSpec

FORCED_TOKENS = 1024  # of the answer that a root keeps back for its end (spec 4.8)
OUTPUT_TOKENS = 4096  # what a call may answer with under a limit of tokens or money, when nobody said how much
LEAST_OUTPUT = 256  # with less left than this it is better to wait for what others give back


@dataclass(frozen=True, slots=True, kw_only=True)
class Amount:
    """What is spent, in the units of `BudgetLimits`."""

    model_calls: int = 0
    tokens: int = 0
    cost_micros: int = 0
    tool_calls: int = 0
    delegations: int = 0

    def __add__(self, other: "Amount") -> "Amount":
        return Amount(**{name: getattr(self, name) + getattr(other, name) for name in _KINDS})

    def __sub__(self, other: "Amount") -> "Amount":
        return Amount(**{name: getattr(self, name) - getattr(other, name) for name in _KINDS})


_KINDS = tuple(field.name for field in fields(Amount))
_GIVEN_BACK = ("tokens", "cost_micros")  # a call reserves more of these than it uses
NOTHING = Amount()
ONE_TOOL_CALL = Amount(tool_calls=1)
ONE_DELEGATION = Amount(delegations=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """Why nothing was reserved: the kind and its limit. `level`: the budget to wait for, since calls that are under way
    may give some of it back; None: it is spent."""

    kind: str
    limit: int
    level: "Budget | None" = None

    @property
    def what(self) -> str:
        """For people and models."""
        return f"{self.kind} {self.limit}"

    def error(self) -> BudgetSpent:
        """The same as an exception."""
        return BudgetSpent(f"the budget of this task is used up: {self.what}")


class Budget:
    """What may be spent under one session or run; every budget above it bounds it as well."""

    __slots__ = (
        "_active", "_calls", "_reserved", "_since", "_used", "_waiting", "_wall_ms", "above", "limits", "slots",
    )  # fmt: skip

    def __init__(
        self, limits: BudgetLimits, above: "Budget | None" = None, *, spent: Amount = NOTHING, wall_ms: int = 0
    ) -> None:
        """`spent`, `wall_ms`: what was used before (a session's earlier turns)."""
        self.limits = limits
        self.above = above
        self.slots = Slots(limits.max_concurrent) if limits.max_concurrent is not None else None
        self._used = spent
        self._reserved = NOTHING
        self._calls = 0  # model calls under way
        self._waiting: list[asyncio.Future[None]] = []
        self._wall_ms = float(wall_ms)
        self._active = 0
        self._since = 0.0

    @property
    def used(self) -> Amount:
        """What was spent and settled."""
        return self._used

    def chain(self) -> Iterator["Budget"]:
        """This budget and all above it."""
        level: Budget | None = self
        while level is not None:
            yield level
            level = level.above

    @property
    def meters_tokens(self) -> bool:
        """Whether tokens or money are limited anywhere in the chain."""
        return any(b.limits.tokens is not None or b.limits.cost_micros is not None for b in self.chain())

    def currencies(self) -> set[str]:
        """The currencies in which money is limited."""
        return {b.limits.currency for b in self.chain() if b.limits.cost_micros is not None}

    def places(self) -> tuple[Slots, ...]:
        """The queues for children under this budget, the outermost first, as everybody takes them."""
        return tuple(b.slots for b in reversed(list(self.chain())) if b.slots is not None)

    def left(self, kind: str) -> int | None:
        """How much may still be reserved of one kind; None: any amount."""
        found = [b._left(kind) for b in self.chain()]
        return min((left for left in found if left is not None), default=None)

    def _left(self, kind: str) -> int | None:
        limit: int | None = getattr(self.limits, kind)
        if limit is None:
            return None
        return limit - int(getattr(self._used, kind)) - int(getattr(self._reserved, kind))

    def reserve(self, amount: Amount, *, call: bool = False) -> "Reservation | Refusal":
        """Take an amount in every budget of the chain, or in none. `call`: for a model call that is made now."""
        for level in self.chain():
            for kind in _KINDS:
                left = level._left(kind)
                if left is not None and getattr(amount, kind) > max(0, left):
                    may_come = kind in _GIVEN_BACK and level._calls > 0
                    return Refusal(kind=kind, limit=getattr(level.limits, kind), level=level if may_come else None)
        reservation = Reservation(self, amount, call)
        for level in self.chain():
            level._reserved += amount
            level._calls += call
        return reservation

    def _settle(self, reserved: Amount, used: Amount, call: bool, quiet: bool) -> None:
        for level in self.chain():
            level._reserved -= reserved
            level._used += used
            level._calls -= call
            if quiet:
                continue
            waiting, level._waiting = level._waiting, []
            for waiter in waiting:
                if not waiter.done():
                    waiter.set_result(None)

    async def freed(self) -> None:
        """Wait until something is settled here."""
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(waiter)
        await waiter

    def begin(self) -> None:
        """Work under this budget begins: its clock runs while any goes on."""
        if not self._active:
            self._since = asyncio.get_running_loop().time()
        self._active += 1

    def end(self) -> None:
        """Work under this budget has ended."""
        self._active -= 1
        if not self._active:
            self._wall_ms += (asyncio.get_running_loop().time() - self._since) * 1000

    def wall_left_ms(self) -> float | None:
        """Milliseconds left on the clock of this budget alone; None: not limited."""
        if self.limits.wall_ms is None:
            return None
        running = (asyncio.get_running_loop().time() - self._since) * 1000 if self._active else 0.0
        return max(0.0, self.limits.wall_ms - self._wall_ms - running)


class Reservation:
    """An amount that is kept back until it is settled; once."""

    __slots__ = ("_budget", "_call", "_open", "amount")

    def __init__(self, budget: Budget, amount: Amount, call: bool) -> None:
        self._budget = budget
        self._call = call
        self._open = True
        self.amount = amount

    def settle(self, used: Amount, *, quiet: bool = False) -> None:
        """Give the rest back. A second time changes nothing. `quiet`: it is taken again at once, so nobody is woken;
        whoever waits does so for a call that is under way, and is woken by its end."""
        if self._open:
            self._open = False
            self._budget._settle(self.amount, used, self._call, quiet)


def take(budget: Budget | None, amount: Amount) -> Refusal | None:
    """Spend an amount at once; the refusal when it does not fit."""
    if budget is None:
        return None
    got = budget.reserve(amount)
    if isinstance(got, Refusal):
        return got
    got.settle(amount)
    return None


def check_prices(currencies: Collection[str], model: str, prices: Prices | None) -> None:
    """Raises `InvalidRequest` when money is limited and the model's price is not known in that currency (spec 4.8)."""
    if prices is not None and not (prices.input or prices.output or prices.cached):
        return  # what costs nothing costs nothing in every currency
    unknown = sorted(set(currencies) - ({prices.currency} if prices is not None else set()))
    if unknown:
        raise InvalidRequest(
            f"the budget limits money in {', '.join(unknown)}, but model {model!r} has no price in it: set input_price "
            "and output_price in its profile (models.profiles), or limit tokens instead",
            code="no_price",
        )


def spent_on(usage: Usage, currencies: set[str]) -> Amount:
    """What a usage comes to in a budget whose money is limited in these currencies."""
    money = sum(micros for currency, micros in usage.cost.items() if currency in currencies)
    return Amount(model_calls=usage.model_calls, tokens=usage.input_tokens + usage.output_tokens, cost_micros=money)


class Meter:
    """One run's dealings with its budget: asked before each model call, told after it. A root keeps an answer back
    from its start, so that a limit ends in one; the others have nothing kept back."""

    __slots__ = ("_budget", "_count", "_held", "_known", "_open", "_prices", "_root", "_tools", "_wanted")

    def __init__(
        self,
        budget: Budget | None,
        prices: Prices | None,
        max_tokens: int | None,
        *,
        root: bool,
        count: Count = rough_tokens,
    ) -> None:
        """`count`: the tokens of a text, rather too many than too few."""
        self._budget = budget
        self._count = count
        self._prices = prices
        self._wanted = max_tokens
        self._root = root
        self._held: Reservation | None = None
        self._open: Reservation | None = None
        self._known: tuple[int, int] | None = None  # messages that were sent, and their tokens with the reply
        self._tools: int | None = None

    @property
    def root(self) -> bool:
        """Whether an answer is kept back for the end."""
        return self._root

    async def before(
        self, messages: Sequence[Message], tools: Sequence[ToolSpec], *, last: bool = False, bound: int | None = None
    ) -> int | None:
        """Reserve the next call; returns the bound of its answer in tokens (None: none to send).

        `last`: the forced answer, for which a root uses what it kept back. `bound`: how long the answer may be, when
        that is not what the agent's answers may. Raises `BudgetSpent`.
        """
        budget = self._budget
        wanted = bound or self._wanted
        if budget is None:
            return wanted
        asked = 0
        if budget.meters_tokens:
            await asyncio.sleep(0)  # whom this run's last call has woken comes first, or it might wait to the end
            asked = self._input(messages, tools)
        while True:
            got = self._reserve(budget, asked, wanted, last=last, aside=bound is not None)
            if not isinstance(got, Refusal):
                return got
            if got.level is None:
                raise got.error()
            await got.level.freed()

    def _reserve(
        self, budget: Budget, asked: int, wanted: int | None, *, last: bool, aside: bool
    ) -> int | Refusal | None:
        """Reserve a call; the bound of its answer. What a root keeps back is for the context as it is now and grows
        with it; a call `aside` is none of the conversation and leaves it as it is."""
        before = self._held
        if last or (self._root and not aside):
            self._let_go(quiet=True)
        got: Reservation | Refusal | None = None
        if self._root and not (last or aside):
            got = budget.reserve(self._amount(budget, asked, FORCED_TOKENS if budget.meters_tokens else None))
            self._held = got if isinstance(got, Reservation) else None
        if not isinstance(got, Refusal):
            bound = self._bound(budget, asked, wanted)
            got = budget.reserve(self._amount(budget, asked, bound), call=True)
            if isinstance(got, Reservation):
                self._open = got
                return bound
        if self._held is None and before is not None:  # it still fits: nobody came in between
            again = budget.reserve(before.amount)
            self._held = again if isinstance(again, Reservation) else None
        return got

    def _amount(self, budget: Budget, asked: int, bound: int | None) -> Amount:
        if not budget.meters_tokens:
            return Amount(model_calls=1)
        answer, prices = bound or 0, self._prices
        money = 0
        if prices is not None:  # how much of the input is cached is not known, nor whether that is dearer
            money = max(prices.cost(asked, answer), prices.cost(asked, answer, asked))
        return Amount(model_calls=1, tokens=asked + answer, cost_micros=money)

    def _bound(self, budget: Budget, asked: int, wanted: int | None) -> int | None:
        """How long the answer may be: what is wanted, at most what is left."""
        if not budget.meters_tokens:
            return wanted
        wanted = wanted or OUTPUT_TOKENS
        left = budget.left("tokens")
        most = wanted if left is None else min(wanted, left - asked)
        money = budget.left("cost_micros")
        if money is not None and self._prices is not None and self._prices.output:
            rest = money - self._amount(budget, asked, 0).cost_micros - 1  # rounding up may take one more
            most = min(most, rest * 1_000_000 // self._prices.output)
        return max(most, min(wanted, LEAST_OUTPUT))

    def _input(self, messages: Sequence[Message], tools: Sequence[ToolSpec]) -> int:
        """Tokens of the request: what the provider counted last time, and an estimate of what was added since."""
        if self._known is not None and self._known[0] < len(messages):
            return self._known[1] + rough_messages(messages[self._known[0] + 1 :], self._count)
        if self._tools is None:
            self._tools = rough_tools(tools, self._count)
        return rough_messages(messages, self._count) + self._tools

    def after(self, usage: Usage, sent: Sequence[Message], said: str, *, counted: bool, aside: bool = False) -> Amount:
        """A call has ended with this usage; what the budget counts for it. `counted` False: the provider did not say,
        so it is estimated where tokens or money are limited. `aside`: it was none of the conversation."""
        if self._budget is None or self._open is None:
            return NOTHING
        used = spent_on(usage, self._budget.currencies())
        if counted and not aside:
            self._known = (len(sent), usage.input_tokens + usage.output_tokens)
        elif not counted and self._budget.meters_tokens:
            asked, answered = self._input(sent, ()), self._count(said)
            money = self._prices.cost(asked, answered) if self._prices is not None else 0
            used = Amount(model_calls=1, tokens=asked + answered, cost_micros=money)
        self._open.settle(used)
        self._open = None
        return used

    def forget(self) -> None:
        """The conversation was shortened: what was counted of it does not hold any more."""
        self._known = None

    def put_off(self) -> None:
        """The call that was reserved is made later, after another `before`: its room is others' meanwhile. A root keeps
        it back if nothing else is, so that it still has an answer."""
        if self._open is None or self._budget is None:
            return
        amount = self._open.amount
        self._open.settle(NOTHING)
        self._open = None
        if self._root and self._held is None:
            again = self._budget.reserve(amount)
            self._held = again if isinstance(again, Reservation) else None

    def release(self) -> None:
        """The run has ended: give back what was kept for its end, and a call that was reserved and never made."""
        self._let_go()
        if self._open is not None:
            self._open.settle(NOTHING)
            self._open = None

    def _let_go(self, *, quiet: bool = False) -> None:
        if self._held is not None:
            self._held.settle(NOTHING, quiet=quiet)
            self._held = None
