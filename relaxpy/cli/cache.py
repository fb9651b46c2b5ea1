"""`relaxpy cache`: the builds and compiled kernels that are kept on disk."""

from __future__ import annotations

import os
import time

import click

from relaxpy.build.build_cache import BuildCache, Entry

_OFF = "the cache is off (RELAXPY_CACHE_SIZE is 0, or there is no home folder to keep it in)"
_UNITS = ("bytes", "KiB", "MiB", "GiB", "TiB")


@click.group(
    short_help="Builds and kernels kept on disk: show, clear, verify.",
    invoke_without_command=True,
    epilog="""
\b
Examples:
  relaxpy cache          the folder, how much is in it, how often it helped
  relaxpy cache verify   read every entry, and delete those that are damaged
  relaxpy cache clear    delete all entries

A build is found again by all that it is made from, and so is each of its kernels. RELAXPY_CACHE_DIR is another
folder, RELAXPY_CACHE_SIZE another bound than 1 GiB (500M; 0 or off: no cache). relaxpy.build(..., cache=False) goes
without.
""",
)
@click.pass_context
def cache(ctx: click.Context) -> None:
    """What builds keep on disk and use again: executables, and kernels one by one."""
    if ctx.invoked_subcommand is None:
        ctx.invoke(show)


@cache.command()
def show() -> None:
    """The folder, how much is in it, how often it helped."""
    kept = BuildCache.default()
    if kept is None:
        click.echo(_OFF)
        return
    entries = kept.entries()
    click.echo(f"folder   {kept.folder}")
    click.echo(f"entries  {len(entries):,} builds and kernels")
    click.echo(f"size     {_bytes(_size(entries))} of at most {_bytes(kept.max_bytes)}")
    hits, misses = kept.usage()
    share = f" ({hits / (hits + misses):.0%})" if hits + misses else ""
    click.echo(f"hits     {hits:,} of {hits + misses:,} kernels built{share}")
    if entries:
        click.echo(f"oldest   last used {_ago(entries[0].used)}")
    if not os.access(_nearest(str(kept.folder)), os.W_OK):
        click.echo("The folder cannot be written: nothing new is kept.")


@cache.command()
def clear() -> None:
    """Delete all entries."""
    kept = BuildCache.default()
    if kept is None:
        click.echo(_OFF)
        return
    before = kept.entries()
    deleted = kept.clear()
    left = kept.entries()
    click.echo(f"deleted {_count(deleted)}, {_bytes(_size(before) - _size(left))}")
    if left:
        raise click.ClickException(f"{_count(len(left))} could not be deleted from {kept.folder}")


@cache.command(short_help="Read every entry, delete damaged ones.")
def verify() -> None:
    """Read every entry, and delete those that are damaged; the next build compiles them again."""
    kept = BuildCache.default()
    if kept is None:
        click.echo(_OFF)
        return
    count = len(kept.entries())
    damaged = kept.verify()
    for entry in damaged:
        click.echo(f"damaged, deleted: {entry.path}")
    click.echo(f"{_count(count - len(damaged))} of {count:,} whole")


def _size(entries: list[Entry]) -> int:
    return sum(entry.size for entry in entries)


def _count(number: int) -> str:
    return f"{number:,} entr{'y' if number == 1 else 'ies'}"


def _bytes(size: int) -> str:
    value, unit = float(size), 0
    while value >= 1024 and unit < len(_UNITS) - 1:
        value, unit = value / 1024, unit + 1
    return f"{size:,} {_UNITS[0]}" if unit == 0 else f"{value:,.1f} {_UNITS[unit]}"


def _ago(when: float) -> str:
    seconds = max(0.0, time.time() - when)
    for length, name in ((86400, "day"), (3600, "hour"), (60, "minute")):
        if seconds >= length:
            number = int(seconds // length)
            return f"{number} {name}{'' if number == 1 else 's'} ago"
    return "less than a minute ago"


def _nearest(path: str) -> str:
    """The folder, or the nearest around it that exists."""
    while not os.path.exists(path):
        path = os.path.dirname(path)
    return path
