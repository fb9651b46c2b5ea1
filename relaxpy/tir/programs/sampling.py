"""Sampling of tokens as tensor programs: a row of logits at a time, without sorting it.

The tokens of a row have an order: the greatest logit first, of equal ones the first token. Top-k, top-p and the draw
each ask for the token at which a running sum in this order passes a bound (of ones, of weights, of weights). A search
finds it by the digits of the tokens' codes, as a radix sort would: sums over the tokens by first digit, then over those
of one digit by the second, and so on.

A token's weight is its probability relative to the most probable one, as a whole number of small units. Such
sums are exact in any order, so that a row gives the same tokens however it is computed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from relaxpy.ir.dim import Dim
from relaxpy.tir import te
from relaxpy.tir.numerics import scalar
from relaxpy.tir.numerics.floats import from_bits, i32, to_bits
from relaxpy.tir.programs.loops import Buffer, Expr, floordiv
from relaxpy.tir.programs.rows import Cell, cell, known, rows, scratch
from relaxpy.tir.programs.serial import Serial, serial
from relaxpy.tir.tvm import tirx

_SHIFTS = 21, 14, 7, 0
"""Where the digits of a code begin: 11 bits, of which a row has many values, then 7 of the few tokens that are left."""
_BUCKETS, _FINER = 1 << 11, 1 << 7
"""The values of the first digit, and of the others."""
_HIGHEST, _LOWEST = 0x7FFFFFFF, -0x80000000
_INFINITY = 0x7F800000
_OPTIONS = "float32", "int64", "float32", "float32"
"""The dtypes in which the options of a row are computed with, but for its random number."""
_COLDEST = 1e-30
"""The lowest temperature that is divided by."""


def sample_from_logits(
    logits: Any, options: Sequence[Any], shape: Sequence[Dim], unit_bits: int, fraction_bits: int
) -> Any:
    """The tensor (rows,) int64 of the tokens drawn from logits of `shape` (rows, vocab); -1 for rows whose greatest
    logit is not finite. `options` are the temperatures, top-k, top-p, min-p, and random numbers, each (rows,). A weight
    of 1 is 2 to the power of `unit_bits`; a fraction has so many bits, and is a whole number where it is an integer."""

    def fill(p: Serial, out: Buffer, source: Buffer, *options: Buffer) -> None:
        with rows(p, shape[:1]) as (row,):
            *given, number = (known(p, str(each.name), p.read(each, row)) for each in options)
            chosen = [
                known(p, f"own_{name}", scalar.cast(value, kind))
                for name, value, kind in zip(
                    ("heat", "k", "p", "least"), given, _OPTIONS, strict=True
                )
            ]
            draw = _Draw(p, te.dim(shape[1]), source, row, unit_bits, fraction_bits)
            p.write(out, row, value=draw.token(*chosen, number))

    return serial((shape[:1], "int64"), [logits, *options], fill, "sample_from_logits")


Quantity = Literal["counts", "weights"]


@dataclass(frozen=True)
class _Sums:
    """Running sums over tokens in their order."""

    counts: Cell
    weights: Cell

    def of(self, quantity: Quantity) -> Cell:
        return getattr(self, quantity)


@dataclass(frozen=True)
class _Histogram:
    """The numbers and the weights of the tokens of each digit."""

    counts: Buffer
    weights: Buffer
    first: Expr
    """The first digit that may occur."""
    size: Expr
    """The number of digits from there that may occur."""


class _Draw:
    """Writes the statements of one row."""

    def __init__(
        self, p: Serial, size: Expr, source: Buffer, row: Expr, unit_bits: int, fraction_bits: int
    ) -> None:
        self.p, self.size, self.source, self.row = p, size, source, row
        self.fraction_bits = fraction_bits
        self.unit = te.const(2.0**unit_bits, "float32")
        self.codes = self._of_tokens("codes", "int32")
        """Integers in the order of the tokens: the first token has the smallest."""
        self.powers = self._of_tokens("powers", "float32")
        """The probabilities relative to the most probable token."""
        self.few = self._of_tokens("few", "int32")
        """The tokens that a search has left."""

    def _of_tokens(self, name: str, dtype: str) -> Buffer:
        buffer = tirx.decl_buffer([self.size], dtype, name, layout=None)
        self.p.add(tirx.AllocBuffer(buffer))
        return buffer

    def token(self, temperature: Expr, top_k: Expr, top_p: Expr, min_p: Expr, number: Expr) -> Expr:
        """The token that is drawn, int64."""
        p = self.p
        token = cell(p, "token", te.dim(-1))
        first = self._write_codes()
        is_finite = scalar.logical_and(first > i32(~_INFINITY), first < i32(_INFINITY))
        is_drawn = known(p, "is_drawn", scalar.greater(temperature, _zero(temperature)))
        with p.when(scalar.logical_and(is_finite, scalar.logical_not(is_drawn))):
            token.set(self._first_of(first))
        with p.when(scalar.logical_and(is_finite, is_drawn)):
            self._write_powers(_logit(first), temperature)
            token.set(self._drawn(top_k, top_p, min_p, number))
        return known(p, "found", token.get())

    def _write_codes(self) -> Expr:
        """Returns the code of the first token."""
        p = self.p
        first, last = cell(p, "first", i32(_HIGHEST)), cell(p, "last", i32(_LOWEST))
        with p.loop("i", self.size) as i:
            logit = scalar.cast(p.read(self.source, self.row, i), "float32")
            bits = known(p, "bits", to_bits(known(p, "logit", logit)))
            code = known(p, "code", _code(bits))
            p.write(self.codes, i, value=code)
            first.set(tirx.min(first.get(), code))
            last.set(tirx.max(last.get(), code))
        self.first = known(p, "first_code", first.get())
        self.last = known(p, "last_code", last.get())
        return self.first

    def _first_of(self, code: Expr) -> Expr:
        """The first token with this code."""
        p = self.p
        found = cell(p, "at", self.size)
        with p.loop("i", self.size) as i:
            is_it = tirx.EQ(p.read(self.codes, i), code)
            found.set(tirx.min(found.get(), tirx.Select(is_it, i, self.size)))
        return found.get()

    def _write_powers(self, largest: Expr, temperature: Expr) -> None:
        p = self.p
        largest = known(p, "largest", largest)
        divisor = scalar.maximum(temperature, te.const(_COLDEST, "float32"))
        divisor = known(p, "divisor", divisor)
        with p.loop("i", self.size) as i:
            logit = scalar.cast(p.read(self.source, self.row, i), "float32")
            distance = known(p, "distance", (logit - largest) / divisor)
            p.write(self.powers, i, value=scalar.exp(distance))

    def _drawn(self, top_k: Expr, top_p: Expr, min_p: Expr, number: Expr) -> Expr:
        """The token at which the sum of weights passes `number` of the weights that are kept. Each option keeps a first
        part of the tokens, so what all of them keep is the lightest of those parts."""
        p = self.p
        self.all, total = self._first_histogram(min_p)
        within = cell(p, "within", total)
        """The weight of the tokens that top-k keeps."""
        limited = scalar.logical_and(top_k > te.dim(0), top_k < self.size)
        with p.when(known(p, "limited", limited)):
            within.set(self._search(top_k - 1, "counts")[1])
        kept = cell(p, "kept", tirx.min(within.get(), self.likely.get()))
        with p.when(known(p, "partial", scalar.less(top_p, te.const(1.0, "float32")))):
            share, has_rest = self._share(self._fraction(top_p), within.get())
            # The sum reaches the share where it exceeds what is just below.
            below = share - scalar.logical_not(has_rest).astype("int64")
            kept.set(tirx.min(kept.get(), self._search(tirx.max(below, te.dim(0)), "weights")[1]))
        most = known(p, "most", tirx.max(kept.get(), te.dim(1)) - 1)
        bound, _ = self._share(self._fraction(number), kept.get())
        return self._search(tirx.min(bound, most), "weights")[0]

    def _fraction(self, number: Expr) -> Expr:
        """A number in [0, 1) as a whole one of so many bits, int64. What is none, or beyond, becomes an end."""
        p, all_of_it = self.p, 1 << self.fraction_bits
        if "int" in str(number.ty.dtype):
            return known(
                p, "fraction", tirx.max(tirx.min(number.astype("int64"), all_of_it), te.dim(0))
            )
        number = known(p, "real", scalar.widen(number))
        zero, one = (te.const(value, str(number.ty.dtype)) for value in (0.0, 1.0))
        inside = tirx.Select(number > zero, tirx.Select(number < one, number, one), zero)
        power = te.const(float(all_of_it), str(number.ty.dtype))
        return known(p, "fraction", (inside * power).astype("int64"))

    def _share(self, fraction: Expr, whole: Expr) -> tuple[Expr, Expr]:
        """The whole part of a fraction (below 2^54) of a number (below 2^62), int64, and whether there is a rest. The
        product has up to 116 bits."""
        p, word = self.p, _unsigned((1 << 32) - 1)
        own = [known(p, "wide", x.astype("uint64")) for x in (fraction, whole)]
        (a, b), (c, d) = ((x >> _unsigned(32), x & word) for x in own)
        low = known(p, "low", b * d)
        middle = known(p, "middle", a * d + b * c + (low >> _unsigned(32)))
        high = known(p, "high", a * c)
        over = self.fraction_bits - 32
        part = (high << _unsigned(32 - over)) + (middle >> _unsigned(over))
        rest = (middle & _unsigned((1 << over) - 1)) | (low & word)
        return known(p, "part", part.astype("int64")), tirx.NE(rest, _unsigned(0))

    def _weight(self, token: Expr) -> Expr:
        """The weight of a token in units."""
        power = self.p.read(self.powers, token)
        zero = te.const(0.0, "float32")
        return tirx.Select(power > zero, power * self.unit, zero).astype("int64")

    def _histogram(self, first: Expr, size: Expr, room: int) -> _Histogram:
        """An empty histogram of so many digits, with room for all digits."""
        p = self.p
        counts, weights = scratch(p, "counts", room, "int32"), scratch(p, "weights", room, "int64")
        made = _Histogram(counts, weights, first, size)
        self._clear(made)
        return made

    def _clear(self, histogram: _Histogram) -> None:
        p = self.p
        with p.loop("b", histogram.size, about=_FINER) as b:
            at = histogram.first + b
            p.write(histogram.counts, at, value=i32(0))
            p.write(histogram.weights, at, value=te.dim(0))

    def _count(self, histogram: _Histogram, digit: Expr, weight: Expr) -> None:
        p = self.p
        p.write(histogram.counts, digit, value=p.read(histogram.counts, digit) + 1)
        p.write(histogram.weights, digit, value=p.read(histogram.weights, digit) + weight)

    def _first_histogram(self, min_p: Expr) -> tuple[_Histogram, Expr]:
        """The histogram of all tokens by first digit, and the sum of their weights. `likely` is the sum of those that
        min-p keeps."""
        p = self.p
        first = known(p, "first_digit", _digit(self.first, 0))
        size = known(p, "digits", _digit(self.last, 0) + 1 - first)
        made, total = self._histogram(first, size, _BUCKETS), cell(p, "total", te.dim(0))
        self.likely = cell(p, "likely", te.dim(0))
        with p.loop("i", self.size) as i:
            weight = known(p, "weight", self._weight(i))
            self._count(made, _digit(p.read(self.codes, i), 0), weight)
            total.set(total.get() + weight)
            is_kept = scalar.greater_equal(p.read(self.powers, i), min_p)
            self.likely.set(self.likely.get() + tirx.Select(is_kept, weight, te.dim(0)))
        return made, known(p, "all", total.get())

    def _search(self, bound: Expr, quantity: Quantity) -> tuple[Expr, Expr]:
        """The first token with which the sum of the quantity exceeds the bound, and the sum of the weights with it."""
        p = self.p
        bound = known(p, "bound", bound)
        sums = _Sums(cell(p, "count", te.dim(0)), cell(p, "sum", te.dim(0)))
        digit = self._passed(self.all, sums, bound, quantity)
        prefix = known(p, "prefix", digit.astype("int32") - i32(_BUCKETS // 2))
        left = cell(p, "left", te.dim(0))
        with p.loop("i", self.size) as i:
            p.write(self.few, left.get(), value=i.astype("int32"))
            is_left = tirx.EQ(p.read(self.codes, i) >> i32(_SHIFTS[0]), prefix)
            left.set(left.get() + is_left.astype("int64"))
        left = known(p, "number", left.get())
        finer = self._histogram(te.dim(0), te.dim(_FINER), _FINER)
        for level, before in enumerate(_SHIFTS[:-1], 1):
            if level > 1:
                self._clear(finer)
            with p.loop("j", left, about=64) as j:
                token = known(p, "one", p.read(self.few, j).astype("int64"))
                code = known(p, "own", p.read(self.codes, token))
                with p.when(tirx.EQ(code >> i32(before), prefix)):
                    self._count(finer, _digit(code, level), self._weight(token))
            digit = self._passed(finer, sums, bound, quantity)
            bits = before - _SHIFTS[level]
            prefix = known(p, "longer", (prefix << i32(bits)) | digit.astype("int32"))
        return self._among_equals(prefix, left, sums, bound, quantity)

    def _passed(self, histogram: _Histogram, sums: _Sums, bound: Expr, quantity: Quantity) -> Expr:
        """The first digit with which the sum exceeds the bound. `sums` become those of the digits before."""
        p = self.p
        digit = cell(p, "digit", histogram.first)
        running = _Sums(
            cell(p, "counts_so_far", sums.counts.get()),
            cell(p, "weights_so_far", sums.weights.get()),
        )
        with p.loop("b", histogram.size, about=_FINER) as b:
            for name in ("counts", "weights"):
                value = p.read(getattr(histogram, name), histogram.first + b).astype("int64")
                running.of(name).set(running.of(name).get() + value)
            is_before = known(p, "is_before", running.of(quantity).get() <= bound)
            for name in ("counts", "weights"):
                new = tirx.Select(is_before, running.of(name).get(), sums.of(name).get())
                sums.of(name).set(new)
            digit.set(digit.get() + is_before.astype("int64"))
        return known(p, "found_digit", digit.get())

    def _among_equals(
        self, code: Expr, left: Expr, sums: _Sums, bound: Expr, quantity: Quantity
    ) -> tuple[Expr, Expr]:
        """The end of a search, among tokens of one code in their order."""
        p = self.p
        found = cell(p, "found_token", te.dim(0))
        with p.loop("j", left, about=64) as j:
            token = known(p, "one", p.read(self.few, j).astype("int64"))
            is_next = tirx.EQ(p.read(self.codes, token), code)
            with p.when(scalar.logical_and(is_next, sums.of(quantity).get() <= bound)):
                sums.counts.set(sums.counts.get() + 1)
                sums.weights.set(sums.weights.get() + self._weight(token))
                found.set(token)
        return known(p, "place", found.get()), known(p, "reached", sums.weights.get())


def _unsigned(value: int) -> Expr:
    return tirx.const(value, "uint64")


def _zero(like: Expr) -> Expr:
    return te.const(0.0, str(like.ty.dtype))


def _code(bits: Expr) -> Expr:
    """The code of a logit by its bits: descending, NaN first, one code for both zeros."""
    plain = tirx.Select(tirx.EQ(bits, i32(_LOWEST)), i32(0), bits)
    is_nan = (bits & i32(_HIGHEST)) > i32(_INFINITY)
    return tirx.Select(is_nan, i32(_LOWEST), ~_signed(plain))


def _logit(code: Expr) -> Expr:
    """The logit with a code."""
    return from_bits(_signed(~code))


def _signed(bits: Expr) -> Expr:
    """Integers in the order of floats, for the bits of floats; its own inverse."""
    return bits ^ ((bits >> i32(31)) & i32(_HIGHEST))


def _digit(code: Expr, level: int) -> Expr:
    """A digit of a code, as an index."""
    if level == 0:
        return ((code >> i32(_SHIFTS[0])) + i32(_BUCKETS // 2)).astype("int64")
    bits = _SHIFTS[level - 1] - _SHIFTS[level]
    return ((code >> i32(_SHIFTS[level])) & i32((1 << bits) - 1)).astype("int64")


def process_logits(
    logits: Any,
    bias_tokens: Any,
    biases: Any,
    histories: Any,
    prompts: Any,
    penalties: Sequence[Any],
    masks: Any,
    shape: Sequence[Dim],
    mask_bits: int,
) -> Any:
    """The tensor of `shape` (rows, vocab), float32, of the logits after biases, penalties (repetition, presence,
    frequency), and masks, whose words have `mask_bits` tokens."""

    def fill(p: Serial, out: Buffer, source: Buffer, *given: Buffer) -> None:
        tokens, added, history, prompt, *options, words = given
        with rows(p, shape[:1]) as (row,):
            made = _Logits(p, te.dim(shape[1]), out, row)
            with p.loop("i", made.size) as i:
                p.write(out, row, i, value=scalar.cast(p.read(source, row, i), "float32"))
            made.add_biases(tokens, added)
            made.penalise(history, prompt, *(p.read(each, row) for each in options))
            made.mask(words, mask_bits)

    given = [logits, bias_tokens, biases, histories, prompts, *penalties, masks]
    return serial((shape, "float32"), given, fill, "process_logits")


class _Logits:
    """Writes the statements that change the logits of one row."""

    def __init__(self, p: Serial, size: Expr, out: Buffer, row: Expr) -> None:
        self.p, self.size, self.out, self.row = p, size, out, row

    def _inside(self, tokens: Buffer, number: Expr) -> tuple[Expr, Expr]:
        """Token number so and so of the row, and whether it is in the vocabulary."""
        token = self.p.read(tokens, self.row, number).astype("int64")
        token = known(self.p, "token", token)
        return token, scalar.logical_and(token >= te.dim(0), token < self.size)

    def _change(self, token: Expr, value: Expr) -> None:
        self.p.write(self.out, self.row, token, value=value)

    def add_biases(self, tokens: Buffer, biases: Buffer) -> None:
        p = self.p
        with p.loop("j", tokens.shape[1], about=4) as j:
            token, inside = self._inside(tokens, j)
            with p.when(inside):
                bias = scalar.cast(p.read(biases, self.row, j), "float32")
                self._change(token, p.read(self.out, self.row, token) + bias)

    def penalise(
        self, history: Buffer, prompt: Buffer, repetition: Expr, presence: Expr, frequency: Expr
    ) -> None:
        """Apply the penalties, once for each token of the history."""
        p = self.p
        names = ("repetition", "presence", "frequency")
        repetition, presence, frequency = (
            known(p, name, scalar.cast(value, "float32"))
            for name, value in zip(names, (repetition, presence, frequency), strict=True)
        )
        one, zero = te.const(1.0, "float32"), te.const(0.0, "float32")
        is_some = scalar.logical_or(
            scalar.not_equal(repetition, one),
            scalar.logical_or(scalar.not_equal(presence, zero), scalar.not_equal(frequency, zero)),
        )
        length = known(p, "length", tirx.Select(is_some, history.shape[1], te.dim(0)))
        seen = tirx.decl_buffer([self.size], "int32", "seen", layout=None)
        """Of each token: 2 for every time that it was generated, and 1 if it is in the history."""
        p.add(tirx.AllocBuffer(seen))
        with p.when(length > te.dim(0)), p.loop("i", self.size) as i:
            p.write(seen, i, value=i32(0))
        start = known(p, "start", p.read(prompt, self.row).astype("int64"))
        with p.loop("j", length, about=4) as j:
            token, inside = self._inside(history, j)
            with p.when(inside):
                is_new = tirx.Select(j >= start, i32(2), i32(0))
                p.write(seen, token, value=(p.read(seen, token) + is_new) | i32(1))
        with p.loop("j", length, about=4) as j:
            token, inside = self._inside(history, j)
            with p.when(inside), p.when(p.read(seen, token) > i32(0)):
                x = known(p, "x", p.read(self.out, self.row, token))
                count = known(p, "count", (p.read(seen, token) >> i32(1)).astype("float32"))
                x = tirx.Select(scalar.less(x, zero), x * repetition, x / repetition)
                x = x - count * frequency
                x = x - tirx.Select(count > zero, presence, zero)
                self._change(token, x)
                p.write(seen, token, value=i32(0))

    def mask(self, masks: Buffer, bits: int) -> None:
        """Set the logits of tokens that are not allowed to minus infinity."""
        p, words = self.p, floordiv(self.size + (bits - 1), bits)
        with p.loop("w", words) as w:
            word = known(p, "word", p.read(masks, self.row, w))
            with p.when(tirx.NE(word, i32(-1))):
                first = known(p, "first", w * te.dim(bits))
                count = tirx.min(self.size - first, te.dim(bits))
                with p.loop("b", known(p, "tokens", count), about=bits) as b:
                    is_allowed = tirx.NE((word >> b.astype("int32")) & i32(1), i32(0))
                    with p.when(scalar.logical_not(is_allowed)):
                        self._change(first + b, te.const(float("-inf"), "float32"))
