"""Configurations of other people's differential privacy come out with their true epsilon, and each trap by its name."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from typer.testing import CliRunner

from fedseal.cli import app
from fedseal.core.errors import InputError, UsageError
from fedseal.defences.accounting import composed_epsilon, gaussian_epsilon
from fedseal.information.claims.check import ConfigurationCheck, check_configuration
from fedseal.information.claims.opinions import gaussian_mu

FLIP = """
[project]
name = "trust"

[tool.flwr.app.config]
num-server-rounds = 3
dp-clipping-norm = 1.0
dp-sensitivity = 1e-4
dp-epsilon = 10.0
dp-delta = 1e-5
"""
"""As published with FLIP's pull request 833."""

SVT = {
    "format_version": 2,
    "executors": [{"tasks": ["train"], "executor": {"path": "my.Trainer", "args": {}}}],
    "task_result_filters": [
        {"tasks": ["train"], "filters": [{"path": "nvflare.app_common.filters.svt_privacy.SVTPrivacy", "args": {}}]}
    ],
    "task_data_filters": [],
}
DENSENET = 7_033_290
"""Numbers of the DenseNet update of FLIP's issue 1145."""


def checked(tmp_path: Path, text: str | dict[str, Any], suffix: str = ".yaml", **options: Any) -> ConfigurationCheck:
    path = tmp_path / f"config{suffix}"
    path.write_text(text if isinstance(text, str) else json.dumps(text))
    (found,) = check_configuration(path, **{"runs": 0, **options})
    return found


def names(found: ConfigurationCheck, severity: str = "wrong") -> set[str]:
    return {finding.name for finding in found.findings if finding.severity == severity}


def local(**changed: Any) -> dict[str, Any]:
    return {"mechanism": "LocalDpMod", "clipping_norm": 1, "sensitivity": 1, "epsilon": 0.5, "delta": 1e-5} | changed


def fixed(**changed: Any) -> dict[str, Any]:
    given = {"mechanism": "flwr.serverapp.strategy.DifferentialPrivacyServerSideFixedClipping"}
    return given | {"noise_multiplier": 1.0, "clipping_norm": 5, "num_sampled_clients": 10, "num_rounds": 10} | changed


def records(**changed: Any) -> dict[str, Any]:
    given = {"mechanism": "opacus", "noise_multiplier": 1.1, "max_grad_norm": 1.0, "batch_size": 64}
    return given | {"dataset_size": 6400, "epochs": 2, "delta": "1e-5"} | changed


def test_the_published_flower_configuration_claims_10_and_has_two_hundred_million(tmp_path: Path) -> None:
    found = checked(tmp_path, FLIP, ".toml", runs=400)
    assert found.mechanism.claimed == 10
    assert found.one_round == pytest.approx(2.1e8, rel=0.02)
    assert found.replaced == pytest.approx(3 * 8.5e8, rel=0.02)
    assert {"sensitivity-below-clip", "epsilon-above-claim", "not-composed", "canaries-contradict"} <= names(found)
    assert "formula-outside-range" in names(found, "warning")
    assert found.rounds == 3
    assert found.refuted


def test_the_defaults_of_svtprivacy_spend_70333_in_a_round(tmp_path: Path) -> None:
    found = checked(tmp_path, SVT, ".json", parameters=DENSENET)
    assert found.mechanism.claimed == 0.1
    assert found.composed["its own accountant"] == pytest.approx(70_333, abs=0.5)
    assert found.one_round == pytest.approx(70_333, rel=1e-4)
    assert "release-not-in-epsilon" in names(found)


def test_the_figure_for_svtprivacy_is_the_one_its_own_code_books(tmp_path: Path) -> None:
    from nvflare.apis.dxo import DXO, DataKind
    from nvflare.apis.fl_context import FLContext
    from nvflare.apis.shareable import Shareable
    from nvflare.app_common.filters.svt_privacy import SVTPrivacy

    settings = {"fraction": 0.3, "epsilon": 2.0, "noise_var": 0.05, "gamma": 1e-3}
    real = SVTPrivacy(**settings)
    real.process_dxo(DXO(DataKind.WEIGHT_DIFF, {"w": np.random.randn(501)}), Shareable(), FLContext())
    found = checked(tmp_path, {"mechanism": "SVTPrivacy", "args": settings, "claim": {}}, ".json", parameters=501)
    assert found.composed["its own accountant"] == pytest.approx(real.get_privacy_spent())


def test_svtprivacy_run_here_contradicts_its_epsilon(tmp_path: Path) -> None:
    found = checked(tmp_path, SVT, ".json", parameters=DENSENET, runs=200)
    assert found.evidence is not None
    assert found.evidence.bound.epsilon > 0.5
    assert "canaries-contradict" in names(found)


def test_svtprivacy_without_the_size_of_the_model_is_refused_in_words(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="how many numbers the model has"):
        checked(tmp_path, SVT, ".json")


def test_percentileprivacy_is_not_differentially_private(tmp_path: Path) -> None:
    found = checked(tmp_path, {"filters": [{"name": "PercentilePrivacy", "args": {}}]}, ".json", runs=100)
    assert math.isinf(found.accounted)
    assert "no-noise" in names(found)
    assert found.describe().endswith("NOT PRIVATE: no epsilon holds, whatever is claimed.")
    assert found.as_dict()["epsilon"] is None


def test_a_filter_of_what_a_site_receives_is_named_as_misplaced(tmp_path: Path) -> None:
    moved = {"task_data_filters": SVT["task_result_filters"], "task_result_filters": []}
    assert "wrong-direction" in names(checked(tmp_path, moved, ".json", parameters=1000))


def test_nvflares_hocon_is_read_like_its_json(tmp_path: Path) -> None:
    text = 'task_result_filters = [{tasks = ["validate"], filters = [{name = SVTPrivacy, args {epsilon = 1.5}}]}]'
    found = checked(tmp_path, text, ".conf", parameters=1000)
    assert found.mechanism.claimed == 1.5
    assert "other-tasks" in names(found, "warning")


def test_an_honest_local_configuration_holds(tmp_path: Path) -> None:
    found = checked(tmp_path, local(), ".json", runs=400)
    assert not found.refuted
    assert found.one_round == pytest.approx(gaussian_epsilon(0.5 / math.sqrt(2 * math.log(1.25e5)), 1e-5))
    assert found.one_round < 0.5
    assert found.unit == "one client's whole update"


def test_the_textbook_formula_fails_where_it_is_not_proven(tmp_path: Path) -> None:
    found = checked(tmp_path, local(epsilon=10), ".json")
    assert found.one_round > 10
    assert "epsilon-above-claim" in names(found)


@pytest.mark.parametrize(
    ("changed", "trap"),
    [
        ({"sensitivity": 0.5}, "sensitivity-below-clip"),
        ({"sensitivity": 0}, "no-noise"),
        ({"clipping_norm": None}, "no-clip"),
        ({"clipping_norm": "inf"}, "no-clip"),
        ({"noise_seed": 7}, "seeded-noise"),
        ({"rounds": 50}, "not-composed"),
        ({"claim": {"model": "central"}}, "local-claimed-as-central"),
        ({"amplification": "poisson", "fraction_train": 1.0}, "not-subsampled"),
    ],
)
def test_each_trap_of_local_noise_has_its_name(tmp_path: Path, changed: dict[str, Any], trap: str) -> None:
    assert trap not in names(checked(tmp_path, local(), ".json"))
    assert trap in names(checked(tmp_path, local(**changed), ".json"))


@pytest.mark.parametrize(
    ("changed", "trap"),
    [
        ({"noise_multiplier": 0}, "no-noise"),
        ({"num_clients": 5}, "fewer-clients-than-noise"),
        ({"num_clients": 20, "fraction_fit": 0.25}, "fewer-clients-than-noise"),
        ({"claim": {"model": "local"}}, "central-claimed-as-local"),
        ({"target_epsilon": 5}, "epsilon-above-claim"),
        ({"num_clients": 10, "sampling": "poisson"}, "not-subsampled"),
    ],
)
def test_each_trap_of_a_servers_noise_has_its_name(tmp_path: Path, changed: dict[str, Any], trap: str) -> None:
    assert trap not in names(checked(tmp_path, fixed(), ".json"))
    assert trap in names(checked(tmp_path, fixed(**changed), ".json"))


def test_a_servers_noise_composes_over_rounds_as_flowers_own_accountant_says(tmp_path: Path) -> None:
    from flwr.supercore.privacy_accounting import (
        GaussianPrivacyEvent,
        NeighboringRelation,
        PrivacyConfig,
        SamplingMethod,
    )
    from flwr.supercore.privacy_accounting.rdp_accountant import RdpAccountant

    relation, sampling = NeighboringRelation.ADD_OR_REMOVE_ONE, SamplingMethod.NO_AMPLIFICATION
    theirs = RdpAccountant(PrivacyConfig(1e-5, 100, relation, sampling))
    theirs.compose(GaussianPrivacyEvent(4.0, 10, 100), 10)
    found = checked(tmp_path, fixed(noise_multiplier=4.0), ".json")
    assert found.composed["dp-accounting RDP"] == pytest.approx(theirs.get_epsilon(1e-5))
    assert found.accounted == pytest.approx(found.composed["dp-accounting PLD"], rel=1e-3)
    assert found.accounted <= theirs.get_epsilon(1e-5)


def test_a_servers_noise_seen_in_flowers_own_wrapper_stays_below_the_account(tmp_path: Path) -> None:
    found = checked(tmp_path, fixed(noise_multiplier=0.5, num_sampled_clients=4), ".json", runs=300)
    assert found.evidence is not None
    assert 0.5 < (found.evidence.bound.mu or 0) < 2.0


def test_adaptive_noise_is_scaled_by_the_clip_norm_of_the_next_round_in_flowers_code(tmp_path: Path) -> None:
    from flwr.app import ArrayRecord, MetricRecord, RecordDict
    from flwr.serverapp.strategy import DifferentialPrivacyServerSideAdaptiveClipping, FedAvg

    from fedseal.information.claims.rehearsals import _message

    wrapper = DifferentialPrivacyServerSideAdaptiveClipping(FedAvg(), 0.1, 10, initial_clipping_norm=1.0)
    zeros = np.zeros(50_000)
    wrapper.current_arrays = ArrayRecord([zeros])
    sent = {"arrays": ArrayRecord([zeros + 1.0]), "metrics": MetricRecord({"num-examples": 1})}
    mean, _ = wrapper.aggregate_train(1, [_message(RecordDict(sent)) for _ in range(10)])
    assert mean is not None
    seen = float(mean.to_numpy_ndarrays()[0].std())
    assert wrapper.clipping_norm < 0.95  # every update was clipped, to 1
    assert seen == pytest.approx(wrapper.noise_multiplier * wrapper.clipping_norm / 10, rel=0.03)
    given = fixed(mechanism="DifferentialPrivacyServerSideAdaptiveClipping", num_sampled_clients=50, clipping_norm=None)
    found = checked(tmp_path, given, ".json")
    assert {"noise-by-next-clip", "count-sensitivity"} <= names(found, "warning")
    assert found.accounted > checked(tmp_path, fixed(), ".json").accounted


def test_adaptive_settings_that_flower_refuses_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="Flower refuses it"):
        checked(tmp_path, fixed(mechanism="DifferentialPrivacyClientSideAdaptiveClipping"), ".json")


def test_clipping_left_to_clients_is_said(tmp_path: Path) -> None:
    found = checked(tmp_path, fixed(mechanism="DifferentialPrivacyClientSideFixedClipping"), ".json")
    assert "clipped-by-clients" in names(found, "warning")


def test_opacus_is_accounted_by_opacus(tmp_path: Path) -> None:
    from opacus.accountants import RDPAccountant

    theirs = RDPAccountant()
    for _ in range(200):
        theirs.step(noise_multiplier=1.1, sample_rate=0.01)
    found = checked(tmp_path, records(), ".json")
    assert found.composed["Opacus RDP"] == pytest.approx(theirs.get_epsilon(1e-5))
    assert found.accounted == pytest.approx(composed_epsilon([(1.1, 0.01, 200)], 1e-5, "prv"))
    assert found.accounted <= theirs.get_epsilon(1e-5)
    assert found.unit == "one record"


@pytest.mark.slow
def test_a_budget_given_to_opacus_is_what_it_spends_in_one_round_only(tmp_path: Path) -> None:
    given = records(noise_multiplier=None, target_epsilon=3.0, accountant="rdp", epochs=1)
    alone = checked(tmp_path, given, ".json")
    assert not alone.refuted
    assert alone.accounted <= 3.0
    assert "not-composed" in names(checked(tmp_path, given, ".json", rounds=20))


@pytest.mark.parametrize(
    ("changed", "trap"),
    [
        ({"sample_rate": 1e-5}, "sample-rate-not-measured"),
        ({"poisson_sampling": False}, "not-subsampled"),
        ({"noise_multiplier": 0}, "no-noise"),
        ({"max_grad_norm": None}, "no-clip"),
        ({"claim": {"unit": "client"}}, "unit-not-as-claimed"),
        ({"claim": {"epsilon": 0.01}}, "epsilon-above-claim"),
        ({"batch_size": 6400, "sampling": "poisson"}, "not-subsampled"),
    ],
)
def test_each_trap_of_opacus_has_its_name(tmp_path: Path, changed: dict[str, Any], trap: str) -> None:
    assert trap not in names(checked(tmp_path, records(), ".json"))
    assert trap in names(checked(tmp_path, records(**changed), ".json"))


def test_batches_of_a_shuffled_pass_are_accounted_by_passes(tmp_path: Path) -> None:
    found = checked(tmp_path, records(poisson_sampling=False), ".json")
    assert found.accounted == pytest.approx(gaussian_epsilon(math.sqrt(2) / 1.1, 1e-5))


@pytest.mark.parametrize("saved", ["json", "checkpoint"])
def test_a_saved_accountant_is_read_back(tmp_path: Path, saved: str) -> None:
    from opacus.accountants import RDPAccountant

    theirs = RDPAccountant()
    for sigma in (1.0, 1.0, 2.0):
        theirs.step(noise_multiplier=sigma, sample_rate=0.02)
    path = tmp_path / ("state.json" if saved == "json" else "checkpoint.pt")
    if saved == "json":
        path.write_text(json.dumps(theirs.state_dict()))
    else:
        torch.save({"module": {}, "privacy_accountant_state_dict": theirs.state_dict()}, path)
    (found,) = check_configuration(path, runs=0)
    assert found.composed["Opacus RDP"] == pytest.approx(theirs.get_epsilon(1e-5))


def test_a_checkpoint_that_would_run_code_is_not_opened(tmp_path: Path) -> None:
    path = tmp_path / "evil.pt"
    torch.save({"history": print}, path)
    with pytest.raises(InputError, match="no checkpoint of tensors and plain values"):
        check_configuration(path)


def test_the_tensors_that_travel_decide_about_buffers(tmp_path: Path) -> None:
    save_file(torch.nn.BatchNorm2d(3).state_dict(), tmp_path / "model.safetensors")
    found = checked(tmp_path, local(), ".json", weights=tmp_path / "model.safetensors")
    assert "integer-buffers" in names(found)
    found = checked(tmp_path, records(), ".json", weights=tmp_path / "model.safetensors")
    assert "running-statistics" in names(found)
    save_file(torch.nn.Linear(3, 2).state_dict(), tmp_path / "model.safetensors")
    found = checked(tmp_path, local(), ".json", weights=tmp_path / "model.safetensors")
    assert not any(finding.name == "integer-buffers" for finding in found.findings)


def test_flowers_mod_does_leave_whole_numbers_as_they_are() -> None:
    from flwr.app import ArrayRecord, RecordDict
    from flwr.clientapp.mod import LocalDpMod

    from fedseal.information.claims.rehearsals import _message

    def message(weights: float, batches: int) -> Any:
        return _message(RecordDict({"arrays": ArrayRecord([np.full(3, weights), np.array([batches])])}))

    mod: Any = LocalDpMod(100.0, 1e-3, 1.0, 1e-5)
    sent = mod(message(0.0, 0), None, lambda asked, context: message(0.5, 7)).content["arrays"].to_numpy_ndarrays()
    assert (sent[0] != 0.5).all()
    assert sent[1].tolist() == [7]


@pytest.mark.parametrize(
    ("text", "suffix", "problem"),
    [
        ("a: [", ".yaml", "cannot read"),
        ("{", ".json", "cannot read"),
        ("= 1", ".toml", "cannot read"),
        ("just words", ".yaml", "does not hold a mapping"),
        ("learning-rate: 0.1", ".yaml", "configures no differential privacy"),
        ("mechanism: LocalDpMood", ".yaml", "not known here"),
        ("mechanism: LocalDpMod", ".yaml", "has no 'sensitivity'"),
        ("{mechanism: LocalDpMod, sensitivity: much, epsilon: 1}", ".yaml", "is no number"),
        ("{mechanism: LocalDpMod, sensitivity: 1, epsilon: 0}", ".yaml", "above 0"),
        ("{mechanism: LocalDpMod, sensitivity: 1, epsilon: 1, delta: 2}", ".yaml", "between 0 and 1"),
        ("{mechanism: opacus, noise_multiplier: 1, epochs: 1}", ".yaml", "has no 'sample_rate'"),
        ("{mechanism: opacus, noise_multiplier: 1, sample_rate: 0.1}", ".yaml", "neither 'steps' nor 'epochs'"),
        ('{"mechanism": "rdp", "history": []}', ".json", "history is empty"),
        ('{"mechanism": "rdp", "history": [[1, 2]]}', ".json", "the history of an accountant"),
    ],
)
def test_what_cannot_be_checked_is_refused_in_one_sentence(
    tmp_path: Path, text: str, suffix: str, problem: str
) -> None:
    with pytest.raises(UsageError, match=problem):
        checked(tmp_path, text, suffix)


def test_the_inverse_of_the_gaussian_epsilon_is_its_inverse() -> None:
    for epsilon in (0.1, 1.0, 10.0, 1e4):
        assert gaussian_epsilon(gaussian_mu(epsilon, 1e-5), 1e-5) == pytest.approx(epsilon)


def test_the_command_prints_words_or_json_and_exits_with_1_on_a_false_claim(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text(FLIP)
    call = ["verify-dp", "--config", str(tmp_path / "pyproject.toml"), "--runs", "0"]
    shown = CliRunner().invoke(app, call)
    assert shown.exit_code == 1
    assert "REFUTED" in shown.output
    (found,) = json.loads(CliRunner().invoke(app, [*call, "--json"]).output)
    assert found["claimed_epsilon"] == 10
    assert found["epsilon_one_round"] == pytest.approx(2.13e8, rel=0.01)
    (tmp_path / "good.json").write_text(json.dumps(local()))
    good = CliRunner().invoke(app, ["verify-dp", "--config", str(tmp_path / "good.json"), "--runs", "0"])
    assert good.exit_code == 0
    assert isinstance(CliRunner().invoke(app, ["verify-dp"]).exception, UsageError)
