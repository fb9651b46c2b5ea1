"""The process of an engine: `python -m relaxpy.serve.engine_process`.

A server parses requests and writes answers while the engine computes. In one process both would take turns, since they
share an interpreter's lock; so the engine has its own. It reads messages from stdin and writes messages to stdout
(`relaxpy.serve.messages`); whatever else is printed goes to stderr.
"""

from __future__ import annotations

import importlib
import os
import sys
import threading
from collections.abc import Mapping
from dataclasses import asdict
from queue import Empty, SimpleQueue
from typing import Any, BinaryIO

from relaxpy.errors import short_warnings
from relaxpy.serve.engine import Engine
from relaxpy.serve.engine_settings import CONTEXT, EngineSettings
from relaxpy.serve.grammar import Matchers
from relaxpy.serve.messages import error_fields, frame, piece_fields, read_frame, request_of
from relaxpy.serve.scheduler import Limits


def decoder_engine(
    *, tokenizer: str = "", ends: tuple[int, ...] = (), **options: Any
) -> tuple[Engine, dict[str, Any]]:
    """The engine of a checkpoint, and its facts as JSON data, for the process that started this one. `options` are the
    fields of `EngineSettings`. Grammars need `tokenizer`, the text of `tokenizer.json`, and `ends`: the tokens of which
    one follows a complete text.

    Raises: UsageError like `relaxpy.models.loaded.load_decoder`.
    """
    from relaxpy import runtime
    from relaxpy.models.loaded import load_adapters, load_decoder
    from relaxpy.serve.decoder_model import DecoderModel

    own = EngineSettings.of(options)
    folders = [folder for _, folder in own.adapters]
    if own.threads is not None:
        runtime.set_num_threads(own.threads)
    stacked = load_adapters(own.place, own.scheme, folders) if folders else None
    decoder = load_decoder(
        own.place, own.scheme, target=own.target, keep=own.keep, mmproj=own.mmproj
    )
    context = min(own.context or CONTEXT, decoder.positions)
    pages = -(-max(own.cache_tokens, context) // decoder.page_size)
    made: list[Matchers] = []

    def matcher(grammar: str) -> Any:
        if not made:
            made.append(Matchers(tokenizer, decoder.vocab_size, ends))
        return made[0](grammar)

    engine = Engine(
        DecoderModel(decoder, pages, stacked, len(folders)),
        pages=pages,
        limits=Limits(own.running, own.waiting),
        target=own.target_seconds,
        drafts=own.drafts,
        matcher=matcher,
    )
    facts = {
        "vocab_size": decoder.vocab_size,
        "context": context,
        "positions": decoder.positions,
        "cache_tokens": pages * decoder.page_size,
        "weight_bytes": decoder.packed.nbytes,
        "pictures": None if decoder.pictures is None else asdict(decoder.pictures),
    }
    return engine, facts


DECODER = f"{decoder_engine.__module__}:{decoder_engine.__name__}"
"""The factory of engines that run checkpoints."""


def main() -> None:
    """Serve until the input ends."""
    short_warnings()
    replies = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    requests = sys.stdin.buffer
    start = read_frame(requests)
    if start is None:
        return
    inbox: SimpleQueue[dict[str, Any] | None] = SimpleQueue()
    is_loaded = threading.Event()
    threading.Thread(target=_receive, args=(requests, inbox, is_loaded), daemon=True).start()
    try:
        module, _, name = start["factory"].partition(":")
        engine, facts = getattr(importlib.import_module(module), name)(**start["options"])
    except Exception as error:
        _send(replies, {"kind": "failed", **error_fields(error)})
        return
    is_loaded.set()
    try:
        _send(replies, {"kind": "ready", "facts": facts, "state": _state(engine)})
        _serve(engine, inbox, replies)
    except BrokenPipeError:  # whoever started this process has ended
        return


def _receive(
    stream: BinaryIO, inbox: SimpleQueue[dict[str, Any] | None], is_loaded: threading.Event
) -> None:
    """Put the messages, and None at their end. While the model is loaded, which takes minutes, nobody reads them, and
    their end ends the process: whoever started it has ended."""
    while (message := read_frame(stream)) is not None:
        inbox.put(message)
    inbox.put(None)
    if not is_loaded.is_set():
        os._exit(1)


def _serve(engine: Engine, inbox: SimpleQueue[dict[str, Any] | None], replies: BinaryIO) -> None:
    while True:
        try:
            while True:
                message = inbox.get(block=not engine.is_busy)
                if message is None:
                    return
                _take(engine, message, replies)
                if not engine.is_busy:  # no step follows that would say so
                    _send(replies, {"kind": "state", "state": _state(engine)})
        except Empty:
            pieces = [*map(piece_fields, engine.step())]
            _send(replies, {"kind": "step", "pieces": pieces, "state": _state(engine)})


def _state(engine: Engine) -> dict[str, Any]:
    return {
        "running": len(engine.scheduler.running),
        "waiting": len(engine.scheduler.waiting),
        "pages_available": engine.book.available(),
        **asdict(engine.counters),
    }


def _take(engine: Engine, message: Mapping[str, Any], replies: BinaryIO) -> None:
    if message["do"] == "cancel":
        engine.cancel(message["number"])
        return
    try:
        engine.submit(request_of(message["request"]))
    except Exception as error:
        number = message["request"]["number"]
        _send(replies, {"kind": "refused", "number": number, **error_fields(error)})


def _send(replies: BinaryIO, message: Mapping[str, Any]) -> None:
    replies.write(frame(message))
    replies.flush()


if __name__ == "__main__":
    main()
