"""`relaxpy quantize MODEL TARGET.rxe`: an executable whose products are of integers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from relaxpy.cli.functions import chosen_function
from relaxpy.cli.inputs import read_arrays
from relaxpy.cli.outputs import print_json
from relaxpy.errors import UsageError
from relaxpy.files import write_text
from relaxpy.ir.module import IRModule
from relaxpy.models.checkpoint import CONFIG_FILE

_ARRAYS = (".npz", ".npy")


@dataclass(frozen=True)
class Folder:
    """Data: each file of a folder is one sample, in the order of their names. Files are read anew each time."""

    place: Path

    def files(self) -> list[Path]:
        """The samples. Raises UsageError (`quantization`) if there are none."""
        found = sorted(each for each in self.place.iterdir() if each.suffix in _ARRAYS)
        if not found:
            raise UsageError(
                "quantization",
                f"{self.place} has no data",
                help="a sample is a file: NAME.npz with an array for each input, or one input as .npy",
            )
        return found

    def __iter__(self) -> Iterator[Mapping[str, Any] | Sequence[Any]]:
        for file in self.files():
            arrays = read_arrays(str(file))
            yield [*arrays.values()] if file.suffix == ".npy" else arrays


@dataclass(frozen=True)
class Options:
    """The options of the command."""

    data: Path | None
    params: str | None
    function: str | None
    floats: Sequence[str]
    method: str
    percentile: float
    keep_accuracy: float | None
    smooth: float | None
    correct_bias: bool
    calibration: Path | None
    report: Path | None
    target: str


def quantize_to_executable(source: str, output: Path, options: Options, as_json: bool) -> None:
    """Quantise a script, an ONNX model or the checkpoint of an encoder, compile it, and say what became of each
    layer."""
    import relaxpy
    from relaxpy.build.quantize import Calibration, calibrate, quantize

    mod, params = _read(source, options.params)
    names = [
        name for name, each in mod.graph_functions.items() if each.attrs.get("global_symbol", name)
    ]
    function = chosen_function(options.function, names)
    data = None if options.data is None else Folder(options.data)
    rules = dict.fromkeys(options.floats)
    known: Calibration | None = None
    if options.calibration is not None and options.calibration.exists():
        known = Calibration.from_json(options.calibration.read_text(encoding="utf-8"))
    elif data is not None:
        known = calibrate(mod, params, data, function=function, rules=rules, target=options.target)
    if options.calibration is not None and known is not None:
        write_text(options.calibration, known.to_json() + "\n")
    module, report = quantize(
        mod, params, data, function=function, rules=rules, calibration=known,
        method=options.method, percentile=options.percentile,
        keep_accuracy=options.keep_accuracy, smooth=options.smooth, correct_bias=options.correct_bias,
        target=options.target,
    )  # fmt: skip
    relaxpy.build(module, options.target, params).save(output)
    fields = {"output": output, **report.to_json()}
    if options.report is not None:
        import json

        write_text(options.report, json.dumps(report.to_json(), indent=1) + "\n")
    if as_json:
        print_json(fields)
        return
    click.echo(str(report))
    integers = sum(each.kind == "integers" for each in report.layers)
    click.echo(f"{output}: {integers} of {len(report.layers)} layers in integers")


def _read(source: str, params: str | None) -> tuple[IRModule, dict[str, Any]]:
    """A program and its weights by name."""
    from relaxpy.cli.source import read_program

    given = None if params is None else read_arrays(params)
    if not (Path(source) / CONFIG_FILE).is_file():
        if not Path(source).is_file():
            raise UsageError(
                "quantization",
                f"{source} is no script, no model of ONNX or torch (.pt2), and no folder of a checkpoint",
            )
        return read_program(source, given)
    if given is not None:
        raise UsageError("bad-arguments", "a checkpoint has its own weights: leave out --params")
    from relaxpy.models import bert
    from relaxpy.models.sentence_embedding import checkpoint_weights
    from relaxpy.models.sentence_settings import sentence_settings

    folder = Path(source)
    config = bert.BertConfig.from_checkpoint(folder)
    pooling = sentence_settings(folder, config.max_position_embeddings).pooling
    model = bert.BertEncoder(config, pooling)
    bert.load_weights(model, checkpoint_weights(folder))
    mod, weights = model.export({"embed": bert.SPEC["embed"]})
    return mod, dict(weights)
