"""Named fault points: places where a test may stop, delay or fail the service. A no-op in production."""

from collections.abc import Callable

_points: dict[str, Callable[[], None]] = {}


def hit(name: str) -> None:
    """Pass the fault point `name`; runs the armed action, if any."""
    if _points:
        action = _points.get(name)
        if action is not None:
            action()


def arm(name: str, action: Callable[[], None]) -> None:
    """Run `action` whenever the fault point `name` is passed."""
    _points[name] = action


def disarm() -> None:
    """Forget every armed fault point."""
    _points.clear()
