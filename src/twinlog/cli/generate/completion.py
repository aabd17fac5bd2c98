"""`twinlog generate completion`: completion of commands, options and names for a shell."""

from __future__ import annotations

import click

from twinlog.cli.exit_codes import USAGE, CommandError

_WHERE = {
    "bash": 'eval "$(twinlog generate completion bash)"   # in ~/.bashrc',
    "zsh": 'eval "$(twinlog generate completion zsh)"   # in ~/.zshrc',
    "fish": "twinlog generate completion fish > ~/.config/fish/completions/twinlog.fish",
}


@click.command(epilog=f"Example: {_WHERE['bash']}")
@click.argument("shell", type=click.Choice(tuple(_WHERE)))
def completion(shell: str) -> None:
    """Print a script that completes commands, options and names in a shell.

    Names of topics, groups, brokers and clusters come from the cluster of the command line, which
    has one second to answer. Names of contexts come from their file.
    """
    from click.shell_completion import BashComplete, get_completion_class

    from twinlog.cli.main import cli

    kind = get_completion_class(shell)
    if kind is None:
        raise CommandError(f"no completion for {shell}", USAGE)
    script = kind(cli, {}, "twinlog", "_TWINLOG_COMPLETE")
    if isinstance(script, BashComplete):
        # Click would start bash to ask for its version; whoever pastes this has a bash.
        click.echo(script.source_template % script.source_vars())
    else:
        click.echo(script.source())
