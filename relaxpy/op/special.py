"""Functions that integrals define: the complementary error function, the normal distribution, the logarithm of the
gamma function and its derivative, modified Bessel functions. Each is accurate to a few units in the last place, of
float32 and of float64, away from zeros that negative arguments have. The tables are Chebyshev series, computed with 40
digits."""

from __future__ import annotations

import functools
import math
import statistics
from collections.abc import Iterator
from typing import Any

import numpy as np

from relaxpy.ir.expr import Expr
from relaxpy.op import te
from relaxpy.op.base import Sample, define_op, sample
from relaxpy.op.elementwise import FloatUnary
from relaxpy.op.rule import Rule

_I0E_NEAR = (
    0.338397637204738042, -0.304682672343198399, 0.171620901522208775, -0.0949010970480476444,
    0.0493052842396707085, -0.0237374148058994688, 0.0105464603945949983, -0.00432430999505057594,
    0.0016394756169413358, -0.000576375574538582366, 0.000188502885095841656,
    -0.000057541950100821037, 0.0000164484480707288971, -4.41673835845875056e-6,
    1.11738753912010372e-6, -2.67079385394061173e-7, 6.04699502254191895e-8,
    -1.30002500998624804e-8, 2.65982372468238665e-9, -5.18979560163526291e-10,
    9.67580903537323691e-11, -1.72682629144155571e-11, 2.95505266312963983e-12,
    -4.85644678311192946e-13, 7.67618549860493562e-14, -1.16853328779934517e-14,
    1.71539128555513303e-15, -2.43127984654795469e-16, 3.3307945188222381e-17,
    -4.41534164647933938e-18,
)  # fmt: skip
"""exp(-x) * I0(x), in x / 4 - 1."""
_I0E_FAR = (
    0.402245205507054416, 0.00336911647825569409, 0.0000688975834691682398, 2.89137052083475648e-6,
    2.04891858946906374e-7, 2.26666899049817806e-8, 3.39623202570838635e-9, 4.94060238822496959e-10,
    1.18891471078464383e-11, -3.14991652796324136e-11, -1.32158118404477131e-11,
    -1.79417853150680612e-12, 7.18012445138366623e-13, 3.8527783827421427e-13,
    1.54008621752140983e-14, -4.15056934728722209e-14, -9.55484669882830765e-15,
    3.81168066935262242e-15, 1.77256013305652641e-15, -3.42548561967721949e-16,
    -2.82762398051658368e-16, 3.46122286769747715e-17, 4.4656214202967384e-17,
    -4.8305044859443707e-18, -7.2331804878736517e-18,
)  # fmt: skip
"""exp(-x) * I0(x) * sqrt(x), in 16 / x - 1."""
_I1E_NEAR = (
    0.126293593221816827, -0.176416518357834055, 0.102643658689847095, -0.0529459812080949914,
    0.0247264490306265168, -0.0105640848946261982, 0.00415642294431288816, -0.00151357245063125315,
    0.000512285956168575773, -0.000161760815825896746, 0.0000478156510755005423,
    -0.0000132731636560394358, 3.47025130813767848e-6, -8.56872026469545474e-7,
    2.00329475355213526e-7, -4.44505912879632808e-8, 9.38153738649577178e-9,
    -1.88724975172282929e-9, 3.62559028155211704e-10, -6.66348972350202774e-11,
    1.17361862988909016e-11, -1.98397439776494372e-12, 3.22379336594557471e-13,
    -5.04218550472791169e-14, 7.60068429473540693e-15, -1.10559694773538631e-15,
    1.55363195773620047e-16, -2.11142121435816608e-17, 2.77791411276104637e-18,
)  # fmt: skip
"""exp(-x) * I1(x) / x, in x / 4 - 1."""
_I1E_FAR = (
    0.38928811750914006, -0.00976109749136146841, -0.000110588938762623716, -3.88256480887769039e-6,
    -2.51223623787020893e-7, -2.63146884688951951e-8, -3.83538038596423702e-9,
    -5.58974346219658381e-10, -1.89749581235054123e-11, 3.25260358301548824e-11,
    1.41258074366137813e-11, 2.03562854414708951e-12, -7.19855177624590851e-13,
    -4.08355111109219732e-13, -2.10154184277266431e-14, 4.27244001671195135e-14,
    1.04202769841288028e-14, -3.8144030724370078e-15, -1.88035477551078247e-15,
    3.30820231092092865e-16, 2.96262899764595032e-16, -3.20952592199344015e-17,
    -4.65030536848933601e-17, 4.41434832307188878e-18, 7.51729631084099026e-18,
)  # fmt: skip
"""exp(-x) * I1(x) * sqrt(x), in 16 / x - 1."""
_ERFC = (
    1.17757893456740175, -0.00459005458064647733, -0.0842491333665179156, 0.0592099399981918905,
    -0.0266586684353057523, 0.00907499767070526509, -0.00241316354041760819,
    0.000490775836525808632, -0.0000691697330250120637, 4.13902798607301017e-6,
    7.74038306619849067e-7, -2.18864010492343957e-7, 1.07649994656709104e-8, 4.5219598112182869e-9,
    -7.75440020883135111e-10, -6.31808834088668449e-11, 2.8687950109306699e-11,
    1.94558685457773472e-13, -9.65469674843343891e-13, 3.25254814814873984e-14,
    3.34781194828680539e-14, -1.8645628804193131e-15, -1.25079505306886471e-15,
    7.41823525662404346e-17, 5.06814890479611132e-17,
)  # fmt: skip
"""exp(x * x) * erfc(x) * (1 + 2 * x), in (x - 3.75) / (x + 3.75)."""
_LGAMMA_1 = (
    0.599201765256268483, -0.135238644075050113, 0.0229121230588477434, -0.00454250148920868721,
    0.00097376574538875267, -0.000218391897603162507, 0.0000504275996884604164,
    -0.0000118834847669729498, 2.8430824417688878e-6, -6.88243458058777806e-7,
    1.68190198113222391e-7, -4.14233725187797783e-8, 1.02692324822086276e-8,
    -2.56013405153322331e-9, 6.41343677512934842e-10, -1.61345539281500043e-10,
    4.07421075390847105e-11, -1.03221332720098626e-11, 2.62290601930360354e-12,
    -6.68273265953245729e-13, 1.70676157101756543e-13, -4.36861215937925423e-14,
    1.12042538337816052e-14, -2.87884681144424275e-15, 7.40945781329903042e-16,
    -1.90998536823585748e-16, 4.93059307470763085e-17, -1.27452676537234515e-17,
)  # fmt: skip
"""lgamma(x) / ((x - 1) * (x - 2)), in (x - 1) * 2."""
_LGAMMA_2 = (
    0.407083634892059553, -0.0672717520443980854, 0.00762793936912542432, -0.000985676158621645896,
    0.000136674761081272027, -0.0000197919318541888712, 2.95029866655462004e-6,
    -4.4888253938032006e-7, 6.93365283885769187e-8, -1.08345396710288837e-8, 1.70848699050699018e-9,
    -2.71396782445508842e-10, 4.33741254080799071e-11, -6.9673749288029579e-12,
    1.12407771178264627e-12, -1.82036299130360811e-13, 2.95767786995383571e-14,
    -4.81958524158913898e-15, 7.87404615587750484e-16, -1.28944143891260115e-16,
    2.11604085143019757e-17,
)  # fmt: skip
"""lgamma(x) / ((x - 1) * (x - 2)), in (x - 2.25) / 0.75."""


def series(table: tuple[float, ...], x: Any) -> Any:
    """The Chebyshev series at x, from -1 to 1, with as many terms as the dtype of x has use of, as a polynomial."""
    return horner(_polynomial(table, str(te.dtype_of(x))), x)


def horner(coefficients: tuple[float, ...], x: Any) -> Any:
    """The polynomial with these coefficients, the highest first."""
    from relaxpy.tir.numerics import floats

    return floats.horner(coefficients, x)


@functools.cache
def _polynomial(table: tuple[float, ...], dtype: str) -> tuple[float, ...]:
    """The coefficients of a series, the highest first."""
    least = abs(table[0]) * (1e-17 if dtype == "float64" else 2e-9)
    kept = 1 + max(n for n, value in enumerate(table) if abs(value) > least)
    found = np.polynomial.chebyshev.cheb2poly(table[:kept])
    return tuple(float(value) for value in found[::-1])


class Special(FloatUnary):
    """A function given by `value` of a variable in float32 or float64."""

    mixed = "never"

    def scalar(self, x: Any) -> Any:
        return te.let("x", x, self.value)

    def value(self, x: Any) -> Any:
        """The function as an expression of a variable."""
        raise NotImplementedError

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield from super().samples()
        wide = np.concatenate([np.linspace(-9.7, 12, 60), np.geomspace(1e-30, 1e30, 24)])
        yield sample(cls(), wide.astype(np.float32), dims="n", rtol=2e-6, atol=3e-6)
        yield sample(cls(), wide, dims="n", rtol=1e-13, atol=1e-13)


@define_op
class Erfc(Special):
    """The complementary error function, 1 - erf(x), accurate where it is near 0."""

    name = "erfc"

    def value(self, x: Any) -> Any:
        one, far = te.literal(1, x), te.literal(3.75, x)

        def of_size(size: Any) -> Any:
            scaled = te.let("t", (size - far) / (size + far), lambda t: series(_ERFC, t))
            # Of a square with rounding errors the power would have as many times larger ones.
            high = te.upper_digits(size)
            power = te.exp(te.negative(high * high)) * te.exp((high - size) * (high + size))
            found = power * scaled / (one + size + size)
            found = te.select(size < te.literal(0.5, x), one - te.erf(size), found)
            found = te.select(size > te.literal(28, x), te.literal(0, x), found)
            found = te.select(te.isnan(x), x, found)
            return te.let(
                "y", found, lambda y: te.select(x < te.literal(0, x), te.literal(2, x) - y, y)
            )

        return te.let("size", te.absolute(x), of_size)

    def numpy(self, x: np.ndarray) -> Any:
        return np.vectorize(math.erfc, otypes=[np.float64])(x)

    def slope(self, b: Rule, x: Expr, out: Expr) -> Expr:
        return b.multiply(b.exp(b.negative(b.square(x))), -2 / math.sqrt(math.pi))


@define_op
class Erfcx(Special):
    """The scaled complementary error function, exp(x * x) * erfc(x): infinite for large negative x."""

    name = "erfcx"

    def value(self, x: Any) -> Any:
        one, far = te.literal(1, x), te.literal(3.75, x)

        def of_size(size: Any) -> Any:
            near = te.select(size > te.literal(1e8, x), one, size)
            t = (near - far) / (near + far)
            found = te.let("t", t, lambda t: series(_ERFC, t)) / (one + near + near)
            late = te.literal(1 / math.sqrt(math.pi), x) / size
            return te.let("y", te.select(size > te.literal(1e8, x), late, found), signed)

        def signed(y: Any) -> Any:
            high = te.upper_digits(x)
            half = te.literal(0.5, x)  # the power may be infinite where half of its exponent is not
            power = te.let("p", te.exp(high * high * half), lambda p: p * p)
            rest = te.select(te.isinf(x), te.literal(0, x), (x - high) * (x + high))
            twice = power * te.exp(rest) * te.literal(2, x)
            return te.select(te.isnan(x), x, te.select(x < te.literal(0, x), twice - y, y))

        return te.let("size", te.absolute(x), of_size)

    def numpy(self, x: np.ndarray) -> Any:
        def one(value: float) -> float:
            if value > 10:
                terms, term = [1.0], 1.0
                for k in range(1, 16):
                    term *= -(2 * k - 1) / (2 * value * value)
                    terms.append(term)
                return math.fsum(terms) / (value * math.sqrt(math.pi))
            if value < -26.7:
                return math.inf
            high = float(np.float32(value))
            power = math.exp(high * high) * math.exp((value - high) * (value + high))
            return power * math.erfc(value)

        return np.vectorize(one, otypes=[np.float64])(x)

    def slope(self, b: Rule, x: Expr, out: Expr) -> Expr:
        return b.subtract(b.multiply(b.multiply(x, out), 2.0), 2 / math.sqrt(math.pi))


@define_op
class Ndtri(Special):
    """The quantile of the normal distribution: the x below which a share of its values is. Infinite at 0 and 1, NaN
    outside."""

    name = "ndtri"

    def value(self, x: Any) -> Any:
        def number(value: float) -> Any:
            return te.literal(value, x)

        upper = x > number(1 - _NDTRI_TAIL)

        def of_share(y: Any) -> Any:
            centre = y - number(0.5)
            middle = te.let(
                "square",
                centre * centre,
                lambda s: centre + centre * (s * horner(_NDTRI_P0, s) / horner(_NDTRI_Q0, s)),
            ) * number(math.sqrt(2 * math.pi))
            tail = te.let("depth", te.sqrt(number(-2) * te.log(y)), of_depth)
            tail = tail * te.select(upper, number(1), number(-1))
            found = te.select(y > number(_NDTRI_TAIL), middle, tail)
            found = te.select(te.equal(x, number(0)), number(-math.inf), found)
            return te.select(te.equal(x, number(1)), number(math.inf), found)

        def of_depth(depth: Any) -> Any:
            z = number(1) / depth
            near = horner(_NDTRI_P1, z) / horner(_NDTRI_Q1, z)
            far = horner(_NDTRI_P2, z) / horner(_NDTRI_Q2, z)
            return depth - te.log(depth) / depth - z * te.select(depth < number(8), near, far)

        return te.let("share", te.select(upper, number(1) - x, x), of_share)

    def numpy(self, x: np.ndarray) -> Any:
        normal = statistics.NormalDist()

        def one(value: float) -> float:
            if value in (0, 1):
                return math.inf if value else -math.inf
            return normal.inv_cdf(value) if 0 < value < 1 else math.nan

        return np.vectorize(one, otypes=[np.float64])(x)

    def slope(self, b: Rule, x: Expr, out: Expr) -> Expr:
        return b.multiply(b.exp(b.multiply(b.square(out), 0.5)), math.sqrt(2 * math.pi))

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield from super().samples()
        shares = np.concatenate([np.linspace(0, 1, 61), np.geomspace(1e-30, 0.1, 24)])
        yield sample(cls(), shares.astype(np.float32), dims="n", rtol=3e-6, atol=3e-6)
        yield sample(cls(), shares, dims="n", rtol=1e-13, atol=1e-13)


_NDTRI_TAIL = math.exp(-2)
_NDTRI_P0 = (
    -59.9633501014107895267, 98.0010754185999661536, -56.6762857469070293439,
    13.9312609387279679503, -1.23916583867381258016,
)  # fmt: skip
_NDTRI_Q0 = (
    1.0, 1.95448858338141759834, 4.67627912898881538453, 86.3602421390890590575,
    -225.462687854119370527, 200.260212380060660359, -82.0372256168333339912,
    15.9056225126211695515, -1.18331621121330003142,
)  # fmt: skip
_NDTRI_P1 = (
    4.05544892305962419923, 31.5251094599893866154, 57.1628192246421288162, 44.0805073893200834700,
    14.6849561928858024014, 2.18663306850790267539, -0.140256079171354495875,
    -0.0350424626827848203418, -0.000857456785154685413611,
)  # fmt: skip
_NDTRI_Q1 = (
    1.0, 15.7799883256466749731, 45.3907635128879210584, 41.3172038254672030440,
    15.0425385692907503408, 2.50464946208309415979, -0.142182922854787788574,
    -0.0380806407691578277194, -0.000933259480895457427372,
)  # fmt: skip
_NDTRI_P2 = (
    3.23774891776946035970, 6.91522889068984211695, 3.93881025292474443415, 1.33303460815807542389,
    0.201485389549179081538, 0.0123716634817820021358, 3.01581553508235416007e-4,
    2.65806974686737550832e-6, 6.23974539184983293730e-9,
)  # fmt: skip
_NDTRI_Q2 = (
    1.0, 6.02427039364742014255, 3.67983563856160859403, 1.37702099489081330271,
    0.216236993594496635890, 0.0134204006088543189037, 3.28014464682127739104e-4,
    2.89247864745380683936e-6, 6.79019408009981274425e-9,
)  # fmt: skip
# Cephes' approximation (Moshier): around the middle in the square of the distance from it, in the tails in
# 1 / sqrt(-2 * log(y)), of two parts.


@define_op
class LogNdtr(Special):
    """The logarithm of the share of the normal distribution below x."""

    name = "log_ndtr"

    def value(self, x: Any) -> Any:
        def of_scaled(t: Any) -> Any:
            one, half = te.literal(1, x), te.literal(0.5, x)
            below = te.log(Erfcx().scalar(te.negative(t)) * half) - t * t
            above = te.log1p(te.negative(Erfc().scalar(t) * half))
            return te.select(x < te.negative(one), below, above)

        return te.let("scaled", x * te.literal(math.sqrt(0.5), x), of_scaled)

    def numpy(self, x: np.ndarray) -> Any:
        t = x.astype(np.float64) * math.sqrt(0.5)
        with np.errstate(all="ignore"):
            below = np.log(Erfcx().numpy(-np.minimum(t, 0)) / 2) - t * t
            return np.where(x < -1, below, np.log1p(-Erfc().numpy(t) / 2))

    def slope(self, b: Rule, x: Expr, out: Expr) -> Expr:
        return b.divide(math.sqrt(2 / math.pi), b.erfcx(b.multiply(x, -math.sqrt(0.5))))


@define_op
class Lgamma(Special):
    """The logarithm of the size of the gamma function: infinite at 0, at negative whole numbers and for infinities."""

    name = "lgamma"

    def value(self, x: Any) -> Any:
        def number(value: float) -> Any:
            return te.literal(value, x)

        def of_size(a: Any) -> Any:
            is_small, is_large = a < number(0.5), a >= number(8)
            whole = te.floor(a)
            within = te.select(a >= number(3), a - whole + number(2), a)
            return te.let(
                "arg",
                te.select(is_small, number(1) + a, within),
                lambda arg: joined(a, arg, is_small, is_large),
            )

        def joined(a: Any, arg: Any, is_small: Any, is_large: Any) -> Any:
            first = series(_LGAMMA_1, (arg - number(1)) * number(2))
            second = series(_LGAMMA_2, (arg - number(2.25)) / number(0.75))
            near = (
                te.select(arg < number(1.5), first, second) * (arg - number(1)) * (arg - number(2))
            )
            product = number(1)
            for k in range(5):  # gamma(a) is gamma(arg) * arg * (arg + 1) * … up to a - 1
                product = product * te.select(a >= number(3 + k), arg + number(k), number(1))
            inner = te.select(is_large, a, te.select(is_small, te.absolute(a), product))
            return te.let(
                "log", te.log(inner), lambda log: finished(a, log, near, is_small, is_large)
            )

        def finished(a: Any, log: Any, near: Any, is_small: Any, is_large: Any) -> Any:
            step = number(1) / te.select(is_large, a, number(8))
            rest = te.let("z", step * step, lambda z: horner(_STIRLING, z)) * step
            large = (a - number(0.5)) * (log - number(1)) + (rest + number(_HALF_LOG_2PI - 0.5))
            small = te.select(is_small, near - log, te.select(a >= number(3), near + log, near))
            return te.let("y", te.select(is_large, large, small), lambda y: reflected(a, y))

        def reflected(a: Any, y: Any) -> Any:
            rest = a - te.round(a)
            wave = te.absolute(te.sin(rest * number(math.pi)))
            below = te.log(number(math.pi) / (a * wave)) - y
            pole = te.logical_or(te.equal(rest, number(0)), te.isinf(x))
            below = te.select(pole, number(math.inf), below)
            return te.select(
                x <= number(-0.5), below, te.select(te.equal(x, number(0)), number(math.inf), y)
            )

        return te.let("a", te.select(x <= number(-0.5), te.negative(x), x), of_size)

    def numpy(self, x: np.ndarray) -> Any:
        def one(value: float) -> float:
            is_pole = math.isinf(value) or (value <= 0 and value == math.floor(value))
            if value in (1, 2):
                return -0.0  # as the product of its factors, one of them negative
            return math.inf if is_pole else math.lgamma(value)

        return np.vectorize(one, otypes=[np.float64])(x)

    def slope(self, b: Rule, x: Expr, out: Expr) -> Expr:
        return b.digamma(x)


_HALF_LOG_2PI = math.log(2 * math.pi) / 2
_STIRLING = (
    -3617 / 122400, 1 / 156, -691 / 360360, 1 / 1188, -1 / 1680, 1 / 1260, -1 / 360, 1 / 12,
)  # fmt: skip


@define_op
class Digamma(Special):
    """The derivative of `lgamma`: -infinity at 0.0, infinity at -0.0, NaN at negative whole numbers."""

    name = "digamma"
    no_vjp = "its derivative, trigamma, is no operator"

    def value(self, x: Any) -> Any:
        def number(value: float) -> Any:
            return te.literal(value, x)

        def of_positive(a: Any) -> Any:
            arg = te.select(a < number(1), a + number(1), a - te.floor(a) + number(1))
            return te.let("arg", arg, lambda arg: joined(a, arg))

        def joined(a: Any, arg: Any) -> Any:
            from_1 = arg - number(1)
            rational = horner(_DIGAMMA_P, from_1) / horner(_DIGAMMA_Q, from_1)
            near = arg
            for part in _root(str(te.dtype_of(x))):
                near = near - number(part)
            small = near * (number(_DIGAMMA_Y) + rational)
            steps = number(0)
            for k in range(8):
                larger = te.logical_and(a >= number(2 + k), a < number(10))
                steps = steps + te.select(larger, number(1) / (arg + number(k)), number(0))
            small = small + te.select(a < number(1), number(-1) / a, steps)
            inverse = number(1) / a
            rest = te.let("z", inverse * inverse, lambda z: horner(_DIGAMMA, z) * z)
            large = te.log(a) - number(0.5) * inverse - rest
            return te.select(a >= number(10), large, small)

        def reflected(y: Any) -> Any:
            rest = x - te.round(x)
            turned = y - number(math.pi) / te.tan(rest * number(math.pi))
            turned = te.select(te.equal(rest, number(0)), number(math.nan), turned)
            found = te.select(x < number(0), turned, y)
            return te.select(te.equal(x, number(0)), number(-1) / x, found)

        positive = te.select(x < number(0), number(1) - x, x)
        return te.let("y", te.let("a", positive, of_positive), reflected)

    def numpy(self, x: np.ndarray) -> Any:
        def one(value: float) -> float:
            if value == 0:
                return -math.copysign(math.inf, value)
            if value == -math.inf or (value < 0 and value == math.floor(value)):
                return math.nan
            if value < 0:
                rest = value - round(value)
                return one(1 - value) - math.pi / math.tan(math.pi * rest)
            terms = []
            while value < 30:
                terms.append(-1 / value)
                value += 1
            z = 1 / (value * value)
            late = math.log(value) - 0.5 / value
            return math.fsum([*terms, late, -z / 12, z * z / 120, -(z**3) / 252, z**4 / 240])

        return np.vectorize(one, otypes=[np.float64])(x)


_DIGAMMA = (
    -3617 / 8160, 1 / 12, -691 / 32760, 1 / 132, -1 / 240, 1 / 252, -1 / 120, 1 / 12,
)  # fmt: skip
_DIGAMMA_Y = 0.99558162689208984375
_DIGAMMA_ROOT = (
    1569415565 / 1073741824, 381566830 / 1073741824 / 1073741824, 9.016312093258695e-20,
)  # fmt: skip
"""The positive zero, as a sum."""
_DIGAMMA_P = (
    -0.0020713321167745952, -0.045251321448739056, -0.28919126444774784, -0.65031853770896507,
    -0.32555031186804491, 0.25479851061131551,
)  # fmt: skip
_DIGAMMA_Q = (
    -0.55789841321675513e-6, 0.0021284987017821144, 0.054151797245674225, 0.43593529692665969,
    1.4606242909763515, 2.0767117023730469, 1.0,
)  # fmt: skip
# Boost's approximation from 1 to 2 (Maddock), in x - 1: digamma(x) is (x - root) * (Y + P / Q).


def _root(dtype: str) -> tuple[float, ...]:
    """The positive zero of digamma as a sum of numbers of the dtype."""
    if dtype == "float64":
        return _DIGAMMA_ROOT
    first = float(np.float32(_DIGAMMA_ROOT[0]))
    return first, _DIGAMMA_ROOT[0] - first + _DIGAMMA_ROOT[1]


class Bessel(Special):
    """A modified Bessel function times exp(-|x|)."""

    order: int
    near: tuple[float, ...]
    far: tuple[float, ...]

    def value(self, x: Any) -> Any:
        def number(value: float) -> Any:
            return te.literal(value, x)

        def of_size(size: Any) -> Any:
            near = te.let("t", size / number(4) - number(1), lambda t: series(type(self).near, t))
            if type(self).order:
                near = near * size
            late = te.select(size > number(8), size, number(8))
            far = te.let("t", number(16) / late - number(1), lambda t: series(type(self).far, t))
            found = te.select(size <= number(8), near, far / te.sqrt(late))
            found = te.select(te.isnan(x), x, found)
            if not type(self).order:
                return found
            return te.let(
                "y",
                found,
                lambda y: te.select(
                    x < number(0), te.negative(y), te.select(te.equal(x, number(0)), x, y)
                ),
            )

        return te.let("size", te.absolute(x), of_size)

    def numpy(self, x: np.ndarray) -> Any:
        """The integral exp(-|x|) * exp(|x| * cos(t)) * cos(order * t) over half a period, divided by it; beyond 10000
        the first terms for large arguments."""
        order, x = type(self).order, x.astype(np.float64)
        size = np.abs(x)
        t = (np.arange(4096) + 0.5) * (np.pi / 4096)
        wave = np.exp(-2 * np.minimum(size, 1e4)[..., None] * np.sin(t / 2) ** 2) * np.cos(
            order * t
        )
        m = 4 * order * order
        late = 1 - (m - 1) / (8 * size) + (m - 1) * (m - 9) / (128 * size * size)
        found = np.where(size <= 1e4, wave.mean(-1), late / np.sqrt(2 * np.pi * size))
        if order:
            small = (
                size / 2 * (1 + size * size / 8) * np.exp(-size)
            )  # the integral is a small difference
            found = np.copysign(np.where(size < 1e-3, small, found), x)
        return np.where(np.isnan(x), x, found)


@define_op
class BesselI0e(Bessel):
    """The modified Bessel function of order 0 times exp(-|x|)."""

    name = "bessel_i0e"
    order = 0
    near, far = _I0E_NEAR, _I0E_FAR

    def slope(self, b: Rule, x: Expr, out: Expr) -> Expr:
        return b.subtract(b.bessel_i1e(x), b.multiply(b.sign(x), out))


class Unscaled(Bessel):
    """A modified Bessel function."""

    def value(self, x: Any) -> Any:
        scaled = super().value(x)
        half = te.literal(0.5, x)  # the power may be infinite where half of its exponent is not
        return te.let("half", te.exp(te.absolute(x) * half), lambda p: scaled * p * p)

    def numpy(self, x: np.ndarray) -> Any:
        x = x.astype(np.float64)
        with np.errstate(all="ignore"):
            half = np.exp(np.abs(x) / 2)
            return super().numpy(x) * half * half


@define_op
class BesselI0(Unscaled):
    """The modified Bessel function of order 0."""

    name = "bessel_i0"
    order = 0
    near, far = _I0E_NEAR, _I0E_FAR

    def slope(self, b: Rule, x: Expr, out: Expr) -> Expr:
        return b.bessel_i1(x)


@define_op
class BesselI1(Unscaled):
    """The modified Bessel function of order 1."""

    name = "bessel_i1"
    order = 1
    near, far = _I1E_NEAR, _I1E_FAR

    def slope(self, b: Rule, x: Expr, out: Expr) -> Expr:
        return b.subtract(b.bessel_i0(x), per_x(b, out, x))


@define_op
class BesselI1e(Bessel):
    """The modified Bessel function of order 1 times exp(-|x|)."""

    name = "bessel_i1e"
    order = 1
    near, far = _I1E_NEAR, _I1E_FAR

    def slope(self, b: Rule, x: Expr, out: Expr) -> Expr:
        return b.subtract(b.bessel_i0e(x), b.add(b.multiply(b.sign(x), out), per_x(b, out, x)))


def per_x(b: Rule, value: Expr, x: Expr) -> Expr:
    """A Bessel function of order 1 divided by x: 1/2 at 0."""
    zero = b.equal(x, 0.0)
    return b.where(zero, 0.5, b.divide(value, b.where(zero, 1.0, x)))
