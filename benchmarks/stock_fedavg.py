"""What Flower's tutorials show: a ClientApp that trains and evaluates, with this project's network, data and loop."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from torch import nn

from client.data import SiteData, load_site
from client.identity import identify
from client.training import default_device, evaluate, plain, train
from common.config import Config, load
from common.metrics import summarise
from common.models import build
from common.randomness import derive_seed

CONFIG = Path(__file__).parents[1] / "configs" / "digits.toml"

stock_client = ClientApp()


@lru_cache(maxsize=1)
def settings() -> Config:
    """The demo's settings."""
    return load(CONFIG, {"method": "fedavg"})


@lru_cache(maxsize=1)
def network() -> nn.Module:
    """The demo's network, one per process."""
    data, name = settings().data, settings().train.model
    return build(name, classes=10, channels=data.channels, image_size=data.image_size, seed=0)


def _site(context: Context) -> SiteData:
    return load_site(identify(context.node_config, context.node_id), settings().for_site())


@stock_client.train()
def stock_train(message: Message, context: Context) -> Message:
    site, model = _site(context), network()
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    round_number = int(message.content["config"]["server-round"])
    result = train(
        model,
        site.train_images(),
        site.train_labels,
        settings().train,
        round_number=round_number,
        rounds=settings().rounds,
        seed=derive_seed(0, "training", site.name, round_number),
        device=default_device(),
        objective=plain,
    )
    metrics = MetricRecord({"num-examples": result.samples, "loss": result.loss})
    return Message(RecordDict({"arrays": ArrayRecord(model.state_dict()), "metrics": metrics}), reply_to=message)


@stock_client.evaluate()
def stock_evaluate(message: Message, context: Context) -> Message:
    site, model = _site(context), network()
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    tested = evaluate(model, site.test_images(), site.test_labels, classes=10, batch_size=128, device=default_device())
    metrics = summarise(tested)
    record = MetricRecord({"num-examples": metrics.count, "accuracy": metrics.accuracy})
    return Message(RecordDict({"metrics": record}), reply_to=message)
