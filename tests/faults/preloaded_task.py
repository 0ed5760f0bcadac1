"""The staged task behind an import that takes as long as a test wants: forked once that is done."""

import held_import  # noqa: F401, I001

import runpy
import sys

if __name__ == "__main__":
    # Not imported: its own imports would count as this script's.
    runpy.run_path(sys.argv.pop(1), run_name="__main__")
