"""The documentation site builds, and none of its links is broken."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent


def test_the_site_builds_without_a_warning(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "sphinx", "--builder", "html", "--fail-on-warning", "--quiet"]
    done = subprocess.run(
        [*command, "--doctree-dir", str(tmp_path / "doctrees"), "docs", str(tmp_path / "site")],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    search_index = (tmp_path / "site" / "searchindex.js").read_text(encoding="utf-8")
    assert "idempot" in search_index
    assert "oncemq.Client.put" in (tmp_path / "site" / "reference" / "python.html").read_text(encoding="utf-8")
    benchmarks = (tmp_path / "site" / "benchmarks.html").read_text(encoding="utf-8")
    assert "<picture>" not in benchmarks
    for theme in ("light", "dark"):
        assert f'class="only-{theme}" src="_images/single-put-{theme}.svg"' in benchmarks
        assert (tmp_path / "site" / "_images" / f"single-put-{theme}.svg").exists()
