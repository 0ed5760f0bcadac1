"""Open an address in the user's browser."""

from __future__ import annotations


def open_page(address: str) -> bool:
    """Open the address. Return False without a browser, or if it cannot be started."""
    import webbrowser

    try:
        return webbrowser.open(address)
    except (webbrowser.Error, OSError):
        return False
