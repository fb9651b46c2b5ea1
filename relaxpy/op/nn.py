"""The neural-network operators by their names under `R.nn`: `relaxpy.op.nn.softmax(x)`. Each is
defined in the file of its subject."""

from relaxpy.op import (
    activation,
    adaptive_pool,
    conv,
    conv_transpose,
    loss,
    norm,
    pool,
    rearrange,
)
from relaxpy.op import attention as _attention
from relaxpy.op import pad as _pad
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

adaptive_avg_pool1d = adaptive_pool.AdaptiveAvgPool1d.make
adaptive_avg_pool2d = adaptive_pool.AdaptiveAvgPool2d.make
adaptive_avg_pool3d = adaptive_pool.AdaptiveAvgPool3d.make
avg_pool1d = pool.AvgPool1d.make
avg_pool2d = pool.AvgPool2d.make
avg_pool3d = pool.AvgPool3d.make
max_pool1d = pool.MaxPool1d.make
max_pool2d = pool.MaxPool2d.make
max_pool3d = pool.MaxPool3d.make

attention = _attention.Attention.make
attention_bias = _attention.AttentionBias.make
attention_var_len = _attention.AttentionVarLen.make

batch_flatten = rearrange.BatchFlatten.make
pixel_shuffle = rearrange.PixelShuffle.make

cross_entropy_with_logits = loss.CrossEntropyWithLogits.make
nll_loss = loss.NllLoss.make

pad = _pad.Pad.make
