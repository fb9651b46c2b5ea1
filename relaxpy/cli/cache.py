"""`relaxpy cache`: the cached builds and compiled kernels."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

import click

from relaxpy.cli.outputs import json_option, print_json

if TYPE_CHECKING:
    from relaxpy.build.build_cache import Entry


_OFF = "the cache is off (RELAXPY_CACHE_SIZE is 0, or there is no home folder)"
_UNITS = ("bytes", "KiB", "MiB", "GiB", "TiB")


@click.group(
    invoke_without_command=True,
    epilog="""
\b
Examples:
  relaxpy cache          show the folder, its size and its hit rate
  relaxpy cache verify   read all entries, and delete damaged ones
  relaxpy cache clear    delete all entries

The key of a build or kernel is a digest of all its inputs. RELAXPY_CACHE_DIR sets another folder,
RELAXPY_CACHE_SIZE another size limit than 1 GiB (500M; 0 or off: no cache). relaxpy.build(..., cache=False) does
not use the cache.
""",
)
@json_option
@click.pass_context
def cache(ctx: click.Context, as_json: bool) -> None:
    """The cache of builds on disk: executables and single kernels, reused by later builds."""
    if ctx.invoked_subcommand is None:
        ctx.invoke(show, as_json=as_json)


@cache.command()
@json_option
def show(as_json: bool) -> None:
    """Show the folder, its size and contents, and its hits and misses."""

    from relaxpy.build.build_cache import BuildCache

    kept = BuildCache.default()
    if kept is None:
        _tell_off(as_json)
        return
    entries = kept.entries()
    hits, misses = kept.usage()
    writable = os.access(_nearest(str(kept.folder)), os.W_OK)
    if as_json:
        print_json(
            {
                "folder": kept.folder,
                "entries": len(entries),
                "bytes": _size(entries),
                "max_bytes": kept.max_bytes,
                "hits": hits,
                "misses": misses,
                "oldest_used": entries[0].used if entries else None,
                "writable": writable,
            }
        )
        return
    click.echo(f"folder   {kept.folder}")
    click.echo(f"entries  {len(entries):,} builds and kernels")
    click.echo(f"size     {_bytes(_size(entries))} of at most {_bytes(kept.max_bytes)}")
    share = f" ({hits / (hits + misses):.0%})" if hits + misses else ""
    click.echo(f"hits     {hits:,} of {hits + misses:,} kernels built{share}")
    if entries:
        click.echo(f"oldest   last used {_ago(entries[0].used)}")
    if not writable:
        click.echo("The folder is not writable: new builds are not cached.")


@cache.command()
@json_option
def clear(as_json: bool) -> None:
    """Delete all entries."""

    from relaxpy.build.build_cache import BuildCache

    kept = BuildCache.default()
    if kept is None:
        _tell_off(as_json)
        return
    before = kept.entries()
    deleted = kept.clear()
    left = kept.entries()
    freed = _size(before) - _size(left)
    if as_json:
        print_json({"deleted": deleted, "bytes": freed, "left": len(left)})
    else:
        click.echo(f"deleted {_count(deleted)}, {_bytes(freed)}")
    if left:
        raise click.ClickException(f"{_count(len(left))} could not be deleted from {kept.folder}")


@cache.command(short_help="Read all entries, and delete damaged ones.")
@json_option
def verify(as_json: bool) -> None:
    """Read every entry and delete the damaged ones; the next build compiles them again."""

    from relaxpy.build.build_cache import BuildCache

    kept = BuildCache.default()
    if kept is None:
        _tell_off(as_json)
        return
    count = len(kept.entries())
    damaged = kept.verify()
    if as_json:
        print_json({"entries": count, "damaged": [entry.path for entry in damaged]})
        return
    for entry in damaged:
        click.echo(f"damaged, deleted: {entry.path}")
    click.echo(f"{_count(count - len(damaged))} of {count:,} whole")


def _tell_off(as_json: bool) -> None:
    if as_json:
        print_json({"folder": None})
    else:
        click.echo(_OFF)


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
    """The folder, or its nearest ancestor that exists."""
    while not os.path.exists(path):
        path = os.path.dirname(path)
    return path
