"""The masker of this process, for what has no other way to it: lines of the log, answers about errors.

It masks nothing until the settings were read, since the secrets are not known before.
"""

from app.masking.masker import ValueMasker


class _InForce:
    masker = ValueMasker()


def mask_with(masker: ValueMasker) -> None:
    """From now on, take these secrets out of everything."""
    _InForce.masker = masker


def masked(text: str) -> str:
    """A text as anybody may see it."""
    return _InForce.masker.text(text)


def masked_json(data: bytes) -> bytes:
    """The JSON of an object as anybody may see it."""
    return _InForce.masker.json(data)
