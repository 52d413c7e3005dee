"""What a notebook practises on: a Drive wherever it runs, and small datasets on it where it is given none.

On Colab it is the person's own Drive; one small archive is put there. Elsewhere a simulated Drive is mounted in a
temporary folder, where staged data go as well, so that nothing is left when the kernel ends. Where nothing can be
mounted, a plain folder plays the Drive, without its slowness.
"""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Literal, get_args

from colabstage.errors import OptionError
from colabstage.machine.drive import mount_drive
from colabstage.machine.platforms import LOCAL_DIR_VARIABLE, SYSTEM_ROOT_VARIABLE, detect_platform, system_root
from colabstage.simulate.digits import zip_digits
from colabstage.simulate.drive import SimulatedDrive, fuse_problem
from colabstage.simulate.scenes import zip_boxes, zip_masks

if TYPE_CHECKING:
    from collections.abc import Callable

PracticeData = Literal["digits", "masks", "boxes"]

_WRITERS: dict[PracticeData, Callable[[Path], None]] = {"digits": zip_digits, "masks": zip_masks, "boxes": zip_boxes}
_FOLDER = "colabstage-practice"


def open_drive() -> Path:
    """The `MyDrive` folder of a Drive: the real one on Colab, a simulated one elsewhere; prints which.

    What is simulated is this process's own, and gone when it ends, with all that was staged meanwhile.

    Raises:
        DriveAuthError: on Colab, the permission was refused.
        DriveError: on Colab, the Drive could not be mounted.
    """
    if detect_platform().drive_mountable:
        return mount_drive(system_root() / "content/drive")
    return _practice_drive()


def practice_source(source: str = "", data: PracticeData = "digits") -> str | Path:
    """What a notebook stages: `source` when there is one, else a small archive that is put on the Drive.

    Args:
        source: whatever `stage_dataset` takes. On Colab Drive is mounted first, as the source may lie there.
        data: `"digits"`: scikit-learn's handwritten digits, a folder for each class; `"masks"`: pictures of several
            digits with a mask for each, coloured by class; `"boxes"`: the same pictures with boxes, as KITTI has them.

    Raises:
        OptionError: there are no such data.
        DriveError: on Colab, the Drive could not be mounted.
    """
    if data not in _WRITERS:
        msg = f"data={data!r} is nothing to practise on. There are: {', '.join(get_args(PracticeData))}."
        raise OptionError(msg)
    if source:
        if detect_platform().drive_mountable:
            open_drive()
        return source
    target = open_drive() / _FOLDER / f"{data}.zip"
    if not target.exists():
        target.parent.mkdir(exist_ok=True)
        _WRITERS[data](target)
        print(f"Practising on '{target}'. Your own data go into SOURCE.")
    return target


@cache
def _practice_drive() -> Path:
    """One for each process, as a machine has one Drive."""
    home = Path(tempfile.mkdtemp(prefix="colabstage-practice-"))
    atexit.register(shutil.rmtree, home, ignore_errors=True)
    os.environ[LOCAL_DIR_VARIABLE] = str(home / "local")
    # Else a Drive that another process practises on would be found as well, and be gone a moment later.
    os.environ[SYSTEM_ROOT_VARIABLE] = str(home)
    problem = fuse_problem()
    if problem is not None:
        print(f"This is not Colab, and no Drive can be simulated here: a plain folder plays it, '{home}'. {problem}")
        place = home / "MyDrive"
        place.mkdir()
        return place
    drive = SimulatedDrive(home)
    atexit.register(drive.unmount)
    drive.mount(home / "drive")
    print(f"This is not Colab: a simulated Drive is mounted at '{home / 'drive'}', as slow as the real one.")
    return home / "drive" / "MyDrive"
