from __future__ import annotations

import relaxpy
from relaxpy.runtime import VirtualMachine

HOSTED = """
@I.ir_module
class Module:
    @R.function
    def main(x: R.Tensor(("n", 8), "float32"), w: R.Tensor((8, 8), "float32"), c: R.Tensor((), "bool")):
        n = T.int64()

        @R.function
        def inner(z: R.Tensor((n, 8), "float32")) -> R.Tensor((n, 8), "float32"):
            return R.add(z, x)

        y = R.nn.softmax(R.matmul(x, w))
        if c:
            s = inner(y)
        else:
            s = R.exp(y)
        u = R.unique(R.flatten(s))
        return (R.nn.softmax(s), u)
"""


def test_functions_of_the_host_know_of_no_queues() -> None:
    """What a call runs on is part of the names that lines use, and lines of the host use none of them."""
    vm = VirtualMachine(relaxpy.build(relaxpy.parse(HOSTED)))
    for linked in vm["main"].linked.program.functions:
        lines = "\n".join(linked.translation.listing.lines)
        assert not [name for name in ("queue", "state", "copy_to", "launch") if name in lines]


def test_a_machine_of_another_communicator_runs_the_same_lines() -> None:
    vm = VirtualMachine(relaxpy.build(relaxpy.parse(HOSTED)))
    side = vm.on(communicator="us")
    assert side["main"].source == vm["main"].source
    assert side["main"].linked.run.__code__ is vm["main"].linked.run.__code__
