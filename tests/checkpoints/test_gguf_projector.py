"""Pairs of GGUF files: the LLaVA that they were made from, to the bit and in its logits and chats, and pairs that are
none."""

from __future__ import annotations

import json
import shutil
import warnings
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

import relaxpy.llm
from relaxpy.checkpoints import open_checkpoint
from relaxpy.checkpoints.gguf_projector import projector_of
from relaxpy.checkpoints.hub import local_checkpoint
from relaxpy.checkpoints.unread import UnreadWarning
from relaxpy.errors import UsageError
from relaxpy.llm import LanguageModel, Tokenizer
from relaxpy.models.decoder_plan import plan_decoder
from relaxpy.models.families import config_from
from relaxpy.models.llava import LlavaVision
from tests.checkpoints.gguf_pairs import add_tokens, f16, q8_0, write_pair
from tests.llm.test_pictures import colors, reference, shown, written
from tests.models.llava_checkpoints import IMAGE, SCHEME, TARGET, logits, write, write_tokenizer
from tests.models.test_llava import TOLERANCE, Stepped, prompt_of

pytest.importorskip("transformers")
pytest.importorskip("torch")
pytest.importorskip("PIL")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("llava")


@pytest.fixture(scope="module")
def theirs(folder: Path) -> Any:
    found = write("llava", folder)
    write_tokenizer(folder)
    return found


@pytest.fixture(scope="module")
def pair(theirs: Any, folder: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return write_pair(folder, tmp_path_factory.mktemp("pair"))[:2]


@pytest.fixture(scope="module")
def model(pair: tuple[Path, Path]) -> LanguageModel:
    """Of the folder that has both files."""
    return relaxpy.llm.load(pair[0].parent, scheme=SCHEME, target=TARGET)


@pytest.mark.parametrize("kind", ["f32", "f16", "q8_0", "new names", "siglip"])
def test_a_pair_is_the_model_that_it_was_made_from(
    kind: str, theirs: Any, folder: Path, tmp_path: Path
) -> None:
    """Tensors by transformers' names, to the bit, and the same configuration but for the layers that are left out."""
    more: dict[str, Any] = {"f16": {"kind": f16}, "q8_0": {"kind": q8_0}}.get(kind, {})
    if kind == "siglip":
        folder = tmp_path / "siglip"
        write("siglip", folder)
    path, mmproj, rounded = write_pair(folder, tmp_path, new_names=kind == "new names", **more)
    found = open_checkpoint(path, projector_of(path, mmproj))
    own = {name.replace(".vision_model.", "."): each for name, each in found.tensors.items()}
    assert own.keys() == {name.replace(".vision_model.", ".") for name in rounded}
    for name, array in rounded.items():
        stored = own[name.replace(".vision_model.", ".")]
        np.testing.assert_array_equal(stored.read().astype(np.float32), array, err_msg=name)
        assert stored.codes is None
    assert found.files == (path, mmproj)
    ours, expected = (
        config_from(each)
        for each in (
            found.config,
            {**open_checkpoint(folder).config, "projector_hidden_act": "gelu"},
        )
    )
    seen, wanted = ours.vision, expected.vision
    assert isinstance(seen, LlavaVision)
    assert isinstance(wanted, LlavaVision)
    assert wanted.layers == seen.layers + 1 == 3
    assert vars(seen) == {**vars(wanted), "layers": 2}
    assert (ours.hidden_size, ours.num_hidden_layers) == (32, 2)


def test_logits_are_those_of_transformers(model: LanguageModel, theirs: Any) -> None:
    own = Stepped(model.decoder)
    for parts in ((4, -1, 5, 6), (-2, 7, -1, 8), (3, 2, 9)):
        tokens, placed, found = prompt_of("llava", *parts)
        ours = own.logits([(tokens, placed)], 7)[0]
        assert abs(ours - logits(theirs, tokens, found)).max() < TOLERANCE


def test_chats_are_those_of_transformers(model: LanguageModel, theirs: Any, folder: Path) -> None:
    """With the template, the tokenizer and the processor of the files, of square pictures: others are cropped."""
    for messages in (shown(colors(1, 31, 31), "What?"), shown("Say", colors(2, 50, 50))):
        prompt, text = reference(theirs, folder, messages)
        assert written(model, messages) == (tuple(prompt), text)


def test_templates_and_vocabularies_that_know_no_pictures(
    theirs: Any, folder: Path, tmp_path: Path
) -> None:
    """A placeholder in the text, as llama.cpp has it: the vocabulary's, or the unknown token; what somebody writes is
    text. Without a template it is Vicuna's."""

    def plain(writer: gguf.GGUFWriter) -> None:
        add_tokens(writer)
        writer.add_chat_template(
            "{% for m in messages %}[{{ m['role'] }}]{{ m['content'] }}{% endfor %}"
        )

    def bare(writer: gguf.GGUFWriter) -> None:
        add_tokens(writer, "<image>")

    for number, (vocabulary, before, after) in enumerate(
        ((plain, "[user]", ""), (bare, "USER: ", " ASSISTANT:"))
    ):
        place = tmp_path / str(number)
        place.mkdir()
        path, _, _ = write_pair(folder, place, vocabulary=vocabulary)
        tokenizer = Tokenizer.from_checkpoint(path)
        unknown = tokenizer.backend.token_to_id("<unk>")
        messages: Any = shown("What ", "is it? <image> <unk>")
        messages[0]["content"].insert(0, {"type": "image"})
        tokens = tokenizer.chat_tokens(messages)
        text = tokenizer.decode(tokens, special=True)
        assert text.startswith(before)
        assert tokens.count(IMAGE if vocabulary is bare else unknown) == 1
        assert text.endswith("\nWhat is it? <image> <unk>" + after)
        plainly = tokenizer.chat_text([{"role": "user", "content": "Hello"}])
        assert plainly == f"{before}Hello{after}"


def test_a_plan_names_the_tower(pair: tuple[Path, Path]) -> None:
    plan = plan_decoder(pair[0], SCHEME)
    assert plan.picture_tokens == 9
    assert plan.tower > 0


def test_what_is_beside_a_model(pair: tuple[Path, Path], tmp_path: Path) -> None:
    """One projector is found; of several, or one that is for another model, a warning says that it is not read."""
    path, mmproj = pair
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = projector_of(path)
        assert found is not None
        assert found.path == mmproj
    assert local_checkpoint(path.parent) == path
    shutil.copy(path, tmp_path / "model.gguf")
    assert projector_of(tmp_path / "model.gguf") is None
    assert projector_of(tmp_path) is None
    shutil.copy(path, tmp_path / "mmproj-a.gguf")
    with pytest.warns(UnreadWarning, match="the projector beside it, since .*architecture 'llama'"):
        assert projector_of(tmp_path / "model.gguf") is None
    shutil.copy(mmproj, tmp_path / "mmproj-b.gguf")
    with pytest.warns(UnreadWarning, match="mmproj-a.gguf, mmproj-b.gguf: name it as mmproj"):
        assert projector_of(tmp_path / "model.gguf") is None
    named = projector_of(tmp_path / "model.gguf", tmp_path / "mmproj-b.gguf")
    assert named is not None


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"projector_type": "ldpv2"}, "of the kind 'ldpv2', which is not supported"),
        ({"projector_type": None, "has_llava_projector": None}, "of the kind None"),
        ({"has_vision_encoder": False, "has_text_encoder": True}, "no encoder of pictures .* one of text is not"),
        ({"has_vision_encoder": None, "has_audio_encoder": True}, "no encoder of pictures .* one of audio is not"),
        ({"has_audio_encoder": True}, "an encoder of sound, too"),
        ({"vision__image_grid_pinpoints": [336, 672]}, "in tiles"),
        ({"vision__mm_patch_merge_type": "spatial_unpad"}, "in tiles"),
        ({"vision__feature_layer": [1, 2]}, r"feature_layer is \[1, 2\], and the states of one layer"),
        ({"vision__feature_layer": [3]}, "has 2 layers of a tower, and the states of layer 3 are read"),
        ({"vision.image_mean": [0.5, 0.5]}, "image_mean must be a number for each of red, green and blue"),
        ({"vision.image_std": None}, "image_std must be a number for each"),
        ({"vision.patch_size": None}, "lacks the field clip.vision.patch_size"),
        ({"vision.block_count": "many"}, "clip.vision.block_count is 'many', and int is supported"),
    ],
)  # fmt: skip
def test_projectors_that_are_refused(
    changes: dict[str, Any], message: str, theirs: Any, folder: Path, tmp_path: Path
) -> None:
    path, mmproj, _ = write_pair(folder, tmp_path, **changes)
    with pytest.raises(UsageError, match=message) as caught:
        projector_of(path, mmproj)
    assert caught.value.code == "bad-checkpoint"
    assert str(mmproj) in caught.value.message


def test_fields_that_are_honoured(theirs: Any, folder: Path, tmp_path: Path) -> None:
    """Mean and deviation, the layer, the activation; what nobody follows is named."""
    path, mmproj, _ = write_pair(
        folder, tmp_path, vision__feature_layer=[1], use_gelu=True, vision__strange=7,
        vision__image_mean=[0.5, 0.25, 0.125],
    )  # fmt: skip
    with pytest.warns(UnreadWarning, match="vision.strange = 7"):
        found = projector_of(path, mmproj)
    assert found is not None
    assert found.processor["image_mean"] == [0.5, 0.25, 0.125]
    seen = config_from(open_checkpoint(path, found).config).vision
    assert isinstance(seen, LlavaVision)
    assert (seen.tower.num_hidden_layers, seen.layers) == (1, 2)
    assert seen.tower.hidden_act == "gelu_pytorch_tanh"


def test_wrong_pairs(theirs: Any, folder: Path, pair: tuple[Path, Path], tmp_path: Path) -> None:
    """Two files of other models, one for itself, one that is missing, and one for a folder."""
    path, mmproj = pair
    wide = tmp_path / "wide"
    shutil.copytree(folder, wide)
    tensors: Any = __import__("safetensors.numpy").numpy
    own = tensors.load_file(wide / "model.safetensors")
    name = "multi_modal_projector.linear_2.weight"
    own[name] = np.zeros((48, 32), np.float32)
    tensors.save_file(own, wide / "model.safetensors")
    other = write_pair(wide, tmp_path)[1]
    with pytest.raises(UsageError, match=r"rows have 48 numbers, and tokens of .* have 32"):
        projector_of(path, other)
    with pytest.raises(UsageError, match=r"architecture 'llama', not a projector"):
        relaxpy.llm.load(path, mmproj=path)
    with pytest.raises(UsageError, match="it is the projector of a pair: give it as mmproj"):
        relaxpy.llm.load(mmproj)
    with pytest.raises(UsageError, match=r"architecture 'clip', which is not supported"):
        open_checkpoint(mmproj)
    with pytest.raises(UsageError, match=r"nowhere.gguf cannot be read as GGUF: No such file"):
        relaxpy.llm.load(path, mmproj=tmp_path / "nowhere.gguf")
    with pytest.raises(UsageError, match="is no GGUF file"):
        relaxpy.llm.load(folder, mmproj=mmproj)
    assert json.loads((folder / "config.json").read_text())["model_type"] == "llava"
