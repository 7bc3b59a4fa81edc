"""Prices of a profile: which ones a model has, what its tokens come to, and which settings of them are refused."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.agent.chat import ChatModel, Prices
from app.llm.catalog import Models
from app.llm.http import Transport
from app.llm.local import LocalChat, local_profile
from app.llm.profile import Profile
from app.llm.scripted import ScriptedChat
from tests.llm.asking import World, ask
from tests.stubs.openai_stub import chunk, stream, usage_chunk

PRICED = {"input_price": 150_000, "output_price": 600_000}
COUNTS = st.integers(0, 10_000_000)
AMOUNTS = st.integers(0, 100_000_000)


def profile(**fields: Any) -> Profile:
    return Profile(**{"name": "p", "provider": "scripted", "model": "echo", **fields})


@pytest.mark.spec("13.3")
def test_a_profile_with_prices_has_them_and_one_without_has_none() -> None:
    assert profile().prices is None
    assert profile(**PRICED).prices == Prices(input=150_000, output=600_000)
    full = profile(**PRICED, cached_price=75_000, currency="CNY")
    assert full.prices == Prices(input=150_000, output=600_000, cached=75_000, currency="CNY")


@pytest.mark.spec("13.3")
def test_a_model_that_costs_nothing_is_no_model_of_unknown_price() -> None:
    assert profile(input_price=0, output_price=0).prices == Prices(input=0, output=0)


@pytest.mark.spec("13.3")
@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"input_price": 1}, "'p': input_price without output_price: .*; set input_price and output_price"),
        ({"output_price": 1}, "output_price without input_price"),
        ({"cached_price": 1}, "cached_price without input_price and output_price"),
        ({"input_price": 1, "cached_price": 1}, "input_price, cached_price without output_price"),
        ({"cache_write_price": 1}, "cache_write_price without input_price and output_price"),
        ({**PRICED, "cache_write_price": -1}, "cache_write_price must be 0 or above, not -1"),
        ({"input_price": -1, "output_price": 1}, "input_price must be 0 or above, not -1"),
        ({**PRICED, "cached_price": -5}, "cached_price must be 0 or above, not -5"),
        ({**PRICED, "currency": "usd"}, "currency 'usd' is no code of three capital letters"),
        ({"currency": ""}, "currency '' is no code"),
    ],
)
def test_prices_that_leave_the_cost_of_a_call_open_are_refused(fields: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        profile(**fields)


@pytest.mark.spec("13.3")
async def test_every_model_knows_the_prices_of_its_profile(world: World) -> None:
    priced = Prices(input=150_000, output=600_000)
    own = {"fast": profile(name="fast", **PRICED), "plain": profile(name="plain")}
    models = Models(profiles=own)
    found: dict[str, ChatModel] = {name: models.resolve(name) for name in ("fast", "plain", "scripted:demo")}
    assert [found[name].prices for name in found] == [priced, None, None]
    assert world.model(**PRICED).prices == priced
    assert world.model().prices is None
    assert ScriptedChat("scripted:test", (), priced).prices == priced


@pytest.mark.spec("13.3")
def test_the_local_model_is_free_unless_its_profile_sets_prices() -> None:
    transport = Transport()
    assert LocalChat(local_profile("local:smollm2", "smollm2"), transport).prices == Prices(input=0, output=0)
    own = profile(provider="local", model="smollm2", currency="EUR")
    assert LocalChat(own, transport).prices == Prices(input=0, output=0, currency="EUR")
    paid = profile(provider="local", model="smollm2", **PRICED)
    assert LocalChat(paid, transport).prices == Prices(input=150_000, output=600_000)


@pytest.mark.spec("13.3")
def test_a_scripted_model_has_no_price_however_it_is_named(tmp_path: Path) -> None:
    (tmp_path / "own.yaml").write_text("agents: [{turns: [{text: own}]}]")
    models = Models(scripts_dir=tmp_path)
    assert [models.resolve(f"scripted:{name}").prices for name in ("echo", "own", "own.yaml")] == [None, None, None]


# ── what a call costs ───────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.spec("13.4")
async def test_the_usage_of_a_reply_comes_to_money_with_cached_tokens_at_their_own_price(world: World) -> None:
    usage = usage_chunk(1_000, 100, prompt_tokens_details={"cached_tokens": 400})
    world.stub.script(stream(chunk({"content": "hello"}), chunk({}, "stop"), usage))
    model = world.model(**PRICED, cached_price=15_000)
    spent, prices = (await ask(model)).reply.usage, model.prices
    assert spent is not None and prices is not None
    assert prices.cost(spent.input_tokens, spent.output_tokens, spent.cached_tokens) == 90 + 6 + 60
    dearer = world.model(**PRICED).prices
    assert dearer is not None and dearer.cost(1_000, 100, 400) == 150 + 60


@pytest.mark.spec("13.4")
@pytest.mark.parametrize(
    ("prices", "tokens", "micros"),
    [
        ((1, 1), (1, 0, 0), 1),
        ((1, 1), (0, 0, 0), 0),
        ((1, 1), (500_000, 500_000, 0), 1),
        ((1, 1), (500_000, 500_001, 0), 2),
        ((0, 0), (10**9, 10**9, 10**9), 0),
        ((150_000, 600_000), (7, 3, 0), 3),  # 1.05 + 1.8: rounded once, not each part
        ((150_000, 600_000), (3, 0, 5), 1),  # more cached tokens than tokens: nothing is paid back
    ],
)
def test_a_call_costs_whole_millionths_rounded_up_once(
    prices: tuple[int, int], tokens: tuple[int, int, int], micros: int
) -> None:
    assert Prices(input=prices[0], output=prices[1]).cost(*tokens) == micros


@pytest.mark.spec("13.4")
@pytest.mark.parametrize(
    ("fields", "counts", "cost"),
    [
        ({}, (1, 1, 1, 1), {}),
        (PRICED, (1_000_000, 0, 0, 0), {"USD": 150_000}),
        (PRICED, (0, 1_000_000, 0, 0), {"USD": 187_500}),
        (PRICED, (0, 0, 1_000_000, 0), {"USD": 150_000}),
        (PRICED, (0, 0, 0, 1_000_000), {"USD": 600_000}),
        ({**PRICED, "cached_price": 15_000, "currency": "EUR"}, (0, 0, 1_000_000, 0), {"EUR": 15_000}),
        ({**PRICED, "cache_write_price": 300_000}, (0, 1_000_000, 0, 0), {"USD": 300_000}),
        ({**PRICED, "cache_write_price": 0}, (0, 1_000_000, 0, 0), {"USD": 0}),
        ({"input_price": 1, "output_price": 1}, (0, 3_000_000, 0, 0), {"USD": 4}),  # 3.75
        ({"input_price": 1, "output_price": 1}, (1, 1, 1, 1), {"USD": 1}),
        ({"input_price": 0, "output_price": 0}, (9, 9, 9, 9), {"USD": 0}),
    ],
)
def test_what_a_cache_takes_in_costs_a_quarter_more_unless_a_price_is_set(
    fields: dict[str, Any], counts: tuple[int, int, int, int], cost: dict[str, int]
) -> None:
    assert profile(**fields).cost(*counts) == cost


@pytest.mark.spec("13.4")
@given(input=AMOUNTS, output=AMOUNTS, cached=AMOUNTS, asked=COUNTS, answered=COUNTS, share=st.integers(0, 100))
def test_what_is_charged_is_less_than_one_unit_above_the_exact_cost_and_never_below(
    input: int, output: int, cached: int, asked: int, answered: int, share: int
) -> None:
    hits = asked * share // 100
    exact = (asked - hits) * input + hits * cached + answered * output  # in millionths of a micro-unit
    charged = Prices(input=input, output=output, cached=cached).cost(asked, answered, hits) * 1_000_000
    assert exact <= charged < exact + 1_000_000
