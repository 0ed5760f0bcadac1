"""Which Keras this process trains with: Keras 3, or tf_keras where TF_USE_LEGACY_KERAS asks for it."""

from __future__ import annotations

import importlib
import os
from collections.abc import Mapping
from typing import Any

VARIABLE = "TF_USE_LEGACY_KERAS"


def is_legacy(environ: Mapping[str, str]) -> bool:
    """As TensorFlow reads it."""
    return environ.get(VARIABLE, "").lower() in ("1", "true")


def load_keras() -> Any:
    """The module; ImportError where it is not installed."""
    return importlib.import_module("tf_keras" if is_legacy(os.environ) else "keras")
