"""Where agents work when nobody has said it, and what is said of a place that they should not have."""

from pathlib import Path

import pytest

from app.settings import Settings
from app.wiring import build


@pytest.mark.spec("7.3", "16.5")
async def test_agents_work_beside_the_services_own_files_and_not_among_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.chdir(tmp_path)
    service = await build(Settings(store={"url": str(tmp_path / "kept.db")}))
    await service.close()
    assert (tmp_path / "workspace").is_dir()
    assert "lies in the workspace" not in caplog.text


@pytest.mark.spec("7.3")
async def test_a_database_in_the_workspace_is_warned_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.chdir(tmp_path)
    service = await build(Settings(store={"url": str(tmp_path / "kept.db")}, tools={"workspace": tmp_path}))
    await service.close()
    assert f"{tmp_path / 'kept.db'} lies in the workspace {tmp_path}" in caplog.text


@pytest.mark.spec("16.5")
async def test_a_named_workspace_that_is_not_there_refuses_the_start(tmp_path: Path) -> None:
    with pytest.raises(Exception, match=r"tools\.workspace .*missing"):
        await build(Settings(store={"url": str(tmp_path / "kept.db")}, tools={"workspace": tmp_path / "missing"}))
