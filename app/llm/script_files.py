"""Where scripts of the scripted model are found: built into the package, or in the operator's scripts directory.

A name may come from a definition or over the API, so it can only lead to files inside that directory.
"""

import importlib.util
from collections.abc import Sequence
from pathlib import Path

import yaml

from app.agent.errors import InvalidRequest
from app.llm.script_format import Part, read_script
from app.llm.scripted import Decide

BUILT_IN = Path(__file__).parent / "scripts"
_ENDINGS = (".yaml", ".yml", ".py")


class ScriptFiles:
    """The scripts that can be named. `directory` None: only the built-in ones."""

    def __init__(self, directory: Path | None) -> None:
        self._directory = directory.resolve() if directory is not None else None

    def names(self) -> Sequence[str]:
        """What can stand behind `scripted:`, sorted; built-in ones without ending."""
        names = {path.stem for path in BUILT_IN.glob("*.yaml")}
        if self._directory is not None:
            names |= {
                path.relative_to(self._directory).as_posix()
                for path in self._directory.rglob("*")
                if path.suffix in _ENDINGS and path.is_file() and path.resolve().is_relative_to(self._directory)
            }
        return sorted(names)

    def load(self, name: str) -> tuple[Part, ...] | Decide:
        """Read a script. Raises `InvalidRequest`: `unknown_model` when there is none, `invalid_script`."""
        path = self._find(name)
        if path is None:
            place = "no scripts directory is set" if self._directory is None else "it must lie in the scripts directory"
            raise InvalidRequest(
                f"unknown script {name!r}: there are {', '.join(self.names())}; {place}", code="unknown_model"
            )
        return _python(path, name) if path.suffix == ".py" else _yaml(path, name)

    def _find(self, name: str) -> Path | None:
        if (BUILT_IN / f"{name}.yaml").is_file() and "/" not in name:
            return BUILT_IN / f"{name}.yaml"
        if self._directory is None or "\0" in name:
            return None
        for ending in ("", *_ENDINGS):
            path = (self._directory / f"{name}{ending}").resolve()
            if path.suffix in _ENDINGS and path.is_relative_to(self._directory) and path.is_file():
                return path
        return None


def _yaml(path: Path, name: str) -> tuple[Part, ...]:
    try:
        value = yaml.safe_load(path.read_text(encoding="utf-8-sig"))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise InvalidRequest(f"script {name}: no valid YAML: {error}", code="invalid_script") from error
    return read_script(value, name)


def _python(path: Path, name: str) -> Decide:
    spec = importlib.util.spec_from_file_location("subagentd_script", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except Exception as error:  # border: a script is somebody else's code
        raise InvalidRequest(f"script {name}: {type(error).__name__}: {error}", code="invalid_script") from error
    reply = getattr(module, "reply", None)
    if not callable(reply):
        raise InvalidRequest(f"script {name}: it defines no function reply(request)", code="invalid_script")
    decide: Decide = reply
    return decide
