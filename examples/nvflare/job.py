"""FedAvg on digits, sealed: `python job.py` in NVFlare's simulator, `python job.py --poc` as processes of their own."""

from __future__ import annotations

import argparse
from pathlib import Path

from net import Net
from nvflare.apis.dxo import DataKind
from nvflare.app_opt.pt.recipes.fedavg import FedAvgRecipe
from nvflare.client.config import ExchangeFormat, TransferType
from nvflare.recipe.poc_env import PocEnv
from nvflare.recipe.sim_env import SimEnv

from fedseal.nvflare import DefenceFilter, DetectFilter, GuardFilter, SentModel, WireEncoder


def recipe(rounds: int, defence: str, work: Path) -> FedAvgRecipe:
    """Return the job: the client seals, counts and packs; the server unpacks, checks and records."""
    made = FedAvgRecipe(
        name="sealed-digits",
        model=Net(),
        min_clients=2,
        num_rounds=rounds,
        train_script="client.py",
        aggregator_data_kind=DataKind.WEIGHT_DIFF,
        server_expected_format=ExchangeFormat.PYTORCH,
        params_transfer_type=TransferType.FULL,  # the script makes the difference itself
    )
    made.add_client_input_filter(DetectFilter(), tasks=["train"])
    made.add_client_output_filter(
        DefenceFilter(defence, ledger=str(work / "ledger.sqlite"), federation="digits"), tasks=["train"]
    )
    made.add_client_output_filter(WireEncoder(), tasks=["train"])
    made.add_server_output_filter(SentModel(), tasks=["train"])
    facts = {"learning_rate": 0.05, "local_steps": 10, "batch_size": 25, "input_shape": [1, 28, 28], "num_classes": 10}
    made.add_server_input_filter(GuardFilter(max_norm=50.0, record=str(work / "updates"), facts=facts), tasks=["train"])
    return made


def main() -> None:
    """Run the job."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--defence", default="topk:ratio=0.9")
    parser.add_argument("--work", type=Path, default=Path("work").absolute())
    parser.add_argument("--poc", action="store_true", help="start a server and two clients as processes of their own")
    options = parser.parse_args()
    options.work.mkdir(parents=True, exist_ok=True)
    job = recipe(options.rounds, options.defence, options.work)
    if options.poc:
        run = job.execute(PocEnv(num_clients=2, extra={"login_timeout": 120}))
        run.get_result()  # waits for the end
        return
    job.execute(SimEnv(num_clients=2, num_threads=2, workspace_root=str(options.work / "simulation")))


if __name__ == "__main__":
    main()
