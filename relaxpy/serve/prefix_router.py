"""Routing of requests to replicas: to the one that had the longest common prefix, by Ray's tree of prompts.

A request goes there while the replicas are about equally busy, else to the less busy of two (Ray's default). This is
the policy of `ray.serve.llm`'s PrefixCacheAffinityRouter, which cannot be imported without vLLM, keeps its tree in
another process, and waits for that at each request. An error of a router would leave a request without an answer for
ever: without prefixes there are fewer hits of the cache, and no lost requests.
"""

from __future__ import annotations

import logging
import time
from importlib import import_module
from typing import Any

# Ray has no types for most of what is used here.
_TREE: Any = import_module("ray.llm._internal.serve.routing_policies.prefix_aware.prefix_tree")
_DEFAULT: Any = import_module("ray.serve._private.request_router")
_ROUTER: Any = import_module("ray.serve.request_router")

logger = logging.getLogger("relaxpy.server")
_LEAST = 0.1
"""The part of a prompt that a replica must have had to be preferred."""


class PrefixRouter(_ROUTER.LocalityMixin, _ROUTER.MultiplexMixin, _ROUTER.RequestRouter):
    """Routes by common prefixes. It is imported by its path, in the server and in Ray's controller."""

    def initialize_state(self, *, difference: int, most: int) -> None:
        """`difference`: of the numbers of requests of two replicas that are about equally busy; `most`: tokens that a
        replica keeps in its cache."""
        self._tree = _TREE.PrefixTree()
        self._difference, self._most = difference, most

    def update_replicas(self, replicas: list[Any]) -> None:
        """See Ray."""
        base: Any = super()
        base.update_replicas(replicas)
        now, before = self._names(), {*self._tree.tenant_to_char_count}
        self._tree.add_tenants([*(now - before)], time.time())
        self._tree.remove_tenants([*(before - now)])

    def on_replica_actor_died(self, replica_id: Any) -> None:
        """See Ray."""
        base: Any = super()
        base.on_replica_actor_died(replica_id)
        self._tree.remove_tenants([replica_id.to_full_id_str()])

    async def choose_replicas(
        self, candidate_replicas: list[Any], pending_request: Any = None
    ) -> list[list[Any]]:
        """See Ray: the preferred replicas, and then others, if those are full."""
        others = await _DEFAULT.PowerOfTwoChoicesRequestRouter.choose_replicas(
            self, candidate_replicas, pending_request
        )
        try:
            own = self._preferred(candidate_replicas, pending_request)
        except Exception:
            logger.exception("routed without prefixes")
            own = []
        return [own, *others] if own else others

    def on_request_routed(self, pending_request: Any, replica_id: Any, result: Any) -> None:
        """See Ray. What a replica's cache has not kept is forgotten here, too."""
        name = replica_id.to_full_id_str()
        try:
            self._tree.insert(_prompt(pending_request), name, time.time())
            over = self._tree.tenant_to_char_count.get(name, 0) - self._most
            if over > 0:
                self._tree.evict_tenant_by_lru(name, over)
        except Exception:
            logger.exception("a prompt is not known to the router")

    def _names(self) -> set[str]:
        return {each.to_full_id_str() for each in self.curr_replicas}

    def _preferred(self, replicas: list[Any], pending_request: Any) -> list[Any]:
        prompt = _prompt(pending_request)
        busy = [self.replica_queue_len_cache.get(each.replica_id) or 0 for each in replicas]
        if not prompt or max(busy) - min(busy) > self._difference:
            return []
        by_name = {each.replica_id.to_full_id_str(): each for each in replicas}
        matched, names = self._tree.prefix_match(prompt, [*by_name])
        if len(matched) < _LEAST * len(prompt):
            names = self._tree.get_smallest_tenants()
        return [by_name[name] for name in names or () if name in by_name]


def _prompt(pending_request: Any) -> str:
    """The prompt of a request; "" for calls that have none."""
    args = pending_request.args if pending_request is not None else ()
    return getattr(args[0], "prompt", "") if args else ""


ROUTER = f"{PrefixRouter.__module__}.{PrefixRouter.__qualname__}"
