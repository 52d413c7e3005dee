"""Images with boxes, in any of the forms that detection datasets come in."""

from __future__ import annotations

from typing import TYPE_CHECKING

from colabstage.errors import EmptySourceError, LayoutError
from colabstage.layouts.boxes.coco import read_coco
from colabstage.layouts.boxes.image_boxes import NAME as NAME  # noqa: PLC0414  # the layout's name, as every reader has it
from colabstage.layouts.boxes.kitti import read_kitti
from colabstage.layouts.boxes.voc import read_voc
from colabstage.layouts.boxes.yolo import read_yolo
from colabstage.layouts.names import IMAGE_EXTENSIONS
from colabstage.layouts.table import ClaimedTreeError
from colabstage.trees.entries import files_ending_in

if TYPE_CHECKING:
    from colabstage.layouts.table import SampleTable
    from colabstage.trees.tree import Tree

# The more a format demands, the earlier: a YOLO export often has a JSON or XML of the same boxes beside it.
_FORMATS = {"KITTI": read_kitti, "Pascal VOC": read_voc, "COCO": read_coco, "YOLO": read_yolo}


def read_detection(tree: Tree) -> SampleTable:
    """Make a table of images with boxes: labels of KITTI, Pascal VOC, COCO or YOLO, whichever there are.

    Raises:
        EmptySourceError: there are no images.
        LayoutError: there are no labels of any of these forms; the message has the reason of each.
        ClaimedTreeError: there are, and one is broken; it is named.
    """
    if not files_ending_in(tree.entries, IMAGE_EXTENSIONS):
        msg = f"'{tree.label}' holds no images."
        raise EmptySourceError(msg)
    declined = []
    for name, read in _FORMATS.items():
        try:
            return read(tree)
        except ClaimedTreeError:
            raise
        except LayoutError as error:
            declined.append(f"{name}: {error}")
    msg = f"'{tree.label}' has no boxes beside its images. {' '.join(declined)}"
    raise LayoutError(msg)
