"""Random programs in WebAssembly, in node, beside the interpreter: what `relaxpy fuzz --target` is for devices of this
machine.

    python -m tests.web.random_programs --count 100 --seed 0
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from relaxpy.runtime.executable import Executable
from relaxpy.target import Target
from relaxpy.testing.differential import Failure
from relaxpy.testing.fuzz import Outcome, outcomes_on
from relaxpy.testing.on_device import Where
from relaxpy.web.export import export
from tests.web.node_machine import NodeMachine, node_machine
from tests.web.support import served

WASM = Where(Target.parse("wasm"))


@contextmanager
def machines() -> Iterator[Callable[[Executable], NodeMachine]]:
    """What runs executables in node, one after the other."""
    with (
        tempfile.TemporaryDirectory() as folder,
        served(Path(folder)) as site,
        node_machine() as node,
    ):

        def machine(exe: Executable) -> NodeMachine:
            export(exe, site.folder)
            node.load(site.url + "model/")
            return node

        yield machine


def checked(seeds: Sequence[int]) -> Iterator[Outcome]:
    """The outcome of each seed. A machine that ends is a failure of its seed, and another one goes on."""
    rest = list(seeds)
    while rest:
        with machines() as machine:
            while rest:
                seed = rest.pop(0)
                try:
                    yield from outcomes_on([seed], WASM, machine)
                except (AssertionError, OSError) as error:
                    yield Outcome(seed, Failure("node", "crash", str(error)))
                    break


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    failed = refused = 0
    for outcome in checked(range(args.seed, args.seed + args.count)):
        refused += bool(outcome.refused)
        if outcome.failure is not None:
            failed += 1
            print(f"seed {outcome.seed}: {outcome.failure}\n{outcome.program}", flush=True)  # noqa: T201
        elif outcome.refused:
            print(f"seed {outcome.seed} is refused: {outcome.refused}", flush=True)  # noqa: T201
    print(f"{args.count} programs from seed {args.seed}: {failed} failed, {refused} refused")  # noqa: T201
    return failed > 0


if __name__ == "__main__":
    sys.exit(main())
