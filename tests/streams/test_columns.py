import numpy as np
import pytest

from slowrank.telemetry.columns import pack
from slowrank.telemetry.schema import GPU_V1, MISSING_INT, STEP_V1, Block, Column
from streams.columns import as_float, columns, runs


def test_columns_are_views_by_name_with_missing_values():
    """Every packed value comes back under its name; what was not read is NaN or the integer sentinel."""
    data = pack(GPU_V1, [{"gpu.power_watts": 412.0, "gpu.xid_events_total": 3}, {"gpu.temp_celsius": 61.0}])
    got = columns(GPU_V1, data)
    assert got["gpu.power_watts"][0] == 412.0
    assert np.isnan(got["gpu.power_watts"][1])
    assert got["gpu.xid_events_total"].tolist() == [3, MISSING_INT]
    assert np.isnan(as_float(got["gpu.xid_events_total"])[1])
    assert not got["gpu.temp_celsius"].flags.writeable


def test_runs_split_where_the_dtype_changes():
    """A step block is one run for each type of number, each [columns, rows]."""
    data = pack(STEP_V1, [{"step": i, "rank": i, "ts": 1.0 + i, "step_seconds": 0.5} for i in range(5)])
    steps, times, ranks, places, gauges = runs(STEP_V1, data)
    assert [r.values.shape for r in (steps, times, ranks, places, gauges)] == [
        (n, 5) for n in (1, 1, 2, 6, 9)
    ]
    assert (times.names, gauges.values.dtype) == (("ts",), np.dtype("<f4"))
    assert steps.values[0].tolist() == ranks.values[0].tolist() == [0, 1, 2, 3, 4]
    assert np.isnan(as_float(places.values)).all()


def test_an_empty_block_has_empty_columns():
    """A node without GPUs has every GPU column, of length zero."""
    assert all(len(v) == 0 for v in columns(GPU_V1, b"").values())


def test_a_partial_row_is_refused():
    """Bytes that are not whole rows cannot be laid out."""
    with pytest.raises(ValueError, match="whole"):
        runs(GPU_V1, b"\0" * (GPU_V1.row_size + 1))


def test_a_float_and_integer_block_that_alternate_stay_in_storage_order():
    """A run ends at every change of dtype, so that interleaved layouts decode too."""
    block = Block(
        (Column("a", "1", "<f4", "gauge"), Column("b", "1", "<i8", "state"), Column("c", "1", "<f4", "gauge"))
    )
    got = columns(block, pack(block, [{"a": 1.5, "b": 7, "c": 2.5}]))
    assert (got["a"][0], got["b"][0], got["c"][0]) == (1.5, 7, 2.5)
