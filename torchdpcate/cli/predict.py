"""``torchdpcate predict``: stream a table through a release."""

import os
from pathlib import Path

from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from torchdpcate.data import stream_effects
from torchdpcate.errors import InputError
from torchdpcate.release import AverageEffectRelease, load_release


def predict(release: str, input: str, output: str) -> None:
    """Write the effects, or a rule's decisions, at the rows of ``input`` to ``output``, in constant memory.

    Args:
        release: Release file.
        input: csv or parquet table with the schema's covariate columns.
        output: csv or parquet file to write, whole or not at all.

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
        )
    print(f"{rows:,} {loaded.column}s ({loaded.privacy.headline}) written to {output}")
