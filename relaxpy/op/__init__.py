"""The operators: each in one place (`relaxpy.op.base` says what that means), by subject in the
files of this package.

`relaxpy.op.matmul(x, w)`, `relaxpy.op.nn.softmax(x)` make a call of each, with the arguments and
then the attributes of the class, as `R.matmul` does in script; `OPS` has them all by name.
`call_tir` and its kin are in `relaxpy.op.call`, memory and VM instructions in
`relaxpy.op.memory`.
"""

from relaxpy.op import (
    arg_reduce,
    binary,
    collapse,
    compare,
    create,
    datatype,
    device,
    einstein,
    gather,
    grad,
    image,
    inspect,
    intrinsic,
    join,
    linear_algebra,
    manipulate,
    memory,
    nn,
    quantization,
    reduce,
    relayout,
    repetition,
    reverse,
    row_major,
    sampling,
    scan,
    scatter,
    search,
    set,
    slice,
    sorting,
    triangle,
    unary,
    vision,
)
from relaxpy.op.base import OPS, Op
from relaxpy.op.call import call_dps_library, call_packed, call_pure_packed, call_tir

abs = unary.Abs.make
acos = unary.Acos.make
acosh = unary.Acosh.make
asin = unary.Asin.make
asinh = unary.Asinh.make
atan = unary.Atan.make
atanh = unary.Atanh.make
bitwise_not = unary.BitwiseNot.make
ceil = unary.Ceil.make
clip = unary.Clip.make
cos = unary.Cos.make
cosh = unary.Cosh.make
erf = unary.Erf.make
exp = unary.Exp.make
floor = unary.Floor.make
isfinite = unary.IsFinite.make
isinf = unary.IsInf.make
isnan = unary.IsNan.make
log = unary.Log.make
logical_not = unary.LogicalNot.make
negative = unary.Negative.make
round = unary.Round.make
rsqrt = unary.Rsqrt.make
sigmoid = unary.Sigmoid.make
sign = unary.Sign.make
sin = unary.Sin.make
sinh = unary.Sinh.make
sqrt = unary.Sqrt.make
square = unary.Square.make
tan = unary.Tan.make
tanh = unary.Tanh.make
trunc = unary.Trunc.make

add = binary.Add.make
atan2 = binary.Atan2.make
bitwise_and = binary.BitwiseAnd.make
bitwise_or = binary.BitwiseOr.make
bitwise_xor = binary.BitwiseXor.make
divide = binary.Divide.make
ewise_fma = binary.EwiseFma.make
floor_divide = binary.FloorDivide.make
floor_mod = binary.FloorMod.make
left_shift = binary.LeftShift.make
log_add_exp = binary.LogAddExp.make
logical_and = binary.LogicalAnd.make
logical_or = binary.LogicalOr.make
logical_xor = binary.LogicalXor.make
maximum = binary.Maximum.make
minimum = binary.Minimum.make
mod = binary.Mod.make
multiply = binary.Multiply.make
power = binary.Power.make
right_shift = binary.RightShift.make
subtract = binary.Subtract.make

equal = compare.Equal.make
greater = compare.Greater.make
greater_equal = compare.GreaterEqual.make
less = compare.Less.make
less_equal = compare.LessEqual.make
not_equal = compare.NotEqual.make

argmax = arg_reduce.Argmax.make
argmin = arg_reduce.Argmin.make
median = arg_reduce.Median.make

all = reduce.AllTrue.make
any = reduce.AnyTrue.make
max = reduce.Max.make
mean = reduce.Mean.make
min = reduce.Min.make
prod = reduce.Prod.make
std = reduce.Std.make
sum = reduce.Sum.make
variance = reduce.Variance.make

cumprod = scan.Cumprod.make
cumsum = scan.Cumsum.make

multinomial_from_uniform = sampling.MultinomialFromUniform.make

argsort = sorting.Argsort.make
sort = sorting.Sort.make
topk = sorting.Topk.make

einsum = einstein.Einsum.make
linear = linear_algebra.Linear.make
matmul = linear_algebra.Matmul.make
outer = linear_algebra.Outer.make

broadcast_to = manipulate.BroadcastTo.make
concat = join.Concat.make
expand_dims = manipulate.ExpandDims.make
flatten = row_major.Flatten.make
permute_dims = manipulate.PermuteDims.make
reshape = row_major.Reshape.make
size = row_major.Size.make
split = join.Split.make
stack = join.Stack.make
meshgrid = join.Meshgrid.make
squeeze = manipulate.Squeeze.make

strided_slice = slice.StridedSlice.make
dynamic_strided_slice = slice.DynamicStridedSlice.make
slice_scatter = slice.SliceScatter.make
take = gather.Take.make
gather_elements = gather.GatherElements.make
gather_nd = gather.GatherND.make
index_tensor = gather.IndexTensor.make
where = search.Where.make
bucketize = search.Bucketize.make

arange = create.Arange.make
float_arange = create.FloatArange.make
full = create.Full.make
full_like = create.FullLike.make
hamming_window = create.HammingWindow.make
ones = create.Ones.make
ones_like = create.OnesLike.make
zeros = create.Zeros.make
zeros_like = create.ZerosLike.make

repeat = repetition.Repeat.make
tile = repetition.Tile.make

flip = reverse.Flip.make
reverse_sequence = reverse.ReverseSequence.make

collapse_sum_to = collapse.CollapseSumTo.make
collapse_sum_like = collapse.CollapseSumLike.make

scatter_elements = scatter.ScatterElements.make
scatter_nd = scatter.ScatterND.make
index_put = scatter.IndexPut.make

eye = triangle.Eye.make
eye_like = triangle.EyeLike.make
tril = triangle.Tril.make
triu = triangle.Triu.make

layout_transform = relayout.LayoutTransform.make

astype = datatype.Astype.make
wrap_param = datatype.WrapParam.make

dequantize = quantization.Dequantize.make
one_hot = quantization.OneHot.make
quantize = quantization.Quantize.make
unique = set.Unique.make
nonzero = set.Nonzero.make

hint_on_device = device.HintOnDevice.make
stop_lift_params = device.StopLiftParams.make
to_vdevice = device.ToVDevice.make

assert_op = intrinsic.AssertOp.make
print = intrinsic.Print.make
shape_of = intrinsic.ShapeOf.make
shape_to_tensor = intrinsic.ShapeToTensor.make
tensor_to_shape = intrinsic.TensorToShape.make

__all__ = [
    "OPS", "Op", "abs", "acos", "acosh", "add", "all", "any", "arange", "argmax", "argmin",
    "argsort", "asin", "asinh", "assert_op", "astype", "atan", "atan2", "atanh", "bitwise_and",
    "bitwise_not", "bitwise_or", "bitwise_xor", "broadcast_to", "bucketize", "call_dps_library",
    "call_packed", "call_pure_packed", "call_tir", "ceil", "clip", "collapse_sum_like",
    "collapse_sum_to", "concat", "cos", "cosh", "cumprod", "cumsum", "dequantize", "divide",
    "dynamic_strided_slice", "einsum", "equal", "erf", "ewise_fma", "exp", "expand_dims", "eye",
    "eye_like", "flatten", "flip", "float_arange", "floor", "floor_divide", "floor_mod", "full",
    "full_like", "gather_elements", "gather_nd", "grad", "greater", "greater_equal",
    "hamming_window", "hint_on_device", "image", "index_put", "index_tensor", "inspect",
    "isfinite", "isinf", "isnan", "layout_transform", "left_shift", "less", "less_equal",
    "linear", "log", "log_add_exp", "logical_and", "logical_not", "logical_or", "logical_xor",
    "matmul", "max", "maximum", "mean", "median", "memory", "meshgrid", "min", "minimum", "mod",
    "multinomial_from_uniform", "multiply", "negative", "nn", "nonzero", "not_equal", "one_hot",
    "ones", "ones_like", "outer", "permute_dims", "power", "print", "prod", "quantize", "repeat",
    "reshape", "reverse_sequence", "right_shift", "round", "rsqrt", "scatter_elements",
    "scatter_nd", "shape_of", "shape_to_tensor", "sigmoid", "sign", "sin", "sinh", "size",
    "slice_scatter", "sort", "split", "sqrt", "square", "squeeze", "stack", "std",
    "stop_lift_params", "strided_slice", "subtract", "sum", "take", "tan", "tanh",
    "tensor_to_shape", "tile", "to_vdevice", "topk", "tril", "triu", "trunc", "unique",
    "variance", "vision", "where", "wrap_param", "zeros", "zeros_like",
]  # fmt: skip
