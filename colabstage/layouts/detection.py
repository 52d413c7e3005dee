"""Images with boxes, in whichever format their annotations are."""

from __future__ import annotations

from typing import TYPE_CHECKING

from colabstage.errors import EmptySourceError, LayoutError
from colabstage.layouts.box_tools import read_box_tools
from colabstage.layouts.coco import read_coco
from colabstage.layouts.kitti import read_kitti
from colabstage.layouts.names import IMAGE_EXTENSIONS
from colabstage.layouts.table import BrokenDatasetError
from colabstage.layouts.voc import read_voc
from colabstage.layouts.yolo import read_yolo
from colabstage.trees.entries import files_ending_in

if TYPE_CHECKING:
    from colabstage.layouts.table import SampleTable
    from colabstage.trees.tree import Tree

# The more a format demands, the earlier: a YOLO export often has a JSON or XML of the same boxes beside it.
_FORMATS = {"KITTI": read_kitti, "Pascal VOC": read_voc, "COCO": read_coco, "YOLO": read_yolo, "others": read_box_tools}


def read_detection(tree: Tree) -> SampleTable:
    """Make a table of images with boxes: labels of KITTI, Pascal VOC, COCO, YOLO, or one of the formats of
    `box_tools`, whichever there are.

    Raises:
        EmptySourceError: there are no images.
        LayoutError: there are no labels of any of these forms; the message has the reason of each.
        BrokenDatasetError: there are, and one is broken; it is named.
    """
    if not files_ending_in(tree.entries, IMAGE_EXTENSIONS):
        msg = f"'{tree.label}' holds no images."
        raise EmptySourceError(msg)
    declined = []
    for name, read in _FORMATS.items():
        try:
            return read(tree)
        except BrokenDatasetError:
            raise
        except LayoutError as error:
            declined.append(f"{name}: {error}")
    msg = f"'{tree.label}' has no boxes beside its images. {' '.join(declined)}"
    raise LayoutError(msg)
