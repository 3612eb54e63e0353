"""Scenarios: what a file may say, and errors that name file, line and key."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from fedseal.audit.plan import check_names, plan_jobs
from fedseal.audit.scenario import AboutConfig, Scenario, StageConfig, load_scenario, validate_scenario
from fedseal.audit.setup import build_setup
from fedseal.core.errors import FedsealError, InputError, UsageError

DOCS = Path(__file__).parents[2] / "docs" / "scenario.md"


def load(tmp_path: Path, text: str) -> Scenario:
    path = tmp_path / "scenario.yaml"
    path.write_text(text, encoding="utf-8")
    return load_scenario(path)


def refusal(tmp_path: Path, text: str) -> str:
    with pytest.raises(FedsealError) as caught:
        load(tmp_path, text)
    assert caught.value.exit_code == 2
    assert caught.value.hint or "Did you mean" in str(caught.value) or "It belongs" in str(caught.value)
    return str(caught.value)


def test_a_file_is_read(tmp_path: Path):
    scenario = load(
        tmp_path,
        "data: digits\nclient: {batch_size: 4, dtype: float64}\nattacks: ig\ndefences: [none, 'topk:ratio=0.9']\n",
    )
    assert scenario.client.batch_size == 4
    assert scenario.attacks == ("ig",)
    assert scenario.defences == ("none", "topk:ratio=0.9")
    assert scenario.targets == 4


def test_a_scenario_survives_its_own_yaml(tmp_path: Path):
    scenario = Scenario(data="digits", attacks=("ig", "idlg"), seed=7, iterations=12)
    assert load(tmp_path, yaml.safe_dump(scenario.model_dump(mode="json"))) == scenario


@pytest.mark.parametrize("written", ["true", "True", '"true"'])
def test_labels_may_be_given_with_or_without_quotes(tmp_path: Path, written: str):
    assert load(tmp_path, f"attacker: {{labels: {written}}}\n").attacker.labels == "true"


def test_every_documented_key_exists_and_every_key_is_documented():
    documented: set[str] = set()
    for line in DOCS.read_text(encoding="utf-8").splitlines():
        if line.startswith("| `"):
            first, *others = (key.strip().strip("`") for key in line.split("|")[1].split(","))
            section = first.partition(".")[0]
            documented |= {first, *(section + key if key.startswith(".") else key for key in others)}
    keys = set(Scenario.model_fields) - {"about", "client", "attacker"}
    about = {f"about.{key}" for key in AboutConfig.model_fields}
    client = {f"client.{key}" for key in Scenario.model_fields["client"].annotation.model_fields}  # type: ignore[union-attr]
    attacker = {f"attacker.{key}" for key in Scenario.model_fields["attacker"].annotation.model_fields}  # type: ignore[union-attr]
    stage = {f"stage.{key}" for key in StageConfig.model_fields}
    assert documented == keys | about | client | attacker | stage


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("data: faces\nclient:\n  batch_size: 4\n dtype: float32\n", "line 4"),
        ("data: faces\nmodel: [lenet\n", "line 3"),
        ("data: faces\nmodel: lenet: wide\n", "line 2"),
        ("data: faces\n\tmodel: lenet\n", "line 2"),
        ("data: faces\nmodel: 'lenet\n", "line 3"),
        ("data: faces\nname: \x01\n", "line 2"),
        ("data: !!python/object:os.system x\n", "line 1"),
    ],
)
def test_malformed_yaml_is_refused_with_its_line(tmp_path: Path, text: str, says: str):
    assert f"{tmp_path / 'scenario.yaml'}, {says}:" in refusal(tmp_path, text)


@pytest.mark.parametrize("text", ["", "- faces\n", "faces\n", "3\n"])
def test_what_is_no_mapping_is_refused(tmp_path: Path, text: str):
    assert "does not hold a mapping" in refusal(tmp_path, text)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("data: faces\ndefense: none\n", ("line 2", "no key 'defense'", "'defences'")),
        ("data: faces\nbatch_size: 4\n", ("line 2", "no key 'batch_size'", "belongs under client")),
        ("system: clinic\n", ("line 1", "no key 'system'", "belongs under about: `about: {system: ...}`")),
        ("client:\n  batch_size: 1\n  batchsize: 2\n", ("line 3", "'client.batchsize'", "'batch_size'")),
        ("attacker: {lables: true}\n", ("line 1", "'attacker.lables'", "'labels'")),
        ("data: faces\n1: faces\n", ("line 2", "'1'")),
    ],
)
def test_unknown_keys_are_refused_with_line_and_near_matches(tmp_path: Path, text: str, says: tuple[str, ...]):
    message = refusal(tmp_path, text)
    for part in says:
        assert part in message


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("data: faces\ntargets: many\n", ("line 2", "'targets'", "'many'", "integer")),
        ("client:\n  batch_size: 0\n", ("line 2", "'client.batch_size'", "0")),
        ("client:\n  batch_size: [1, 2]\n", ("line 2", "'client.batch_size'", "[1, 2]")),
        ("client: 3\n", ("line 1", "'client'", "3")),
        ("seed: 1.5\n", ("line 1", "'seed'", "1.5")),
        ("data: 7\n", ("line 1", "'data'", "7", "string")),
        ("attacks:\n  - ig\n  - 3\n", ("line 3", "'attacks.1'", "3")),
        ("attacks: []\n", ("line 1", "'attacks'")),
        ("client: {bn_mode: train}\n", ("line 1", "'client.bn_mode'", "'train-nostats'")),
        ("public_fraction: 1\n", ("line 1", "'public_fraction'")),
        ("client: {learning_rate: -1}\n", ("line 1", "'client.learning_rate'")),
        ("name: a/b\n", ("line 1", "'name'", "letters, digits")),
        ("attacker: {labels: false}\n", ("line 1", "'attacker.labels'", "False")),
    ],
)
def test_wrong_values_are_refused_with_line_and_key(tmp_path: Path, text: str, says: tuple[str, ...]):
    message = refusal(tmp_path, text)
    for part in says:
        assert part in message


def test_a_missing_file_and_a_directory_are_refused(tmp_path: Path):
    with pytest.raises(UsageError, match="no scenario file"):
        load_scenario(tmp_path / "nowhere.yaml")
    with pytest.raises(InputError, match="cannot read the scenario"):
        load_scenario(tmp_path)
    (tmp_path / "latin").write_bytes(b"name: caf\xe9\n")
    with pytest.raises(InputError, match="UTF-8"):
        load_scenario(tmp_path / "latin")


def test_the_command_line_is_named_as_the_source():
    with pytest.raises(UsageError, match="command line: key 'targets' cannot be 0"):
        validate_scenario({"targets": 0}, source="command line")


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"attacks": ["igg"]}, ("no attack called 'igg'", "'ig'")),
        ({"attacks": ["ig:tvv=1"]}, ("no option 'tvv'", "'tv'")),
        ({"attacks": ["ig:tv=much"]}, ("'tv'", "'much'")),
        ({"defences": ["topkk"]}, ("no defence called 'topkk'", "'topk'")),
        ({"defences": ["none", "gaussian+topq"]}, ("no defence called 'topq'", "'topk'")),
        ({"defences": ["topk:ratio=2"]}, ("0 <= ratio < 1",)),
        ({"attacker": {"labels": "identty"}}, ("no label rule called 'identty'", "'identity'")),
    ],
)
def test_unknown_names_are_refused_before_anything_is_loaded(values: dict[str, object], says: tuple[str, ...]):
    with pytest.raises(UsageError) as caught:
        check_names(Scenario.model_validate({"data": "no such data"} | values))
    for part in says:
        assert part in str(caught.value)


def test_more_targets_than_images_are_refused():
    with pytest.raises(InputError, match=r"need 200 private .*, faces leaves 70"):
        build_setup(Scenario(data="faces:size=8", targets=200))


def test_unknown_devices_are_refused():
    for device in ("gpu", "cuda:99"):
        with pytest.raises(InputError, match=f"device '{device}' cannot be used.*--device cpu"):
            build_setup(Scenario(data="faces:size=8"), device=device)


def keys(**values: object) -> set[str]:
    scenario = Scenario.model_validate({"data": "faces:size=8", "targets": 2, "attacks": ["ig"]} | values)
    return {trial.key for job in plan_jobs(build_setup(scenario)) for trial in job.trials}


def test_keys_change_with_everything_that_determines_a_trial_and_with_nothing_else():
    base = keys()
    assert len(base) == 2
    assert keys(name="other") == base
    assert keys(attacker={"aware": "naive"}) == base
    assert keys(defences=["none", "topk"]) > base
    for change in (
        {"seed": 1},
        {"iterations": 5},
        {"restarts": 2},
        {"client": {"batch_size": 2}},
        {"client": {"dtype": "float64"}},
        {"attacker": {"labels": "true"}},
        {"model": "lenet"},
        {"data": "faces:size=9"},
        {"public_fraction": 0.4},
        {"attacks": ["ig:tv=0.5"]},
    ):
        assert not keys(**change) & base, change


def test_a_changed_picture_changes_every_key(tmp_path: Path):
    import numpy as np

    images = np.random.default_rng(0).integers(0, 255, (20, 8, 8), dtype=np.uint8)
    labels = np.arange(20) % 2
    np.savez(tmp_path / "one.npz", images=images, labels=labels)
    before = keys(data=f"npz:{tmp_path / 'one.npz'}")
    images[0, 0, 0] += 1
    np.savez(tmp_path / "one.npz", images=images, labels=labels)
    assert not before & keys(data=f"npz:{tmp_path / 'one.npz'}")


def test_plans_try_undefended_once_and_defences_twice():
    scenario = Scenario(data="faces:size=8", defences=("none", "topk"), attacks=("ig", "idlg"), targets=20)
    jobs = plan_jobs(build_setup(scenario))
    cells = [(job.defence, job.attack, job.aware, len(job.trials)) for job in jobs]
    assert cells[:4] == [
        ("none", "ig", False, 16),
        ("none", "ig", False, 4),
        ("none", "idlg", False, 16),
        ("none", "idlg", False, 4),
    ]
    assert {(defence, aware) for defence, _, aware, _ in cells[4:]} == {("topk", False), ("topk", True)}
    assert len(cells) == 12
