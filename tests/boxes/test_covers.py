"""What a veil hides of a workspace, tried from inside the box: all of it and nothing else."""

import asyncio
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

from app.boxes import covers
from app.boxes.box import BoxRefused, Ended, Level
from app.boxes.covering import Covering
from app.boxes.covers import Kind, Survey, Veil, survey
from app.boxes.sandbox import Sandbox
from tests.boxes.outside import ROOT, USER, need, open_folder, own

SECRET, PLAIN = "canary-9b4c33", "in sight"
WAIT_S = 20.0


@pytest.fixture
def workspace() -> Iterator[Path]:
    """A workspace that commands may write."""
    need(Level.FULL)
    with open_folder() as folder:
        (folder / "workspace").mkdir()
        yield own(folder / "workspace")


def filled(workspace: Path, *names: str, text: str = SECRET) -> None:
    """Files of these names, owned by whom commands run as."""
    for name in names:
        place = workspace
        for part in Path(name).parts[:-1]:
            place /= part
            if not place.exists():
                place.mkdir()
                own(place)
        (workspace / name).write_text(f"{text}\n")
        own(workspace / name)


def below(*places: str) -> Callable[[str], bool]:
    """Whether a path is one of these or lies below one."""
    return lambda path: any(path == place or path.startswith(f"{place}/") for place in places)


def called(*names: str) -> Callable[[str], bool]:
    """Whether a path or a directory on it has one of these names."""
    return lambda path: any(name in names for name in path.split("/"))


async def ended(command: str, workspace: Path, veil: Veil) -> tuple[Ended, str]:
    said = bytearray()
    async with asyncio.timeout(WAIT_S):
        how, _ = await Sandbox().run_at(Level.FULL, command, workspace, timeout_s=WAIT_S, output=said.extend, veil=veil)
    return how, said.decode(errors="surrogateescape")


async def found(workspace: Path, veil: Veil, user: int | None = None) -> Survey:
    place = os.open(workspace, os.O_RDONLY | os.O_DIRECTORY)
    try:
        return await survey(place, veil, user)
    finally:
        os.close(place)


@pytest.mark.spec("7.3", "8.4")
@pytest.mark.case("B112")
async def test_no_program_reads_what_is_hidden_and_every_one_reads_the_rest(workspace: Path) -> None:
    odd = [
        "a\nb/.env",
        "with blank\\040/.env",
        "back\\slash/.env",
        "tab\t/.env",
        os.fsdecode(b"\xff\xfe/.env"),
        "ü/.env",
    ]
    filled(workspace, ".env", "sub/.env", "vault/key", "vault/deep/key", *odd)
    filled(workspace, "beside.txt", text=PLAIN)
    (workspace / "door").symlink_to("vault")
    (workspace / "same").hardlink_to(workspace / ".env")
    (workspace / "key").hardlink_to(workspace / "vault/deep/key")
    everywhere = (
        "grep -ra . . ; cat .env sub/.env */.env same key door/key vault/deep/key; cp -r . /tmp/all; tar c . ;"
        "grep -ra . /tmp/all; for f in /proc/self/fd/* /proc/$$/fd/*; do cat $f/.env; done;"
        "cat /proc/self/cwd/.env /proc/1/cwd/.env /proc/1/root$PWD/.env; chmod -R 777 .; cat .env vault/key"
    )
    how, said = await ended(everywhere, workspace, Veil(conceals=called(".env", "vault")))
    assert SECRET not in said
    assert said.count(PLAIN) >= 3
    assert set(how.hidden) == {".env", "sub/.env", "vault", "same", "key", *odd}
    assert "cat: .env: Permission denied" in said
    assert "grep: ./vault: Permission denied" in said, "not as if nothing were there"
    assert (workspace / "vault/deep/key").read_text() == f"{SECRET}\n"
    assert sorted(os.listdir(workspace / "vault")) == ["deep", "key"]


@pytest.mark.spec("7.3", "8.4")
@pytest.mark.case("B112")
async def test_what_is_hidden_by_its_place_stays_there_with_every_directory_above(workspace: Path) -> None:
    filled(workspace, "a/b/keys/key", "a/c/.env")
    filled(workspace, "a/b/plain", text=PLAIN)
    veil = Veil(conceals=lambda path: below("a/b/keys")(path) or called(".env")(path))
    tries = "mv a x; mv a/b a/x; mv a/b/keys a/b/x; rm -rf a/b/keys; rmdir a/b/keys; cat a/b/plain; mv a/c a/moved"
    _, said = await ended(tries, workspace, veil)
    assert said.count("Device or resource busy") == 5
    assert PLAIN in said
    assert (workspace / "a/b/keys/key").read_text() == f"{SECRET}\n"
    assert (workspace / "a/moved/.env").exists(), "what is hidden by its name alone holds up no directory"
    _, said = await ended("grep -r . .", workspace, veil)
    assert SECRET not in said


@pytest.mark.spec("7.3", "8.4")
async def test_what_may_not_be_changed_is_read_and_not_changed(workspace: Path) -> None:
    filled(workspace, "locked/file", "locked/.env", text=SECRET)
    filled(workspace, "locked/in/file", "free", text=PLAIN)
    veil = Veil(conceals=called(".env"), protects=below("locked"))
    tries = "cat locked/in/file; echo x > locked/in/file; touch locked/new; rm locked/file; mv locked x; rm -r locked;"
    _, said = await ended(f"{tries} cat locked/.env; echo changed > free", workspace, veil)
    assert PLAIN in said
    assert said.count("Read-only file system") >= 3
    assert (workspace / "locked/in/file").read_text() == f"{PLAIN}\n"
    assert sorted(os.listdir(workspace / "locked")) == [".env", "file", "in"]
    assert SECRET not in said
    assert (workspace / "free").read_text() == "changed\n"


@pytest.mark.spec("7.3", "8.4")
async def test_a_directory_that_nobody_can_look_into_is_hidden_as_a_whole(workspace: Path) -> None:
    filled(workspace, "shut/.env", "open/.env")
    (workspace / "shut").chmod(0o600)
    how, said = await ended("chmod 700 shut; cat shut/.env open/.env", workspace, Veil(conceals=called(".env")))
    assert SECRET not in said
    assert set(how.hidden) == {"shut", "open/.env"}


@pytest.mark.spec("7.3", "8.4")
@pytest.mark.skipif(not ROOT, reason="needs files of somebody else")
async def test_where_the_user_of_a_command_cannot_come_nothing_needs_to_be_hidden(workspace: Path) -> None:
    filled(workspace, "foreign/.env")
    os.chown(workspace / "foreign", 0, 0)
    (workspace / "foreign").chmod(0o700)
    how, said = await ended("cat foreign/.env; echo ran", workspace, Veil(conceals=called(".env")))
    assert how.hidden == ()
    assert said.splitlines()[-1] == "ran"
    assert SECRET not in said


@pytest.mark.spec("7.3", "8.4")
async def test_beyond_its_bounds_a_command_is_refused_and_says_why(
    workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    filled(workspace, "a/.env", "b/.env", "c/.env")
    veil = Veil(conceals=called(".env"))
    for name, most in (("MAX_ENTRIES", 5), ("MAX_HIDDEN", 2)):
        with monkeypatch.context() as bounds:
            bounds.setattr(covers, name, most)
            with pytest.raises(BoxRefused, match=f"more than {most} .*cannot be hidden from it"):
                await ended("cat a/.env", workspace, veil)
    with monkeypatch.context() as bounds:
        bounds.setattr(covers, "WALK_S", -1.0)
        bounds.setattr(covers, "_STEP", 1)
        with pytest.raises(BoxRefused, match="or takes over"):
            await ended("cat a/.env", workspace, veil)
    assert len((await found(workspace, veil)).covers) == 3


@pytest.mark.spec("7.3", "8.4")
async def test_a_path_too_long_to_be_covered_is_hidden_further_up(workspace: Path) -> None:
    here, name = workspace, "d" * 200
    place = os.open(here, os.O_RDONLY | os.O_DIRECTORY)
    for _ in range(30):  # longer than any path that the system takes
        os.mkdir(name, dir_fd=place)
        os.chown(name, USER, -1, dir_fd=place)
        place, above = os.open(name, os.O_RDONLY | os.O_DIRECTORY, dir_fd=place), place
        os.close(above)
    handle = os.open(".env", os.O_WRONLY | os.O_CREAT, 0o644, dir_fd=place)
    os.write(handle, SECRET.encode())
    os.close(handle)
    os.close(place)
    down = f"for i in $(seq 30); do cd {name} || break; done; cat .env; echo $i"
    _, said = await ended(down, workspace, Veil())
    assert SECRET in said
    how, said = await ended(down, workspace, Veil(conceals=called(".env")))
    assert SECRET not in said
    assert len(how.hidden) == 1


@pytest.mark.spec("7.3", "8.4")
async def test_a_command_does_not_begin_when_a_cover_lies_on_another_file(workspace: Path) -> None:
    filled(workspace, "a/.env", "b/.env")
    veil = Veil(conceals=called(".env"), protects=below("a"))
    places = await found(workspace, veil)
    assert {(cover.path, cover.kind) for cover in places.covers} == {
        ("a", Kind.LOCKED), ("a/.env", Kind.HIDDEN), ("b/.env", Kind.HIDDEN)
    }  # fmt: skip
    top = os.open(workspace, os.O_RDONLY | os.O_DIRECTORY)
    with ExitStack() as held:
        held.callback(os.close, top)
        covering = Covering.of(places, top, str(workspace), held)
        with pytest.raises(BoxRefused, match="'a' was moved while it was being covered"):
            await covering.check(os.getpid())  # this process sees no cover at all
        places.check(top)
        filled(workspace, "plain/file")
        places.check(top)
        filled(workspace, "new/.env")
        with pytest.raises(BoxRefused, match=r"'new/\.env' was moved"):
            places.check(top)  # it may be one of the others that was moved while the directories were read
        (workspace / "b").rename(workspace / "c")
        filled(workspace, "b/.env")
        with pytest.raises(BoxRefused, match=r"'b/\.env' was moved"):
            places.check(top)
        (workspace / "a").rename(workspace / "d")
        with pytest.raises(BoxRefused, match="'a' was moved"):
            Covering.of(places, top, str(workspace), held)


@pytest.mark.spec("7.3", "8.4")
async def test_moving_directories_beside_a_starting_command_uncovers_nothing(workspace: Path) -> None:
    filled(workspace, "a/.env", "aside/.env")
    moving, seen, refused = True, "", 0

    def move() -> None:
        while moving:
            for here, there in (("a", "b"), ("aside", "a"), ("a", "aside"), ("b", "a")):
                with suppress(OSError):  # a directory of that name may have come up meanwhile
                    os.rename(workspace / here, workspace / there)

    mover = asyncio.create_task(asyncio.to_thread(move))
    try:
        for _ in range(15):
            try:
                _, said = await ended("cat */.env 2>&1", workspace, Veil(conceals=called(".env")))
                seen += said
            except BoxRefused:
                refused += 1
    finally:
        moving = False
        await mover
    assert SECRET not in seen
    assert "Permission denied" in seen or refused


@pytest.mark.spec("7.3")
async def test_a_box_that_was_tried_out_says_whether_it_hides_anything(monkeypatch: pytest.MonkeyPatch) -> None:
    need(Level.FULL)
    box = Sandbox()
    assert box.hides() is False, "not before it was tried"
    await box.standing()
    assert box.hides() is True
    lesser = Sandbox(lowest=Level.NONE)
    monkeypatch.setenv("PATH", "/nowhere")
    assert (await lesser.standing()).level is not Level.FULL
    assert lesser.hides() is False


@pytest.mark.spec("7.3")
async def test_nothing_is_left_of_a_covered_command(
    workspace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    filled(workspace, ".env", "a/b/key")
    with open_folder() as folder:
        folder.chmod(0o777)
        monkeypatch.setattr("tempfile.tempdir", str(folder))
        handles = len(os.listdir("/proc/self/fd"))
        veil = Veil(conceals=lambda path: called(".env")(path) or below("a/b/key")(path))
        _, said = await ended("ls -l /proc/self/fd | tail -n +2 | wc -l", workspace, veil)
        assert int(said) == 4, "its own three, and the one by which they are listed"
        assert list(folder.iterdir()) == []
        assert len(os.listdir("/proc/self/fd")) <= handles
    assert sorted(os.listdir(workspace)) == [".env", "a"]
