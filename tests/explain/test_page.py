"""The page: it is whole, it needs nothing else, and no text of a program becomes markup."""

from __future__ import annotations

import dataclasses
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

import relaxpy
from relaxpy.explain import Explanation, compare, explain, explain_executable, page
from relaxpy.explain.fusion_picture import fusion
from relaxpy.explain.links import Links
from relaxpy.explain.time_chart import Bar, chart
from relaxpy.files import write_text
from relaxpy.runtime.inspect.profile import Profile
from tests.explain.test_flow import layers

TEXT = """
@I.ir_module
class Module:
    @R.function
    def main(x: R.Tensor(("n", 8), dtype="float32"), w: R.Tensor((8, 8), dtype="float32")):
        n = T.int64()
        a = R.matmul(x, w)
        b = R.nn.relu(a)
        c = R.sum(b, axis=[1])
        d = R.exp(c)
        e = R.call_dps_library("tests.library", (d,), out_ty=R.Tensor((n,), dtype="float32"))
        return e
"""
HOSTILE = "</script><script>alert(1)</script><img src=x onerror=alert(2)>\"'&\n\r\0\u202efdp\u2066\ud800 אבג "
VOID = {"wbr", "meta", "input", "rect", "path", "br", "line", "img", "polygon"}


@pytest.fixture(scope="module")
def explanation() -> Explanation:
    return explain(relaxpy.parse(TEXT, filename="model.py"), sizes={"n": 64}, title="a model")


class Document(HTMLParser):
    """Reads a page strictly: what is opened is closed, ids are there once, links lead somewhere."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.stack: list[str] = []
        self.ids: list[str] = []
        self.targets: list[str] = []
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str]] = []
        self.feed(text)
        self.close()
        assert self.stack == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        if tag not in VOID:
            self.stack.append(tag)
        for key, value in attrs:
            self.attributes.append((key, value or ""))
            if key == "id":
                self.ids.append(value or "")
            if key == "href":
                self.targets.append(value or "")

    def handle_endtag(self, tag: str) -> None:
        if tag not in VOID:
            assert self.stack.pop() == tag


def check(text: str) -> Document:
    """A page that is whole, by itself, and without markup from outside."""
    found = Document(text)
    assert len(found.ids) == len(set(found.ids))
    assert {target.removeprefix("#") for target in found.targets} <= set(found.ids)
    assert all(target.startswith("#") for target in found.targets)
    assert found.tags.count("script") == 1
    assert "img" not in found.tags
    assert not [key for key, _ in found.attributes if key.startswith("on") or key == "src"]
    text.encode("utf-8")
    for outside in ("http://", "https://", "@import", "url("):
        assert outside not in text.replace("http://www.w3.org/2000/svg", "")
    return found


def poisoned(value: Any, key: str = "") -> Any:
    """The value with hostile text in front of every string in it, except of those that select code."""
    if isinstance(value, str):
        plain = key in ("kind", "dtype", "access", "op", "status") or not value
        return value if plain else HOSTILE + value
    if isinstance(value, (list, tuple)):
        return type(value)(poisoned(item, key) for item in value)
    if isinstance(value, dict):
        return {poisoned(k, key): poisoned(v, key) for k, v in value.items()}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {
            field.name: poisoned(getattr(value, field.name), field.name)
            for field in dataclasses.fields(value)
            if field.init
        }
        return dataclasses.replace(value, **fields)
    return value


def test_it_is_whole(explanation: Explanation) -> None:
    found = check(page(explanation))
    sections = {
        "summary",
        "flow",
        "time",
        "build",
        "passes",
        "fusion",
        "memory",
        "kernels",
        "script",
    }
    assert sections <= set(found.ids)
    assert {"libraries", "images"} <= set(found.ids)


def test_hostile_text_everywhere(explanation: Explanation) -> None:
    """Names, programs, paths, reasons, features, titles: nothing of it is markup, and nothing hides or reorders."""
    evil = poisoned(explanation)
    assert HOSTILE in evil.kernels[0].name
    assert HOSTILE in evil.executable.functions[0].name
    text = page(evil)
    check(text)
    for character in "\0\r\u202e\u2066\ud800":
        assert character not in text
    assert "\\u202e" in text
    assert "&lt;script&gt;alert(1)" in text
    assert "kernel-0" in text
    changes = compare(explanation, evil)
    check(page(evil, changes))
    assert "\u202e" not in str(changes)


def test_a_hostile_error() -> None:
    result = explain(relaxpy.parse(TEXT), params={HOSTILE: 1}, title=HOSTILE)
    assert result.error is not None
    check(page(result))


def test_a_hostile_page_is_written(explanation: Explanation, tmp_path: Path) -> None:
    """Lone surrogates cannot be encoded, so they are shown as escapes."""
    write_text(tmp_path / "page.html", page(poisoned(explanation)))
    assert (tmp_path / "page.html").stat().st_size > 10_000


def test_sections_lead_to_each_other(explanation: Explanation) -> None:
    """Kernel → fusion group, source line, storage; fusion row, line and storage → kernel."""
    text = page(explanation)
    number = explanation.kernel_of("fused_matmul_relu")
    kernel = text[text.index(f'id="kernel-{number}"') :].split("</details></details>")[0]
    assert 'href="#node-0-0"' in kernel
    assert 'href="#line-0"' in kernel
    assert 'href="#storage-0-0"' in kernel
    for id in ("node-0-0", "line-0", "storage-0-0"):
        part = text[text.index(f'id="{id}"') :][:3000]
        assert f'href="#kernel-{number}"' in part, id


def test_it_reads_without_a_script(explanation: Explanation) -> None:
    """Everything is in the page; what needs the script is not shown without it."""
    text = re.sub("<script>.*?</script>", "", page(explanation), flags=re.DOTALL)
    assert re.search(r'<input id="filter"[^>]* hidden', text)
    assert "<button" not in text
    assert 'type="radio"' in text
    assert text.count("<details") > 10


def test_an_executable_from_a_file(tmp_path: Path) -> None:
    exe = relaxpy.build(relaxpy.parse(TEXT))
    exe.save(tmp_path / "a.rxe")
    result = explain_executable(relaxpy.load(tmp_path / "a.rxe"), {"n": 8}, title="a.rxe")
    found = check(page(result))
    assert "passes" not in found.ids
    assert "fusion" not in found.ids
    assert {"flow", "time", "memory", "kernels", "bytecode"} <= set(found.ids)


def test_files_are_not_read_for_an_executable(tmp_path: Path) -> None:
    """An executable may name any file as its source: its text is not on the page."""
    secret = tmp_path / "secret.py"
    secret.write_text(TEXT.replace("a = ", "topsecret = ").replace("relu(a)", "relu(topsecret)"))
    mod = relaxpy.parse(secret)
    assert "R.matmul(x, w)</code>" in page(explain(mod))
    text = page(explain_executable(relaxpy.build(mod), {"n": 8}))
    assert "secret.py:8" in text  # the last line of the fused kernel
    assert "R.matmul" not in text


def test_of_equal_layers_one_is_shown() -> None:
    result = explain(relaxpy.parse(layers(12)), sizes={"n": 8})
    assert result.error is None
    text = fusion(result.blocks, Links(result, []))
    assert "the 4 bindings above, 11 more times" in text
    assert text.index('class="gap"') < text.index("all 48 bindings")
    check(page(result))


def test_a_dominating_bar() -> None:
    """The logarithmic scale is chosen where one bar dwarfs the others, and small bars are not nothing on it."""
    bars = [Bar("a", 1000.0, "1000"), Bar("b", 1.0, "1"), Bar("c", 10.0, "10")]
    text = chart(bars, "t")
    assert re.search(r'class="log" checked', text)
    widths = [float(each) for each in re.findall(r"--log:([\d.]+)", text)]
    assert widths == pytest.approx([100, 33.33, 0], abs=0.01)
    assert [float(each) for each in re.findall(r"--lin:([\d.]+)", text)] == [100, 1, 0.1]
    even = chart([Bar(str(n), 1.0, "1") for n in range(5)], "t")
    assert re.search(r'class="lin" checked', even)
    assert chart([], "t") == chart([Bar("a", 0.0, "0")], "t") == ""


def test_many_bars_are_folded() -> None:
    text = chart([Bar(f"k{n}", float(n), str(n)) for n in range(1, 101)], "t")
    assert "71 smaller ones, together" in text
    assert text.count('class="bar row"') == 100
    assert text.index("k100") < text.index("k99") < text.index("<details")


class Bars(HTMLParser):
    """The length of each bar of a page, with that of the bar that it is part of."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[float] = []
        self.pairs: list[tuple[float, float]] = []
        self.parts = 0
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        if tag == "details":
            self.open.append(-1.0)
        length = re.match(r"--lin:([\d.]+)", found.get("style") or "")
        if tag != "i" or length is None:
            return
        value = float(length[1])
        if self.open and self.open[-1] < 0:  # the bar of this part
            self.open[-1] = value
            outer = self.open[-2:-1]
        else:
            outer = self.open[-1:]
        self.pairs += [(value, each) for each in outer if each >= 0]

    def handle_endtag(self, tag: str) -> None:
        if tag == "details":
            self.open.pop()


def test_no_part_is_longer_than_its_whole(explanation: Explanation) -> None:
    """Of kernels that compile beside other steps, each has its part of the time that the build waited; those from the
    cache took none."""
    pairs = Bars(page(explanation)).pairs
    assert len(pairs) > 20
    assert [pair for pair in pairs if pair[0] > pair[1] + 0.011] == []
    once, again = (
        explain(relaxpy.parse(TEXT.replace("8", "11")), sizes={"n": 64}, cache=cache)
        for cache in (False, True)
    )
    slow = [
        dataclasses.replace(
            each, times=tuple(dataclasses.replace(t, seconds=1e3) for t in each.times)
        )
        for each in once.kernels
    ]
    assert slow
    slow_text = page(dataclasses.replace(once, kernels=slow))
    pairs = Bars(slow_text).pairs
    assert [pair for pair in pairs if pair[0] > pair[1] + 0.011] == []
    cached = [
        dataclasses.replace(
            each, times=tuple(dataclasses.replace(t, cached=True) for t in each.times)
        )
        for each in again.kernels
    ]
    text = page(dataclasses.replace(again, kernels=cached))
    assert f"From the cache: {len(cached)} of {len(cached)}." in text


def test_bars_say_what_they_count(explanation: Explanation) -> None:
    """Time is said where there is time."""
    text = page(explanation)
    assert "<h2>From source to cost</h2>" in text
    assert "<h2>Cost of a call</h2>" in text
    assert "Not a time" in text
    assert "share of the time" not in text
    text = page(explain(relaxpy.parse(TEXT)))
    assert "<h2>Launches of a call</h2>" in text
    measured = dataclasses.replace(explanation, profile=Profile("main", 1e-3, 1, ()))
    assert "<h2>Time of a call</h2>" in page(measured)
