"""The commands `stage` and `plan`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from colabstage.ui.cli import options as o
from colabstage.ui.cli.outcome import NOTHING_DONE, exit_codes, print_json, show, shows_progress

if TYPE_CHECKING:
    from colabstage.stage.dataset import StagedDataset


@o.with_flags(o.StageFlags)
def stage(
    source: o.Source,
    *,
    flags: o.StageFlags,
    as_json: o.AsJson = False,
    debug: o.Debug = False,
) -> None:
    """Make a dataset local and ready, by the shortest way.

    What is staged here already is used as it is. A packed copy in the cache is copied here and verified. Else the
    source is read and packed, and the pack is published to the cache.

    Examples:
      colabstage stage /content/drive/MyDrive/kitti.zip --image-size 256x256
      colabstage stage https://example.org/photos.tar.gz --hash sha256:…
      colabstage stage s3://bucket/part-1.zip s3://bucket/part-2.zip
      colabstage stage photos --splits train=0.8,test=0.2 --on-error skip
      colabstage stage digits.tar.gz --color-mode grayscale --json
    """
    with exit_codes(debug=debug):
        from colabstage.stage.run import stage_dataset

        staged = stage_dataset(o.read_sources(source), **flags.arguments(), progress=shows_progress())
        if as_json:
            print_json(_staged_to_dict(staged))
        else:
            show(staged.report, staged)


def _staged_to_dict(staged: StagedDataset) -> dict[str, object]:
    return {
        "path": staged.path,
        "files": staged.files,
        "splits": dict(staged.splits),
        "classes": staged.classes,
        "report": staged.report.to_dict(),
    }


@o.with_flags(o.StageFlags)
def plan(
    source: o.Source,
    *,
    flags: o.StageFlags,
    as_json: o.AsJson = False,
    debug: o.Debug = False,
) -> None:
    """Say what `stage` would do, and the disk it would need.

    It takes the same arguments, reads what it must to know, and writes nothing.

    Examples:
      colabstage plan /content/drive/MyDrive/kitti.zip --image-size 256x256
      colabstage plan photos --keep both --json
    """
    with exit_codes(debug=debug, kept=NOTHING_DONE):
        from colabstage.stage.run import plan_stage

        planned = plan_stage(o.read_sources(source), **flags.arguments())
        if as_json:
            print_json(planned.to_dict())
        else:
            show(planned)
