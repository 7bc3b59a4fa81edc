"""Who is found under a name: precedence, shadowing, reloading, and directories with anything in them."""

import os
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from app.agent.definition import AgentCatalog, AgentDefinition, Source
from app.definitions import Catalog, Severity
from app.definitions import files as files_module
from app.definitions.toolnames import BUILT_IN


def write(path: Path, name: str | None, description: str = "d", more: str = "") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    head = f"name: {name}\n" if name is not None else ""
    path.write_text(f"---\n{head}description: {description}\n{more}---\nbody\n", encoding="utf-8")


def read(*directories: Path, library: Path | None = None) -> Catalog:
    catalog = Catalog(directories, library=library, trusted=True)
    catalog.reload()
    return catalog


def own(name: str, description: str = "tenant's") -> AgentDefinition:
    return AgentDefinition(name=name, description=description, source=Source(kind="tenant"))


def described(catalog: AgentCatalog, tenant: str, name: str) -> str | None:
    definition = catalog.get(tenant, name)
    return None if definition is None else definition.description


@pytest.mark.spec("10.3")
def test_tenants_come_before_later_directories_before_earlier_ones_before_the_library(tmp_path: Path) -> None:
    for place in ("library", "first", "second"):
        write(tmp_path / place / "a.md", "a", place)
    write(tmp_path / "library" / "b.md", "b", "library")
    write(tmp_path / "first" / "c.md", "c", "first")
    catalog = read(tmp_path / "first", tmp_path / "second", library=tmp_path / "library")
    assert [described(catalog, "t", name) for name in "abcx"] == ["second", "library", "first", None]
    catalog.set_tenant("t", "a", own("a"))
    assert [described(catalog, tenant, "a") for tenant in ("t", "other")] == ["tenant's", "second"]
    assert catalog.drop_tenant("t", "a")
    assert not catalog.drop_tenant("t", "a")
    assert described(catalog, "t", "a") == "second"


@pytest.mark.spec("10.3")
def test_losers_are_listed_as_shadowed_by_the_one_in_force(tmp_path: Path) -> None:
    for place in ("library", "first", "second"):
        write(tmp_path / place / "a.md", "a", place)
    catalog = read(tmp_path / "first", tmp_path / "second", library=tmp_path / "library")
    shadowed = catalog.report("t").shadowed
    assert [(item.definition.description, Path(item.by.path).parent.name) for item in shadowed] == [
        ("library", "second"),
        ("first", "second"),
    ]
    catalog.set_tenant("t", "a", own("a"))
    assert {(item.definition.description, item.by.kind) for item in catalog.report("t").shadowed} == {
        ("library", "tenant"),
        ("first", "tenant"),
        ("second", "tenant"),
    }
    assert [agent.source.kind for agent in catalog.report("t").agents] == ["tenant"]
    assert [agent.source.kind for agent in catalog.report("other").agents] == ["directory"]


@pytest.mark.spec("10.3")
def test_names_are_sorted_and_a_tenant_sees_only_its_own(tmp_path: Path) -> None:
    write(tmp_path / "x.md", "zeta")
    write(tmp_path / "y.md", "alpha")
    catalog = read(tmp_path)
    catalog.set_tenant("t", "middle", own("middle"))
    assert list(catalog.names("t")) == ["alpha", "middle", "zeta"]
    assert list(catalog.names("other")) == ["alpha", "zeta"]
    assert catalog.get("other", "middle") is None


@pytest.mark.spec("10.3")
def test_of_two_with_one_name_in_a_directory_the_first_by_path_loads_and_both_are_reported(tmp_path: Path) -> None:
    write(tmp_path / "b.md", "same", "second")
    write(tmp_path / "a.md", "same", "first")
    catalog = read(tmp_path)
    assert described(catalog, "t", "same") == "first"
    report = catalog.report("t")
    assert [(Path(problem.path).name, problem.severity) for problem in report.problems] == [
        ("a.md", Severity.WARNING),
        ("b.md", Severity.ERROR),
    ]
    assert "a.md" in report.problems[1].message
    assert "b.md" in report.problems[0].message
    assert report.shadowed == ()


@pytest.mark.spec("10.3")
@pytest.mark.case("B195")
def test_one_broken_file_is_reported_and_the_others_load(tmp_path: Path) -> None:
    write(tmp_path / "good.md", "good")
    (tmp_path / "bad.md").write_text('---\nname: bad\ndescription: Use when: user: "x"\n---\nbody')
    (tmp_path / "empty.md").write_text("")
    (tmp_path / "only-frontmatter.md").write_text("---\nname: only\ndescription: d\n---\n")
    (tmp_path / "no-frontmatter.md").write_text("Just words.\n")
    (tmp_path / "tabs.md").write_text("---\nname: tabs\n\tdescription: d\n---\nbody")
    (tmp_path / "list.md").write_text("---\n- name\n- description\n---\nbody")
    (tmp_path / "latin.md").write_bytes(b"---\nname: caf\xe9\n---\n")
    report = read(tmp_path).report("t")
    assert [agent.name for agent in report.agents] == ["bad", "good", "only"]
    assert {(Path(problem.path).name, problem.line) for problem in report.broken} == {
        ("empty.md", 1),
        ("no-frontmatter.md", 1),
        ("tabs.md", 2),
        ("list.md", 2),
        ("latin.md", 2),
    }
    warned = {Path(problem.path).name for problem in report.problems if problem.severity is Severity.WARNING}
    assert {"bad.md", "only-frontmatter.md"} <= warned


@pytest.mark.spec("10.3")
def test_a_reload_puts_what_is_there_now_in_force(tmp_path: Path) -> None:
    write(tmp_path / "a.md", "a", "old")
    write(tmp_path / "gone.md", "gone")
    catalog = Catalog([tmp_path], library=None)
    assert list(catalog.names("t")) == []
    catalog.reload()
    catalog.set_tenant("t", "mine", own("mine"))
    write(tmp_path / "a.md", "a", "new")
    (tmp_path / "gone.md").unlink()
    worker = threading.Thread(target=catalog.reload)
    worker.start()
    worker.join(timeout=10)
    assert described(catalog, "t", "a") == "new"
    assert list(catalog.names("t")) == ["a", "mine"]


@pytest.mark.spec("10.3")
def test_a_directory_that_is_not_there_is_reported(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    problems = read(tmp_path / "nowhere", tmp_path / "file").report("t").problems
    assert [(Path(problem.path).name, problem.severity) for problem in problems] == [
        ("nowhere", Severity.ERROR),
        ("file", Severity.ERROR),
    ]
    assert ["does not exist" in problems[0].message, "is not a directory" in problems[1].message] == [True, True]


@pytest.mark.spec("10.1")
def test_folders_are_read_and_a_file_without_a_name_is_named_by_its_path(tmp_path: Path) -> None:
    write(tmp_path / "team" / "deep" / "clerk.md", None)
    write(tmp_path / "clerk.md", None)
    write(tmp_path / "team" / "named.md", "named")
    assert list(read(tmp_path).names("t")) == ["clerk", "named", "team/deep/clerk"]


def test_only_markdown_that_is_not_hidden_is_read(tmp_path: Path) -> None:
    write(tmp_path / "a.MD", "a")
    write(tmp_path / ".b.md", "b")
    write(tmp_path / ".git" / "c.md", "c")
    write(tmp_path / "d.txt", "d")
    report = read(tmp_path).report("t")
    assert [agent.name for agent in report.agents] == ["a"]
    assert report.problems == ()


@pytest.mark.parametrize("name", ["README.md", "readme.zh.md", "CHANGELOG.md", "LICENSE.md", "code-of-conduct.md"])
def test_pages_beside_agents_are_passed_over_unless_they_are_agents(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("# About\n")
    assert read(tmp_path).report("t").problems == ()
    write(tmp_path / name, "an-agent")
    assert list(read(tmp_path).names("t")) == ["an-agent"]


def test_links_out_of_the_directory_are_skipped_with_a_warning(tmp_path: Path) -> None:
    inside = tmp_path / "agents"
    write(tmp_path / "secret.md", "secret")
    write(inside / "real.md", "real")
    (inside / "out.md").symlink_to(tmp_path / "secret.md")
    (inside / "nowhere.md").symlink_to(tmp_path / "missing.md")
    (inside / "loop.md").symlink_to(inside / "loop.md")
    (inside / "folder").symlink_to(tmp_path)
    report = read(inside).report("t")
    assert [agent.name for agent in report.agents] == ["real"]
    assert {(Path(problem.path).name, problem.severity) for problem in report.problems} == {
        ("out.md", Severity.WARNING),
        ("nowhere.md", Severity.ERROR),
        ("loop.md", Severity.ERROR),
    }


def test_files_that_are_links_within_the_directory_load_once(tmp_path: Path) -> None:
    write(tmp_path / "..version_1" / "a.md", "a")  # as a cluster mounts configuration
    (tmp_path / "..data").symlink_to(tmp_path / "..version_1")
    (tmp_path / "a.md").symlink_to(Path("..data") / "a.md")
    report = read(tmp_path).report("t")
    assert [agent.name for agent in report.agents] == ["a"]
    assert report.problems == ()


def test_a_pipe_does_not_hold_the_reader_up(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.md")
    write(tmp_path / "a.md", "a")
    report = read(tmp_path).report("t")
    assert [agent.name for agent in report.agents] == ["a"]
    assert ["not a regular file" in problem.message for problem in report.broken] == [True]


def test_a_file_that_is_too_large_is_reported_unread(tmp_path: Path) -> None:
    (tmp_path / "large.md").write_bytes(b"---\nname: a\ndescription: d\n---\n" + b"x" * 262_144)
    (tmp_path / "fits.md").write_bytes(b"---\nname: b\ndescription: d\n---\n" + b"x" * 262_000)
    report = read(tmp_path).report("t")
    assert [agent.name for agent in report.agents] == ["b"]
    assert ["larger than 262144" in problem.message for problem in report.broken] == [True]


def test_more_files_than_the_limit_are_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files_module, "MAX_FILES", 2)
    for name in "abc":
        write(tmp_path / f"{name}.md", name)
    report = read(tmp_path).report("t")
    assert [agent.name for agent in report.agents] == ["a", "b"]
    assert ["only the first 2 are read" in problem.message for problem in report.problems] == [True]


@pytest.mark.spec("7.2")
def test_an_agent_may_list_the_tool_that_another_one_is_in_whatever_directory(tmp_path: Path) -> None:
    write(tmp_path / "one" / "lead.md", "lead", more="tools: Read, ask_clerk, ask_porter, ask_nobody\n")
    write(tmp_path / "one" / "porter.md", "porter", more="tool_name: ask_porter\n")
    write(tmp_path / "two" / "clerk.md", "clerk", more="tool_name: ask_clerk\n")
    catalog = read(tmp_path / "one", tmp_path / "two")
    lead = catalog.get("t", "lead")
    assert lead is not None
    assert lead.tools == ("read_file", "ask_clerk", "ask_porter", "ask_nobody")
    assert [problem.message for problem in catalog.report("t").problems] == [
        "there is no tool of the name ask_nobody; it is granted if an agent has it as its tool_name"
    ]


@pytest.mark.spec("7.2", "17.1")
def test_the_tools_that_agents_are_belong_to_those_in_force_for_a_tenant(tmp_path: Path) -> None:
    write(tmp_path / "clerk.md", "clerk", more="tool_name: ask_clerk\n")
    write(tmp_path / "porter.md", "porter")
    catalog = read(tmp_path)
    catalog.set_tenant("t", "own", replace(own("own"), tool_name="ask_own"))
    catalog.set_tenant("u", "clerk", own("clerk"))
    assert catalog.tool_names("t") == {"ask_clerk", "ask_own"}
    assert catalog.tool_names("u") == frozenset()
    assert catalog.tool_names("other") == {"ask_clerk"}
    catalog.drop_tenant("t", "own")
    assert catalog.tool_names("t") == {"ask_clerk"}


def test_tools_of_the_service_are_known_to_its_files(tmp_path: Path) -> None:
    write(tmp_path / "a.md", "a", more="tools: weather\n")
    catalog = Catalog([str(tmp_path)], known_tools=BUILT_IN | {"weather"}, library=None)
    catalog.reload()
    assert catalog.report("t").problems == ()


# ── code that files name ────────────────────────────────────────────────────────────────────────────────────────

MODULES = {
    "shop_code/__init__.py": "raise RuntimeError('imported')\n",
    "shop_code/run.py": (
        "import os as system\nfrom json import loads\nasync def go(task, context): return task\n"
        "class Clerk:\n    run = go\n"
        "if system:\n    late = early = go\nraise RuntimeError('imported')\n"
    ),
    "shop_code/open.py": "from shop_code.run import *\n",
    "shop_code/made.py": "globals()['go'] = 1\n",
    "shop_code/lazy.py": "def __getattr__(name): return 1\n",
    "shop_code/broken.py": "def (:\n",
}


@pytest.mark.spec("10.3", "10.5")
@pytest.mark.parametrize(
    ("path", "says"),
    [
        ("shop_code.run:go", None),
        ("shop_code.run:Clerk.run", None),
        ("shop_code.run:loads", None),
        ("shop_code.run:early", None),
        ("shop_code.open:go", None),
        ("shop_code.made:go", None),
        ("shop_code.lazy:go", None),
        ("shop_code.broken:go", None),
        ("math:sin", None),
        ("tests.definitions.world:read", None),
        ("shop_code.run:gone", "there is no gone in the module shop_code.run"),
        ("shop_code.run:run", "there is no run in the module shop_code.run"),
        ("tests.definitions.world:gone", "there is no gone in the module tests.definitions.world"),
        ("shop_code.nothing:go", "there is no module shop_code.nothing"),
        ("shop_code.run.deeper:go", "there is no module shop_code.run.deeper"),
        ("no_such_package_here.a:go", "there is no module no_such_package_here.a"),
    ],
)
def test_code_that_is_not_there_is_told_when_files_are_read_and_nothing_is_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str, says: str | None
) -> None:
    for name, source in MODULES.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(source)
    monkeypatch.syspath_prepend(tmp_path)
    write(tmp_path / "agents" / "a.md", "a", more=f"runner: {path}\n")
    write(tmp_path / "agents" / "b.md", "b", more=f"handoff:\n  input_filter: [mask_secrets, '{path}']\n")
    catalog = read(tmp_path / "agents")
    problems = catalog.report("t").problems
    assert (catalog.get("t", "a") is None, catalog.get("t", "b") is None) == (False, False)
    if says is None:
        assert problems == ()
    else:
        assert [(p.severity, p.line, p.key) for p in problems] == [
            (Severity.WARNING, 4, "runner"),
            (Severity.WARNING, 5, "handoff"),
        ]
        assert all(says in p.message for p in problems)
