"""One folder per class, with or without folders of splits above: the layout of torchvision's `ImageFolder`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from colabstage.layouts.fields import Images, Values
from colabstage.layouts.folders.class_folders import FileKind, find_class_folders
from colabstage.layouts.names import IMAGE_EXTENSIONS
from colabstage.layouts.sources import TreeFiles
from colabstage.layouts.table import SampleTable

if TYPE_CHECKING:
    from colabstage.trees.tree import Tree

NAME = "image_folder"


def read_image_folder(tree: Tree) -> SampleTable:
    """Make a table of a tree in which every image lies in the folder of its class.

    Split folders (train or training, val, valid, validation, dev, test or testing, in any case) may lie above the
    class folders; then the classes are those of all splits together. Samples come in the order of `ImageFolder`,
    split after split.

    Raises:
        EmptySourceError: there are no images at all; the message says what there is instead.
        LayoutError: the images are not in folders of classes; the message says how they lie.
    """
    found = find_class_folders(tree, FileKind(NAME, "images", IMAGE_EXTENSIONS))
    return SampleTable(
        layout=NAME,
        keys=found.files.names,
        inputs=Images(TreeFiles(tree, found.files)),
        targets=Values(found.labels),
        splits=found.splits,
        classes=found.classes,
        notes=found.notes,
    )
