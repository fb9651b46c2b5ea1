"""`relaxpy web`: a folder with a model that runs in a browser."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from relaxpy.cli.outputs import json_option, print_json
from relaxpy.errors import UsageError

if TYPE_CHECKING:
    import relaxpy
    from relaxpy.models.decoder_config import DecoderConfig
    from relaxpy.web.export import Page


@click.command(
    epilog="""
\b
Examples:
  relaxpy compile mlp.py --target webgpu --params mlp.npz -o mlp.rxe
  relaxpy web mlp.rxe site                an executable for WebGPU
  relaxpy web mlp.rxe mlp-wasm.rxe site   and one for WebAssembly, for browsers without WebGPU
  relaxpy web all-MiniLM-L6-v2 site       a checkpoint of an encoder: a page that compares sentences
  relaxpy web embedded site --bits 8 --target both
                                          the model that ships with relaxpy: a page that continues text
  python -m http.server --directory site  and open http://localhost:8000

The folder needs no server but one of files, and no build step; `npm pack` takes it as it is. Weights are kept in the
browser's storage after the first visit.
"""
)
@click.argument("sources", nargs=-1, required=True, metavar="SOURCE...")
@click.argument("folder", type=click.Path(path_type=Path))
@click.option(
    "--target",
    type=click.Choice(["webgpu", "wasm", "both"]),
    help="What a checkpoint is compiled for (default: webgpu). With both, browsers without WebGPU run WebAssembly.",
)
@click.option(
    "--name", help="The name of the package in package.json. The default is the folder's."
)
@click.option(
    "--bits",
    type=click.Choice(["3", "4", "8", "none"]),
    help="Bits of a decoder's weights in products; none: as the checkpoint has them, the default.",
)
@click.option(
    "--dtype",
    type=click.Choice(["float32", "float16", "bfloat16"]),
    help="What a decoder computes in; the checkpoint's unless given.",
)
@click.option(
    "--prompt",
    help="The text that a decoder's page begins with.",
)
@json_option
def web(
    sources: tuple[str, ...],
    folder: Path,
    target: str | None,
    name: str | None,
    bits: str | None,
    dtype: str | None,
    prompt: str | None,
    as_json: bool,
) -> None:
    """Write SOURCE to FOLDER as a static site that runs it: the machine in JavaScript, bytecode, WGSL or a module of
    WebAssembly, and weights in shards with checksums.

    SOURCE is an executable that was compiled for webgpu or wasm, or one for each; or the folder of a checkpoint, which
    is compiled. `embedded` and `minilm` are the checkpoints of installed packages; a folder of that name is
    `./embedded`.
    """
    import relaxpy
    from relaxpy.web.export import SIGNATURES, TARGETS, export

    places = [_checkpoint(source) for source in sources]
    place = places[0]
    if place is None:
        given = {"--target": target, "--bits": bits, "--dtype": dtype, "--prompt": prompt}
        if wrong := [option for option, value in given.items() if value]:
            raise click.UsageError(
                f"{_listed(wrong)} {'is' if len(wrong) == 1 else 'are'} for checkpoints"
            )
    if any(places) and len(sources) > 1:
        raise click.UsageError("a checkpoint is written alone: --target both compiles it for both")
    if place is None:
        exes, page = [relaxpy.load(source, any_cpu=True) for source in sources], SIGNATURES
    else:
        targets = TARGETS if target == "both" else (target or "webgpu",)
        exes, page = built(place, targets, bits, dtype, prompt)
    written = export(exes, folder, name, page)
    exe = exes[0]
    if as_json:
        print_json(
            {
                "folder": folder,
                "files": [str(path) for path in written.files],
                "bytes": written.nbytes,
                "weights": written.weights,
                "functions": {
                    c.name: str(exe.signature(c.name)) for c in exe.functions if c.public
                },
            }
        )
        return
    click.echo(
        f"{folder}: {len(written.files)} files, {written.nbytes / 2**20:,.1f} MiB "
        f"({written.weights / 2**20:,.1f} MiB of weights)"
    )
    for function in exe.functions:
        if function.public:
            click.echo(f"  {exe.signature(function.name)}")
    click.echo(f"try it: python -m http.server --directory {folder}")


def _listed(words: list[str]) -> str:
    return " and ".join(filter(None, [", ".join(words[:-1]), words[-1]]))


def _checkpoint(source: str) -> Path | None:
    """The folder of a checkpoint; None for another file. Raises: UsageError (`unreadable-file`)."""
    if source == "embedded":
        from relaxpy.embedded import embedded_model

        return embedded_model()
    if source == "minilm":
        from relaxpy.models.sentence_embedding import default_checkpoint

        return default_checkpoint()
    path = Path(source)
    if path.exists():
        return path if path.is_dir() else None
    raise UsageError(
        "unreadable-file", f"there is no {source}", help="name an executable, or a checkpoint"
    )


def built(
    directory: Path,
    targets: Sequence[str] = ("webgpu",),
    bits: str | None = None,
    dtype: str | None = None,
    prompt: str | None = None,
) -> tuple[list[relaxpy.Executable], Page]:
    """A checkpoint compiled for each target, and the page for it. Raises: UsageError of `relaxpy.models`, and
    (`arguments`) for bits of an encoder; BuildError."""
    from relaxpy.models.decoder_config import DecoderConfig
    from relaxpy.models.families import model_config

    config = model_config(directory, dtype)
    if isinstance(config, DecoderConfig):
        return _decoder(directory, config, targets, bits, prompt)
    if wrong := [
        option
        for option, value in (("--bits", bits), ("--dtype", dtype), ("--prompt", prompt))
        if value
    ]:
        raise UsageError(
            "arguments",
            f"{directory} is an encoder, and {_listed(wrong)} {'is' if len(wrong) == 1 else 'are'} for decoders",
        )
    return _encoder(directory, targets)


def _encoder(directory: Path, targets: Sequence[str]) -> tuple[list[relaxpy.Executable], Page]:
    from relaxpy.models.checkpoint import read_config
    from relaxpy.models.sentence_embedding import compile_encoder
    from relaxpy.models.sentence_settings import sentence_settings
    from relaxpy.web.export import Page

    config = read_config(directory, "bert")
    positions = int(config.get("max_position_embeddings", 512))
    settings = sentence_settings(directory, positions)
    if settings.prompt or settings.lower:
        raise UsageError(
            "bad-config",
            f"{directory} changes sentences before they are tokenized (default_prompt_name, do_lower_case), which the "
            "page does not",
        )
    facts = {
        "most": settings.max_tokens,
        "pad": int(config.get("pad_token_id") or 0),
    }
    data = {"page.json": facts, "tokenizer.json": _tokenizer(directory)}
    exes = [compile_encoder(directory, target, settings.pooling) for target in targets]
    return exes, Page(("embed.html",), data)


def _decoder(
    directory: Path,
    config: DecoderConfig,
    targets: Sequence[str],
    bits: str | None,
    prompt: str | None,
) -> tuple[list[relaxpy.Executable], Page]:
    import relaxpy
    from relaxpy.models.checkpoint import read_weights
    from relaxpy.models.decoder import Decoder, load_weights, spec
    from relaxpy.models.loaded import Scheme, quantization
    from relaxpy.web.export import Page

    model = Decoder(config)
    load_weights(model, read_weights(directory))
    functions = spec(config)
    mod, params = model.export({name: functions[name] for name in ("prefill", "decode")})
    if bits not in (None, "none"):
        # Neither target multiplies integers faster than floats, so activations stay floats.
        step = replace(quantization(config, Scheme(int(bits), activations=None)), on_load=False)
        mod, params = step(mod), step.quantized_params(mod, params)
    facts = {
        "ends": _ends(directory),
        "positions": config.max_position_embeddings,
        "prompt": prompt or "def read_lines(path):\n    with open(path",
    }
    data = {"page.json": facts, "tokenizer.json": _tokenizer(directory)}
    return [relaxpy.build(mod, target, params) for target in targets], Page(
        ("complete.html",), data
    )


def _tokenizer(directory: Path) -> Any:
    path = directory / "tokenizer.json"
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UsageError("bad-checkpoint", f"{directory} has no tokenizer.json") from None
    except ValueError as error:
        raise UsageError("bad-checkpoint", f"{path} is not JSON: {error}") from None


def _ends(directory: Path) -> list[int]:
    """The tokens after which a text is complete."""
    found: list[int] = []
    for name in ("generation_config.json", "config.json"):
        path = directory / name
        if path.is_file():
            ends = json.loads(path.read_text(encoding="utf-8")).get("eos_token_id")
            found += ends if isinstance(ends, list) else [ends] if isinstance(ends, int) else []
    return sorted(set(found))
