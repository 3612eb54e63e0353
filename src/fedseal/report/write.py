"""All report files of a run."""

from __future__ import annotations

from pathlib import Path

from fedseal.audit.comparison import Comparison
from fedseal.audit.levels import RiskLevel
from fedseal.audit.run import Run
from fedseal.core.errors import FedsealError
from fedseal.core.files import OPEN, PRIVATE, PathText, write_atomically
from fedseal.report.html import render_html
from fedseal.report.junit import render_junit
from fedseal.report.machine import render_json
from fedseal.report.redaction import redacted_run
from fedseal.report.sarif import render_sarif
from fedseal.training.run import TrainingRun, open_training


def training_beside(run: Run) -> TrainingRun | None:
    """Return the training that belongs to a run: the other half of a trade-off, or the one whose round it attacks."""
    places = [run.directory.parent / "training"] if run.directory.name == "audit" else []
    for scenario in run.scenarios:
        if scenario.stage is not None and scenario.stage.checkpoint is not None:
            places.append(scenario.stage.checkpoint)
    for place in places:
        try:
            return open_training(place)
        except FedsealError:
            continue  # not there any more, or a lone checkpoint: page one says that accuracy is not known
    return None


def write_reports(
    run: Run,
    directory: PathText,
    *,
    redact: bool = False,
    fail_on: RiskLevel | None = None,
    strict: bool = False,
    comparison: Comparison | None = None,
    training: TrainingRun | None = None,
) -> dict[str, Path]:
    """Write `report.html`, `report.json`, `junit.xml` and `report.sarif` into `directory`, each whole or not at all.

    Args:
        run: what to report.
        directory: where to; made if missing.
        redact: leave out images, and what attacks said of private data; else only the owner may read the files.
        fail_on: level from which a cell counts as failed in the JUnit file, and as an error in the SARIF file.
        strict: whether what is not settled counts as failed too, unless the update is known to hold less.
        comparison: with an earlier run, told as a section of HTML and JSON.
        training: under the same defences, for accuracies on page one; by default the one that lies beside the run.

    Returns:
        The paths by kind: `html`, `json`, `junit` and `sarif`.

    Example:
        >>> import fedseal, tempfile
        >>> out = tempfile.mkdtemp()
        >>> run = fedseal.audit(data="faces:size=8", attacks="ig:iterations=2", targets=1, out=out)
        >>> sorted(path.name for path in fedseal.write_reports(run, out, redact=True).values())
        ['junit.xml', 'report.html', 'report.json', 'report.sarif']
    """
    told = redacted_run(run) if redact else run
    contents = {
        "html": (
            "report.html",
            render_html(told, redact=redact, comparison=comparison, training=training or training_beside(run)),
        ),
        "json": ("report.json", render_json(told, comparison)),
        "junit": ("junit.xml", render_junit(told, fail_on, strict=strict)),
        "sarif": ("report.sarif", render_sarif(told, fail_on)),
    }
    paths = {kind: Path(directory) / name for kind, (name, _) in contents.items()}
    for kind, (_, content) in contents.items():
        write_atomically(paths[kind], content, mode=OPEN if redact else PRIVATE)
    return paths
