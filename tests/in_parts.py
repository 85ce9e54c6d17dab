"""Records in parts in this process: what goes to a part, and what comes back, is pickled, and no record may."""

from contextlib import ExitStack, contextmanager

import cloudpickle

from torchdpcate.data.streams import RECORDS, PartedStream

LARGEST = 1 << 20


class LocalParts(PartedStream):
    """Parts that are streams.

    Args:
        streams: Of the same domain.
    """

    def __init__(self, streams, batch_rows=None):
        self.schema, self.n, self.batch_rows = streams[0].schema, sum(stream.n for stream in streams), batch_rows
        self._held = {RECORDS: list(streams)}
        self.asked = 0

    def ask(self, function, of=RECORDS):
        self.asked += 1
        return [sent(sent(function)(held)) for held in self._held[of]]

    @contextmanager
    def holding(self, name, function, of=RECORDS):
        with ExitStack() as stack:
            self._held[name] = [stack.enter_context(sent(function)(held)) for held in self._held[of]]
            yield
        del self._held[name]

    def first(self):
        return self._held[RECORDS][0].first()


def sent(thing):
    """Return a thing as it arrives."""
    written = cloudpickle.dumps(thing)
    assert len(written) < LARGEST
    return cloudpickle.loads(written)
