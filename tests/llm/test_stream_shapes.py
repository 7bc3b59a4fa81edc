"""What servers really stream, over the wire: every odd shape ends in the turn that was meant."""

import asyncio
import json
from typing import Any

import pytest

from app.agent.chat import ChatRequest, Delta, DeltaKind, Finish
from app.agent.errors import ModelError
from tests.llm.asking import GLOB, READ, TASK, World, ask, spec
from tests.stubs.openai_stub import Answer, call_chunk, calls, chunk, stream, usage_chunk

pytestmark = pytest.mark.spec("13.2")

STOP = chunk({}, "stop")
CALLED = chunk({}, "tool_calls")


@pytest.mark.case("B002")
async def test_a_name_repeated_in_every_chunk_is_set_once(world: World) -> None:
    pieces = ['{"', "path", '":', '"a', '"}']
    chunks = [call_chunk(0, id="c1", name="read_file", arguments=piece) for piece in pieces]
    reply = (await world.answered(stream(*chunks, CALLED))).reply
    assert [(call.name, call.arguments) for call in reply.tool_calls] == [("read_file", {"path": "a"})]


@pytest.mark.case("B003")
@pytest.mark.parametrize(
    "names", [["read_", "file"], ["read_", "read_file"], ["read_file", "read_file"], ["r", "ead_file"]]
)
async def test_a_name_in_pieces_and_a_name_resent_whole_give_the_same_call(world: World, names: list[str]) -> None:
    chunks = [call_chunk(0, id="c1", name=name, arguments="") for name in names]
    answer = stream(*chunks, call_chunk(0, arguments='{"path":"a"}'), CALLED)
    assert [call.name for call in (await world.answered(answer)).reply.tool_calls] == ["read_file"]


async def test_a_name_that_is_the_beginning_of_another_tool_is_joined_only_to_an_offered_one(world: World) -> None:
    tools = (spec("read"), spec("read_file", "path"))
    joined = stream(call_chunk(0, id="c", name="read"), call_chunk(0, name="_file", arguments="{}"), CALLED)
    kept = stream(call_chunk(0, id="c", name="read"), call_chunk(0, name="er", arguments="{}"), CALLED)
    assert [call.name for call in (await world.answered(joined, tools)).reply.tool_calls] == ["read_file"]
    assert [call.name for call in (await world.answered(kept, tools)).reply.tool_calls] == ["read"]


@pytest.mark.case("B004")
async def test_an_id_and_type_repeated_in_every_delta_stay_one_call_with_that_id(world: World) -> None:
    pieces = ["", '{"path"', ':"a"', "}"]
    chunks = [call_chunk(0, id="call_1", type="function", name="read_file", arguments=piece) for piece in pieces]
    (call,) = (await world.answered(stream(*chunks, CALLED))).reply.tool_calls
    assert (call.provider_call_id, call.raw) == ("call_1", '{"path":"a"}')


@pytest.mark.case("B005")
async def test_fresh_ids_on_argument_fragments_do_not_split_a_call(world: World) -> None:
    text = '{"pattern": "*.py"}'
    fragments = [call_chunk(0, id=f"a{at}", name="", arguments=char) for at, char in enumerate(text, start=2)]
    answer = stream(call_chunk(0, id="a1", name="glob", arguments=""), *fragments, CALLED)
    (call,) = (await world.answered(answer)).reply.tool_calls
    assert (call.name, call.arguments, call.provider_call_id) == ("glob", {"pattern": "*.py"}, "a1")


@pytest.mark.case("B006")
async def test_two_entries_for_one_index_in_one_chunk_are_merged(world: World) -> None:
    first = chunk(
        {
            "tool_calls": [
                {"index": 0, "id": "c1", "type": "function", "function": {"name": "glob", "arguments": '{"pat'}},
                {"index": 0, "function": {"arguments": 'tern":'}},
            ]
        }
    )
    (call,) = (await world.answered(stream(first, call_chunk(0, arguments='"*.py"}'), CALLED))).reply.tool_calls
    assert call.arguments == {"pattern": "*.py"}


@pytest.mark.case("B007")
async def test_chunks_without_choices_are_passed_over_and_usage_counts_once(world: World) -> None:
    filtered = {"choices": [], "prompt_filter_results": [{"prompt_index": 0}]}
    pieces = [chunk({"content": piece}, usage=None) for piece in ("All ", "fine")]
    asked = await world.answered(
        stream(filtered, *pieces, STOP, usage_chunk(7, 3, prompt_tokens_details={"cached_tokens": 4}))
    )
    assert asked.reply.text == "All fine"
    usage = asked.reply.usage
    assert usage is not None and (usage.input_tokens, usage.output_tokens, usage.cached_tokens) == (7, 3, 4)


async def test_running_usage_in_every_chunk_counts_only_the_last(world: World) -> None:
    chunks = [chunk({"content": "x"}, usage={"prompt_tokens": 9, "completion_tokens": n}) for n in (1, 2, 3)]
    usage = (await world.answered(stream(*chunks, STOP))).reply.usage
    assert usage is not None and (usage.input_tokens, usage.output_tokens) == (9, 3)


async def test_a_server_that_never_sends_usage_leaves_it_unknown(world: World) -> None:
    assert (await world.answered(stream(chunk({"content": "x"}), STOP))).reply.usage is None


@pytest.mark.case("B008")
@pytest.mark.parametrize("odd", [{"index": 0, "finish_reason": None}, {"index": 0, "delta": None}])
async def test_a_choice_without_delta_is_passed_over(world: World, odd: dict[str, Any]) -> None:
    answer = stream(chunk({"content": "ok"}), {"choices": [odd]}, STOP)
    assert (await world.answered(answer)).reply.text == "ok"


@pytest.mark.case("B010")
async def test_a_finish_word_that_promises_calls_without_any_is_a_text_answer(world: World) -> None:
    reply = (await world.answered(stream(chunk({"content": "All good"}), CALLED))).reply
    assert (reply.text, reply.tool_calls, reply.finish) == ("All good", (), Finish.STOP)


async def test_calls_under_a_finish_word_that_says_stop_are_calls(world: World) -> None:
    reply = (await world.answered(stream(call_chunk(0, id="c", name="glob", arguments="{}"), STOP))).reply
    assert (len(reply.tool_calls), reply.finish) == (1, Finish.TOOL_CALLS)


@pytest.mark.case("B011")
async def test_an_empty_text_before_a_call_is_no_text(world: World) -> None:
    answer = stream(chunk({"content": ""}), call_chunk(0, id="c", name="glob", arguments="{}"), CALLED)
    asked = await world.answered(answer)
    assert (asked.reply.text, len(asked.reply.tool_calls)) == ("", 1)
    assert {delta.kind for delta in asked.deltas} == {DeltaKind.ARGUMENTS}


@pytest.mark.parametrize("key", ["reasoning_content", "reasoning", "reasoning_text"])
async def test_reasoning_is_told_apart_under_each_of_its_names(world: World, key: str) -> None:
    chunks = [chunk({key: "first "}), chunk({key: "then", "content": None}), chunk({"content": "42"})]
    asked = await world.answered(stream(*chunks, STOP))
    assert (asked.reply.reasoning, asked.reply.text) == ("first then", "42")
    assert (asked.said(DeltaKind.REASONING), asked.said(DeltaKind.TEXT)) == ("first then", "42")


async def test_content_in_parts_is_read_by_their_types(world: World) -> None:
    parts = [{"type": "thinking", "thinking": [{"type": "text", "text": "hm"}]}, {"type": "text", "text": "yes"}]
    reply = (await world.answered(stream(chunk({"content": parts}), STOP))).reply
    assert (reply.reasoning, reply.text) == ("hm", "yes")


@pytest.mark.case("B013")
@pytest.mark.parametrize(
    "content",
    [
        '<tool_call>\n{"name": "read_file", "arguments": {"path": "a"}}\n</tool_call>',
        'I will look.\n<tool_call>{"name": "read_file"}',
        '{"name": "read_file", "arguments": {"path": "a"}}',
        '```json\n{"name": "read_file", "parameters": {"path": "a"}}\n```',
        '[TOOL_CALLS][{"name": "read_file"}]',
        "<function=read_file>{}</function>",
    ],
)
async def test_a_tool_call_written_as_text_is_marked_and_not_run(world: World, content: str) -> None:
    reply = (await world.answered(stream(chunk({"content": content}), STOP))).reply
    assert reply.malformed_call
    assert (reply.tool_calls, reply.text) == ((), content)


@pytest.mark.case("B013")
@pytest.mark.parametrize(
    "content",
    [
        "Models write <tool_call> for this.",
        "Example:\n```\n<tool_call>{}</tool_call>\n```",
        '{"name": "Ada", "arguments": "none"}',
        '{"answer": 42}',
    ],
)
async def test_an_answer_that_only_quotes_a_call_is_not_marked(world: World, content: str) -> None:
    assert not (await world.answered(stream(chunk({"content": content}), STOP))).reply.malformed_call


async def test_whole_calls_without_index_or_id_are_told_apart(world: World) -> None:
    entries = [{"function": {"name": "glob", "arguments": {"pattern": pattern}}} for pattern in ("*.a", "*.b")]
    reply = (await world.answered(stream(chunk({"tool_calls": entries}), STOP))).reply
    assert [call.arguments for call in reply.tool_calls] == [{"pattern": "*.a"}, {"pattern": "*.b"}]


async def test_whole_calls_that_all_claim_index_zero_are_told_apart(world: World) -> None:
    chunks = [call_chunk(0, id=f"c{n}", name="glob", arguments=f'{{"pattern":"{n}"}}') for n in (1, 2)]
    reply = (await world.answered(stream(*chunks, CALLED))).reply
    assert [call.arguments for call in reply.tool_calls] == [{"pattern": "1"}, {"pattern": "2"}]


async def test_fragments_without_index_follow_the_open_call(world: World) -> None:
    chunks = [
        call_chunk(None, id="c1", name="glob", arguments='{"pat'),
        call_chunk(None, arguments='tern":"*.a"}'),
        call_chunk(None, id="c2", name="read_file", arguments=""),
        call_chunk(None, id="c2", arguments='{"path":"b"}'),
    ]
    reply = (await world.answered(stream(*chunks, CALLED))).reply
    assert [(call.name, call.raw) for call in reply.tool_calls] == [
        ("glob", '{"pattern":"*.a"}'),
        ("read_file", '{"path":"b"}'),
    ]


@pytest.mark.case("B023")
async def test_whole_calls_without_index_under_one_id_are_told_apart(world: World) -> None:
    chunks = [call_chunk(None, id="same", name="glob", arguments=f'{{"pattern":"{n}"}}') for n in (1, 2)]
    reply = (await world.answered(stream(*chunks, CALLED))).reply
    assert [call.arguments for call in reply.tool_calls] == [{"pattern": "1"}, {"pattern": "2"}]


@pytest.mark.parametrize("index", [0, None])
async def test_a_last_chunk_that_repeats_the_name_without_arguments_opens_no_call(
    world: World, index: int | None
) -> None:
    chunks = [call_chunk(index, id="c1", name="glob", arguments=text) for text in ('{"pattern":"*"}', "", None)]
    reply = (await world.answered(stream(*chunks, CALLED))).reply
    assert [call.arguments for call in reply.tool_calls] == [{"pattern": "*"}]


@pytest.mark.case("B154")
async def test_interleaved_argument_pieces_go_to_their_own_calls(world: World) -> None:
    chunks = [call_chunk(n, id=f"c{n}", name="glob", arguments='{"pattern":') for n in range(3)]
    chunks += [call_chunk(n, arguments=f'"{n}"}}') for n in (2, 0, 1)]
    asked = await world.answered(stream(*chunks, CALLED))
    assert [call.arguments for call in asked.reply.tool_calls] == [{"pattern": str(n)} for n in range(3)]
    for call in asked.reply.tool_calls:
        assert asked.said(DeltaKind.ARGUMENTS, call.call_id) == call.raw


@pytest.mark.case("B183")
async def test_an_escaped_pair_split_between_chunks_of_arguments_is_one_character(world: World) -> None:
    pieces = [r'{"path": "\ud83c', r'\udf78"}']
    chunks = [call_chunk(0, id="c", name="read_file", arguments=pieces[0]), call_chunk(0, arguments=pieces[1])]
    (call,) = (await world.answered(stream(*chunks, CALLED))).reply.tool_calls
    assert call.arguments == {"path": "🍸"}


@pytest.mark.case("B183")
async def test_halves_of_characters_escaped_in_the_chunks_themselves_are_joined(world: World) -> None:
    def raw(delta: str) -> str:
        return f'{{"choices":[{{"index":0,"delta":{delta}}}]}}'

    texts = [raw(r'{"content":"a\ud83c"}'), raw(r'{"content":"\udf78b"}'), raw(r'{"reasoning":"\ud83c"}')]
    more = [raw(r'{"reasoning":"\udf78"}'), raw(r'{"content":"\ud83c"}')]
    asked = await world.answered(stream(*texts, *more, STOP))
    assert (asked.reply.text, asked.reply.reasoning) == ("a🍸b\ufffd", "🍸")
    assert asked.said(DeltaKind.TEXT) == "a🍸b\ufffd"

    def piece(text: str) -> str:
        call = '{"index":0,"id":"c","function":{"name":"glob","arguments":"' + text + '"}}'
        return raw('{"tool_calls":[' + call + "]}")

    answer = stream(piece(r"{\"pattern\":\"\ud83c"), piece(r"\udf78\"}"), CALLED)
    assert (await world.answered(answer)).reply.tool_calls[0].arguments == {"pattern": "🍸"}


async def test_broken_bytes_in_a_chunk_cost_one_character_only(world: World) -> None:
    broken = b'data: {"choices":[{"index":0,"delta":{"content":"a\xffb"}}]}\n\n'
    assert (await world.answered(stream(broken, STOP))).reply.text == "a\ufffdb"


async def test_carriage_returns_in_text_forge_no_event(world: World) -> None:
    content = 'a\r\rdata: {"error":"x"}\n\nevent: error'
    assert (await world.answered(stream(chunk({"content": content}), STOP))).reply.text == content


@pytest.mark.parametrize("separator", [b"\n", b"\r\n", b"\n\n", b"\r\n\r\n", b"\n: comment\n\n"])
async def test_events_end_with_any_line_end_and_with_or_without_blank_line(world: World, separator: bytes) -> None:
    lines = [json.dumps(chunk({"content": "a"})), json.dumps(chunk({"content": "b"}, "stop")), "[DONE]"]
    body = b"".join(b"data:" + line.encode() + separator for line in lines)
    assert (await world.answered(Answer(writes=(body,)))).reply.text == "ab"


async def test_a_chunk_spread_over_several_data_lines_is_one_chunk(world: World) -> None:
    pretty = json.dumps(chunk({"content": "a"}), indent=1)
    body = "".join(f"data: {line}\n" for line in pretty.splitlines()) + "\n"
    assert (await world.answered(stream(body.encode(), STOP))).reply.text == "a"


async def test_noise_that_is_no_object_is_passed_over(world: World) -> None:
    assert (await world.answered(stream("ping", chunk({"content": "a"}), "", STOP))).reply.text == "a"


async def test_an_answer_in_one_piece_is_accepted(world: World) -> None:
    message = {
        "role": "assistant",
        "content": "<think>r</think>t",
        "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "glob", "arguments": '{"pattern":"*"}'}}],
    }
    body: dict[str, Any] = {"model": "m", "choices": [{"index": 0, "message": message, "finish_reason": "tool_calls"}]}
    body |= {"usage": {"prompt_tokens": 5, "completion_tokens": 2}}
    answer = Answer(writes=(json.dumps(body).encode(),), content_type="application/json; charset=utf-8")
    reply = (await world.answered(answer)).reply
    assert (reply.text, reply.reasoning, reply.model) == ("t", "r", "m")
    assert (reply.tool_calls[0].arguments, reply.tool_calls[0].provider_call_id) == ({"pattern": "*"}, "c1")
    assert reply.usage is not None and reply.usage.input_tokens == 5


async def test_the_old_function_call_field_is_a_call(world: World) -> None:
    chunks = [chunk({"function_call": {"name": "glob"}}), chunk({"function_call": {"arguments": '{"pattern":"*"}'}})]
    reply = (await world.answered(stream(*chunks, chunk({}, "function_call")))).reply
    assert reply.tool_calls[0].arguments == {"pattern": "*"}


async def test_a_refusal_is_text(world: World) -> None:
    assert (await world.answered(stream(chunk({"refusal": "No."}), STOP))).reply.text == "No."


async def test_all_chunks_of_one_read_become_one_delta_of_each_kind(world: World) -> None:
    chunks = [chunk({"reasoning_content": "r"})] * 20 + [chunk({"content": "t"})] * 20
    chunks += [call_chunk(n, id=f"c{n}", name="glob", arguments=part) for n in (0, 1) for part in ("{", "}")]
    answer = stream(*chunks, CALLED)
    asked = await world.answered(Answer(writes=(b"".join(w for w in answer.writes if isinstance(w, bytes)),)))
    kinds = [(delta.kind, delta.text) for delta in asked.deltas]
    assert kinds == [
        (DeltaKind.REASONING, "r" * 20),
        (DeltaKind.TEXT, "t" * 20),
        (DeltaKind.ARGUMENTS, "{}"),
        (DeltaKind.ARGUMENTS, "{}"),
    ]


async def test_what_is_said_early_is_handed_out_before_the_reply_ends(world: World) -> None:
    gate, shown = asyncio.Event(), asyncio.Event()
    head, tail = stream(chunk({"content": "now"}), done=False), stream(chunk({"content": " later"}), STOP)
    world.stub.script(Answer(writes=(*head.writes, gate, *tail.writes)))
    seen: list[str] = []

    def emit(delta: Delta) -> None:
        seen.append(delta.text)
        shown.set()

    task = asyncio.ensure_future(world.model().stream(ChatRequest(messages=TASK), emit))
    async with asyncio.timeout(5):
        await shown.wait()
        assert seen == ["now"]
        gate.set()
        assert (await task).text == "now later"


async def test_a_model_that_runs_wild_with_calls_is_stopped(world: World) -> None:
    chunks = [call_chunk(n, id=f"c{n}", name="glob", arguments="{}") for n in range(300)]
    with pytest.raises(ModelError, match="more than 256 tool calls"):
        await world.answered(stream(*chunks, CALLED))


async def test_calls_get_ids_of_our_own_that_differ(world: World) -> None:
    world.stub.script(calls(("glob", "{}"), ("read_file", "{}")), calls(("glob", "{}")))
    first = await ask(world.model(), tools=(READ, GLOB))
    second = await ask(world.model(), tools=(READ, GLOB))
    ids = [call.call_id for asked in (first, second) for call in asked.reply.tool_calls]
    assert len(set(ids)) == 3 and all(value.startswith("call_") for value in ids)
