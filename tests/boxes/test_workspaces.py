"""Workspaces are reached beneath handles alone: no name in them leads out, and none of one tenant to another's."""

import ctypes
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from app.agent.errors import Unavailable
from app.boxes import directory
from app.boxes.beneath import Opener, open_by_kernel, open_by_walk
from app.boxes.box import BoxRefused, Level
from app.boxes.directory import Directories, NotThere
from app.boxes.sandbox import Sandbox
from app.boxes.workspaces import Workspaces
from app.wiring_permissions import path_resolver
from tests.boxes.outside import HELD, ROOT, USER, need, open_folder, own

SECRET = "canary-41f0"
WAIT_S = 20.0
LEVELS = list(Level)
_AT_FDCWD, _EXCHANGE = -100, 2
_libc = ctypes.CDLL(None, use_errno=True)


@pytest.fixture
def folder() -> Iterator[Path]:
    """A root with the workspace `x`, beside a directory `outside` that commands might write."""
    with open_folder() as made:
        for name in ("root", "root/x", "outside"):
            (made / name).mkdir()
            own(made / name)
        (made / "outside" / "secret").write_text(SECRET)
        own(made / "outside" / "secret")
        yield made


@pytest.fixture(params=[open_by_kernel, open_by_walk], ids=["kernel", "walk"])
def opener(request: pytest.FixtureRequest) -> Opener:
    """Each way to open beneath a handle."""
    found: Opener = request.param
    return found


def swapped(folder: Path) -> None:
    """What a command in the root can do to the workspace of another session."""
    (folder / "root" / "x").rename(folder / "root" / "y")
    (folder / "root" / "x").symlink_to(folder / "outside")


def refused(workspaces: Workspaces, path: Path) -> bool:
    try:
        os.close(workspaces.open(path).handle)
    except NotThere:
        return True
    return False


@pytest.mark.spec("7.3", "14.1")
def test_a_workspace_is_not_reached_through_a_link_anywhere_on_its_path(folder: Path, opener: Opener) -> None:
    root = folder / "root"
    (root / "x" / "in").mkdir()
    (root / "inside").symlink_to("x")
    (root / "out").symlink_to(folder)
    workspaces = Workspaces(root, opener=opener)
    assert workspaces.find(None, "") == root
    assert workspaces.find(None, "x/in/") == root / "x" / "in"
    for name in (
        "inside",
        "inside/in",
        "out",
        "out/outside",
        "x/../x",
        "..",
        "/etc",
        "nothing",
        "a\0b",
        "\ud800",
        "n" * 999,
    ):
        assert workspaces.find(None, name) is None, name
    for path in (folder / "outside", folder, root / ".." / "outside", Path("/"), folder / "root.tenants"):
        assert refused(workspaces, path), path


@pytest.mark.spec("7.3")
def test_a_root_that_the_operator_names_by_a_link_is_followed_once(folder: Path) -> None:
    (folder / "link").symlink_to("root")
    workspaces = Workspaces(folder / "link")
    (folder / "link").unlink()
    (folder / "link").symlink_to("outside")
    assert workspaces.find(None, "x") == folder / "root" / "x"
    (folder / "root").rename(folder / "moved")
    (folder / "root").symlink_to("outside")
    opened = workspaces.open(folder / "root")
    assert os.listdir(opened.handle) == ["x"]
    os.close(opened.handle)
    with pytest.raises(ValueError, match="is no directory that can be opened"):
        Workspaces(folder / "outside" / "secret")


@pytest.mark.spec("7.3", "8.1")
def test_after_a_swap_neither_tools_nor_rules_find_anything_in_the_workspace(folder: Path) -> None:
    workspaces = Workspaces(folder / "root")
    path = workspaces.find(None, "x")
    assert path is not None
    directories = Directories(lambda place: workspaces.open(place).handle)
    resolve, held = path_resolver(directories)(path), directories.get(path)
    assert (resolve("new"), directories.get(path)) == ("new", held)
    swapped(folder)
    assert Directories().get(path).is_file("secret"), "by its name it leads outside"
    with pytest.raises(NotThere):
        directories.get(path)
    assert resolve("secret") is None
    (folder / "root" / "x").unlink()
    (folder / "root" / "x").mkdir()
    assert directories.get(path) is not held
    assert resolve("new") == "new"


@pytest.mark.spec("7.3", "8.1")
def test_a_place_is_told_by_what_is_held_and_not_by_the_name_of_the_workspace(folder: Path) -> None:
    path = folder / "root" / "x"
    (path / "vault").mkdir()
    (path / "vault" / "key").write_text("")
    (path / "door").symlink_to("vault")
    (path / "far").symlink_to(path / "vault")
    held = directory.Directory(path)
    wanted = {"door/key": "vault/key", "door/none": "vault/none", "far/key": "vault/key", ".": ".", "../outside": None}
    assert {name: held.place(name) for name in wanted} == wanted
    swapped(folder)
    del wanted["far/key"], wanted["../outside"]
    assert {name: held.place(name) for name in wanted} == wanted
    assert (held.is_file("door/key"), held.is_file("door"), held.is_file("secret")) == (True, False, False)


@pytest.mark.spec("7.3")
@pytest.mark.parametrize("level", LEVELS)
async def test_a_command_is_refused_where_a_link_lies_in_the_place_of_its_workspace(level: Level, folder: Path) -> None:
    if level is not Level.NONE:
        need(level)
    workspaces, path = Workspaces(folder / "root"), folder / "root" / "x"
    swapped(folder)
    said, command = bytearray(), "cat secret; echo x > planted"
    with pytest.raises(BoxRefused, match="the workspace directory does not exist or cannot be opened"):
        await Sandbox().run_at(level, command, path, timeout_s=WAIT_S, output=said.extend, beneath=workspaces)
    assert (bytes(said), os.listdir(folder / "outside")) == (b"", ["secret"])
    await Sandbox().run_at(level, command, path, timeout_s=WAIT_S, output=said.extend)
    assert (said.decode(), sorted(os.listdir(folder / "outside"))) == (SECRET, ["planted", "secret"]), "by its name"


@pytest.mark.spec("7.3")
async def test_a_tools_sandbox_opens_workspaces_as_the_operator_laid_them_out(folder: Path) -> None:
    box = Sandbox(lowest=Level.NONE, workspaces=Workspaces(folder / "root"))
    said = bytearray()
    await box.run("echo run", folder / "root" / "x", timeout_s=WAIT_S, output=said.extend)
    assert said == b"run\n"
    swapped(folder)
    for path in (folder / "root" / "x", folder / "outside"):
        with pytest.raises(BoxRefused):
            await box.run("echo run", path, timeout_s=WAIT_S, output=said.extend)


@pytest.mark.spec("7.3")
def test_a_workspace_that_is_swapped_while_it_is_opened_is_itself_or_nothing(folder: Path, opener: Opener) -> None:
    root = folder / "root"
    (root / "swap").symlink_to(folder / "outside")
    workspaces, real = Workspaces(root, opener=opener), (root / "x").stat().st_ino
    names = [os.fsencode(root / name) for name in ("x", "swap")]
    stop = threading.Event()

    def swap() -> None:
        while not stop.is_set():
            assert _libc.renameat2(_AT_FDCWD, names[0], _AT_FDCWD, names[1], _EXCHANGE) == 0

    swapper = threading.Thread(target=swap)
    swapper.start()
    found = set()
    try:
        for _ in range(3_000):
            try:
                opened = workspaces.open(root / "x")
            except NotThere:
                continue
            found.add((os.fstat(opened.handle).st_ino, opened.below))
            os.close(opened.handle)
    finally:
        stop.set()
        swapper.join()
    assert found <= {(real, True)}


@pytest.mark.spec("7.3")
@pytest.mark.skipif(not ROOT, reason="only root gives files away")
async def test_what_lies_outside_is_never_handed_over_whatever_the_name_of_a_workspace_leads_to(folder: Path) -> None:
    root, outside = folder / "root", folder / "outside"
    for path in (root, root / "x", outside, outside / "secret"):
        own(path, 0)
    workspaces, box = Workspaces(root), Sandbox()

    async def given(path: Path) -> bool:
        _, identity = await box.run_at(
            Level.NONE, "true", path, timeout_s=WAIT_S, output=lambda data: None, beneath=workspaces
        )
        return identity.writes

    opened = workspaces.open(root / "x")
    swapped(folder)
    assert (await box._identity(opened)).writes, "what is held is below the root, wherever its name leads"
    os.close(opened.handle)
    assert (root / "y").stat().st_uid == USER
    with pytest.raises(BoxRefused):
        await given(root / "x")
    assert not await given(root)
    _, identity = await box.run_at(Level.NONE, "true", root / "x", timeout_s=WAIT_S, output=lambda data: None)
    assert not identity.writes, "what is opened by its name is given to nobody"
    assert [path.stat().st_uid for path in (outside, outside / "secret", root)] == [0, 0, 0]


# ── tenants ─────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.spec("17.1", "7.3")
def test_each_tenant_has_a_root_of_its_own_that_only_its_owner_enters(folder: Path, opener: Opener) -> None:
    root = folder / "root"
    workspaces = Workspaces(root, opener=opener)
    names = ["acme", "Acme", "%41cme", "default", ".", "..", "...", "a@b.c", "x"]
    roots = [workspaces.find(name, "") for name in names]
    assert roots[0] == folder / "root.tenants" / "acme"
    assert len({str(path).lower() for path in roots}) == len(names), "also where capital letters count for nothing"
    assert sorted(os.listdir(folder / "root.tenants")) == sorted(path.name for path in roots if path is not None)
    for path in (folder / "root.tenants", *roots):
        assert path is not None
        found = path.stat()
        assert (found.st_mode & 0o777, found.st_uid, found.st_gid) == (0o700, root.stat().st_uid, root.stat().st_gid)
    assert workspaces.find("acme", "x") is None
    (folder / "root.tenants" / "acme" / "x").mkdir()
    for path, below in ((workspaces.root_of("acme"), False), (workspaces.find("acme", "x"), True)):
        assert path is not None
        opened = workspaces.open(path)
        os.close(opened.handle)
        assert opened.below is below
    for name in ("../a@b.c", "..", "x/../../root"):
        assert workspaces.find("acme", name) is None, name


@pytest.mark.spec("17.1", "7.3")
@pytest.mark.skipif(not ROOT, reason="commands of others run as the server itself")
@pytest.mark.parametrize("level", HELD)
async def test_where_the_root_is_roots_other_users_come_through_to_what_they_were_given(
    level: Level, folder: Path
) -> None:
    need(level)
    own(folder / "root", 0)
    workspaces = Workspaces(folder / "root")
    path = workspaces.find("acme", "")
    assert path is not None
    assert [place.stat().st_mode & 0o777 for place in (path.parent, path)] == [0o711, 0o711]
    (path / "w").mkdir()
    said = bytearray()
    command = 'id -u; echo made > "$PWD/made"; cat made'
    await Sandbox().run_at(level, command, path / "w", timeout_s=WAIT_S, output=said.extend, beneath=workspaces)
    assert said.decode() == f"{USER}\nmade\n"


@pytest.mark.spec("17.1", "7.3")
def test_roots_of_tenants_do_not_lie_where_somebody_else_put_something(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    beside = folder / "root.tenants"
    beside.symlink_to("outside")
    workspaces = Workspaces(folder / "root")
    with pytest.raises(Unavailable, match="cannot make the directory"):
        workspaces.find("acme", "")
    beside.unlink()
    if ROOT:
        beside.mkdir()
        own(beside, 54321)
        with pytest.raises(Unavailable):
            workspaces.find("acme", "")
        beside.rmdir()
        assert "belongs to user 54321" in caplog.text
    assert os.listdir(folder / "outside") == ["secret"]
    assert workspaces.find("acme", "") == beside / "acme"
    (beside / "acme").rmdir()
    (beside / "acme").symlink_to(folder / "outside")
    with pytest.raises(Unavailable):
        workspaces.find("acme", "")
    assert refused(workspaces, beside / "acme")
    with pytest.raises(Unavailable):
        Workspaces(Path("/")).find("acme", "")
