"""The operators of object detection by their names under `R.vision`: `relaxpy.op.vision.roi_align(…)`."""

from relaxpy.op import multibox, nms, roi

all_class_non_max_suppression = nms.AllClassNonMaxSuppression.make
get_valid_counts = nms.GetValidCounts.make
multibox_transform_loc = multibox.MultiboxTransformLoc.make
non_max_suppression = nms.NonMaxSuppression.make
roi_align = roi.RoiAlign.make
roi_pool = roi.RoiPool.make
