"""A model of speech of a server: recordings are heard in threads of this process, several in the same steps."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Unpack

from relaxpy import runtime
from relaxpy.errors import UsageError
from relaxpy.server.settings import ModelSettings
from relaxpy.speech import Segment, TranscriptionInfo
from relaxpy.speech.load import AnyTranscriber, load_transcriber
from relaxpy.speech.options import TranscriptionOptionsDict

_AT_ONCE = 8
"""The most recordings that are heard at a time: each has a thread, and pages for a window."""


class _Gone(Exception):
    """Nobody waits for the text."""


class SpeechModel:
    """A model that hears."""

    def __init__(self, name: str, transcriber: AnyTranscriber, running: int, waiting: int) -> None:
        """So many recordings are heard at a time, and so many wait."""
        self.name, self.transcriber = name, transcriber
        self._most, self._asked, self._is_closed = running + waiting, 0, False
        self._threads = ThreadPoolExecutor(running, f"speech-{name}")

    @classmethod
    async def start(cls, settings: ModelSettings) -> SpeechModel:
        """Load a model. Raises: UsageError like `load_transcriber`; `bad-arguments` for settings that are for models of
        text."""
        given = {
            "--adapter": settings.adapters,
            "--mmproj": settings.mmproj,
            "--chat-template": settings.chat_template,
            "--context": settings.context,
        }
        for name, value in given.items():
            if value:
                raise UsageError(
                    "bad-arguments", f"{settings.name} is a model of speech, which takes no {name}"
                )
        running = min(settings.running, _AT_ONCE)
        if settings.threads is not None:
            runtime.set_num_threads(settings.threads)
        transcriber = await asyncio.to_thread(
            load_transcriber,
            settings.place,
            scheme=settings.scheme,
            batch=running,
            target=settings.target,
            keep=settings.keep,
        )
        return cls(settings.name, transcriber, running, settings.waiting)

    async def transcribe(
        self,
        sound: bytes,
        name: str,
        *,
        longest: float,
        seconds: float,
        **options: Unpack[TranscriptionOptionsDict],
    ) -> AsyncGenerator[TranscriptionInfo | Segment]:
        """What is known of a recording, then its segments as they are heard; options are those of
        `Transcriber.transcribe`. Closing the generator ends the transcription, before its next window at the latest.

        Raises: UsageError: like `Transcriber.transcribe`; `queue-full` if too many wait; `time-limit` after so many
        `seconds`.
        """
        if self._asked >= self._most:
            raise UsageError(
                "queue-full", f"{self._most} recordings are heard or wait: try again later"
            )
        loop, found = (
            asyncio.get_running_loop(),
            asyncio.Queue[TranscriptionInfo | Segment | BaseException | None](),
        )
        is_gone = threading.Event()

        def tell(what: TranscriptionInfo | Segment | BaseException | None) -> None:
            with suppress(RuntimeError):  # the loop has ended
                loop.call_soon_threadsafe(found.put_nowait, what)

        def check() -> None:
            if is_gone.is_set() or self._is_closed:
                raise _Gone

        def hear() -> None:
            try:
                check()
                transcription = self.transcriber.transcribe(
                    sound, name=name, longest=longest, check=check, **options
                )
                tell(transcription.info)
                for segment in transcription:
                    check()
                    tell(segment)
                tell(None)
            except BaseException as error:
                tell(error)

        ends = loop.time() + seconds
        self._asked += 1
        job = self._threads.submit(hear)
        job.add_done_callback(lambda _: self._count_down(loop))
        try:
            while True:
                async with asyncio.timeout_at(ends):
                    what = await found.get()
                if what is None:
                    return
                if isinstance(what, _Gone):
                    raise UsageError("engine", "the server stops")
                if isinstance(what, BaseException):
                    raise what
                yield what
        except TimeoutError:
            raise UsageError(
                "time-limit",
                f"{name} was not heard within {seconds:g} seconds",
                help="cut it into parts",
            ) from None
        finally:
            is_gone.set()
            job.cancel()

    def _count_down(self, loop: asyncio.AbstractEventLoop) -> None:
        def less() -> None:
            self._asked -= 1

        with suppress(RuntimeError):
            loop.call_soon_threadsafe(less)

    async def close(self) -> None:
        """End what is heard."""
        self._is_closed = True
        await asyncio.to_thread(self._threads.shutdown, cancel_futures=True)
