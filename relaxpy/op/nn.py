"""The neural-network operators by their names under `R.nn`: `relaxpy.op.nn.softmax(x)`. Each is
defined in the file of its subject."""

from relaxpy.op import activation, conv, conv_transpose, norm
from relaxpy.op import softmax as _softmax

gelu = activation.Gelu.make
gelu_tanh = activation.GeluTanh.make
leakyrelu = activation.LeakyRelu.make
prelu = activation.Prelu.make
relu = activation.Relu.make
relu6 = activation.Relu6.make
selu = activation.Selu.make
silu = activation.Silu.make
softplus = activation.Softplus.make

log_softmax = _softmax.LogSoftmax.make
softmax = _softmax.Softmax.make

batch_norm = norm.BatchNorm.make
dropout = norm.Dropout.make
group_norm = norm.GroupNorm.make
instance_norm = norm.InstanceNorm.make
layer_norm = norm.LayerNorm.make
rms_norm = norm.RmsNorm.make

conv1d = conv.Conv1d.make
conv1d_transpose = conv_transpose.Conv1dTranspose.make
conv2d = conv.Conv2d.make
conv2d_transpose = conv_transpose.Conv2dTranspose.make
conv3d = conv.Conv3d.make
conv3d_transpose = conv_transpose.Conv3dTranspose.make
