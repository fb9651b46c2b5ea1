"""Log-mel features beside those of transformers."""

from __future__ import annotations

import threading

import numpy as np
import pytest
from transformers import WhisperFeatureExtractor
from transformers.audio_utils import mel_filter_bank

from relaxpy.models.log_mel import mel_filters
from relaxpy.speech.log_mel import LogMel, reflected

RATE, WINDOW = 16_000, 480_000


def sounds() -> dict[str, np.ndarray]:
    rng, t = np.random.default_rng(0), np.arange(WINDOW) / RATE
    voiced = sum(np.sin(2 * np.pi * 120 * k * t) / k for k in range(1, 30)) * (
        np.sin(2 * np.pi * 3 * t) > 0
    )
    return {
        "noise": rng.standard_normal(WINDOW) * 0.1,
        "tone": np.sin(2 * np.pi * 333.3 * t),
        "chirp": np.sin(2 * np.pi * 100 * t * t),
        "voiced": voiced / 10,
        "zeros": np.zeros(WINDOW),
        "impulse": (np.arange(WINDOW) == 1000) * 1.0,
        "quiet": rng.standard_normal(WINDOW) * 1e-7,
        "loud": rng.standard_normal(WINDOW) * 1e4,
    }


def theirs(samples: np.ndarray, mels: int) -> np.ndarray:
    """Of transformers without torch, which sums in float64. Its path over torch is 6e-5 off itself."""
    made = WhisperFeatureExtractor(feature_size=mels)
    padded = np.zeros(WINDOW, np.float32)
    padded[: min(WINDOW, len(samples))] = samples[:WINDOW]
    return made._np_extract_fbank_features(padded[None], "cpu")[0]


def window(samples: np.ndarray) -> np.ndarray:
    return np.pad(samples[:WINDOW], (0, max(0, WINDOW - len(samples))))


@pytest.mark.parametrize("mels", [80, 128])
@pytest.mark.parametrize("count", [0, 1, 399, 400, 401, 479_999, 480_001])
def test_lengths(mels: int, count: int) -> None:
    samples = np.random.default_rng(count).standard_normal(count).astype(np.float32) * 0.1
    found = LogMel(mels)(window(samples))
    assert found.shape == (mels, 3000)
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, theirs(samples, mels), atol=1e-6, rtol=0)


@pytest.mark.parametrize("name", sounds())
def test_sounds(name: str) -> None:
    samples = sounds()[name].astype(np.float32)
    np.testing.assert_allclose(LogMel(80)(samples), theirs(samples, 80), atol=1e-6, rtol=0)


def test_torch_path() -> None:
    """With torch the extractor sums in float32."""
    samples = sounds()["noise"].astype(np.float32)
    made = WhisperFeatureExtractor(feature_size=80)(
        samples, sampling_rate=RATE, return_tensors="np"
    )
    np.testing.assert_allclose(LogMel(80)(samples), made.input_features[0], atol=1e-5, rtol=0)


@pytest.mark.parametrize("count", [0, 1, 159, 160, 161, 201, 400, 401, 4801])
def test_any_length(count: int) -> None:
    """Without padding: as many frames as whole hops, and each is that of the definition."""
    samples = np.random.default_rng(1).standard_normal(count).astype(np.float32)
    found = LogMel(80)(samples)
    assert found.shape == (80, count // 160)
    if count < 160:
        return
    padded = np.pad(samples.astype(np.float64), 200, mode="reflect")
    hann = 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(400) / 400)
    frames = np.stack([padded[160 * t :][:400] * hann for t in range(count // 160)])
    powers = np.abs(np.fft.rfft(frames)) ** 2 @ mel_filters(80)
    bands = np.log10(np.maximum(powers, 1e-10)).T
    np.testing.assert_allclose(
        found, (np.maximum(bands, bands.max() - 8) + 4) / 4, atol=1e-6, rtol=0
    )


def test_windows_of_a_recording_are_its_frames() -> None:
    samples = np.random.default_rng(2).standard_normal(16_000).astype(np.float32)
    log_mel = LogMel(80)
    padded = reflected(samples, 100)
    whole = log_mel.bands(padded)
    assert whole.shape == (80, 100)
    np.testing.assert_array_equal(log_mel.bands(padded[160 * 30 : 160 * 69 + 400]), whole[:, 30:70])


@pytest.mark.parametrize("mels", [80, 128])
def test_filters(mels: int) -> None:
    expected = mel_filter_bank(201, mels, 0.0, 8000.0, RATE, norm="slaney", mel_scale="slaney")
    np.testing.assert_allclose(mel_filters(mels), expected, atol=1e-12)


def test_threads() -> None:
    log_mel, samples = LogMel(80), sounds()["noise"].astype(np.float32)
    expected, found = log_mel(samples), {}
    threads = [
        threading.Thread(target=lambda k=k: found.update({k: log_mel(samples)})) for k in range(4)
    ]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert all(np.array_equal(each, expected) for each in found.values())
    assert len(found) == 4
