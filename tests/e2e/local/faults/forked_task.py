"""The staged task behind an import that the preloader has done before."""

import decimal  # noqa: F401, I001

import runpy
import sys

if __name__ == "__main__":
    # Run by path, because its imports would otherwise count as imports of this script.
    runpy.run_path(sys.argv.pop(1), run_name="__main__")
