"""Gradients by their names under `R.grad`: `relaxpy.op.grad.take_backward(…)`. Each is defined in
the file of its subject."""

from relaxpy.op import gradient, pool_gradient

avg_pool2d_backward = pool_gradient.AvgPool2dBackward.make
end_checkpoint = gradient.EndCheckpoint.make
max_pool2d_backward = pool_gradient.MaxPool2dBackward.make
nll_loss_backward = gradient.NllLossBackward.make
no_grad = gradient.NoGrad.make
start_checkpoint = gradient.StartCheckpoint.make
take_backward = gradient.TakeBackward.make
