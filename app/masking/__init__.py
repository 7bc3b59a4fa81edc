"""Secrets out of every sink: what settings and the environment hold, and what has the form of a secret."""

from app.masking.forms import MIN_LENGTH, secret_values
from app.masking.masker import MASK, StreamMasker, ValueMasker

__all__ = ["MASK", "MIN_LENGTH", "StreamMasker", "ValueMasker", "secret_values"]
