"""Whether a file of iris-ctl trace or of IRIS_TRACE is what Perfetto and chrome://tracing open: Chrome's "Trace Event
Format", with the fields that docs/tracing.md promises."""

import json
import sys

RANK_FIELDS = {"rank": int, "pid": int, "events": int, "capacity": int, "dropped": int, "unfinished": int,
               "clock_error_us": float, "clock_offset_ns": int, "clock_drift_known": bool}
CATEGORIES = {"host", "collective", "rma", "wait", "user"}


def _check(condition, what):
    if not condition:
        raise ValueError(what)


def _nested(slices, where):
    """Boxes of one thread are beside or inside each other."""
    around = []  # ends of those that are open
    for start, end, name in sorted(slices, key=lambda s: (s[0], -s[1])):
        while around and around[-1] <= start:
            around.pop()
        _check(not around or end <= around[-1], f"{where}: {name} at {start} ends behind what it is inside of")
        around.append(end)


def _nanoseconds(microseconds):
    return round(microseconds * 1000)


def check(trace):
    """The boxes of the trace, as dicts with start_ns and end_ns. ValueError says what is wrong."""
    _check(set(trace) == {"displayTimeUnit", "otherData", "traceEvents"}, f"fields are {sorted(trace)}")
    _check(trace["displayTimeUnit"] == "ns", "the unit is not ns")
    other = trace["otherData"]
    for field in ("program", "job", "clock", "host", "origin_ns", "irisd_error_us", "ranks"):
        _check(field in other, f"otherData lacks {field}")
    for rank in other["ranks"]:
        for field, kind in RANK_FIELDS.items():
            _check(isinstance(rank.get(field), (kind, int)), f"rank {rank} has no {field}")
        _check(rank["clock_error_us"] >= 0 and rank["dropped"] >= 0, f"{rank} has a negative number")
    named, boxes, by_thread = set(), [], {}
    for event in trace["traceEvents"]:
        kind = event.get("ph")
        _check(isinstance(event.get("name"), str) and event["name"], f"no name: {event}")
        _check(isinstance(event.get("pid"), int) and isinstance(event.get("tid"), int), f"no pid or tid: {event}")
        where = (event["pid"], event["tid"])
        if kind == "M":
            _check(event["name"] in ("process_name", "thread_name") and event["args"]["name"], f"{event}")
            named.add(where)
            continue
        _check(isinstance(event.get("ts"), (int, float)) and event["ts"] >= 0, f"no time: {event}")
        if kind == "i":
            _check(event["cat"] == "irisd" and event["s"] == "g", f"{event}")
            continue
        _check(kind == "X" and event["dur"] >= 0 and event["cat"] in CATEGORIES, f"{event}")
        _check(where in named, f"no name of the thread: {event}")
        box = dict(event, start_ns=_nanoseconds(event["ts"]), end_ns=_nanoseconds(event["ts"] + event["dur"]))
        boxes.append(box)
        by_thread.setdefault(where, []).append((box["start_ns"], box["end_ns"], box["name"]))
    for where, slices in by_thread.items():
        _nested(slices, where)
    told = {rank["rank"] for rank in other["ranks"]}
    _check({box["pid"] for box in boxes} <= told, "boxes of a rank that is not told")
    return boxes


def check_file(path):
    """The trace, and its boxes."""
    with open(path, encoding="ascii") as file:
        trace = json.load(file)
    return trace, check(trace)


if __name__ == "__main__":
    for name in sys.argv[1:]:
        print(name, len(check_file(name)[1]), "boxes")
