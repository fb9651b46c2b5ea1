"""Pictures in chats beside transformers' processor and model, and what is refused."""

from __future__ import annotations

import io
import json
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import relaxpy.llm
from relaxpy.errors import UsageError
from relaxpy.llm import LanguageModel
from relaxpy.llm.pictures import taken
from tests.models.llava_checkpoints import IMAGE, SCHEME, TARGET, write, write_tokenizer

Image: Any = pytest.importorskip("PIL.Image")
transformers: Any = pytest.importorskip("transformers")
pytest.importorskip("torch")


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("llava")


@pytest.fixture(scope="module")
def theirs(place: Path) -> Any:
    model = write("llava", place)
    write_tokenizer(place)
    return model


@pytest.fixture(scope="module")
def model(theirs: Any, place: Path) -> LanguageModel:
    return relaxpy.llm.load(place, scheme=SCHEME, target=TARGET)


def colors(seed: int, height: int = 31, width: int = 47) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)


def shown(*contents: Any) -> list[dict[str, Any]]:
    """A message of the user, of texts and pictures."""
    parts = [
        {"type": "text", "text": each}
        if isinstance(each, str)
        else {"type": "image", "image": each}
        for each in contents
    ]
    return [{"role": "user", "content": parts}]


def reference(
    theirs: Any, place: Path, messages: list[dict[str, Any]]
) -> tuple[list[int], list[int]]:
    """The prompt and the next 12 tokens by transformers, whose images are Pillow's."""
    from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil

    side = {"height": 23, "width": 23}
    processor = transformers.LlavaProcessor(
        CLIPImageProcessorPil(size=side, crop_size=side),
        transformers.AutoTokenizer.from_pretrained(place),
        patch_size=7,
        vision_feature_select_strategy="default",
        image_token="<image>",
        num_additional_image_tokens=1,
    )
    template = (place / "chat_template.jinja").read_text()
    text = processor.tokenizer.apply_chat_template(
        messages, chat_template=template, tokenize=False, add_generation_prompt=True
    )
    images = [
        Image.fromarray(part["image"])
        for message in messages
        for part in message["content"]
        if part["type"] == "image"
    ]
    given = processor(
        text=[text], images=images or None, return_tensors="pt", add_special_tokens=False
    )
    found = theirs.generate(
        **given, max_new_tokens=12, do_sample=False, eos_token_id=None, pad_token_id=0
    )
    prompt = given["input_ids"][0].tolist()
    return prompt, found[0, len(prompt) :].tolist()


def written(
    model: LanguageModel, messages: list[dict[str, Any]], **options: Any
) -> tuple[tuple[int, ...], list[int]]:
    answer = model.chat(
        messages, max_tokens=12, end_tokens=(), temperature=0, repetition_penalty=1.0, **options
    )
    list(answer)
    return answer.prompt, answer.tokens


CHATS = [
    shown(colors(1), "What is it?"),
    shown("Compare", colors(1), "and", colors(2, 50, 20), "please"),
    shown("Compile once."),
    [
        *shown(colors(3), "first"),
        {"role": "assistant", "content": [{"type": "text", "text": "an answer"}]},
        *shown("and", colors(1)),
    ],
]


@pytest.mark.parametrize("number", range(len(CHATS)))
def test_chats_are_those_of_transformers(
    number: int, model: LanguageModel, theirs: Any, place: Path
) -> None:
    """Prompts and texts, in parts of a prompt of any length; the second question about a picture runs no tower."""
    prompt, text = reference(theirs, place, CHATS[number])
    assert written(model, CHATS[number]) == (tuple(prompt), text)
    before = model._engine.counters.encoded_pictures
    for prefill in (1, 7, 33):
        model.book.evict()
        assert written(model, CHATS[number], prefill=prefill)[1] == text
    assert model._engine.counters.encoded_pictures == before


def test_all_kinds_of_pictures(model: LanguageModel, tmp_path: Path) -> None:
    """A path, bytes, an array and an image are the same picture; so is a part with a path."""
    pixels, file = colors(1), io.BytesIO()
    Image.fromarray(pixels).save(file, "png")
    path = tmp_path / "a.png"
    path.write_bytes(file.getvalue())
    _, text = written(model, shown(pixels, "What?"))
    for each in (path, file.getvalue(), Image.fromarray(pixels)):
        assert written(model, shown(each, "What?"))[1] == text
    message = {
        "role": "user",
        "content": [{"type": "image", "path": str(path)}, {"type": "text", "text": "What?"}],
    }
    assert written(model, [message])[1] == text


def test_a_text_to_continue(model: LanguageModel) -> None:
    prompt, text = written(model, shown(colors(1), "What?"))
    plain = "USER: <image>\nWhat? ASSISTANT:"
    answer = model.generate(plain, images=[colors(1)], max_tokens=12, end_tokens=(), temperature=0)
    list(answer)
    assert (answer.prompt, answer.tokens) == (prompt, text)
    assert prompt.count(IMAGE) == 9
    with pytest.raises(UsageError, match="has 0 places for pictures, and there are 1 pictures"):
        model.generate("What?", images=[colors(1)])


def test_a_placeholder_in_a_message_is_text(model: LanguageModel) -> None:
    """Nobody makes room for a picture by writing a message."""
    prompt, _ = written(model, shown(colors(1), "What is <image>?"))
    assert prompt.count(IMAGE) == 9
    with pytest.raises(UsageError, match="has 2 places for pictures, and there are 1 pictures"):
        model.chat(shown(colors(1), "What is <image>?"), control=True)


@pytest.mark.parametrize(
    ("part", "message"),
    [
        ({"type": "image"}, "part 0 of message 0 is no picture: it has 0"),
        ({"type": "image", "url": "http://example.org/a.png"}, "it has 0"),
        ({"type": "image", "image": b"", "path": "a.png"}, "it has 2"),
        ({"type": "image", "image": b"", "detail": "low"}, "it has detail"),
    ],
)
def test_parts_that_are_no_pictures(part: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=re.escape(message)) as caught:
        taken([{"role": "user", "content": [part]}])
    assert caught.value.code == "bad-prompt"


@pytest.mark.parametrize(
    "wrong", [b"no picture", Path("nowhere.png"), 5, np.zeros((3, 4), np.float32)]
)
def test_pictures_that_cannot_be_read(wrong: Any, model: LanguageModel) -> None:
    with pytest.raises(UsageError) as caught:
        model.chat(shown("a", wrong))
    assert caught.value.code == "bad-picture"


def test_messages_are_left_as_they_are() -> None:
    messages = [
        {
            "role": "user",
            "content": [{"type": "image", "image": b"x"}, {"type": "text", "text": "a"}],
        },
        {"role": "a"},
    ]
    without, found = taken(messages)
    assert without == [
        {"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "a"}]},
        {"role": "a"},
    ]
    assert [each.picture for each in found] == [b"x"]
    assert messages[0]["content"][0] == {"type": "image", "image": b"x"}
    strange: Any = "no messages"
    assert taken(strange) == (strange, [])


def test_a_model_that_reads_texts(model: LanguageModel) -> None:
    """Refuses pictures by its name."""
    model = LanguageModel(model.decoder, model.tokenizer, name="words")
    with pytest.raises(UsageError, match="reads texts alone, and there is a picture"):
        model.chat(shown(colors(1), "What?"))
    with pytest.raises(UsageError, match="reads texts alone, and there are 2 pictures"):
        model.generate("a", images=[colors(1), colors(2)])


def test_a_processor_of_another_size(theirs: Any, place: Path, tmp_path: Path) -> None:
    """Texts are written; the first picture says what is wrong."""
    folder = tmp_path / "other"
    shutil.copytree(place, folder)
    path = folder / "preprocessor_config.json"
    path.write_text(
        json.dumps({**json.loads(path.read_text()), "crop_size": {"height": 22, "width": 23}})
    )
    model = relaxpy.llm.load(folder, scheme=SCHEME, target=TARGET)
    assert written(model, shown("Compile once."))[1]
    with pytest.raises(
        UsageError, match="pictures get the size 22 × 23, and the model reads the size 23 × 23"
    ):
        model.chat(shown(colors(1)))
    path.unlink()
    model = relaxpy.llm.load(folder, scheme=SCHEME, target=TARGET)
    with pytest.raises(UsageError, match="preprocessor_config"):
        model.chat(shown(colors(1)))
