"""`census`: made-up people in the manner of census tables. `tumours`: cell measurements, inside scikit-learn."""

from __future__ import annotations

import csv

import numpy as np

from fedseal.core.errors import InputError
from fedseal.core.ranges import Count
from fedseal.core.registry import Info
from fedseal.core.specs import near_matches
from fedseal.data.bundled import bundled_file
from fedseal.data.registry import DATASETS
from fedseal.data.table import TableDataset, as_table

_SCHOOLS = ("none", "primary", "lower secondary", "upper secondary", "vocational", "bachelor", "master", "doctorate")
_WORK = ("clerk", "craft", "farm", "machine", "manager", "professional", "sales", "service", "technician", "transport")
_EMPLOYERS = ("private", "public", "self-employed", "family business")
_FAMILY = ("single", "married", "separated", "widowed")
_ROLES = ("own household", "partner", "child", "other relative", "not in a family")
_ORIGINS = tuple(f"region {letter}" for letter in "ABCDEFGH")
_COLUMNS = (
    "age", "employer", "school", "years of school", "family", "work", "role", "origin", "sex",
    "capital gain", "hours per week", "children", "income",
)  # fmt: skip


@DATASETS.register(
    "census",
    Info("2,000 made-up people: 7 columns of categories, 5 of numbers, whether income is high; generated, no download"),
)
def census(rows: Count = 2000, seed: int = 0, target: str = "income") -> TableDataset:
    """Return made-up people whose columns hang together about as those of the Adult census table do.

    Args:
        rows: how many.
        seed: of the draws.
        target: the column to be learnt, of categories; `work` has ten, and little tells them.
    """
    draw = np.random.default_rng(seed)
    age = draw.gamma(6.0, 4.0, rows).clip(0, 73).round() + 17
    schooling = (draw.normal(4.0, 1.6, rows) - (age < 22)).round().clip(0, 7).astype(int)
    years = (2 * schooling + 3 + draw.integers(0, 2, rows)).clip(1, 18)
    job = (draw.normal(schooling * 0.9 + 1, 2.0, rows).round() % len(_WORK)).astype(int)
    employer = draw.choice(len(_EMPLOYERS), rows, p=[0.7, 0.15, 0.12, 0.03])
    family = np.where(age < 25, 0, draw.choice(4, rows, p=[0.2, 0.58, 0.16, 0.06]))
    woman = draw.random(rows) < 0.45
    role = np.where(family == 1, draw.integers(0, 2, rows), draw.choice([0, 2, 3, 4], rows, p=[0.3, 0.2, 0.1, 0.4]))
    origin = draw.choice(len(_ORIGINS), rows, p=[0.6, 0.12, 0.08, 0.06, 0.05, 0.04, 0.03, 0.02])
    gain = np.where(draw.random(rows) < 0.1, draw.gamma(2.0, 4000.0, rows).round(), 0)
    hours = (draw.normal(40, 10, rows) - 12 * (age > 65) - 6 * (age < 21)).clip(2, 90).round()
    children = draw.poisson(np.where(family == 1, 1.4, 0.3))
    rich = 0.5 * (schooling - 4) + 0.06 * (hours - 40) + 0.04 * (age - 40) + 1.2 * (family == 1) + gain / 4000 - 1.5
    income = draw.random(rows) < 1 / (1 + np.exp(-rich))
    parts = (
        age, [_EMPLOYERS[i] for i in employer], [_SCHOOLS[i] for i in schooling], years, [_FAMILY[i] for i in family],
        [_WORK[i] for i in job], [_ROLES[i] for i in role], [_ORIGINS[i] for i in origin],
        np.where(woman, "female", "male"), gain, hours, children, np.where(income, "high", "low"),
    )  # fmt: skip
    if target not in _COLUMNS:
        raise InputError(f"census has no column {target!r}.", hint=near_matches(target, _COLUMNS))
    return as_table("census", _COLUMNS, [[str(cell) for cell in row] for row in zip(*parts, strict=True)], target)


@DATASETS.register(
    "tumours",
    Info(
        "569 biopsies: 30 measurements of cell nuclei, benign or malignant; inside scikit-learn, no download",
        paper="Street et al., SPIE 1993",
    ),
)
def tumours() -> TableDataset:
    """Return the Wisconsin breast cancer table."""
    path = bundled_file(
        "sklearn", "datasets/data/breast_cancer.csv", wanted_by="tumours", install='pip install "fedseal[data]"'
    )
    with path.open(encoding="ascii", newline="") as file:
        lines = list(csv.reader(file))
    if len(lines) != 570 or len(lines[0]) < 4 or any(len(line) != 31 for line in lines[1:]):
        raise InputError(f"{path} is not the table that is expected.", hint="Run `pip install -U scikit-learn`.")
    measured = ("radius", "texture", "perimeter", "area", "smoothness", "compactness", "concavity", "concave points",
                "symmetry", "fractal dimension")  # fmt: skip
    header = [f"{kind} {name}" for kind in ("mean", "error of", "worst") for name in measured]
    names = lines[0][2:4]
    rows = [[*line[:-1], names[int(line[-1])]] for line in lines[1:]]
    return as_table("tumours", [*header, "diagnosis"], rows, "diagnosis")
