"""Importers: programs of other frameworks as IR. A source has a folder; nothing here builds or runs."""
