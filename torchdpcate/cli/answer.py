"""``torchdpcate answer``: new queries to a run's online service. The curator's side; the answers may leave."""

import os
import sys
from pathlib import Path

from torchdpcate._files import refuse_existing
from torchdpcate.data._csv import PLAIN, CsvForm
from torchdpcate.data.stream import stream_answers
from torchdpcate.data.study import read_queries
from torchdpcate.errors import InputError
from torchdpcate.estimators.cate.online.service import OnlineService
from torchdpcate.estimators.cate.online.state import SERVICE_FILE

ONLINE = Path("curator") / "online"


def answer(run: str, queries: str, output: str | None = None, overwrite: bool = False, form: CsvForm = PLAIN) -> None:
    """Answer the rows of a table, as often as wanted, at no further cost.

    Args:
        run: Run folder of ``torchdpcate train release=function mechanism=gaussian_process``.
        queries: A table with the schema's covariate columns.
        output: csv or parquet file to write, whole or not at all; None prints csv.
        overwrite: Whether the output may take the place of a file that is there.
        form: How the queries are written, if they are csv.

    Raises:
        InputError: An output that is there, a run without an online service, missing columns, rows outside the domain,
            a full disk, or a service whose file is damaged or an older one.
    """
    folder = Path(run) / ONLINE
    if not (folder / SERVICE_FILE).is_file():
        raise InputError(
            f"run = {run}: no online service in it; train one with release=function mechanism=gaussian_process "
            "(second_stage=kernel_ridge, linear or tangent), and give its run folder"
        )
    if output is not None and os.path.exists(queries) and os.path.exists(output) and os.path.samefile(queries, output):
        raise InputError(f"output {output} holds the queries; give another name")
    if output is not None and not overwrite:
        refuse_existing(output, "output", "add --overwrite")
    service = OnlineService.open(folder)
    if output is None:
        answers = service.answer(read_queries(queries, service.schema, form))
        sys.stdout.write("".join(["effect\n", *(f"{value!r}\n" for value in answers.tolist())]))
        return
    rows = stream_answers(queries, output, service.schema, lambda x: {"effect": service.answer_tensor(x)}, form=form)
    print(f"{rows:,} effects ({service.privacy.headline}) written to {output}")
