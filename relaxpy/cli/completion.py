"""`relaxpy completion`: shell completion."""

from __future__ import annotations

import click
from click.shell_completion import ShellComplete, get_completion_class

COMPLETE_VARIABLE = "_RELAXPY_COMPLETE"
"""If this environment variable is set, `relaxpy` answers a completion request of a shell instead of running a
command."""


@click.command(
    epilog="""
\b
Where the line goes:
  bash   ~/.bashrc                     eval "$(relaxpy completion bash)"
  zsh    ~/.zshrc, after compinit      eval "$(relaxpy completion zsh)"
  fish   ~/.config/fish/config.fish    relaxpy completion fish | source
"""
)
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion(ctx: click.Context, shell: str) -> None:
    """Print the script that makes SHELL complete commands, options and files after `relaxpy`."""
    found = get_completion_class(shell)
    assert found is not None
    script = found(ctx.find_root().command, {}, "relaxpy", COMPLETE_VARIABLE)
    # The class for bash would first run bash to ask for its version.
    click.echo(ShellComplete.source(script))
