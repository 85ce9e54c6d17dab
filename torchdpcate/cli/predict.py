"""``torchdpcate predict``: stream a table through a release."""

import os
from pathlib import Path

from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from torchdpcate.data._frames import MOST_BYTES
from torchdpcate.data.stream import stream_effects
from torchdpcate.errors import InputError
from torchdpcate.release.average_effect import AverageEffectRelease
from torchdpcate.release.file import load_release


def predict(release: str, input: str, output: str, most_bytes: int | None = None) -> None:
    """Write the effects, or a rule's decisions, at the rows of ``input`` to ``output``, in constant memory.

    Args:
        release: Release file, or the run folder that holds it.
        input: csv or parquet table with the schema's covariate columns.
        output: csv or parquet file to write, whole or not at all.
        most_bytes: What a row group of a parquet file may unpack to; None for 1 GiB.

    Raises:
        InputError: A damaged release, missing columns, or rows outside the domain.
    """
    loaded = load_release(release)
    if isinstance(loaded, AverageEffectRelease):
        raise InputError(
            f"{release}: is an average effect, one number and no column; torchdpcate inspect shows it with its interval"
        )
    if os.path.exists(input) and os.path.exists(output) and os.path.samefile(input, output):
        raise InputError(f"output {output} is the input; give another name")
    columns = (TextColumn("predicting"), BarColumn(), TextColumn("{task.completed:,} rows"), TimeElapsedColumn())
    with Progress(*columns, transient=True) as progress:
        bar = progress.add_task("predict", total=None)
        rows = stream_effects(
            Path(input),
            Path(output),
            loaded.schema,
            loaded.answer,
            column=loaded.column,
            on_progress=lambda done: progress.update(bar, completed=done),
            most_bytes=MOST_BYTES if most_bytes is None else most_bytes,
        )
    print(f"{rows:,} {loaded.column}s ({loaded.privacy.headline}) written to {output}")
