"""A client as NVFlare's guides write it: receive weights, train, send the difference. Nothing of fedseal is in it."""

from __future__ import annotations

import nvflare.client as flare
import torch
from net import Net
from nvflare.app_common.abstract.fl_model import FLModel, ParamsType

from fedseal.data.registry import DATASETS

torch.set_num_threads(1)


def main() -> None:
    """Train on this site's share of the digits until the server is done."""
    flare.init()
    place = int(flare.get_site_name().rsplit("-", 1)[1])
    data = DATASETS.build("digits").batch(torch.arange(place - 1, 5000, 20))
    while flare.is_running():
        received = flare.receive()
        before = {name: torch.as_tensor(value).clone() for name, value in received.params.items()}
        model = Net()
        model.load_state_dict(before)
        optimiser = torch.optim.SGD(model.parameters(), lr=0.05)
        for start in range(0, len(data), 25):
            batch = data.pick(slice(start, start + 25))
            optimiser.zero_grad()
            torch.nn.functional.cross_entropy(model(batch.images), batch.labels).backward()
            optimiser.step()
        change = {name: tensor.detach() - before[name] for name, tensor in model.state_dict().items()}
        flare.send(FLModel(params=change, params_type=ParamsType.DIFF, meta={"NUM_STEPS_CURRENT_ROUND": 1}))


if __name__ == "__main__":
    main()
