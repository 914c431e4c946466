"""The class lists of data sets that everybody knows, so that nobody has to type them."""

from __future__ import annotations

from common.config import DataSettings, SettingsError

_DIGITS = tuple("0123456789")

KNOWN: dict[str, tuple[str, ...]] = {
    "demo": _DIGITS,
    "Imagenette": (
        "tench", "English springer", "cassette player", "chain saw", "church",
        "French horn", "garbage truck", "gas pump", "golf ball", "parachute",
    ),
    "CIFAR10": ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"),
    "CIFAR100": tuple(f"{index}" for index in range(100)),
    "FashionMNIST": (
        "T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot",
    ),
    "SVHN": _DIGITS,
}  # fmt: skip


def agreed_classes(data: DataSettings) -> tuple[str, ...]:
    """Return the class list all sites share: the configured one, or the known one of a public data set."""
    if data.classes:
        return data.classes
    if data.table is not None:
        return data.table.classes
    known = KNOWN.get(data.name if data.source == "torchvision" else data.source)
    if known is None:
        raise SettingsError(
            f"data.classes is empty: sites with data.source = {data.source!r} must agree on the class list; "
            'write it into the configuration, for example data.classes = ["benign", "malignant"]'
        )
    return known
