"""Gradients by their names under `R.grad`: `relaxpy.op.grad.take_backward(…)`. Each is defined in
the file of its subject."""

from relaxpy.op import gradient

end_checkpoint = gradient.EndCheckpoint.make
nll_loss_backward = gradient.NllLossBackward.make
no_grad = gradient.NoGrad.make
start_checkpoint = gradient.StartCheckpoint.make
take_backward = gradient.TakeBackward.make
