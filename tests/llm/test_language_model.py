"""Language models: texts by piece, beside a loop by hand; ends, seeds, caches, several at once, and mistakes."""

from __future__ import annotations

import gc
import json
import shutil
import threading
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from relaxpy.errors import RelaxError, UsageError
from relaxpy.llm import LanguageModel, load
from relaxpy.models.checkpoint import read_weights
from relaxpy.models.loaded import Scheme, load_decoder
from relaxpy.serve import Beams, PageBook, Sampling
from relaxpy.serve.sampling import SamplingOptions
from tests.llm.checkpoints import write_model
from tests.runtime.test_safetensors import saved
from tests.sweeps import full

EXACT = Scheme(bits=None, activations=None)
PROMPT = "Compile once, and"


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("model") / "tiny")


@pytest.fixture(scope="module")
def model(place: Path) -> LanguageModel:
    return load(place, scheme=EXACT)


def greedy(place: Path, prompt: list[int], count: int) -> list[int]:
    """The most probable tokens, by the loop of docs/serving.md."""
    decoder = load_decoder(place, EXACT)
    caches, book = decoder.vm["alloc_pages"](64), PageBook(64, decoder.page_size, decoder.windows)
    one = book.add(prompt)
    for _ in range(count):
        batch = book.batch({one: len(book.pending(one))})
        logits = decoder.vm["step"](*batch.arguments, caches, *decoder.weights)
        book.commit(batch)
        book.append(one, [int(logits.numpy()[0].argmax())])
    return book.tokens(one)[len(prompt) :]


def test_pieces_are_the_text(model: LanguageModel, place: Path) -> None:
    """The tokens of a loop by hand; their text; each piece as soon as it is certain."""
    pieces = model.generate(PROMPT, max_tokens=40, end_tokens=())
    found = list(pieces)
    assert pieces.tokens == greedy(place, model.tokenizer.encode(PROMPT), 40)
    assert "".join(found) == pieces.text
    assert model.tokenizer.decode(pieces.tokens).startswith(pieces.text)
    assert pieces.finish_reason == "length"
    assert len(found) > 10
    assert all(found)


@pytest.mark.parametrize("prefill", [1, 3, 32, 1000])
def test_parts_of_a_prompt(model: LanguageModel, prefill: int) -> None:
    """A prompt computed in parts of any size gives the same tokens."""
    model.book.evict()
    prompt = [*range(5, 100)]
    expected = model.generate(prompt, max_tokens=5, end_tokens=())
    list(expected)
    model.book.evict()
    found = model.generate(prompt, max_tokens=5, end_tokens=(), prefill=prefill)
    list(found)
    assert found.tokens == expected.tokens
    assert found.usage.cached_tokens == 0


def test_usage_and_timings(model: LanguageModel) -> None:
    model.book.evict()
    pieces = model.generate([*range(10, 50)], max_tokens=7, end_tokens=())
    assert (pieces.finish_reason, pieces.text, pieces.usage.completion_tokens) == (None, "", 0)
    assert "not begun" in repr(pieces)
    list(pieces)
    assert (pieces.usage.prompt_tokens, pieces.usage.completion_tokens) == (40, 7)
    timings = pieces.timings
    assert (timings.prompt_tokens, timings.decoded_tokens) == (40, 6)
    assert timings.prompt_per_second == pytest.approx(40 / timings.prompt)
    assert timings.per_second == pytest.approx(6 / timings.decoding)
    assert "7 generated, length" in repr(pieces)


def test_the_next_turn_finds_its_beginning(model: LanguageModel) -> None:
    """Full pages of the prompt and of the answer are in the cache."""
    model.book.evict()
    first = model.generate([*range(10, 60)], max_tokens=30, end_tokens=())
    list(first)
    again = model.generate([*first.prompt, *first.tokens, 7, 8], max_tokens=3, end_tokens=())
    list(again)
    page = model.decoder.page_size
    assert again.usage.cached_tokens == (50 + 29) // page * page
    assert again.timings.prompt_tokens == 82 - again.usage.cached_tokens


def test_tokens_that_end(model: LanguageModel) -> None:
    """The token that ends a text is counted, and is no part of the text."""
    full = model.generate(PROMPT, max_tokens=20, end_tokens=())
    list(full)
    last = full.tokens[9]
    place = full.tokens.index(last)
    found = model.generate(PROMPT, max_tokens=20, end_tokens=[last])
    text = "".join(found)
    assert found.tokens == full.tokens[: place + 1]
    assert text == model.tokenizer.decode(full.tokens[:place])
    assert (found.finish_reason, found.stop) == ("stop", None)


def test_stop_strings(model: LanguageModel) -> None:
    """Across the borders of tokens; the text ends before them."""
    full = "".join(model.generate(PROMPT, max_tokens=40, end_tokens=()))
    for begin in range(0, len(full) - 5, 3):
        stop = full[begin : begin + 5]
        found = model.generate(PROMPT, max_tokens=40, end_tokens=(), stop=["never there", stop])
        assert "".join(found) == full[: full.find(stop)] == found.text
        assert (found.finish_reason, found.stop) == ("stop", stop)
    assert "".join(model.generate(PROMPT, max_tokens=40, end_tokens=(), stop=full + "x")) == full


def test_stop_strings_end_nothing_before_the_least_length(model: LanguageModel) -> None:
    full = model.generate(PROMPT, max_tokens=40, end_tokens=())
    list(full)
    found = model.generate(PROMPT, max_tokens=40, end_tokens=(), stop=full.text[0], min_tokens=9)
    list(found)
    assert len(found.tokens) >= 9
    assert full.text.startswith(found.text)


def test_seeds(model: LanguageModel) -> None:
    """A seed gives its text again; without one texts differ; options reach the sampler."""

    def text(**options: Any) -> str:
        return model.complete(PROMPT, max_tokens=20, end_tokens=(), **options)

    assert text(temperature=1, seed=3) == text(temperature=1, seed=3)
    assert text(temperature=1, seed=3) != text(temperature=1, seed=4)
    assert text(temperature=1) != text(temperature=1)
    assert text() == text(seed=5) == text(temperature=1, top_k=1)
    assert text(repetition_penalty=100.0) != text()
    banned = model.generate(PROMPT, max_tokens=20, end_tokens=())
    list(banned)
    first = banned.tokens[0]
    other = model.generate(PROMPT, max_tokens=1, bias={first: -float("inf")})
    list(other)
    assert other.tokens != [first]


def test_the_context_is_full(model: LanguageModel) -> None:
    """The text ends with the last token that fits; a prompt without room for one is refused before it begins."""
    found = model.generate([5] * 250, end_tokens=())
    list(found)
    assert found.finish_reason == "length"
    assert len(found.tokens) == 6
    last = model.generate([5] * 255, max_tokens=50, end_tokens=())
    list(last)
    assert len(last.tokens) == 1
    with pytest.raises(
        UsageError, match="the prompt has 256 tokens, and the context 256"
    ) as caught:
        model.generate([5] * 256)
    assert caught.value.code == "bad-length"


def pages(model: LanguageModel) -> int:
    return model.book.available()


def test_pages_are_given_back(model: LanguageModel) -> None:
    """When a text ends, is closed, is dropped, or fails."""
    every = pages(model)
    list(model.generate(PROMPT, max_tokens=4))
    assert pages(model) == every
    begun = model.generate(PROMPT, max_tokens=50, end_tokens=())
    next(begun)
    assert pages(model) < every
    begun.close()
    assert (pages(model), begun.finish_reason) == (every, "cancelled")
    assert list(begun) == []
    with model.generate(PROMPT, max_tokens=50, end_tokens=()) as begun:
        next(begun)
    assert pages(model) == every
    begun = model.generate(PROMPT, max_tokens=50, end_tokens=())
    next(begun)
    del begun
    gc.collect()
    assert pages(model) == every
    never = model.generate(PROMPT)
    never.close()
    assert (pages(model), never.finish_reason, list(never)) == (every, "cancelled", [])


def test_an_interrupt(model: LanguageModel, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C in a step ends this text; the model writes the next one as ever."""
    expected = model.complete(PROMPT, max_tokens=12, end_tokens=())
    every, step, count = pages(model), model.step, iter(range(100))

    def interrupted(*args: Any) -> Any:
        if next(count) == 5:
            raise KeyboardInterrupt
        return step(*args)

    monkeypatch.setattr(model, "step", interrupted)
    pieces, found = model.generate(PROMPT, max_tokens=12, end_tokens=()), []
    with pytest.raises(KeyboardInterrupt):
        found.extend(pieces)
    assert (pieces.finish_reason, pages(model)) == ("cancelled", every)
    assert pieces.text
    assert expected.startswith(pieces.text)
    monkeypatch.undo()
    assert model.complete(PROMPT, max_tokens=12, end_tokens=()) == expected


def test_a_text_that_is_collected_in_a_step(
    model: LanguageModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Garbage is collected at any time, also while another text's step runs, whose books it must not change."""
    expected, every = model.complete(PROMPT, max_tokens=6, end_tokens=()), pages(model)
    batch, dropped = model.book.batch, [model.generate(PROMPT, max_tokens=50, end_tokens=())]
    next(dropped[0])

    def collected(counts: dict[int, int]) -> Any:
        if dropped:
            dropped.clear()
            gc.collect()
            assert pages(model) < every
        return batch(counts)

    monkeypatch.setattr(model.book, "batch", collected)
    assert model.complete(PROMPT, max_tokens=6, end_tokens=()) == expected
    assert (dropped, pages(model)) == ([], every)


def test_two_at_once(model: LanguageModel) -> None:
    """Piece by piece in turn, and in two threads: each text as it is alone."""
    prompts = [[*range(10, 40)], [*range(10, 35), 7]]

    def begun(n: int) -> Any:
        return model.generate(prompts[n], max_tokens=20, end_tokens=(), temperature=1, seed=n)

    alone = ["".join(begun(n)) for n in range(2)]
    both, texts = [begun(0), begun(1)], ["", ""]
    while any(each.finish_reason is None for each in both):
        for n, each in enumerate(both):
            texts[n] += next(each, "")
    assert texts == alone
    threads = [
        threading.Thread(target=lambda n=n: texts.__setitem__(n, "".join(begun(n)))) for n in (0, 1)
    ]
    texts[:] = ["", ""]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert texts == alone


def test_too_many_at_once(place: Path) -> None:
    """More texts than pages: the one that finds none fails, with the others unharmed; `batch` makes room."""
    small = load(place, scheme=EXACT, context=64)
    first = small.generate([*range(10, 40)], max_tokens=30, end_tokens=())
    next(first)
    second = small.generate([*range(50, 100)], max_tokens=5, end_tokens=())
    with pytest.raises(UsageError) as caught:
        list(second)
    assert caught.value.code == "cache-full"
    list(first)
    assert len(first.tokens) == 30
    both = load(place, scheme=EXACT, context=64, batch=2)
    first = both.generate([*range(10, 40)], max_tokens=34, end_tokens=())
    next(first)
    assert len(list(both.generate([*range(50, 100)], max_tokens=14, end_tokens=()))) > 0
    list(first)
    assert len(first.tokens) == 34


def test_a_chat(model: LanguageModel) -> None:
    """The prompt is what the template writes; the token after an answer ends it."""
    messages = [{"role": "user", "content": "Hello"}]
    found = model.chat(messages, max_tokens=5)
    assert [*found.prompt] == model.tokenizer.chat_tokens(messages)
    assert model.tokenizer.decode(found.prompt, special=True).endswith("<|im_start|>assistant\n")
    end = model.tokenizer.number("<|im_end|>")
    assert end is not None
    ended = model.chat(messages, max_tokens=5, bias={end: 1e9})
    assert (list(ended), ended.tokens, ended.finish_reason) == ([], [end], "stop")
    going = model.generate(found.prompt, max_tokens=5, bias={end: 1e9})
    list(going)
    assert going.finish_reason == "length"


def test_what_it_says_of_itself(model: LanguageModel, place: Path) -> None:
    assert repr(model) == (
        "<language model tiny: llama, weights 0.3 MB, vocabulary of 320, context of 256 tokens>"
    )
    assert load(place, scheme=EXACT, context=100).context == 100


def test_the_checkpoint_recommends_sampling(tmp_path: Path) -> None:
    place = write_model(tmp_path / "m")
    config = {"do_sample": True, "temperature": 0.5, "top_k": 7, "eos_token_id": 9}
    (place / "generation_config.json").write_text(json.dumps(config))
    model = load(place, scheme=EXACT)
    found = model.generate("a", top_p=0.5).sampling
    assert (found.temperature, found.top_k, found.top_p) == (0.5, 7, 0.5)
    assert 9 in model.tokenizer.end_tokens
    (place / "generation_config.json").write_text(json.dumps({**config, "do_sample": False}))
    assert load(place, scheme=EXACT).generate("a").sampling.temperature == 0
    for name, value in (
        ("temperature", "hot"),
        ("top_k", -1),
        ("top_p", True),
        ("eos_token_id", "x"),
    ):
        (place / "generation_config.json").write_text(json.dumps({**config, name: value}))
        with pytest.raises(UsageError, match=name) as caught:
            load(place, scheme=EXACT)
        assert caught.value.code == "bad-checkpoint"


@pytest.mark.parametrize(
    ("prompt", "options", "code", "match"),
    [
        ([], {}, "bad-prompt", "no tokens"),
        ([1, "a"], {}, "bad-prompt", "numbers of tokens, got 'a'"),
        ([1, -1], {}, "bad-prompt", "got -1"),
        ([320], {}, "bad-prompt", "token 320 is none of the model's"),
        (3, {}, "bad-prompt", "a text, or numbers of tokens"),
        (b"abc", {}, "bad-prompt", "numbers of tokens, got bytes"),
        (bytearray(b"abc"), {}, "bad-prompt", "numbers of tokens, got bytes"),
        ("a", {"bias": {320: 1.0}}, "sampling", "bias names token 320, and the model has tokens 0 to 319"),
        ("a", {"min_tokens": -1}, "sampling", "min_tokens"),
        ("a", {"max_tokens": 0}, "bad-length", "max_tokens is an integer of at least 1, got 0"),
        ("a", {"max_tokens": "5"}, "bad-length", "got '5'"),
        ("a", {"prefill": -1}, "bad-length", "prefill"),
        ("a", {"temperature": -1}, "sampling", "temperature must be at least 0"),
        ("a", {"temperature": "hot"}, "sampling", "temperature must be a finite number"),
        ("a", {"top_k": 1.5}, "sampling", "top_k must be an integer"),
        ("a", {"bias": {"x": 1}}, "sampling", "bias"),
        ("a", {"bias": [1]}, "sampling", "bias"),
        ("a", {"stop": [""]}, "bad-prompt", "stop string"),
        ("a", {"stop": 3}, "bad-prompt", "stop string"),
        ("a", {"end_tokens": [None]}, "bad-prompt", "end_tokens"),
    ],
)  # fmt: skip
def test_mistakes(
    model: LanguageModel, prompt: Any, options: dict[str, Any], code: str, match: str
) -> None:
    """Found when the text is asked for, before it begins."""
    with pytest.raises(UsageError, match=match) as caught:
        model.generate(prompt, **options)
    assert caught.value.code == code


def test_mistakes_of_load(place: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"no checkpoint at .*nowhere"):
        load(tmp_path / "nowhere")
    with pytest.raises(UsageError, match="context is 999, but the model has 256 positions"):
        load(place, scheme=EXACT, context=999)
    with pytest.raises(UsageError, match="batch is an integer"):
        load(place, scheme=EXACT, batch=0)
    with pytest.raises(UsageError, match=r"is not a checkpoint: it has no config\.json"):
        load(tmp_path)
    shutil.copy(place / "config.json", tmp_path)
    with pytest.raises(UsageError, match=r"has no tokenizer\.json"):
        load(tmp_path)


def with_nan(place: Path, name: str) -> Path:
    """The checkpoint with some rows of a tensor replaced by NaN."""
    tensors = {each: array.copy() for each, array in read_weights(place).items()}
    tensors[name][3:] = np.nan
    saved(place / "model.safetensors", tensors)
    return place


def test_logits_that_are_nan(tmp_path: Path) -> None:
    """An error, not a text."""
    place = with_nan(write_model(tmp_path / "model"), "model.layers.0.mlp.down_proj.weight")
    with pytest.raises(UsageError, match=r"are not numbers: 320 of 320 are NaN") as caught:
        load(place, scheme=EXACT).complete(PROMPT, max_tokens=3)
    assert caught.value.code == "not-a-number"
    assert "check_numbers" in (caught.value.help or "")


def test_the_first_layer_that_is_wrong_is_named(tmp_path: Path) -> None:
    scheme = replace(EXACT, check_numbers=True)
    for name, first in {
        "model.embed_tokens": "the embeddings",
        "model.layers.1.self_attn.v_proj": "layer 1, after its attention",
        "model.layers.1.mlp.down_proj": "layer 1, after its feed-forward network",
        "lm_head": "the logits, after all layers",
    }.items():
        place = write_model(tmp_path / name, num_hidden_layers=2)
        found = load(with_nan(place, f"{name}.weight"), scheme=scheme)
        with pytest.raises(RelaxError, match=rf"{first}: \d+ of \d+ elements are NaN") as caught:
            found.complete(PROMPT, max_tokens=3)
        assert caught.value.code == "not-a-number"


def test_all_options_of_sampling_are_options(model: LanguageModel) -> None:
    options: Any = {each.name: None for each in fields(Sampling)}
    assert {*SamplingOptions.__annotations__} == options.keys()
    plain = model.generate(PROMPT, max_tokens=3, end_tokens=(), **options)
    list(plain)
    other = model.generate(PROMPT, max_tokens=3, end_tokens=(), suppress_tokens=plain.tokens)
    list(other)
    assert not {*plain.tokens} & {*other.tokens}
    with pytest.raises(TypeError, match="temprature"):
        model.generate(PROMPT, temprature=1)  # type: ignore[call-arg]


@full
def test_quantised_weights(place: Path) -> None:
    """The default scheme runs; its texts are others."""
    found = load(place).generate(PROMPT, max_tokens=5, end_tokens=())
    list(found)
    assert len(found.tokens) == 5
    assert np.all(np.array(found.tokens) < 320)


def test_a_search_with_beams(place: Path) -> None:
    """The text of transformers' search, with the weights of the checkpoint."""
    torch: Any = pytest.importorskip("torch")
    transformers: Any = pytest.importorskip("transformers")
    own = load(place, scheme=EXACT, batch=4)
    theirs = transformers.AutoModelForCausalLM.from_pretrained(place, dtype=torch.float32).eval()
    for prompt in ([5, 9, 17], [33]):
        for beams in (Beams(1), Beams(4), Beams(3, 0.0, True), Beams(3, 2.0, "never", 2)):
            with torch.no_grad():
                found = theirs.generate(
                    torch.tensor([prompt]), max_new_tokens=11, do_sample=False, num_beams=beams.num_beams,
                    length_penalty=beams.length_penalty, early_stopping=beams.early_stopping, eos_token_id=[2, 41],
                    pad_token_id=0,
                )[0].tolist()[len(prompt) :]  # fmt: skip
            pieces = own.generate(
                prompt, max_tokens=11, end_tokens=[2, 41], beams=beams, temperature=0.0
            )
            for _ in pieces:
                pass
            assert pieces.tokens == found
    with pytest.raises(UsageError, match="beams of"):
        next(own.generate([5], beams=Beams(16)))
