"""Recordings as files, encoded by PyAV."""

from __future__ import annotations

import io

import av
import numpy as np

KINDS = {
    "wav": ("wav", "pcm_s16le", "s16"), "wav-f32": ("wav", "pcm_f32le", "flt"), "mp3": ("mp3", "libmp3lame", "fltp"),
    "flac": ("flac", "flac", "s16"), "webm": ("webm", "libopus", "flt"), "ogg": ("ogg", "libopus", "flt"),
    "m4a": ("ipod", "aac", "fltp"), "mp4": ("mp4", "aac", "fltp"), "mkv": ("matroska", "libopus", "flt"),
}  # fmt: skip


def encoded(samples: np.ndarray, rate: int, kind: str, channels: int = 1) -> bytes:
    """Samples (n,) float32 as a file, the same in each channel."""
    container_format, codec, sample_format = KINDS[kind]
    file = io.BytesIO()
    layout = {1: "mono", 2: "stereo", 6: "5.1"}[channels]
    with av.open(file, "w", format=container_format) as container:
        stream = container.add_stream(codec, rate=rate, layout=layout)
        stream.codec_context.format = sample_format
        planes = np.repeat(samples[None], channels, axis=0).astype(np.float32)
        frame = av.AudioFrame.from_ndarray(
            np.ascontiguousarray(planes), format="fltp", layout=layout
        )
        frame.rate = rate
        resampler = av.AudioResampler(
            sample_format, layout, rate, frame_size=stream.codec_context.frame_size or 0
        )
        for part in [*resampler.resample(frame), *resampler.resample(None)]:
            part.pts = None
            container.mux(stream.encode(part))
        container.mux(stream.encode(None))
    return file.getvalue()


def video_only() -> bytes:
    file = io.BytesIO()
    with av.open(file, "w", format="matroska") as container:
        stream = container.add_stream("mpeg4", rate=5)
        stream.width = stream.height = 32
        for _ in range(5):
            container.mux(
                stream.encode(
                    av.VideoFrame.from_ndarray(np.zeros((32, 32, 3), np.uint8), format="rgb24")
                )
            )
        container.mux(stream.encode(None))
    return file.getvalue()
