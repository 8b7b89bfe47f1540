"""The recordings of torch.profiler, for the timeline of the job."""

from typing import Any

from popdist.session import STATE


# Any, because torch's profilers have no common type.
def add_to_trace(profiler: Any) -> None:
    """Add a recording of torch.profiler to the timeline of `poprun --trace`.

        with torch.profiler.profile(on_trace_ready=popdist.torch.add_to_trace): ...

    Without --trace it does nothing. It exports the profile, which torch allows only
    once. A handler that exports it as well has to call this function instead, and read
    the timeline.
    """
    if STATE.recorder is not None:
        STATE.recorder.add_profile(profiler.export_chrome_trace)
