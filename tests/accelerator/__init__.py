"""An accelerator in one page: docs/accelerator.md shows these files."""
