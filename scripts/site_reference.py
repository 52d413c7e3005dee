"""The pages of the site's reference: title, one sentence, and the names as people import them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ReferencePage:
    """One page. `names`: dotted, each a function, or a class or module with its public members."""

    title: str
    about: str
    names: tuple[str, ...]

    @property
    def markdown(self) -> str:
        """The page; mkdocstrings puts the docstrings in."""
        return "\n\n".join([f"# {self.title}", self.about, *(f"::: {name}" for name in self.names)]) + "\n"


REFERENCE = {
    "staging": ReferencePage(
        "Staging and packing",
        "Make a dataset local and ready, or only convert it to one HDF5 file; and free its space again.",
        (
            "colabstage.stage_dataset",
            "colabstage.plan_stage",
            "colabstage.options.PackOptions",
            "colabstage.StagedDataset",
            "colabstage.stage.dataset.StageReport",
            "colabstage.stage.plan.StagePlan",
            "colabstage.pack_dataset",
            "colabstage.pack.execute.PackReport",
            "colabstage.verify_file",
            "colabstage.h5.manifest.VerifiedFile",
            "colabstage.io.progress.Progress",
            "colabstage.io.progress.ProgressStep",
            "colabstage.io.progress.Cancellation",
            "colabstage.h5.arrival.Readiness",
            "colabstage.list_datasets",
            "colabstage.stage.purge.StoredDataset",
            "colabstage.purge_datasets",
            "colabstage.stage.purge.PurgeReport",
        ),
    ),
    "fetching": ReferencePage(
        "Fetching",
        "The two halves of plain files, usable alone.",
        (
            "colabstage.fetch_files",
            "colabstage.sources.fetching.FetchReport",
            "colabstage.extract_archive",
            "colabstage.sources.fetching.ExtractReport",
        ),
    ),
    "drive": ReferencePage(
        "Drive and checkpoints",
        "A mounted Google Drive, and files that really arrive there.",
        (
            "colabstage.mount_drive",
            "colabstage.refresh_drive",
            "colabstage.flush_drive",
            "colabstage.machine.drive.FlushReport",
            "colabstage.publish_file",
            "colabstage.stage.publish.PublishReport",
            "colabstage.restore_file",
            "colabstage.resumable",
            "colabstage.list_runs",
            "colabstage.runs.listing.RunFacts",
            "colabstage.runs.run.Run",
            "colabstage.stage.publish.RestoreReport",
        ),
    ),
    "reading": ReferencePage(
        "Reading",
        "Out of the pack into PyTorch, Keras, tf.data and numpy.",
        (
            "colabstage.dataset_h5",
            "colabstage.make_loader",
            "colabstage.options.LoaderOptions",
            "colabstage.load.loader.Loader",
            "colabstage.load.plan.LoaderPlan",
            "colabstage.CudaDataLoader",
            "colabstage.to_keras",
            "colabstage.load.frameworks.keras_dataset.KerasBatches",
            "colabstage.to_numpy",
            "colabstage.load.frameworks.arrays.NumpyLoader",
            "colabstage.to_hf",
            "colabstage.to_tf_data",
            "colabstage.load.reading.reader.SplitReader",
            "colabstage.load.plan.Choice",
        ),
    ),
    "augmentation": ReferencePage(
        "Augmentation",
        "Whole batches on their device, masks and boxes together with their images.",
        tuple(
            f"colabstage.load.augment.{name}"
            for name in ("Compose", "RandomFlip", "RandomCrop", "RandomResizedCrop", "Normalize", "OneHot")
        ),
    ),
    "layouts": ReferencePage(
        "Layouts of your own",
        "Options of a layout, and what a function that is one returns.",
        (
            *(f"colabstage.layouts.options.{name}" for name in ("array_rows", "table_rows", "audio_clips", "folders")),
            *(f"colabstage.layouts.options.{name}" for name in ("parts", "token_blocks")),
            "colabstage.layouts.table.SampleTable",
            *(f"colabstage.layouts.table.{name}" for name in ("Images", "Arrays", "Values", "Masks", "Boxes")),
            "colabstage.layouts.table.SampleSource",
            "colabstage.layouts.table.TreeFiles",
        ),
    ),
    "faces": ReferencePage(
        "Form, browser, plots",
        "What is clicked and looked at in a notebook.",
        (
            "colabstage.stage_form",
            "colabstage.notebook.form.StageForm",
            "colabstage.browse_dataset",
            "colabstage.notebook.browser.DatasetBrowser",
            "colabstage.plot_class_balance",
            "colabstage.plot_image_sizes",
        ),
    ),
    "diagnosing": ReferencePage(
        "Diagnosing",
        "Where the time goes, what is wrong, what to change.",
        (
            "colabstage.doctor",
            "colabstage.io.report.Report",
            "colabstage.io.report.ResultList",
            "colabstage.diagnose.doctor.DoctorReport",
            "colabstage.diagnose.doctor.Finding",
            "colabstage.compare_sources",
            "colabstage.diagnose.compare.SourceComparison",
            "colabstage.profile_loader",
            "colabstage.LoaderProfile",
            "colabstage.diagnose.advice.ProfileFacts",
            "colabstage.autotune_loader",
            "colabstage.diagnose.autotune.TunedLoader",
            "colabstage.GpuMonitor",
            "colabstage.diagnose.gpu.GpuReport",
            "colabstage.diagnose.gpu.GpuFigures",
            "colabstage.diagnose.gpu.GpuSample",
        ),
    ),
    "errors": ReferencePage(
        "Errors",
        "All of them, as a tree that ends in builtins. What to do about each is [on a page of its own](../errors.md).",
        ("colabstage.errors",),
    ),
}
