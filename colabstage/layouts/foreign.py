"""Files that no layout here reads, and one line each that says how to get them in."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from colabstage.trees.tree import Tree

_READ = "pass pack_dataset or stage_dataset a dataset object whose items are (x, y)"
_KINDS = (
    ((".dcm", ".dicom"), "DICOM files", f"Read them by pydicom: {_READ}, x = pydicom.dcmread(path).pixel_array."),
    (
        (".nii", ".nii.gz", ".mha", ".nrrd"),
        "medical volumes",
        f"Read them by nibabel: {_READ}, x = nibabel.load(path).get_fdata(), all of one shape.",
    ),
    (
        (".mp4", ".avi", ".mov", ".mkv", ".webm", ".mpg", ".mpeg"),
        "videos",
        f"Take images out of them: ffmpeg -i clip.mp4 -vf fps=1 clip/%05d.jpg; or {_READ}, x all frames of a clip.",
    ),
)


def how_to_read(tree: Tree) -> str:
    """Return what to do with files of a tree that are of a kind known to be read by nobody here; "" where there are
    none."""
    for extensions, what, remedy in _KINDS:
        names = [entry.name for entry in tree.entries if entry.name.lower().endswith(extensions)]
        if names:
            return (
                f"'{tree.label}' holds {what} ({len(names):,}, first '{names[0]}'). Nothing here reads them. {remedy}"
            )
    return ""
