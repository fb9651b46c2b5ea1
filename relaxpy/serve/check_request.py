"""What is refused of a request before it waits."""

from __future__ import annotations

from relaxpy.errors import UsageError
from relaxpy.serve.pictures import PictureShape, check_pictures
from relaxpy.serve.request import Request
from relaxpy.serve.sources import SourceShape


def check_request(
    request: Request,
    running: int,
    capacity: int,
    page_size: int,
    source: SourceShape | None,
    pictures: PictureShape | None = None,
) -> None:
    """Check a request for an engine that runs so many texts at once, whose cache has room for `capacity` tokens in
    pages of `page_size`, whose encoder reads what `source` says, and whose tower sees `pictures` (None: there is
    none).

    Raises: UsageError: `bad-length` for one that the cache never has room for, or of more texts than a step;
    `bad-prompt` for an input that the model does not read, or that is missing; `sampling` for what a search with beams
    cannot have.
    """
    if request.places > running or request.n < 1:
        what = "n" if request.beams is None else "num_beams"
        raise UsageError(
            "bad-length", f"a request has 1 to {running} texts, got {what}={request.places}"
        )
    if request.max_tokens < 0 or not request.prompt:
        raise UsageError("bad-length", "a request has a prompt, and no less than 0 tokens to write")
    if request.most_tokens > capacity:
        raise UsageError(
            "bad-length",
            f"the prompt has {len(request.prompt)} tokens, and {request.max_tokens} are to be written: together "
            f"more than the {capacity} that the cache has room for",
            help="ask for fewer tokens, or serve with more memory for the cache",
        )
    check_pictures(request.pictures, len(request.prompt), pictures)
    if request.beams is not None:
        _check_beams(request, capacity, page_size)
    if (request.features is None) != (source is None):
        has = "reads" if source is not None else "does not read"
        raise UsageError("bad-prompt", f"this model {has} features: `Request.features`")
    if source is not None and request.features is not None:
        source.length(request.features)


def _check_beams(request: Request, capacity: int, size: int) -> None:
    if request.n > 1 or request.grammar or request.scored is not None or request.top:
        raise UsageError(
            "sampling",
            "a search with beams has no other choices (n), follows no grammar, and tells no scores of the prompt "
            "and no tokens beside its own",
            help="num_return_sequences gives several of its texts",
        )
    if not request.max_tokens:
        raise UsageError("bad-length", "a search with beams writes at least one token")
    # in the worst case each beam has pages of its own, and of each two that go on from one a copy
    places = request.places
    needed = (places * -(-request.most_tokens // size) + places // 2) * size
    if needed > capacity:
        raise UsageError(
            "bad-length",
            f"{places} beams of {request.most_tokens} tokens may need room for {needed}, and the cache has room for "
            f"{capacity}",
            help="ask for fewer beams or tokens, or serve with more memory for the cache",
        )
