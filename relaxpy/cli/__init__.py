"""The command `relaxpy`: one file a command, `main.py` puts them together and turns failures into one message."""
