"""Pictures as models see them: read from files (`picture`), resized, cropped and normalised as their checkpoints say
(`processor`). `relaxpy.models.picture_embedding` makes vectors and labels of them."""

from relaxpy.vision.picture import read_picture
from relaxpy.vision.processor import PictureProcessor

__all__ = ["PictureProcessor", "read_picture"]


def __dir__() -> list[str]:
    return sorted(__all__)
