"""The entry point of `python -m relaxpy`: the command `relaxpy`."""

from __future__ import annotations

from relaxpy.cli.main import main

if __name__ == "__main__":
    main()
