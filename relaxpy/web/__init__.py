"""Executables in a browser: `export` writes a folder that any static server can serve (docs/browser.md).

The virtual machine there is written in JavaScript (`js/`), and held to the same suite of cases as the one in Python
(docs/machine.md).
"""
