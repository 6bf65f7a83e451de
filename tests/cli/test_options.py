"""What the shell is offered behind a half-typed word."""

import os
import subprocess
import sys

from kinoray.cli.options import methods_like, streams_like


def test_methods_and_learners_behind_a_rule_and_streams_are_offered() -> None:
    assert "bmu_moco" in methods_like("bmu")
    assert "lwf:bmu_moco" in methods_like("lwf:bmu")
    assert "moving-cvlm" in streams_like("moving-c")


def test_the_shell_is_answered_without_torch() -> None:
    code = "import sys\ntry:\n    import kinoray.cli.main as cli; cli.app()\nexcept SystemExit: pass\n"
    code += "print([name for name in ('torch', 'ray', 'pandas') if name in sys.modules])"
    words = {"_KINORAY_COMPLETE": "complete_bash", "COMP_WORDS": "kinoray run base", "COMP_CWORD": "2"}
    answer = subprocess.run(
        [sys.executable, "-c", f"import sys; sys.argv[0] = 'kinoray'\n{code}"],
        env=os.environ | words,
        capture_output=True,
        text=True,
        check=True,
    )
    assert answer.stdout.splitlines() == ["base_moco", "[]"], answer.stderr
