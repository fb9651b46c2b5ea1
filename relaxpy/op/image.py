"""The image operators by their names under `R.image`: `relaxpy.op.image.resize2d(x, (n, m))`."""

from relaxpy.op import grid, resize

affine_grid = grid.AffineGrid.make
grid_sample = grid.GridSample.make
resize2d = resize.Resize2d.make
resize3d = resize.Resize3d.make
