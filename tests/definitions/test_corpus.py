"""1,200 agent files as they are found in public, each loaded or reported, none widened."""

import time
from collections import Counter
from pathlib import Path

import pytest

from app.definitions import Catalog, Parsed, Severity, parse
from tests.definitions.corpus import COUNTED, FILES, RARE, SAME_NAME, Sample, generate, scaled

BROKEN_YAML = ("unquoted colon", "star read as alias", "raw newline")


@pytest.fixture(scope="module")
def results() -> list[tuple[Sample, Parsed]]:
    return [(sample, parse(sample.data, path=sample.path)) for sample in generate()]


def test_the_corpus_holds_each_oddity_as_often_as_it_was_measured() -> None:
    samples = generate()
    counts = Counter(oddity for sample in samples for oddity in sample.oddities)
    assert len(samples) == FILES == len({sample.path for sample in samples})
    assert {oddity: counts[oddity] for oddity in COUNTED} == {key: scaled(count) for key, count in COUNTED.items()}
    assert all(counts[row[0]] == 1 for row in RARE)
    assert counts["same name"] == SAME_NAME


@pytest.mark.spec("10.1", "10.3")
@pytest.mark.case("B195")
def test_every_file_loads_or_is_reported_with_file_line_and_reason(results: list[tuple[Sample, Parsed]]) -> None:
    for sample, parsed in results:
        assert (parsed.definition is not None) == sample.loads, (sample, parsed.problems)
        last_line = sample.data.count(b"\n") + 1
        for problem in parsed.problems:
            assert problem.path == sample.path
            assert 1 <= problem.line <= last_line
            assert len(problem.message) > 10
        if parsed.definition is None:
            assert any(problem.severity is Severity.ERROR for problem in parsed.problems), sample
        else:
            assert (parsed.definition.name, parsed.definition.description) == (sample.name, sample.description)


@pytest.mark.spec("10.1")
def test_a_head_that_is_no_yaml_gives_name_and_description_and_a_warning(results: list[tuple[Sample, Parsed]]) -> None:
    broken = [pair for pair in results if pair[0].oddities.intersection(BROKEN_YAML)]
    assert len(broken) == sum(scaled(COUNTED[oddity]) for oddity in BROKEN_YAML)
    for sample, parsed in broken:
        if "tools: nothing known" in sample.oddities:
            continue
        assert parsed.definition is not None
        assert parsed.definition.description == sample.description
        warning = next(problem for problem in parsed.problems if "not valid YAML" in problem.message)
        assert warning.severity is Severity.WARNING
        line = sample.data.decode().split("\n")[warning.line - 1]
        assert line.startswith(("description: Use when: ", "tools: *", "<example>", "tools:")), line


@pytest.mark.spec("7.2", "10.2")
def test_a_file_that_names_tools_never_inherits_them(results: list[tuple[Sample, Parsed]]) -> None:
    named = [parsed.definition for sample, parsed in results if sample.names_tools and parsed.definition is not None]
    assert len(named) > 700
    assert all(definition.tools for definition in named)
    silent = [parsed.definition for sample, parsed in results if not sample.names_tools and parsed.definition]
    assert all(definition.tools is None for definition in silent)


@pytest.mark.spec("10.3")
def test_a_directory_of_them_starts_and_accounts_for_every_file(tmp_path: Path) -> None:
    samples = generate()
    for sample in samples:
        (tmp_path / sample.path).write_bytes(sample.data)
    catalog = Catalog([tmp_path], library=None)
    begin = time.process_time()
    catalog.reload()
    assert time.process_time() - begin < 5  # about 0.3 s on one slow core; a quadratic reader takes minutes
    report = catalog.report("default")
    in_force = {Path(definition.source.path).name for definition in report.agents}
    reported = {Path(problem.path).name: problem for problem in report.broken}
    assert in_force | reported.keys() == {sample.path for sample in samples}
    assert in_force.isdisjoint(reported)
    doubles = [problem for problem in reported.values() if "already defined" in problem.message]
    assert len(doubles) == SAME_NAME
