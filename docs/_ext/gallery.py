"""The pictures and listings of docs/gallery.md: one layer of all-MiniLM-L6-v2's shape, built and run here.

    python -m docs._ext.gallery

The page of `relaxpy explain` is photographed with Chromium, where one is on PATH; without it these pictures stay as
they are. Pillow makes them small. No extra of the project brings the two: the pictures are kept in the repository.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

import relaxpy
from docs._ext.navigation import DOCS
from relaxpy.build.plan import memory_plan
from relaxpy.explain import explain, page
from relaxpy.models.bert import SPEC, BertConfig, BertEncoder

FOLDER = DOCS / "gallery"
PAGE = DOCS / "gallery.md"
BOUNDS = {"batch": 8, "seq": 128}
SHOTS = {"flow": 900, "passes": 900, "fusion": 900, "kernels": 700}
"""Section of the page of `relaxpy explain` → the greatest height of its picture in pixels."""
WIDTH = 1000
UNFOLDED = "fuse-attention"
"""The pass whose change the picture shows."""
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "chrome")


def program() -> tuple[relaxpy.IRModule, dict[str, np.ndarray]]:
    """One layer of all-MiniLM-L6-v2's shape, with random weights."""
    config = BertConfig(
        hidden_size=384, num_hidden_layers=1, num_attention_heads=12, intermediate_size=1536, vocab_size=1000
    )  # fmt: skip
    model = BertEncoder(config)
    random = np.random.default_rng(0)
    model.load(
        {n: 0.02 * random.standard_normal(p.shape, np.float32) for n, p in model.named_parameters()}
    )
    return model.export({"embed": SPEC["embed"]})


def write_block(name: str, text: str) -> None:
    """Replace the listing after `<!-- made: name -->` in the page."""
    old = PAGE.read_text(encoding="utf-8")
    pattern = re.compile(rf"(<!-- made: {name} -->\n```text\n).*?(^```$)", re.M | re.S)
    new, count = pattern.subn(lambda m: f"{m[1]}{text.rstrip()}\n{m[2]}", old)
    assert count == 1, f"the page has {count} places for {name}"
    PAGE.write_text(new, encoding="utf-8")


def photograph(html: str, section: str, height: int) -> None:
    """A picture of one section of the page of `relaxpy explain`."""
    from PIL import Image, ImageChops

    browser = next(filter(None, map(shutil.which, BROWSERS)))
    only = f"<style>main>section:not(#{section}){{display:none}}body>header,footer{{display:none}}</style></head>"
    with tempfile.TemporaryDirectory() as folder:
        source, shot = Path(folder) / "page.html", Path(folder) / "shot.png"
        source.write_text(html.replace("</head>", only, 1), encoding="utf-8")
        subprocess.run(
            [browser, "--headless", "--no-sandbox", "--hide-scrollbars", "--disable-gpu",
             f"--screenshot={shot}", f"--window-size={WIDTH},{height}", "--virtual-time-budget=3000", source.as_uri()],
            check=True, capture_output=True, timeout=120,
        )  # fmt: skip
        image = Image.open(shot).convert("RGB")
    box = ImageChops.difference(
        image, Image.new("RGB", image.size, image.getpixel((0, 0)))
    ).getbbox()
    if box is not None:
        image = image.crop((0, 0, image.width, min(image.height, box[3] + 16)))
    image.quantize(96).save(FOLDER / f"{section}.png", optimize=True)


def main() -> None:
    FOLDER.mkdir(exist_ok=True)
    mod, params = program()
    explanation = explain(
        mod, params=params, bounds=BOUNDS, title="one layer of all-MiniLM-L6-v2", cache=False
    )
    html = re.sub(
        rf'<details([^>]*data-name="{UNFOLDED}")', r"<details open\1", page(explanation), count=1
    )
    if any(map(shutil.which, BROWSERS)):
        for section, height in SHOTS.items():
            photograph(html, section, height)
    else:
        sys.stderr.write("no Chromium on PATH: the pictures of the explain page stay as they are\n")
    plan = memory_plan(mod, params=params, bounds=BOUNDS)
    (FOLDER / "memory.svg").write_text(plan.svg(), encoding="utf-8")
    (FOLDER / "memory_apart.svg").write_text(plan.apart().svg(), encoding="utf-8")
    write_block("plan", str(plan))
    executable = relaxpy.build(mod, params=params, bounds=BOUNDS)
    tokens = np.ones((8, 128), np.int64)
    profile = relaxpy.VirtualMachine(executable).profile(
        "embed", input_ids=tokens, attention_mask=tokens
    )
    write_block("profile", str(profile))


if __name__ == "__main__":
    main()
