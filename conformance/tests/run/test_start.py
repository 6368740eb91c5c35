"""What a run costs before its first case."""

import subprocess
import sys


def test_processes_that_only_hand_out_cases_do_without_torch() -> None:
    """It takes seconds to import: children that check do, the session and its workers do not."""
    script = "import sys, conformance.run.session; print('torch' in sys.modules)"
    assert (
        subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout == "False\n"
    )
