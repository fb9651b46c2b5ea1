"""Models by name: `OWNER/MODEL` on the Hugging Face hub, or on a server like it (`HF_ENDPOINT`).

    Qwen/Qwen2.5-0.5B-Instruct                       the newest version
    Qwen/Qwen2.5-0.5B-Instruct@7ae5576               a revision: a branch, a tag or a commit
    bartowski/Llama-3.2-1B-Instruct-GGUF:Q4_K_M      a GGUF file of several, by its name or a part of it

The package huggingface_hub downloads, and keeps the files in its cache, which other programs share; its variables
(`HF_HOME`, `HF_TOKEN`, `HF_HUB_OFFLINE`) count here too. Only the files that a model is read from are taken:
safetensors, and never pickles. What was found once needs no network again: which files make a model is noted in
relaxpy's cache.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from relaxpy.checkpoints.config_file import CONFIG_FILE
from relaxpy.checkpoints.gguf import parts_of
from relaxpy.checkpoints.gguf_projector import gguf_inside, gguf_names
from relaxpy.checkpoints.tokenizer_file import LLM_HELP
from relaxpy.errors import RelaxError, UsageError
from relaxpy.files import given_path, kept_folder, write_text
from relaxpy.narrow import is_mapping
from relaxpy.runtime.inspect.units import shown
from relaxpy.runtime.safetensors import WEIGHTS_FILE, read_json, shards_of

_NAME = re.compile(
    r"(?P<owner>[A-Za-z0-9][\w.-]*)/(?P<model>[\w.-]*[A-Za-z][\w.-]*)(@(?P<revision>[\w./-]+))?(:(?P<file>[\w./-]+))?"
)
_INDEX = f"{WEIGHTS_FILE}.index.json"
_SMALL = re.compile(
    r"config\.json|generation_config\.json|tokenizer\.json|tokenizer_config\.json|special_tokens_map\.json"
    r"|chat_template\.(json|jinja)|additional_chat_templates/[^/]+\.jinja|quantize_config\.json|quant_config\.json"
    r"|adapter_config\.json|modules\.json|sentence_bert_config\.json|config_sentence_transformers\.json"
    r"|\d+_[A-Za-z]+/config\.json|preprocessor_config\.json|processor_config\.json|vocab\.json|added_tokens\.json"
    r"|source\.spm|sentencepiece\.bpe\.model"
)
"""The files beside the weights that a model, its tokenizer, its template, its sampling and its features are read
from."""
_WEIGHTS = re.compile(r"(adapter_)?model\.safetensors")
_HEADER_GUESS = 1 << 16
_GGUF_HEADER = 32 << 20
"""Bytes of a GGUF file that hold its metadata, a vocabulary among them."""
_HEADER_SECONDS = 30.0
_MOST_LISTED = 12


@dataclass(frozen=True)
class HubName:
    """The name of a model on a hub."""

    repo: str
    """OWNER/MODEL."""
    revision: str | None = None
    file: str | None = None
    """The name of a GGUF file, or a part of it."""

    @classmethod
    def of(cls, text: str) -> HubName | None:
        """The name that a text is; None if it is none."""
        found = _NAME.fullmatch(text)
        if found is None or found["model"].endswith(
            (".gguf", ".json", ".safetensors", ".py", ".rxe")
        ):
            return None
        return cls(f"{found['owner']}/{found['model']}", found["revision"], found["file"])

    def __str__(self) -> str:
        revision = f"@{self.revision}" if self.revision else ""
        return f"{self.repo}{revision}" + (f":{self.file}" if self.file else "")


@dataclass(frozen=True)
class Download:
    """What is downloaded, before it is."""

    name: HubName
    commit: str
    sizes: Mapping[str, int]
    """File → bytes, of all files of the model."""
    left: Mapping[str, int]
    """The same of those that are not here yet."""
    folder: str
    """The cache that they are kept in."""

    @property
    def nbytes(self) -> int:
        return sum(self.left.values())


def local_checkpoint(
    place: str | os.PathLike[str],
    announce: Callable[[Download], None] | None = None,
    *,
    update: bool = False,
) -> Path:
    """The place of a checkpoint on this machine: a path as it is given, or the files of a model on a hub, which are
    downloaded if they are not here. `announce` is called before anything large is downloaded. With `update` the hub is
    asked for a newer version, too.

    Raises: UsageError: `hub-offline` if the hub cannot be reached and the model is not here, `hub-name` if there is no
    such model or version, or none that relaxpy reads, `hub-private` if it needs a token, `hub-download` for files that
    do not arrive whole, `extra-missing` without huggingface_hub.
    """
    name = _named(place)
    if isinstance(name, Path):
        return gguf_inside(name)
    if not update and (noted := _noted(name)) is not None:
        return noted
    try:
        with _told(name):
            hub = _Hub(name)
            files = model_files(name, hub.sizes, hub.small)
        wanted = {file: hub.sizes[file] for file in files}
        left = {file: size for file, size in wanted.items() if not hub.is_here(file)}
        if announce is not None and left:
            announce(Download(name, hub.commit, wanted, left, hub.cache))
        with _told(name):
            folder = hub.fetch(wanted, left)
    except UsageError as error:
        if error.code == "hub-offline" and (kept := _kept(name)) is not None:
            return kept
        raise
    _note(name, hub.commit, folder, wanted)
    return _entry(folder, files)


def _named(place: str | os.PathLike[str]) -> Path | HubName:
    """What somebody gave for a checkpoint: a path, or a name on the hub that no path has. A Path is never a name."""
    path: Path = given_path(place, "a checkpoint", UsageError, "bad-checkpoint")
    name = HubName.of(place) if isinstance(place, str) else None
    return path if name is None or path.exists() else name


def checkpoint_name(place: Path) -> str:
    """The name of the model at a place: of its folder or file, or its own in a hub's cache."""
    place = Path(os.path.abspath(place))
    for folder in place.parents:
        if folder.name == "snapshots" and folder.parent.name.startswith("models--"):
            return folder.parent.name.rpartition("--")[2]
    return place.name


@contextmanager
def headers_of(place: str | os.PathLike[str]) -> Iterator[Path]:
    """A checkpoint of which only the sizes are read: a path as it is given, a model on a hub without its weights.

    Raises: like `local_checkpoint`.
    """
    name = _named(place)
    if isinstance(name, Path):
        yield gguf_inside(name)
    elif (noted := _noted(name)) is not None:
        yield noted
    else:
        with headers_alone(name) as headers:
            yield headers


@contextmanager
def headers_alone(name: HubName) -> Iterator[Path]:
    """A folder with the configuration and the headers of the weights of what is not downloaded: what sizes are known
    from. The rest of its files is holes.

    Raises: like `local_checkpoint`.
    """
    with TemporaryDirectory() as made:
        with _told(name):
            hub = _Hub(name)
            files = model_files(name, hub.sizes, hub.small)
            for file in files:
                path = Path(made, file)
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(hub.header(file))
                os.truncate(path, hub.sizes[file])
        yield _entry(Path(made), files)


def model_files(name: HubName, sizes: Mapping[str, int], read: Callable[[str], Path]) -> list[str]:
    """The files that a model is read from, of all that a version has; `read` gets a small one of them.

    Raises: UsageError (`hub-name`) if it has no weights that relaxpy reads, or several GGUF files.
    """
    if name.file is not None or (CONFIG_FILE not in sizes and gguf_names(sizes)):
        files = _gguf_parts(name, sizes)
    else:
        files = [file for file in sizes if _WEIGHTS.fullmatch(file)]
        if not files and _INDEX in sizes:
            files = [_INDEX, *shards_of(read(_INDEX))]
        if not files:
            raise _no_weights(name, sizes)
        files = [*(file for file in sizes if _SMALL.fullmatch(file)), *files]
    if missing := [file for file in files if file not in sizes]:
        raise UsageError("hub-name", f"{name} is not complete: it lacks {missing[0]}")
    return files


def _gguf_parts(name: HubName, sizes: Mapping[str, int]) -> list[str]:
    """The GGUF file that is meant, or all parts of it."""
    there, part = gguf_names(sizes), name.file
    found = there if part is None else [file for file in there if file == part]
    if part is not None and not found:
        found = [file for file in there if part.lower() in file.lower()]
    if len(found) == 1:
        return parts_of(found[0])

    def whole(file: str) -> str:
        return shown(sum(sizes.get(each, 0) for each in parts_of(file)))

    listed = [f"{name.repo}:{file}  {whole(file)}" for file in found or there]
    what = "several GGUF files" if found else f"no GGUF file {part!r}"
    raise UsageError(
        "hub-name",
        f"{name.repo} has {what}",
        notes=listed[:_MOST_LISTED],
        help=f"name one: {name.repo}:{(found or there or ['FILE.gguf'])[0]}",
    )


def _no_weights(name: HubName, sizes: Mapping[str, int]) -> UsageError:
    pickles = [file for file in sizes if file.endswith((".bin", ".pt", ".pth", ".ckpt"))]
    if pickles:
        return UsageError(
            "hub-name",
            f"{name} has its weights as a pickle, {pickles[0]}: a program, which is not run",
            help="take a version of the model with safetensors, or write them: AutoModelForCausalLM"
            f".from_pretrained({name.repo!r}).save_pretrained(FOLDER)",
        )
    return UsageError(
        "hub-name",
        f"{name} has neither safetensors nor a GGUF file",
        notes=[f"it has {', '.join(sorted(sizes)[:_MOST_LISTED]) or 'no files'}"],
    )


class _Hub:
    """One version of a model on the hub."""

    def __init__(self, name: HubName) -> None:
        constants = _library("constants")
        if constants.HF_HUB_OFFLINE:
            raise _Offline("HF_HUB_OFFLINE is set")
        self.name = name
        self.cache = str(constants.HF_HUB_CACHE)
        info = _asked(
            _library().HfApi().model_info, name.repo, revision=name.revision, files_metadata=True
        )
        self.commit = str(info.sha)
        # A listing is a stranger's text: no file of a model is outside of its folder.
        listed = (each for each in info.siblings or () if is_inside(each.rfilename))
        files = {each.rfilename: each for each in listed}
        self.sizes = {file: int(each.size or 0) for file, each in files.items()}
        self._checksums = {file: getattr(each.lfs, "sha256", None) for file, each in files.items()}

    def small(self, file: str) -> Path:
        """A small file, downloaded."""
        download = _library().hf_hub_download
        return Path(download(self.name.repo, file, revision=self.name.revision))

    def is_here(self, file: str) -> bool:
        here = _snapshots(self.cache, self.name) / self.commit / file
        return here.is_file() and here.stat().st_size == self.sizes[file]

    def fetch(self, wanted: Mapping[str, int], left: Mapping[str, int]) -> Path:
        """Downloads the files, and checks the large ones that are new against their checksums. Returns their folder."""
        patterns = [re.sub(r"([*?[])", r"[\1]", file) for file in wanted]
        revision = self.name.revision
        download = _library().snapshot_download
        folder = Path(_asked(download, self.name.repo, revision=revision, allow_patterns=patterns))
        for file, size in wanted.items():
            path = folder / file
            if not path.is_file() or path.stat().st_size != size:
                raise _Damaged(f"{file} did not arrive whole")
            checksum = self._checksums[file]
            if file in left and checksum is not None and _sha256(path) != checksum:
                stored = path.resolve()
                path.unlink()
                stored.unlink(missing_ok=True)
                raise _Damaged(f"{file} is not the file that the hub has: its checksum differs")
        return folder

    def header(self, file: str) -> bytes:
        """What sizes are known from: the header of safetensors, the metadata of a GGUF file, all of a small file."""
        size = self.sizes[file]
        if not file.endswith(".safetensors"):
            return self._beginning(file, min(_GGUF_HEADER, size))
        start = self._beginning(file, min(_HEADER_GUESS, size))
        length = 8 + int.from_bytes(start[:8], "little")
        return self._beginning(file, length) if len(start) < length <= size else start

    def _beginning(self, file: str, count: int) -> bytes:
        """The first bytes of a file."""
        if count == 0:
            return b""
        library, utils = _library(), _library("utils")
        url = library.hf_hub_url(self.name.repo, file, revision=self.commit)
        headers = {**utils.build_hf_headers(), "Range": f"bytes=0-{count - 1}"}
        found = bytearray()
        with library.get_session().stream(
            "GET", url, headers=headers, follow_redirects=True, timeout=_HEADER_SECONDS
        ) as answer:
            utils.hf_raise_for_status(answer)
            for piece in answer.iter_bytes():
                found += piece
                if len(found) >= count:  # a server may send all of it
                    break
        return bytes(found[:count])


def is_inside(file: object) -> bool:
    """Is what a hub lists the name of a file in the model's folder, on any system?"""
    parts = re.split(r"[/\\]", file) if isinstance(file, str) else [""]
    return all(part not in ("", ".", "..") and ":" not in part for part in parts)


def _library(module: str = "") -> Any:
    """huggingface_hub, or a module of it, imported where it is needed."""
    return import_module("huggingface_hub" + (f".{module}" if module else ""))


def _asked(call: Callable[..., Any], *args: Any, **options: Any) -> Any:
    """The result of a call of the library, which fails in many ways on answers that no hub gives."""
    try:
        return call(*args, **options)
    except (LookupError, TypeError, AttributeError) as error:
        raise _Damaged(f"{_endpoint()} answers as no hub does ({error!r})") from None


class _Offline(Exception):
    """The hub is not asked."""


class _Damaged(Exception):
    """A file is not what the hub says."""


@contextmanager
def _told(name: HubName) -> Iterator[None]:
    """Errors of huggingface_hub and of the network as ours."""
    try:
        errors = _library("errors")
    except ImportError:
        raise UsageError(
            "extra-missing", "models by name need the package huggingface_hub", help=LLM_HELP
        ) from None
    try:
        yield
    except RelaxError:
        raise
    except errors.GatedRepoError as error:
        raise UsageError(
            "hub-private",
            f"{name.repo} is for those who accepted its terms: {_first_line(error)}",
            help=f"accept them at {_endpoint()}/{name.repo}, and sign in: hf auth login, or HF_TOKEN",
        ) from None
    except errors.RevisionNotFoundError:
        raise UsageError(
            "hub-name", f"{name.repo} has no revision {name.revision!r}",
            help=f"the revisions are listed at {_endpoint()}/{name.repo}/tree/main",
        ) from None  # fmt: skip
    except errors.RepositoryNotFoundError:
        raise UsageError(
            "hub-name", f"there is no folder {name}, and no model of this name at {_endpoint()} that one may read",
            help="check the spelling; for a private model sign in: hf auth login, or HF_TOKEN; "
            "a folder on this machine is ./NAME",
        ) from None  # fmt: skip
    except _Damaged as error:
        raise UsageError(
            "hub-download", f"{name.repo}: {error}", help="try again: what arrived is kept"
        ) from None
    except (_Offline, errors.OfflineModeIsEnabled) as error:
        raise _unreachable(name, str(error)) from None
    except (errors.HfHubHTTPError, errors.HFValidationError) as error:
        status = getattr(getattr(error, "response", None), "status_code", None)
        if status in (401, 403):
            raise UsageError(
                "hub-private", f"{name.repo} may not be read: {_first_line(error)}",
                help="sign in: hf auth login, or HF_TOKEN",
            ) from None  # fmt: skip
        raise UsageError(
            "hub-download", f"{name.repo}: {_first_line(error)}", help="try again later"
        ) from None
    except (OSError, ValueError, RuntimeError) as error:
        if isinstance(error, OSError) and error.filename is not None:
            raise UsageError(
                "hub-download", f"{name.repo} cannot be kept: {error.strerror}: {error.filename}"
            ) from None
        raise _unreachable(name, _first_line(error)) from None
    except Exception as error:
        if not type(error).__module__.startswith("httpx"):
            raise
        raise _unreachable(name, _first_line(error)) from None


def _unreachable(name: HubName, why: str) -> UsageError:
    return UsageError(
        "hub-offline",
        f"{name} is not on this machine, and {_endpoint()} cannot be asked: {why}",
        help="what was downloaded once needs no network; or give the folder of a checkpoint on this machine",
    )


def _first_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines()]
    return next((line for line in lines if line), type(error).__name__)[:300]


def _endpoint() -> str:
    return str(_library("constants").ENDPOINT)


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _entry(folder: Path, files: Iterable[str]) -> Path:
    """What is opened of a model's files: the folder, or the first part of a GGUF file."""
    first = next(iter(files))
    return folder / first if first.endswith(".gguf") else folder


def _snapshots(cache: str, name: HubName) -> Path:
    """The folder of a hub's cache with the versions of a model."""
    return Path(cache, f"models--{name.repo.replace('/', '--')}", "snapshots")


def _kept(name: HubName) -> Path | None:
    """A model in the cache of the hub that another program downloaded, where the hub cannot be asked."""
    snapshots = _snapshots(_library("constants").HF_HUB_CACHE, name)
    revision = name.revision or "main"
    reference = snapshots.parent / "refs" / revision
    with suppress(OSError, UsageError):
        commit = reference.read_text("utf-8").strip() if reference.is_file() else revision
        folder = snapshots / commit
        paths = [path for path in folder.rglob("*") if path.is_file()]
        sizes = {path.relative_to(folder).as_posix(): path.stat().st_size for path in paths}
        return _entry(folder, model_files(name, sizes, lambda file: folder / file))
    return None


def _note_path(name: HubName) -> Path | None:
    folder = kept_folder("hub")
    if folder is None:
        return None
    hub = os.environ.get(
        "HF_ENDPOINT", ""
    )  # huggingface_hub, which knows it too, takes long to import
    key = hashlib.sha256(f"{hub}\n{name}".encode()).hexdigest()[:32]
    return folder / f"{key}.json"


def _note(name: HubName, commit: str, folder: Path, wanted: Mapping[str, int]) -> None:
    """Keeps which files a name stands for."""
    path = _note_path(name)
    if path is None:
        return
    fields = {"name": str(name), "commit": commit, "folder": str(folder), "files": dict(wanted)}
    with suppress(OSError, RelaxError):  # a cache
        path.parent.mkdir(parents=True, exist_ok=True)
        write_text(path, json.dumps(fields))


def _noted(name: HubName) -> Path | None:
    """The files that a name stood for, if all of them are still here."""
    path = _note_path(name)
    if path is None or not path.is_file():
        return None
    try:
        fields: Any = read_json(path)
    except UsageError:
        return None
    if not is_mapping(fields) or not is_mapping(files := fields.get("files")) or not files:
        return None
    folder = Path(str(fields.get("folder")))
    for file, size in files.items():
        here = folder / str(file)
        if not here.is_file() or here.stat().st_size != size:
            return None
    return _entry(folder, files)
