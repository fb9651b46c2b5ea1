"""Functions in WGSL that kernels call: integers and floats of 64 bits, conversions, and elementary functions that WGSL
lacks.

A value of 64 bits is a `vec2<u32>`, its low word first; arithmetic on float64 rounds once, to the nearest, ties to
even. `numbers.zero` is a number of the launch that is always 0, which no compiler knows: what is combined with it is
neither folded nor reassociated.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

_TEXT = """
fn from_bits(bits: u32) -> f32 { return bitcast<f32>(bits ^ numbers.zero); }

fn keep(x: f32) -> f32 { return bitcast<f32>(bitcast<u32>(x) ^ numbers.zero); }

fn is_nan(x: f32) -> bool { return (bitcast<u32>(x) & 0x7fffffffu) > 0x7f800000u; }

fn is_inf(x: f32) -> bool { return (bitcast<u32>(x) & 0x7fffffffu) == 0x7f800000u; }

fn wide_of_int(x: i32) -> vec2<u32> { return vec2<u32>(bitcast<u32>(x), bitcast<u32>(x >> 31u)); }

fn saturated(a: vec2<u32>) -> i32 {
  if (a.y == bitcast<u32>(bitcast<i32>(a.x) >> 31u)) { return bitcast<i32>(a.x); }
  return select(2147483647i, i32(-2147483648), (a.y >> 31u) != 0u);
}

fn wide_add(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> {
  let low = a.x + b.x;
  return vec2<u32>(low, a.y + b.y + select(0u, 1u, low < a.x));
}

fn wide_sub(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> {
  return vec2<u32>(a.x - b.x, a.y - b.y - select(0u, 1u, a.x < b.x));
}

fn wide_product(a: u32, b: u32) -> vec2<u32> {
  let a0 = a & 0xffffu; let a1 = a >> 16u; let b0 = b & 0xffffu; let b1 = b >> 16u;
  let low = a0 * b0;
  let middle = a1 * b0 + (low >> 16u);
  let other = a0 * b1 + (middle & 0xffffu);
  return vec2<u32>(a * b, a1 * b1 + (middle >> 16u) + (other >> 16u));
}

fn wide_mul(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> {
  let low = wide_product(a.x, b.x);
  return vec2<u32>(low.x, low.y + a.x * b.y + a.y * b.x);
}

fn wide_less_unsigned(a: vec2<u32>, b: vec2<u32>) -> bool {
  return a.y < b.y || (a.y == b.y && a.x < b.x);
}

fn wide_less(a: vec2<u32>, b: vec2<u32>) -> bool {
  return bitcast<i32>(a.y) < bitcast<i32>(b.y) || (a.y == b.y && a.x < b.x);
}

fn wide_shl(a: vec2<u32>, by: u32) -> vec2<u32> {
  let n = by & 63u;
  if (n == 0u) { return a; }
  if (n >= 32u) { return vec2<u32>(0u, a.x << (n - 32u)); }
  return vec2<u32>(a.x << n, (a.y << n) | (a.x >> (32u - n)));
}

fn wide_shr_unsigned(a: vec2<u32>, by: u32) -> vec2<u32> {
  let n = by & 63u;
  if (n == 0u) { return a; }
  if (n >= 32u) { return vec2<u32>(a.y >> (n - 32u), 0u); }
  return vec2<u32>((a.x >> n) | (a.y << (32u - n)), a.y >> n);
}

fn wide_shr(a: vec2<u32>, by: u32) -> vec2<u32> {
  let n = by & 63u;
  let high = bitcast<i32>(a.y);
  if (n == 0u) { return a; }
  if (n >= 32u) { return vec2<u32>(bitcast<u32>(high >> (n - 32u)), bitcast<u32>(high >> 31u)); }
  return vec2<u32>((a.x >> n) | (a.y << (32u - n)), bitcast<u32>(high >> n));
}

fn wide_magnitude(a: vec2<u32>) -> vec2<u32> {
  if ((a.y >> 31u) != 0u) { return wide_sub(vec2<u32>(0u, 0u), a); }
  return a;
}

// The quotient, then the remainder; by 0 the quotient is 0.
fn wide_divided(a: vec2<u32>, b: vec2<u32>) -> vec4<u32> {
  if (b.x == 0u && b.y == 0u) { return vec4<u32>(0u, 0u, a.x, a.y); }
  if (a.y == 0u && b.y == 0u) { return vec4<u32>(a.x / b.x, 0u, a.x % b.x, 0u); }
  var quotient = vec2<u32>(0u, 0u);
  var rest = vec2<u32>(0u, 0u);
  for (var i: i32 = 63; i >= 0; i--) {
    let carried = rest.y >> 31u;
    rest = wide_shl(rest, 1u);
    rest.x = rest.x | (wide_shr_unsigned(a, u32(i)).x & 1u);
    quotient = wide_shl(quotient, 1u);
    if (carried != 0u || !wide_less_unsigned(rest, b)) {
      rest = wide_sub(rest, b);
      quotient.x = quotient.x | 1u;
    }
  }
  return vec4<u32>(quotient.x, quotient.y, rest.x, rest.y);
}

fn wide_div_unsigned(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> { return wide_divided(a, b).xy; }

fn wide_mod_unsigned(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> { return wide_divided(a, b).zw; }

fn wide_div(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> {
  let q = wide_divided(wide_magnitude(a), wide_magnitude(b)).xy;
  if (((a.y ^ b.y) >> 31u) != 0u) { return wide_sub(vec2<u32>(0u, 0u), q); }
  return q;
}

fn wide_mod(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> {
  let r = wide_divided(wide_magnitude(a), wide_magnitude(b)).zw;
  if ((a.y >> 31u) != 0u) { return wide_sub(vec2<u32>(0u, 0u), r); }
  return r;
}

fn wide_floor_mod(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> {
  let r = wide_mod(a, b);
  if ((r.x | r.y) != 0u && ((r.y ^ b.y) >> 31u) != 0u) { return wide_add(r, b); }
  return r;
}

fn wide_floor_div(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> {
  let r = wide_mod(a, b);
  let q = wide_div(a, b);
  if ((r.x | r.y) != 0u && ((r.y ^ b.y) >> 31u) != 0u) { return wide_sub(q, vec2<u32>(1u, 0u)); }
  return q;
}

fn floor_mod(a: i32, b: i32) -> i32 {
  let r = a % b;
  return select(r, r + b, r != 0 && (r < 0) != (b < 0));
}

fn floor_div(a: i32, b: i32) -> i32 {
  let r = a % b;
  return select(a / b, a / b - 1, r != 0 && (r < 0) != (b < 0));
}

// Rounded once: the lowest of 32 leading bits says whether there were others below.
fn float_of_unsigned(a: vec2<u32>) -> f32 {
  if (a.y == 0u) { return f32(a.x); }
  let shift = 32u - countLeadingZeros(a.y);
  let top = wide_shr_unsigned(a, shift).x;
  let lost = any(wide_shl(vec2<u32>(top, 0u), shift) != a);
  return f32(top | select(0u, 1u, lost)) * f32(1u << (shift - 1u)) * 2.0f;
}

fn float_of_wide(a: vec2<u32>) -> f32 {
  let size = float_of_unsigned(wide_magnitude(a));
  return select(size, -size, (a.y >> 31u) != 0u);
}

// Towards 0; a NaN, and what is beyond the range, as on x86.
fn int_of_float(x: f32) -> i32 {
  if (is_nan(x) || x >= 2147483648.0f || x < -2147483648.0f) { return i32(-2147483648); }
  return i32(x);
}

fn wide_of_float(x: f32) -> vec2<u32> {
  let bits = bitcast<u32>(x);
  let exponent = i32((bits >> 23u) & 0xffu) - 150;
  if (exponent >= 40) { return vec2<u32>(0u, 0x80000000u); }
  let digits = vec2<u32>((bits & 0x7fffffu) | 0x800000u, 0u);
  var size = vec2<u32>(0u, 0u);
  if (exponent >= 0) { size = wide_shl(digits, u32(exponent)); }
  else if (exponent > -24) { size = vec2<u32>(digits.x >> u32(-exponent), 0u); }
  if ((bits >> 31u) != 0u) { return wide_sub(vec2<u32>(0u, 0u), size); }
  return size;
}

fn wide_of_float_unsigned(x: f32) -> vec2<u32> {
  if (x >= 9223372036854775808.0f) {
    let exponent = i32((bitcast<u32>(x) >> 23u) & 0xffu) - 150;
    return wide_shl(vec2<u32>((bitcast<u32>(x) & 0x7fffffu) | 0x800000u, 0u), u32(min(exponent, 40)));
  }
  return wide_of_float(x);
}

fn relaxpy_float_of_half(bits: u32) -> f32 {
  let sign = (bits & 0x8000u) << 16u;
  let exponent = (bits >> 10u) & 0x1fu;
  let digits = bits & 0x3ffu;
  if (exponent == 31u) { return from_bits(sign | 0x7f800000u | (digits << 13u)); }
  if (exponent == 0u) { return bitcast<f32>(sign | bitcast<u32>(f32(digits) * 0x1p-24f)); }
  return bitcast<f32>(sign | ((exponent + 112u) << 23u) | (digits << 13u));
}

// To the nearest, ties to even.
fn relaxpy_half_of_float(x: f32) -> u32 {
  let bits = bitcast<u32>(x);
  let sign = (bits >> 16u) & 0x8000u;
  let size = bits & 0x7fffffffu;
  if (size > 0x7f800000u) { return sign | 0x7e00u; }
  if (size >= 0x47800000u) { return sign | 0x7c00u; }
  if (size >= 0x38800000u) { return sign | ((size - 0x38000000u + 0xfffu + ((size >> 13u) & 1u)) >> 13u); }
  if (size < 0x33000000u) { return sign; }
  let digits = (size & 0x7fffffu) | 0x800000u;
  let shift = 126u - (size >> 23u);
  let whole = digits >> shift;
  let rest = digits & ((1u << shift) - 1u);
  let half = 1u << (shift - 1u);
  let up = rest > half || (rest == half && (whole & 1u) != 0u);
  return sign | (whole + select(0u, 1u, up));
}

fn copy_sign(x: f32, y: f32) -> f32 {
  return bitcast<f32>((bitcast<u32>(x) & 0x7fffffffu) | (bitcast<u32>(y) & 0x80000000u));
}

fn magnitude(x: f32) -> f32 { return bitcast<f32>(bitcast<u32>(x) & 0x7fffffffu); }

// The exact remainder, of the sign of x: digits of the quotient one by one.
fn f_mod(x: f32, y: f32) -> f32 {
  let size = bitcast<u32>(y) & 0x7fffffffu;
  var rest = bitcast<u32>(x) & 0x7fffffffu;
  if (rest >= 0x7f800000u || size == 0u || size > 0x7f800000u) { return from_bits(0x7fc00000u); }
  if (rest < size) { return x; }
  var digits = rest & 0x7fffffu;
  var place = i32(rest >> 23u);
  if (place == 0) { place = 1; } else { digits = digits | 0x800000u; }
  var other = size & 0x7fffffu;
  var last = i32(size >> 23u);
  if (last == 0) { last = 1; } else { other = other | 0x800000u; }
  loop {
    digits = digits % other;
    if (place <= last || digits == 0u) { break; }
    digits = digits << 1u;
    place = place - 1;
  }
  if (digits == 0u) { return copy_sign(0.0f, x); }
  while (digits < 0x800000u && last > 1) { digits = digits << 1u; last = last - 1; }
  rest = select(digits, (u32(last) << 23u) | (digits & 0x7fffffu), digits >= 0x800000u);
  return copy_sign(bitcast<f32>(rest), x);
}

fn power_of_two(n: i32) -> f32 { return bitcast<f32>(u32(clamp(n, -126, 127) + 127) << 23u); }

fn ld_exp(x: f32, n: i32) -> f32 {
  let most = clamp(n, -300, 300);
  let first = most / 3;
  let second = (most - first) / 2;
  return x * power_of_two(most - first - second) * power_of_two(second) * power_of_two(first);
}

fn next_after(x: f32, y: f32) -> f32 {
  if (is_nan(x) || is_nan(y)) { return from_bits(0x7fc00000u); }
  if (x == y) { return y; }
  let bits = bitcast<u32>(x);
  if ((bits & 0x7fffffffu) == 0u) { return from_bits((bitcast<u32>(y) & 0x80000000u) | 1u); }
  return from_bits(select(bits - 1u, bits + 1u, (y > x) == ((bits >> 31u) == 0u)));
}

fn hypotenuse(x: f32, y: f32) -> f32 {
  let a = max(magnitude(x), magnitude(y));
  let b = min(magnitude(x), magnitude(y));
  if (is_inf(x) || is_inf(y)) { return from_bits(0x7f800000u); }
  if (is_nan(x) || is_nan(y)) { return from_bits(0x7fc00000u); }
  if (a == 0.0f) { return 0.0f; }
  let r = b / a;
  return a * sqrt(1.0f + r * r);
}

fn wide_clz(a: vec2<u32>) -> u32 {
  return select(countLeadingZeros(a.y), 32u + countLeadingZeros(a.x), a.y == 0u);
}

// Shifted right; a 1 that is lost stays as the last bit.
fn wide_shr_sticky(a: vec2<u32>, by: u32) -> vec2<u32> {
  if (by == 0u) { return a; }
  if (by > 63u) { return vec2<u32>(select(0u, 1u, (a.x | a.y) != 0u), 0u); }
  let kept = wide_shr_unsigned(a, by);
  return vec2<u32>(kept.x | select(0u, 1u, any(wide_shl(kept, by) != a)), kept.y);
}

fn f64_is_nan(a: vec2<u32>) -> bool {
  let high = a.y & 0x7fffffffu;
  return high > 0x7ff00000u || (high == 0x7ff00000u && a.x != 0u);
}

fn f64_is_inf(a: vec2<u32>) -> bool { return (a.y & 0x7fffffffu) == 0x7ff00000u && a.x == 0u; }

fn f64_is_zero(a: vec2<u32>) -> bool { return ((a.y << 1u) | a.x) == 0u; }

fn f64_digits(a: vec2<u32>) -> vec2<u32> {
  let hidden = select(0x100000u, 0u, (a.y & 0x7ff00000u) == 0u);
  return vec2<u32>(a.x, (a.y & 0xfffffu) | hidden);
}

fn f64_exponent(a: vec2<u32>) -> i32 { return max(i32((a.y >> 20u) & 0x7ffu), 1i) - 1075i; }

// digits · 2^exponent, rounded to the nearest, ties to even.
fn f64_rounded(sign: u32, exponent: i32, digits: vec2<u32>) -> vec2<u32> {
  if ((digits.x | digits.y) == 0u) { return vec2<u32>(0u, sign); }
  let zeros = wide_clz(digits);
  let m = wide_shl(digits, zeros);
  let place = exponent - i32(zeros) + 63i + 1023i;
  if (place >= 2047i) { return vec2<u32>(0u, sign | 0x7ff00000u); }
  let shift = u32(select(11i, min(12i - place, 100i), place <= 0i));
  if (shift > 64u) { return vec2<u32>(0u, sign); }
  let kept = wide_shr_sticky(m, shift - 2u);
  var q = wide_shr_unsigned(kept, 2u);
  let rest = kept.x & 3u;
  if (rest == 3u || (rest == 2u && (q.x & 1u) != 0u)) { q = wide_add(q, vec2<u32>(1u, 0u)); }
  return vec2<u32>(q.x, (q.y + (u32(max(place - 1i, 0i)) << 20u)) | sign);
}

fn f64_mul(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> {
  let sign = (a.y ^ b.y) & 0x80000000u;
  if (f64_is_nan(a) || f64_is_nan(b)) { return vec2<u32>(0u, 0x7ff80000u); }
  if (f64_is_inf(a) || f64_is_inf(b)) {
    if (f64_is_zero(a) || f64_is_zero(b)) { return vec2<u32>(0u, 0x7ff80000u); }
    return vec2<u32>(0u, sign | 0x7ff00000u);
  }
  if (f64_is_zero(a) || f64_is_zero(b)) { return vec2<u32>(0u, sign); }
  let za = wide_clz(f64_digits(a)); let zb = wide_clz(f64_digits(b));
  let x = wide_shl(f64_digits(a), za); let y = wide_shl(f64_digits(b), zb);
  let low = wide_product(x.x, y.x);
  let first = wide_product(x.y, y.x);
  let second = wide_product(x.x, y.y);
  let middle = wide_add(wide_add(vec2<u32>(low.y, 0u), vec2<u32>(first.x, 0u)), vec2<u32>(second.x, 0u));
  let sum = wide_add(wide_add(vec2<u32>(first.y, 0u), vec2<u32>(second.y, 0u)), vec2<u32>(middle.y, 0u));
  var high = wide_add(wide_product(x.y, y.y), sum);
  high.x = high.x | select(0u, 1u, (low.x | middle.x) != 0u);
  return f64_rounded(sign, f64_exponent(a) - i32(za) + f64_exponent(b) - i32(zb) + 64i, high);
}

fn f64_div(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> {
  let sign = (a.y ^ b.y) & 0x80000000u;
  if (f64_is_nan(a) || f64_is_nan(b)) { return vec2<u32>(0u, 0x7ff80000u); }
  if (f64_is_inf(a)) { return vec2<u32>(0u, select(sign | 0x7ff00000u, 0x7ff80000u, f64_is_inf(b))); }
  if (f64_is_inf(b)) { return vec2<u32>(0u, sign); }
  if (f64_is_zero(b)) { return vec2<u32>(0u, select(sign | 0x7ff00000u, 0x7ff80000u, f64_is_zero(a))); }
  if (f64_is_zero(a)) { return vec2<u32>(0u, sign); }
  let za = wide_clz(f64_digits(a)); let zb = wide_clz(f64_digits(b));
  var rest = wide_shl(f64_digits(a), za);
  let y = wide_shl(f64_digits(b), zb);
  var q = vec2<u32>(0u, 0u);
  var carried = 0u;
  for (var i: i32 = 0i; i < 64i; i++) {
    q = wide_shl(q, 1u);
    if (carried != 0u || !wide_less_unsigned(rest, y)) {
      rest = wide_sub(rest, y);
      q.x = q.x | 1u;
    }
    carried = rest.y >> 31u;
    rest = wide_shl(rest, 1u);
  }
  q.x = q.x | select(0u, 1u, (rest.x | rest.y | carried) != 0u);
  return f64_rounded(sign, f64_exponent(a) - i32(za) - f64_exponent(b) + i32(zb) - 63i, q);
}

fn f64_add(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> {
  if (f64_is_nan(a) || f64_is_nan(b)) { return vec2<u32>(0u, 0x7ff80000u); }
  if (f64_is_inf(a)) {
    if (f64_is_inf(b) && a.y != b.y) { return vec2<u32>(0u, 0x7ff80000u); }
    return a;
  }
  if (f64_is_inf(b)) { return b; }
  var x = a; var y = b;
  if (f64_exponent(a) < f64_exponent(b)) { x = b; y = a; }
  let exponent = f64_exponent(x);
  let m = wide_shl(f64_digits(x), 10u);
  let n = wide_shr_sticky(wide_shl(f64_digits(y), 10u), u32(exponent - f64_exponent(y)));
  let sign = x.y & 0x80000000u;
  if (((x.y ^ y.y) >> 31u) == 0u) { return f64_rounded(sign, exponent - 10i, wide_add(m, n)); }
  if (all(m == n)) { return vec2<u32>(0u, 0u); }
  if (wide_less_unsigned(m, n)) { return f64_rounded(sign ^ 0x80000000u, exponent - 10i, wide_sub(n, m)); }
  return f64_rounded(sign, exponent - 10i, wide_sub(m, n));
}

fn f64_sub(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> {
  return f64_add(a, vec2<u32>(b.x, b.y ^ 0x80000000u));
}

fn f64_equal(a: vec2<u32>, b: vec2<u32>) -> bool {
  if (f64_is_nan(a) || f64_is_nan(b)) { return false; }
  return all(a == b) || (f64_is_zero(a) && f64_is_zero(b));
}

fn f64_less(a: vec2<u32>, b: vec2<u32>) -> bool {
  if (f64_is_nan(a) || f64_is_nan(b) || (f64_is_zero(a) && f64_is_zero(b))) { return false; }
  if (((a.y ^ b.y) >> 31u) != 0u) { return (a.y >> 31u) != 0u; }
  return select(wide_less_unsigned(a, b), wide_less_unsigned(b, a), (a.y >> 31u) != 0u);
}

fn f64_less_equal(a: vec2<u32>, b: vec2<u32>) -> bool { return f64_less(a, b) || f64_equal(a, b); }

fn f64_of_unsigned(a: vec2<u32>) -> vec2<u32> { return f64_rounded(0u, 0i, a); }

fn f64_of_wide(a: vec2<u32>) -> vec2<u32> { return f64_rounded(a.y & 0x80000000u, 0i, wide_magnitude(a)); }

fn f64_of_float(x: f32) -> vec2<u32> {
  let bits = bitcast<u32>(x);
  let sign = bits & 0x80000000u;
  let place = (bits >> 23u) & 0xffu;
  let digits = bits & 0x7fffffu;
  if (place == 255u) { return vec2<u32>(0u, sign | select(0x7ff00000u, 0x7ff80000u, digits != 0u)); }
  let hidden = select(0x800000u, 0u, place == 0u);
  return f64_rounded(sign, max(i32(place), 1i) - 150i, vec2<u32>(digits | hidden, 0u));
}

fn f64_to_float(a: vec2<u32>) -> f32 {
  let sign = a.y & 0x80000000u;
  if (f64_is_nan(a)) { return from_bits(0x7fc00000u); }
  if (f64_is_inf(a)) { return from_bits(sign | 0x7f800000u); }
  let digits = wide_shl(f64_digits(a), 11u);
  let place = f64_exponent(a) - 11i + 63i + 127i;
  if ((digits.x | digits.y) == 0u || place < -30i) { return from_bits(sign); }
  if (place >= 255i) { return from_bits(sign | 0x7f800000u); }
  let shift = u32(select(40i, 41i - place, place <= 0i));
  let kept = wide_shr_sticky(digits, min(shift, 66u) - 2u);
  var q = wide_shr_unsigned(kept, 2u).x;
  let rest = kept.x & 3u;
  if (rest == 3u || (rest == 2u && (q & 1u) != 0u)) { q = q + 1u; }
  return from_bits(sign | (q + (u32(max(place - 1i, 0i)) << 23u)));
}

fn f64_to_wide(a: vec2<u32>) -> vec2<u32> {
  let exponent = f64_exponent(a);
  if (exponent >= 11i || f64_is_nan(a)) { return vec2<u32>(0u, 0x80000000u); }
  var size = vec2<u32>(0u, 0u);
  if (exponent >= 0i) { size = wide_shl(f64_digits(a), u32(exponent)); }
  else if (exponent > -64i) { size = wide_shr_unsigned(f64_digits(a), u32(-exponent)); }
  if ((a.y >> 31u) != 0u) { return wide_sub(vec2<u32>(0u, 0u), size); }
  return size;
}

fn f64_round(a: vec2<u32>) -> vec2<u32> {
  if (f64_exponent(a) >= 0i) { return a; }
  let sign = a.y & 0x80000000u;
  let magic = vec2<u32>(0u, sign | 0x43300000u);
  let found = f64_sub(f64_add(a, magic), magic);
  return vec2<u32>(found.x, (found.y & 0x7fffffffu) | sign);
}

fn f64_floor(a: vec2<u32>) -> vec2<u32> {
  let near = f64_round(a);
  if (f64_less(a, near)) { return f64_sub(near, vec2<u32>(0u, 0x3ff00000u)); }
  return near;
}

fn f64_ceil(a: vec2<u32>) -> vec2<u32> {
  let found = f64_floor(vec2<u32>(a.x, a.y ^ 0x80000000u));
  return vec2<u32>(found.x, found.y ^ 0x80000000u);
}

fn f64_trunc(a: vec2<u32>) -> vec2<u32> {
  if ((a.y >> 31u) != 0u) { return f64_ceil(a); }
  return f64_floor(a);
}

fn f64_abs(a: vec2<u32>) -> vec2<u32> { return vec2<u32>(a.x, a.y & 0x7fffffffu); }

const quarter_turns = array<u32, 8>(
  0u, 0x517cc1b7u, 0x27220a94u, 0xfe13abe8u, 0xfa9a6ee0u, 0x6db14accu, 0x9e21c820u, 0xff28b1d5u
);

// The quadrant of |x|, and the bits of the angle in it, in [-pi/4, pi/4]: Payne and Hanek's reduction, for all x.
fn quadrant(x: f32) -> vec2<u32> {
  let raw = bitcast<u32>(x) & 0x7fffffffu;
  if (raw <= 0x3f490fdbu) { return vec2<u32>(0u, raw); }
  let place = max(raw >> 23u, 127u) - 127u;
  let m = ((raw & 0x7fffffu) | 0x800000u) << select(8u, 7u, raw < 0x3f800000u);
  var turns = quarter_turns;
  let i = place / 32u;
  let a = wide_shl(vec2<u32>(turns[i + 1u], turns[i]), place & 31u).y;
  let b = wide_shl(vec2<u32>(turns[i + 2u], turns[i + 1u]), place & 31u).y;
  let c = wide_shl(vec2<u32>(turns[i + 3u], turns[i + 2u]), place & 31u).y;
  let low = wide_product(m, c);
  let middle = wide_add(wide_product(m, b), vec2<u32>(low.y, 0u));
  let head = m * a + middle.y;
  let fraction = vec2<u32>((middle.x << 2u) | (low.x >> 30u), (head << 2u) | (middle.x >> 30u));
  let angle = float_of_wide(fraction) * 0x1.921fb6p-64f;
  return vec2<u32>((head >> 30u) + ((head >> 29u) & 1u), bitcast<u32>(angle));
}

fn small_sine(r: f32) -> f32 {
  let z = r * r;
  return keep(((-1.9515295891e-4f * z + 8.3321608736e-3f) * z - 1.6666654611e-1f) * z * r) + r;
}

fn small_cosine(r: f32) -> f32 {
  let z = r * r;
  let rest = ((2.443315711809948e-5f * z - 1.388731625493765e-3f) * z + 4.166664568298827e-2f) * z * z;
  return keep(rest - 0.5f * z) + 1.0f;
}

fn sine(x: f32) -> f32 {
  if (is_nan(x) || is_inf(x)) { return from_bits(0x7fc00000u); }
  let found = quadrant(x);
  let r = bitcast<f32>(found.y);
  let size = select(small_sine(r), small_cosine(r), (found.x & 1u) != 0u);
  return bitcast<f32>(bitcast<u32>(size) ^ ((found.x & 2u) << 30u) ^ (bitcast<u32>(x) & 0x80000000u));
}

fn cosine(x: f32) -> f32 {
  if (is_nan(x) || is_inf(x)) { return from_bits(0x7fc00000u); }
  let found = quadrant(x);
  let r = bitcast<f32>(found.y);
  let size = select(small_cosine(r), small_sine(r), (found.x & 1u) != 0u);
  return bitcast<f32>(bitcast<u32>(size) ^ (((found.x + 1u) & 2u) << 30u));
}

fn tangent(x: f32) -> f32 {
  if (is_nan(x) || is_inf(x)) { return from_bits(0x7fc00000u); }
  let found = quadrant(x);
  let r = bitcast<f32>(found.y);
  let ratio = small_sine(r) / small_cosine(r);
  let size = select(ratio, -small_cosine(r) / small_sine(r), (found.x & 1u) != 0u);
  return bitcast<f32>(bitcast<u32>(size) ^ (bitcast<u32>(x) & 0x80000000u));
}

// a · b as two floats, exactly.
fn exact_product(a: f32, b: f32) -> vec2<f32> {
  let p = keep(a * b);
  let ah = bitcast<f32>(bitcast<u32>(a) & 0xfffff000u); let al = keep(a - ah);
  let bh = bitcast<f32>(bitcast<u32>(b) & 0xfffff000u); let bl = keep(b - bh);
  return vec2<f32>(p, keep(keep(keep(keep(ah * bh) - p) + keep(ah * bl)) + keep(al * bh)) + keep(al * bl));
}

// a + b as two floats, exactly.
fn exact_sum(a: f32, b: f32) -> vec2<f32> {
  let s = keep(a + b);
  let t = keep(s - a);
  return vec2<f32>(s, keep(a - keep(s - t)) + keep(b - t));
}

// log2 of a positive number as two floats.
fn log2_of(x: f32) -> vec2<f32> {
  let tiny = x < 0x1p-126f;
  let raw = bitcast<u32>(select(x, x * 8388608.0f, tiny)) - 0x3f3504f3u;
  let exponent = f32(bitcast<i32>(raw) >> 23u) - select(0.0f, 23.0f, tiny);
  let m = bitcast<f32>((raw & 0x7fffffu) + 0x3f3504f3u);
  let below = exact_sum(m, 1.0f);
  let s = keep((m - 1.0f) / below.x);
  let back = exact_product(s, below.x);
  let rest = keep(keep(keep(keep(m - 1.0f) - back.x) - back.y) - keep(s * below.y)) / below.x;
  let z = s * s;
  let series = ((((0.2623081892f * z + 0.3205988979f) * z + 0.4121985831f) * z + 0.5770780164f) * z + 0.9617966939f);
  let first = exact_product(s, 0x1.715476p+1f);
  let small = keep(series * z * s) + keep(first.y + keep(s * 0x1.4ae0c0p-25f) + keep(rest * 0x1.715476p+1f));
  let sum = exact_sum(exponent, first.x);
  return vec2<f32>(sum.x, sum.y + small);
}

fn exp2_of(t: vec2<f32>) -> f32 {
  if (t.x >= 160.0f) { return from_bits(0x7f800000u); }
  if (t.x <= -160.0f) { return 0.0f; }
  let n = round(t.x + t.y);
  let f = keep(t.x - n) + t.y;
  let high = ((1.540353e-4f * f + 1.3333558e-3f) * f + 9.6181291e-3f) * f + 5.5504109e-2f;
  let p = (high * f + 0.24022651f) * f + 0.69314718f;
  return ld_exp(keep(p * f) + 1.0f, i32(n));
}

fn power(x: f32, y: f32) -> f32 {
  if (y == 0.0f || x == 1.0f) { return 1.0f; }
  if (is_nan(x) || is_nan(y)) { return from_bits(0x7fc00000u); }
  let a = magnitude(x);
  let whole = floor(y) == y;
  let odd = whole && floor(y * 0.5f) < y * 0.5f;
  let sign = select(0u, bitcast<u32>(x) & 0x80000000u, odd);
  var size = 1.0f;
  if (a == 0.0f || is_inf(x)) {
    size = select(0.0f, from_bits(0x7f800000u), (a == 0.0f) == (y < 0.0f));
  } else if (is_inf(y)) {
    if (a != 1.0f) { size = select(0.0f, from_bits(0x7f800000u), (a > 1.0f) == (y > 0.0f)); }
  } else {
    if (x < 0.0f && !whole) { return from_bits(0x7fc00000u); }
    let l = log2_of(a);
    if (magnitude(y) * magnitude(l.x) > 300.0f) {
      size = select(0.0f, from_bits(0x7f800000u), (l.x > 0.0f) == (y > 0.0f));
    } else {
      let t = exact_product(y, l.x);
      size = exp2_of(vec2<f32>(t.x, t.y + keep(y * l.y)));
    }
  }
  return from_bits(bitcast<u32>(size) | sign);
}
"""
_FUNCTION = re.compile(
    r"^(?:// [^\n]*\n)?(?:fn|const) (\w+)(?:\(| = ).*?(?:^\}|\}|^\);)\n(?=\n|\Z)",
    re.MULTILINE | re.DOTALL,
)
FUNCTIONS: dict[str, str] = {match[1]: match[0] for match in _FUNCTION.finditer(_TEXT)}
"""The text of each function, by name."""
_NAME = re.compile(r"\b[A-Za-z_]\w*\b")


def definitions(text: str) -> str:
    """The functions that a text calls, directly or through others, in the order of this file."""
    return "\n".join(FUNCTIONS[name] for name in _called([text]))


def _called(texts: Iterable[str]) -> list[str]:
    wanted: set[str] = set()
    waiting = list(texts)
    while waiting:
        for name in _NAME.findall(waiting.pop()):
            if name in FUNCTIONS and name not in wanted:
                wanted.add(name)
                waiting.append(FUNCTIONS[name])
    return [name for name in FUNCTIONS if name in wanted]
