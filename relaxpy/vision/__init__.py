"""Pictures as models see them: read from files (`picture`), resized, cropped and normalised as their checkpoints say
(`processor`), or made patches or several views (`several`). `relaxpy.models.picture_embedding` makes vectors and labels
of them."""

from relaxpy.vision.picture import read_picture
from relaxpy.vision.processor import PictureProcessor
from relaxpy.vision.several import PanAndScan, Patches, PatchProcessor

__all__ = ["PanAndScan", "PatchProcessor", "Patches", "PictureProcessor", "read_picture"]


def __dir__() -> list[str]:
    return sorted(__all__)
