"""Says what is repaired when it first matters: most scripts never meet what is broken under one strategy alone."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType

# Gets what Keras does wrongly, as in "Keras 3.15 looks ...".
Tell = Callable[[str], None]


def telling(keras: ModuleType, say: Callable[[str], None]) -> Tell:
    """One line for each fault of the imported `keras`, at its first call."""
    told: set[str] = set()

    def tell(fault: str) -> None:
        if fault not in told:
            told.add(fault)
            say(f"Keras {getattr(keras, '__version__', '')} {fault}; fixed for this process")

    return tell
